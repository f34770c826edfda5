"""apac.train: networks, data, defaults, interruption."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import apac
from apac.data.base import Dataset
from apac.errors import Interrupted
from apac.randomness import generator
from apac.runs import split
from apac.runs import train as training
from apac.runs.presets import default_deformation
from own_networks import linear
from small_training import noisy_network, weights_of

SHAPE = (1, 6, 6)
CONFIG = apac.TrainConfig(epochs=2, batch_size=10, validation_fraction=0.25)


@pytest.fixture(scope="module")
def pair() -> tuple[torch.Tensor, torch.Tensor]:
    random = generator(0, "test", 0)
    return torch.randint(256, (40, *SHAPE), dtype=torch.uint8, generator=random), torch.arange(40) % 3


def test_a_module_is_trained_in_place_on_tensors(pair):
    network = linear(SHAPE, 3)
    before = weights_of(network)
    run = apac.train(network, pair, apac.Flip(), config=CONFIG)
    assert run.network is network
    assert not torch.equal(weights_of(network), before)
    assert not network.training
    assert run.classes == ("0", "1", "2")
    assert run.image_shape == SHAPE
    assert repr(run).startswith("Run(Sequential on data in memory, 3 classes, 2 epochs, validation error ")
    decision = run.classifier(apac.FixedPasses(4)).decide(run.normalize(pair[0]))
    assert decision.log_scores.shape == (40, 3)


def test_with_a_moving_average_the_module_gets_the_averaged_weights(pair):
    network = linear(SHAPE, 3)
    run = apac.train(network, pair, apac.Flip(), config=replace(CONFIG, ema_decay=0.9))
    assert run.network is network


def test_a_network_by_import_path_is_built_from_the_shape_and_the_classes_by_the_seed(pair):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    runs = [apac.train("own_networks:linear", pair, apac.Flip(), config=CONFIG) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert runs[0].network_name == "own_networks:linear"
    assert torch.equal(*(weights_of(run.network) for run in runs))
    other = apac.train("own_networks:linear", pair, apac.Flip(), config=replace(CONFIG, seed=1))
    assert not torch.equal(weights_of(other.network), weights_of(runs[0].network))


class Items(torch.utils.data.Dataset):
    """A map-style dataset of images of a given type."""

    def __init__(self, pair, form, classes=None):
        self.pair, self.form = pair, form
        if classes is not None:
            self.classes = classes

    def __len__(self):
        return len(self.pair[0])

    def __getitem__(self, index):
        return self.form(self.pair[0][index]), int(self.pair[1][index])


def picture(image):
    from PIL import Image

    return Image.fromarray(image[0].numpy())


@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.numpy(), lambda x: x[0].numpy(), picture])
def test_a_torch_dataset_gives_the_same_training_as_its_tensors(pair, form):
    runs = [
        apac.train("own_networks:linear", data, apac.Flip(), config=CONFIG) for data in (pair, Items(pair, form, "abc"))
    ]
    assert torch.equal(*(weights_of(run.network) for run in runs))
    named = apac.train("own_networks:linear", Items(pair, form, ["x", "y", "z"]), apac.Flip(), config=CONFIG)
    assert named.classes == ("x", "y", "z")


def test_numpy_arrays_give_the_same_training_as_tensors(pair):
    arrays = pair[0].numpy(), pair[1].numpy().astype(np.uint8)
    runs = [apac.train("own_networks:linear", data, apac.Flip(), config=CONFIG) for data in (pair, arrays)]
    assert torch.equal(*(weights_of(run.network) for run in runs))


def test_pixels_are_standardized_by_the_training_images_and_floats_are_unchanged(pair):
    run = apac.train("own_networks:linear", pair, apac.Flip(), config=replace(CONFIG, validation_fraction=0))
    pixels = run.normalization.standardize(run.normalize(pair[0]))
    assert float(pixels.mean()) == pytest.approx(0, abs=1e-5)
    assert float(pixels.std()) == pytest.approx(1, abs=1e-2)
    floats = torch.rand(40, *SHAPE, generator=generator(0, "test", 1))
    run = apac.train("own_networks:linear", (floats, pair[1]), apac.Flip(), config=CONFIG)
    assert torch.equal(run.normalize(floats), floats)
    assert run.normalization.kind == "none"
    with pytest.raises(apac.InputError, match="floating-point tensor"):
        run.normalize(pair[0])
    with pytest.raises(apac.InputError, match="trained on float images and cannot prepare image files"):
        run.classify(["x.png"])


@pytest.mark.parametrize(
    ("network", "data", "preset"),
    [
        ("mnist-cnn", "mnist-5k", "mnist"),
        (None, "cifar10", "cifar10"),
        ("cifar10-cnn", None, "cifar10"),
        (None, "/a", "photos" if hasattr(apac.presets, "photos") else "cifar10"),
    ],
)
def test_the_default_deformation_is_the_papers_for_the_data_or_the_network(network, data, preset):
    assert default_deformation(network, data) == getattr(apac.presets, preset)()


def test_the_papers_values_are_stored_where_none_are_given(small):
    run = apac.train("mnist-cnn", small, config=apac.TrainConfig(epochs=1, batch_size=200))
    assert (run.config.learning_rate, run.config.weight_decay) == (1 / 16, 5e-7)
    assert (run.data, run.normalization.kind, run.deformation) == ("mnist-5k", "scaling", apac.presets.mnist())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"network": "rnn"}, "there is no network 'rnn'; choose one of mnist-cnn"),
        ({"network": 5}, "there is no network 5"),
        ({"network": [3]}, r"there is no network \[3\]"),
        ({"network": "own_networks:failing"}, "own_networks:failing failed: ZeroDivisionError: oops"),
        ({"config": {"epochs": 1}}, "config must be a TrainConfig, got dict"),
        ({"network": nn.Flatten()}, "has no parameters to train"),
        ({"network": "no_such_module:f"}, "cannot be imported: No module named 'no_such_module'"),
        ({"network": "own_networks:missing"}, "has no function 'missing' that builds a network"),
        ({"network": "own networks:f"}, "given as package.module:function"),
        ({"network": "own_networks:nothing"}, "must return a torch.nn.Module, it returned NoneType"),
        ({"network": linear(SHAPE, 4)}, r"must return logits \(N, 3\), one for each class, got \(2, 4\)"),
        (
            {"network": linear(SHAPE, 3).double()},
            "weights of type torch.float64 and the images are torch.float32",
        ),
        ({"network": linear((1, 5, 5), 3)}, r"does not accept images of shape \(N, 1, 6, 6\)"),
        ({"network": "mnist-cnn"}, "the network mnist-cnn takes images of 28 × 28 pixels, got 6 × 6; resize them"),
        ({"network": "resnet"}, "the network resnet takes images of at least 16 × 16 pixels, got 6 × 6"),
        ({"network": "own_networks:too_many"}, r"must return logits \(N, 3\), one for each class, got \(2, 4\)"),
        ({"network": "own_networks:convolutional"}, r"does not accept images of shape \(N, 1, 6, 6\): RuntimeError"),
        ({"deformation": None}, "there is no default deformation for this network and data; pass one, or Compose"),
        ({"deformation": "flip"}, "must be a Deformation, got 'flip'"),
        (
            {"deformation": apac.PerClass({0: apac.Compose()}, default=apac.Flip(), classes=4)},
            "the PerClass has 4 classes, but the network or the data has 3",
        ),
        ({"config": apac.TrainConfig(tied=0.5)}, "tied=0.5 is supported for mnist-mlp and cifar10-mlp only"),
        ({"config": apac.TrainConfig(validation_fraction=0.999)}, "leaves none to train on"),
        ({"data": "svhn"}, "there is no data set 'svhn'; choose one of mnist-5k, mnist, cifar10, or a folder"),
        ({"data": ""}, "there is no data set ''"),
        ({"data": 5}, "data must be a name, a folder, a pair"),
        ({"data": (torch.zeros(4, 6, 6), torch.zeros(4, dtype=torch.long))}, r"uint8 or floating-point \(N, C, H, W\)"),
        ({"data": (torch.zeros(4, *SHAPE), torch.zeros(3, dtype=torch.long))}, "labels must be 4 integers"),
        ({"data": (torch.zeros(4, *SHAPE), torch.zeros(4))}, "labels must be 4 integers"),
        ({"data": (torch.zeros(4, *SHAPE), torch.zeros(4, dtype=torch.long))}, "for K ≥ 2 classes"),
        ({"data": (torch.zeros(4, *SHAPE) / 0, torch.arange(4) % 2)}, "must be finite"),
        ({"data": (torch.zeros(4, *SHAPE), torch.tensor([0, 0, 2, 2]))}, "there is no image of class '1'; add some"),
        ({"data": (torch.zeros(2, *SHAPE), ["a", "b"])}, "labels must be integers, one per image, got a list"),
        ({"data": {"a": 1}}, "item 0 of the dataset is not a pair"),
        ({"data": [1, 2, 3]}, "item 0 of the dataset is not a pair"),
    ],
)
def test_wrong_arguments_are_rejected_in_one_sentence(pair, change, sentence, tmp_path):
    arguments: dict[str, Any] = {"network": "own_networks:linear", "data": pair, "deformation": apac.Flip()} | change
    with pytest.raises(apac.InputError, match=sentence) as caught:
        apac.train(**arguments, out=tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_held_out_images_are_not_trained_on_and_normalization_is_fitted_without_them(monkeypatch):
    random = generator(0, "test", 0)
    images = torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8, generator=random)
    dataset = Dataset("cifar10", images, torch.arange(40) % 10, images[:0], torch.arange(0), tuple("abcdefghij"))
    fitted: list[torch.Tensor] = []
    used: dict[str, torch.Tensor] = {}

    def fit(images):
        fitted.append(images)
        return split.Scaling()

    def spy(state, config, deformation, images, labels, held_out, **options):
        used.update(train=images, held_out=held_out[0])
        state.history.append(apac.runs.run.EpochRecord(1, 0.1, 1.0, None, 0.0))

    monkeypatch.setattr(split, "fit_whitening", fit)
    monkeypatch.setattr(training, "run_epochs", spy)
    run = apac.train("cifar10-cnn", dataset, config=apac.TrainConfig(validation_fraction=0.25, epochs=1))
    assert run.classes == tuple("abcdefghij")
    assert [len(used["train"]), len(used["held_out"]), len(fitted[0])] == [30, 10, 30]
    assert torch.equal(fitted[0], used["train"])
    trained = {image.numpy().tobytes() for image in used["train"]}
    assert not any(image.numpy().tobytes() in trained for image in used["held_out"])


class StopAfter:
    """A `should_stop` that returns True from a given step on."""

    def __init__(self, step: int) -> None:
        self.left = step

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize("step", [1, 4, 6])
def test_a_training_that_is_stopped_and_resumed_equals_the_uninterrupted_one(pair, tmp_path, step):
    images = torch.nn.functional.interpolate(pair[0].float() / 255, size=28)
    arguments: dict[str, Any] = {"data": (images, pair[1]), "deformation": apac.presets.mnist()}
    config = replace(CONFIG, ema_decay=0.8)

    def ten_to_three() -> nn.Module:
        return nn.Sequential(noisy_network(), nn.Linear(10, 3, bias=False).requires_grad_(False))

    torch.manual_seed(0)
    networks = [ten_to_three() for _ in range(3)]
    for network in networks[1:]:
        network.load_state_dict(networks[0].state_dict())
    whole = apac.train(networks[0], **arguments, config=config)
    out = tmp_path / "run"
    with pytest.raises(Interrupted, match=r"stopped in epoch \d of 2; continue with resume=True"):
        apac.train(networks[1], **arguments, config=config, out=out, should_stop=StopAfter(step))
    assert sorted(path.name for path in out.iterdir()) == ["checkpoint.safetensors", "run.json"]
    with pytest.raises(apac.InputError, match="is not finished; continue it with resume=True"):
        apac.load(out)
    resumed = apac.train(networks[2], **arguments, config=config, out=out, resume=True)
    for name, tensor in whole.network.state_dict().items():
        assert torch.equal(tensor, resumed.network.state_dict()[name]), name
    assert sorted(path.name for path in out.iterdir()) == ["run.json", "weights.safetensors"]
    loaded = apac.load(out, network=ten_to_three())
    assert torch.equal(weights_of(loaded.network), weights_of(whole.network))


def test_without_a_folder_a_stopped_training_saves_nothing(pair, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Interrupted, match="stopped in epoch 1 of 2; without out= nothing is saved"):
        apac.train("own_networks:linear", pair, apac.Flip(), config=CONFIG, should_stop=StopAfter(2))
    apac.train("own_networks:linear", pair, apac.Flip(), config=CONFIG)
    assert not list(tmp_path.iterdir())


def test_a_training_is_not_resumed_on_other_images(pair, tmp_path):
    arguments: dict[str, Any] = {"network": "own_networks:linear", "deformation": apac.Flip(), "config": CONFIG}
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        apac.train(data=pair, **arguments, out=out, should_stop=StopAfter(1))
    with pytest.raises(apac.InputError, match=r"differ from those of the training in"):
        apac.train(data=(255 - pair[0], pair[1]), **arguments, out=out, resume=True)
    assert len(apac.train(data=pair, **arguments, out=out, resume=True).history) == 2


def test_a_complete_run_is_returned_only_for_the_images_it_was_trained_on(pair, tmp_path):
    arguments: dict[str, Any] = {"network": "own_networks:linear", "deformation": apac.Flip(), "config": CONFIG}
    out = tmp_path / "run"
    run = apac.train(data=pair, **arguments, out=out)
    for same in (pair, Items(pair, lambda x: x)):
        assert apac.train(data=same, **arguments, out=out, resume=True).history == run.history
    flipped = 255 - pair[0], pair[1]
    for other in (flipped, Items(flipped, lambda x: x), (pair[0], pair[1].flip(0))):
        with pytest.raises(apac.InputError, match=r"differ from those of the training in"):
            apac.train(data=other, **arguments, out=out, resume=True)


def test_a_list_of_images_and_labels_is_a_pair_and_of_two_items_is_a_dataset(pair):
    runs = [apac.train("own_networks:linear", data, apac.Flip(), config=CONFIG) for data in (pair, list(pair))]
    assert torch.equal(*(weights_of(run.network) for run in runs))
    two = [(pair[0][0], 0), (pair[0][1], 1)]
    config = replace(CONFIG, validation_fraction=0)
    assert len(apac.train("own_networks:linear", two, apac.Flip(), config=config).classes) == 2


@pytest.mark.parametrize("images", [torch.rand(40, *SHAPE, requires_grad=True), torch.rand(40, *SHAPE).bfloat16()])
def test_images_with_gradients_or_in_bfloat16_are_trained_on_and_stored(images, tmp_path):
    network = linear(SHAPE, 3).to(images.dtype)
    apac.train(network, (images, torch.arange(40) % 3), apac.Flip(), config=CONFIG, out=tmp_path / "run")
    assert apac.load(tmp_path / "run", network=network).classes == ("0", "1", "2")


def test_after_a_failure_a_module_is_in_its_previous_mode(pair):
    network = nn.Sequential(linear(SHAPE, 3).train(), nn.Dropout().eval())
    with pytest.raises(Interrupted):
        apac.train(network, pair, apac.Flip(), config=CONFIG, should_stop=StopAfter(1))
    assert network[0].training and not network[1].training
    with pytest.raises(apac.InputError, match="must return logits"):
        apac.train(network, (pair[0], pair[1] % 2), apac.Flip(), config=CONFIG)
    assert network[0].training and not network[1].training


def test_layers_that_share_a_weight_are_stored_and_loaded(tmp_path):
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(9, 9)
            self.second = nn.Linear(9, 9)
            self.second.weight = self.first.weight
            self.last = nn.Linear(9, 2)

        def forward(self, x):
            return self.last(self.second(self.first(x.flatten(1))))

    data = torch.rand(20, 1, 3, 3), torch.arange(20) % 2
    run = apac.train(Shared(), data, apac.Flip(), config=CONFIG, out=tmp_path / "run")
    loaded = apac.load(tmp_path / "run", network=Shared())
    assert torch.equal(weights_of(loaded.network), weights_of(run.network))
    assert loaded.network.second.weight is loaded.network.first.weight  # type: ignore[union-attr]


def test_a_deformation_that_cannot_be_stored_is_rejected_before_anything_is_written(pair, tmp_path):
    class Own(apac.Deformation):
        def sample(self, n, image_shape, *, generator):
            return None

        def apply(self, images, parameters):
            return images

    with pytest.raises(apac.InputError, match="must be a frozen dataclass"):
        apac.train("own_networks:linear", pair, Own(), config=CONFIG, out=tmp_path / "run")
    assert not Path(tmp_path / "run").exists()
