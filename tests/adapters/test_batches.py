"""Images that share a draw are transformed by one call of the library, and give the same results as alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import apac
from apac.adapters.transforms.seeded import SeededParameters
from apac.inference.workers import torch_threads
from apac.randomness import generator

SHAPE = (3, 16, 16)
N = 5
# Libraries compute coordinates by batched matrix products, whose rounding depends on the number of images.
ROUNDING = 1e-5


class Flip(nn.Module):
    """A flip of one image or a batch, which records the shapes that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: list[tuple[int, ...]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.shapes.append(tuple(images.shape))
        return images.flip(-1) if torch.rand(()) < 0.5 else images


def kornia(**options) -> nn.Module:
    augmentation = pytest.importorskip("kornia.augmentation")
    flip, color = augmentation.RandomHorizontalFlip(), augmentation.ColorJiggle(0.3, 0.3, p=0.5)
    inner = augmentation.ImageSequential(augmentation.RandomAffine(20.0, (0.1, 0.1)), color)
    return augmentation.AugmentationSequential(inner, flip, data_keys=["input"], **options)


def torchvision():
    from torchvision.transforms import v2

    return v2.Compose([v2.RandomAffine(20), v2.RandomApply([v2.ColorJitter(0.3)]), v2.RandomHorizontalFlip()])


def albumentations():
    al = pytest.importorskip("albumentations")
    return al.Compose([al.OneOf([al.Affine(rotate=(-20, 20)), al.ElasticTransform()], p=0.8), al.HorizontalFlip()])


MAKERS = {
    "kornia": lambda: apac.from_kornia(kornia()),
    "torchvision": lambda: apac.from_torchvision(torchvision()),
    "albumentations": lambda: apac.from_albumentations(albumentations()),
}


@pytest.fixture
def images(random) -> Tensor:
    return torch.rand(N, *SHAPE, generator=random)


def seeds(*values: int) -> SeededParameters:
    return SeededParameters(torch.tensor(values))


def test_images_that_share_a_draw_share_a_call(images):
    flip = Flip()
    u = apac.from_torchvision(flip)
    u.apply(images, seeds(0))  # tries the transform first
    flip.shapes.clear()
    u.apply(images, seeds(1))
    u.apply(images.repeat(2, 1, 1, 1), seeds(*[1] * N, *[2] * N))  # two passes
    assert flip.shapes == [(N, *SHAPE)] * 3
    flip.shapes.clear()
    u.apply(images, seeds(*range(N)))
    assert flip.shapes == [(1, *SHAPE)] * N


@pytest.mark.parametrize("name", MAKERS)
def test_an_image_alone_equals_the_image_in_a_batch_for_every_seed(name, images, caplog):
    u = MAKERS[name]()
    for seed in range(10):
        together = u.apply(images, seeds(seed))
        torch.testing.assert_close(together[2:3], u.apply(images[2:3], seeds(seed)), atol=ROUNDING, rtol=0)
        same = u.apply(images[:1].repeat(3, 1, 1, 1), seeds(seed))
        torch.testing.assert_close(same, same[:1].expand_as(same), atol=ROUNDING, rtol=0)
    mixed = u.apply(images, seeds(3, 3, 7, 3, 3))
    torch.testing.assert_close(mixed[2:3], u.apply(images[2:3], seeds(7)), atol=ROUNDING, rtol=0)
    assert not caplog.records  # in batches


def test_the_callers_module_keeps_its_settings(images):
    module = kornia()
    apac.from_kornia(module).apply(images, seeds(0))
    assert not any(getattr(part, "same_on_batch", False) for part in module.modules())


@pytest.mark.parametrize("same_on_batch", [None, True])
def test_in_training_kornia_draws_for_each_image_in_one_call(same_on_batch, images):
    u = apac.from_kornia(kornia(same_on_batch=same_on_batch))
    same = images[:1].expand(8, -1, -1, -1)
    virtual, again = (u(same, generator=generator(3, "test", 1)) for _ in range(2))
    assert torch.equal(virtual, again)
    assert not torch.equal(u(same, generator=generator(3, "test", 2)), virtual)
    assert len({tuple(image.flatten().tolist()) for image in virtual}) > 4


@pytest.mark.parametrize("name", MAKERS)
def test_training_depends_on_the_generator_alone_also_in_a_compose(name, images):
    u = apac.Compose(apac.Flip(), apac.Homography(), MAKERS[name](), apac.Jitter(0.01))
    results = []
    for _ in range(2):
        torch.rand(3)
        results.append(u(images, generator=generator(3, "test", 1)))
    assert torch.equal(*results)
    assert results[0].shape == images.shape


def test_noise_for_each_pixel_of_a_batch_runs_image_by_image_with_one_notice(images, caplog):
    from torchvision.transforms import v2

    u = apac.from_torchvision(v2.Compose([v2.RandomHorizontalFlip(), v2.GaussianNoise()]))
    virtual = u.apply(images, seeds(4))
    u.apply(images[..., :12], seeds(4))
    for i in range(N):
        assert torch.equal(u.apply(images[i : i + 1], seeds(4))[0], virtual[i])
    assert [record.getMessage() for record in caplog.records] == [
        "from_torchvision(Compose) runs image by image, which is slow: in a batch, an image is transformed in another "
        "way than alone."
    ]


def test_a_transform_that_mixes_images_runs_image_by_image(images, caplog):
    augmentation = pytest.importorskip("kornia.augmentation")
    u = apac.from_kornia(augmentation.RandomMixUpV2(p=1.0, data_keys=["input"]))
    torch.testing.assert_close(u(images, generator=generator(0, "test", 0)), images)
    assert "runs image by image" in caplog.text


def test_the_parts_of_an_albumentations_compose_draw_independently(images):
    al = pytest.importorskip("albumentations")
    u = apac.from_albumentations(al.Compose([al.HorizontalFlip(), al.VerticalFlip()]))
    image = images[:1]
    flipped = []
    for seed in range(200):
        virtual = u.apply(image, seeds(seed))
        found = [(h, v) for h in (0, 1) for v in (0, 1) if torch.equal(virtual, undo(image, h, v))]
        flipped.append(found[0])
    # 200 pairs of independent coins: a correlation above 0.3 has a probability of 1e-5
    assert abs(np.corrcoef(np.array(flipped).T)[0, 1]) < 0.3


def undo(image: Tensor, horizontal: int, vertical: int) -> Tensor:
    image = image.flip(-1) if horizontal else image
    return image.flip(-2) if vertical else image


@pytest.mark.parametrize("name", MAKERS)
def test_the_dtype_and_the_device_of_images_survive(name, images):
    u = MAKERS[name]()
    for virtual in (
        u.apply(images.double(), seeds(1)),
        u(images.double(), generator=generator(0, "test", 0)),
        u.preprocess(images.double()),
    ):
        assert (virtual.dtype, virtual.device) == (torch.float64, images.device)


@pytest.mark.parametrize("name", MAKERS)
def test_decisions_do_not_depend_on_the_number_of_threads(name, images):
    u = MAKERS[name]()
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 14 * 14, 3))
    classifier = apac.Classifier(network, u, apac.FixedPasses(3), device_batch=2)
    results = []
    for count in (1, 2):
        with torch_threads(count):
            results.append(classifier.decide(images).log_scores)
            assert torch.get_num_threads() == count
    # float32 matrix products of different batch sizes differ by the rounding of a logit
    torch.testing.assert_close(*results, atol=1e-4, rtol=0)


def test_fewer_large_images_are_transformed_at_a_time_to_fit_the_cache():
    flip = Flip()
    u = apac.from_torchvision(flip)
    network = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2))
    large = torch.rand(40, 3, 224, 224)
    apac.Classifier(network, u, apac.FixedPasses(1)).decide(large[:1])
    flip.shapes.clear()
    apac.Classifier(network, u, apac.FixedPasses(1)).score(large, 0, 1)
    counts = [shape[0] for shape in flip.shapes]
    assert sum(counts) == 40 and 1 < max(counts) <= 20


def test_images_that_several_threads_transform_share_their_draw(random, monkeypatch):
    al, cv2 = pytest.importorskip("albumentations"), pytest.importorskip("cv2")
    monkeypatch.setattr("apac.adapters.transforms.albumentations.CHUNK_BYTES", (4 * 3 * 16 * 16 * 4,))  # four images
    monkeypatch.setattr("apac.adapters.transforms.albumentations.TIMED_ROUNDS", 1)
    monkeypatch.setattr(cv2, "getNumThreads", lambda: 3)
    u = apac.from_albumentations(al.Compose([al.HorizontalFlip(), al.VerticalFlip()]))
    many = torch.rand(23, *SHAPE, generator=random)
    for seed in range(8):
        virtual = u.apply(many, seeds(seed))
        torch.testing.assert_close(virtual, torch.cat([u.apply(image[None], seeds(seed)) for image in many]))


def test_an_albumentations_transform_with_global_draws_gives_all_images_the_same(random):
    al = pytest.importorskip("albumentations")

    class GlobalFlip(al.ImageOnlyTransform):  # type: ignore[name-defined]
        def apply(self, img, flip, **params):
            return np.ascontiguousarray(img[:, ::-1]) if flip else img

        def get_params(self):
            return {"flip": np.random.random() < 0.5}

    u = apac.from_albumentations(GlobalFlip(p=1.0))
    image = torch.rand(1, 3, 16, 16, generator=random)
    for seed in range(8):
        virtual = u.apply(image.expand(1500, -1, -1, -1), seeds(seed))  # more than a chunk
        assert torch.equal(virtual, virtual[:1].expand_as(virtual))
