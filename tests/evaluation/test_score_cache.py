"""The cache of scores: no pass is computed twice, keys never collide, and an interruption loses little."""

from __future__ import annotations

import itertools
import json
import math
import struct
from dataclasses import replace
from pathlib import Path
from threading import local
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import apac
from apac.classify.scores import Scores
from apac.distributed.ranks.group import Group
from apac.evaluation import score_cache
from apac.evaluation.fixed import evaluate
from apac.evaluation.score_cache import SUMS, ScoreCache
from apac.randomness import generator
from threaded_ranks import on_threads

U = apac.Homography(std=0.2)
IMAGES = 5


class Counting(nn.Module):
    """A linear network that counts its images, except a blank one that only tells the number of classes.

    No engine prepares float64, so every image is counted.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(36, 3, generator=generator(seed, "test", 1), dtype=torch.float64))
        self.seen = 0
        self.limit = math.inf  # images before a KeyboardInterrupt

    def forward(self, images: Tensor) -> Tensor:
        count = int(images.flatten(1).any(dim=1).sum())
        if self.seen + count > self.limit:
            raise KeyboardInterrupt
        self.seen += count
        return images.flatten(1) @ self.matrix


@pytest.fixture
def network() -> Counting:
    return Counting()


@pytest.fixture
def images(random: torch.Generator) -> Tensor:
    return torch.rand(IMAGES, 1, 6, 6, generator=random, dtype=torch.float64)


@pytest.fixture
def save_every_4_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save the sums every four passes of all images."""
    monkeypatch.setattr(score_cache, "SAVE_EVERY", 4 * IMAGES + 1)


def assert_same(one: Scores, other: Scores) -> None:
    assert one.passes == other.passes
    for name in SUMS:
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=1e-9, atol=1e-9)


def names(folder: Path) -> list[str]:
    """Return the names of the files without their key."""
    return sorted(path.name.partition("-")[2] for path in folder.iterdir())


def oracle(network: Counting, images: Tensor, passes: int, seed: int = 0) -> np.ndarray:
    """Log-probabilities, (passes, N, K)."""
    matrix, table = network.matrix.detach().numpy(), []
    for m in range(passes):
        parameters = U.sample(1, (1, 6, 6), generator=generator(seed, "pass", m))
        logits = U.apply(images, parameters).flatten(1).numpy() @ matrix
        table.append(logits - np.log(np.exp(logits).sum(1, keepdims=True)))
    return np.stack(table)


@pytest.mark.parametrize("cached", [False, True])
def test_the_sums_are_those_of_single_passes(network, images, cached, save_every_4_passes, tmp_path):
    cache = ScoreCache(apac.Classifier(network, U, seed=3), images, 11, tmp_path if cached else None)
    table = oracle(network, images, 11, seed=3)
    for passes in (3, 11):
        scores = cache.get(passes)
        assert scores.passes == passes
        for got, expected in (
            (scores.log_sum, table[:passes]),
            (scores.log_squares, table[:passes] ** 2),
            (scores.probability_sum, np.exp(table[:passes])),
            (scores.probability_squares, np.exp(table[:passes]) ** 2),
        ):
            np.testing.assert_allclose(got.numpy(), expected.sum(0), rtol=1e-9)


def test_without_a_folder_the_scores_are_those_of_the_classifier_and_nothing_is_written(
    network, images, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    classifier = apac.Classifier(network, U)
    scores, expected = ScoreCache(classifier, images, 8).get(8), classifier.score(images, 0, 8)
    assert scores.passes == expected.passes
    assert all(torch.equal(getattr(scores, name), getattr(expected, name)) for name in SUMS)
    assert not list(tmp_path.iterdir())


def test_cached_passes_are_not_computed_again(network, images, tmp_path):
    classifier = apac.Classifier(network, U)
    first = ScoreCache(classifier, images, 8, tmp_path).get(8)
    assert network.seen == 8 * IMAGES
    again = ScoreCache(classifier, images, 8, tmp_path).get(8)
    assert network.seen == 8 * IMAGES
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in SUMS)


@pytest.mark.parametrize("same_object", [True, False])
def test_32_passes_after_8_compute_24_more(network, images, tmp_path, same_object):
    classifier = apac.Classifier(network, U)
    cache = ScoreCache(classifier, images, 32, tmp_path)
    cache.get(8)
    scores = (cache if same_object else ScoreCache(classifier, images, 32, tmp_path)).get(32)
    assert network.seen == 32 * IMAGES
    assert_same(scores, classifier.score(images, 0, 32))
    assert names(tmp_path) == ["32.safetensors", "8.safetensors"]
    network.seen = 0
    assert ScoreCache(classifier, images, 8, tmp_path).get(8).passes == 8  # the smaller sum is still there
    assert network.seen == 0


def test_another_rule_or_device_batch_has_the_same_key(network, images, tmp_path):
    classifier = apac.Classifier(network, U, apac.FixedPasses(8))
    ScoreCache(classifier, images, 8, tmp_path).get(8)
    for other in (replace(classifier, rule=apac.Certified()), replace(classifier, device_batch=2)):
        ScoreCache(other, images, 8, tmp_path).get(8)
    assert network.seen == 8 * IMAGES


class OtherForward(Counting):
    """The same weights with another `forward`."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.tanh())


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda c, x: (replace(c, seed=1), x), id="seed"),
        pytest.param(lambda c, x: (replace(c, network=Counting(1)), x), id="weights"),
        pytest.param(
            lambda c, x: (replace(c, network=OtherForward()), x),
            id="forward",
        ),
        pytest.param(lambda c, x: (c, x.flip(0)), id="order of the images"),
        pytest.param(lambda c, x: (c, x + 1e-6), id="pixels"),
        pytest.param(lambda c, x: (c, x[:4]), id="fewer images"),
        pytest.param(lambda c, x: (c, x.mT.contiguous()), id="transposed images"),
        pytest.param(lambda c, x: (c, x.view(-1, 1, 4, 9)), id="shape of the same pixels"),
        pytest.param(lambda c, x: (replace(c, deformation=apac.Homography(std=0.1)), x), id="strength of deformation"),
        pytest.param(lambda c, x: (replace(c, deformation=apac.Compose()), x), id="kind of deformation"),
        pytest.param(lambda c, x: (replace(c, independent=True), x), id="independent parameters"),
    ],
)
def test_any_change_of_the_inputs_changes_the_key(network, images, tmp_path, change):
    classifier = apac.Classifier(network, U)
    expected = ScoreCache(classifier, images, 4, tmp_path).get(4)
    other, changed = change(classifier, images)
    other.network.seen = 0
    scores = ScoreCache(other, changed, 4, tmp_path).get(4)
    assert other.network.seen == 4 * len(changed)
    assert_same(scores, other.score(changed, 0, 4))
    assert len(list(tmp_path.iterdir())) == 2
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), expected)


def test_further_training_changes_the_key(network, images, tmp_path):
    classifier = apac.Classifier(network, U)
    ScoreCache(classifier, images, 4, tmp_path).get(4)
    with torch.no_grad():
        network.matrix[0, 0] += 1e-3
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), classifier.score(images, 0, 4))


def test_weights_of_any_shape_are_part_of_the_key(images, tmp_path):
    """Batch normalization has a counter without dimensions."""
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(36, 3)).double()
    classifier = apac.Classifier(network, U)
    for scale in (1.0, 2.0):
        network[0].running_var.fill_(scale)  # type: ignore[operator]
        assert_same(ScoreCache(classifier, images, 2, tmp_path).get(2), classifier.score(images, 0, 2))
    assert len(list(tmp_path.iterdir())) == 2


def test_weights_of_any_type_are_accepted(images, tmp_path):
    network = nn.Sequential(nn.Flatten(), nn.Linear(36, 3)).bfloat16()
    assert ScoreCache(apac.Classifier(network, U), images, 2, tmp_path).get(2).passes == 2


@pytest.mark.parametrize("by", ["progress", "network"])
def test_an_interrupted_sum_continues_from_the_last_saved_step(network, images, tmp_path, save_every_4_passes, by):
    classifier = apac.Classifier(network, U)

    def interrupt(task, done, total, note=""):
        if by == "progress" and done == 10:
            raise KeyboardInterrupt

    if by == "network":
        network.limit = 10 * IMAGES
    with pytest.raises(KeyboardInterrupt):
        ScoreCache(classifier, images, 18, tmp_path).get(18, progress=interrupt)
    assert names(tmp_path) == ["18.partial.safetensors"]  # 8 passes, saved in two steps
    network.seen, network.limit = 0, math.inf

    reported: list[tuple[int, int]] = []
    scores = ScoreCache(classifier, images, 18, tmp_path).get(
        18, progress=lambda task, done, total, note="": reported.append((done, total))
    )
    assert network.seen == (18 - 8) * IMAGES
    assert reported == [(done, 18) for done in range(9, 19)]
    assert names(tmp_path) == ["18.safetensors"]
    assert_same(scores, classifier.score(images, 0, 18))
    np.testing.assert_allclose(scores.log_sum.numpy(), oracle(network, images, 18).sum(0), rtol=1e-9)


def test_a_sum_interrupted_before_the_first_saved_step_starts_again(network, images, tmp_path, save_every_4_passes):
    classifier = apac.Classifier(network, U)
    network.limit = 3 * IMAGES
    with pytest.raises(KeyboardInterrupt):
        ScoreCache(classifier, images, 8, tmp_path).get(8)
    network.limit = math.inf
    assert_same(ScoreCache(classifier, images, 8, tmp_path).get(8), classifier.score(images, 0, 8))


def test_a_smaller_sum_and_a_partial_larger_one_are_both_reused(network, images, tmp_path, save_every_4_passes):
    classifier = apac.Classifier(network, U)
    network.limit = 14 * IMAGES
    cache = ScoreCache(classifier, images, 20, tmp_path)
    cache.get(2)
    with pytest.raises(KeyboardInterrupt):
        cache.get(20)
    assert names(tmp_path) == ["2.safetensors", "20.partial.safetensors"]  # 14 passes
    network.seen, network.limit = 0, math.inf
    again = ScoreCache(classifier, images, 20, tmp_path)
    assert_same(again.get(2), classifier.score(images, 0, 2))
    network.seen = 0
    assert_same(again.get(20), classifier.score(images, 0, 20))
    assert network.seen == (20 - 14 + 20) * IMAGES  # the rest of the sum, and the scores that it is compared with


def test_a_partial_file_that_was_left_beside_the_complete_one_is_removed(network, images, tmp_path):
    classifier = apac.Classifier(network, U)
    ScoreCache(classifier, images, 8, tmp_path).get(8)
    (complete,) = tmp_path.iterdir()
    complete.with_suffix(".partial.safetensors").write_bytes(b"cut")
    network.seen = 0
    ScoreCache(classifier, images, 8, tmp_path).get(8)
    assert network.seen == 0
    assert names(tmp_path) == ["8.safetensors"]


def test_a_partial_sum_serves_a_smaller_one_and_continues(network, images, tmp_path, save_every_4_passes):
    classifier = apac.Classifier(network, U)
    network.limit = 10 * IMAGES
    with pytest.raises(KeyboardInterrupt):
        ScoreCache(classifier, images, 18, tmp_path).get(18)
    assert_same(ScoreCache(classifier, images, 8, tmp_path).get(8), apac.Classifier(Counting(), U).score(images, 0, 8))
    assert names(tmp_path) == ["18.partial.safetensors", "8.safetensors"]
    network.seen, network.limit = 0, math.inf
    ScoreCache(classifier, images, 18, tmp_path).get(18)
    assert network.seen == (18 - 8) * IMAGES
    assert names(tmp_path) == ["18.safetensors", "8.safetensors"]


@pytest.mark.parametrize("size", [0, 60, -8], ids="{} bytes".format)
def test_a_truncated_file_is_recomputed(network, images, tmp_path, size):
    classifier = apac.Classifier(network, U)
    first = ScoreCache(classifier, images, 4, tmp_path).get(4)
    (path,) = tmp_path.iterdir()
    complete = path.read_bytes()
    path.write_bytes(complete[:size])
    network.seen = 0
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), first)
    assert network.seen == 4 * IMAGES
    assert len(path.read_bytes()) == pytest.approx(len(complete), abs=64)  # the seconds have other digits
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), first)
    assert network.seen == 4 * IMAGES


@pytest.mark.parametrize("classes", [4, 100_000_000])
def test_scores_of_other_classes_are_recomputed_and_not_read(network, images, tmp_path, classes):
    classifier = apac.Classifier(network, U)
    first = ScoreCache(classifier, images, 4, tmp_path).get(4)
    (path,) = tmp_path.iterdir()
    size = IMAGES * classes * 8
    header = {"__metadata__": {"passes": "4", "seconds": "1"}} | {
        name: {"dtype": "F64", "shape": [IMAGES, classes], "data_offsets": [i * size, (i + 1) * size]}
        for i, name in enumerate(SUMS)
    }
    text = json.dumps(header).encode()
    with path.open("wb") as file:  # zeros that take no space; 16 GB of them would fail or last minutes
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + len(SUMS) * size)
    network.seen = 0
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), first)
    assert network.seen == 4 * IMAGES


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_sums_that_no_passes_have_are_recomputed(network, images, tmp_path, value):
    classifier = apac.Classifier(network, U)
    first = ScoreCache(classifier, images, 4, tmp_path).get(4)
    (path,) = tmp_path.iterdir()
    sums = load_file(path)
    for name in SUMS:
        sums[name][0, 0] = value
    save_file(sums, path, {"passes": "4", "seconds": "1"})
    network.seen = 0
    assert_same(ScoreCache(classifier, images, 4, tmp_path).get(4), first)
    assert network.seen == 4 * IMAGES


@pytest.mark.parametrize("seconds", ["1e400", "nan", "-1"])
def test_sums_that_took_an_impossible_time_are_recomputed(network, images, tmp_path, seconds):
    classifier = apac.Classifier(network, U)
    ScoreCache(classifier, images, 4, tmp_path).get(4)
    (path,) = tmp_path.iterdir()
    save_file(load_file(path), path, {"passes": "4", "seconds": seconds})
    cache = ScoreCache(classifier, images, 4, tmp_path)
    cache.get(4)
    assert math.isfinite(cache.seconds) and cache.seconds >= 0


def test_a_damaged_file_of_more_passes_does_not_hide_that_of_fewer(network, images, tmp_path):
    classifier = apac.Classifier(network, U)
    cache = ScoreCache(classifier, images, 8, tmp_path)
    cache.get(2), cache.get(8)
    (path,) = tmp_path.glob("*-8.safetensors")
    path.write_bytes(b"no safetensors")
    network.seen = 0
    ScoreCache(classifier, images, 8, tmp_path).get(8)
    assert network.seen == 6 * IMAGES


def test_seconds_include_those_of_cached_passes(network, images, tmp_path, save_every_4_passes, monkeypatch):
    clock = itertools.count(0.0, 0.5)  # seconds from one call to the next
    monkeypatch.setattr(score_cache, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    classifier = apac.Classifier(network, U)
    cache = ScoreCache(classifier, images, 20, tmp_path)
    cache.get(8)
    assert cache.seconds == 2 * 0.5  # two steps of four passes
    network.limit = 14 * IMAGES
    with pytest.raises(KeyboardInterrupt):
        cache.get(20)
    network.limit = math.inf
    again = ScoreCache(classifier, images, 20, tmp_path)
    assert again.seconds == 0
    again.get(20)
    assert again.seconds == 5 * 0.5  # without those lost by the interruption
    loaded = ScoreCache(classifier, images, 20, tmp_path)
    loaded.get(8)
    assert loaded.seconds == 2 * 0.5
    loaded.get(20)
    assert loaded.seconds == 5 * 0.5


def test_only_the_scores_of_a_module_can_be_cached(network, images, tmp_path):
    classifier = apac.Classifier(lambda batch: network(batch), U)
    with pytest.raises(apac.InputError, match=r"cache needs a network that is an nn\.Module") as error:
        ScoreCache(classifier, images, 4, tmp_path)
    assert len(str(error.value).splitlines()) == 1
    assert not list(tmp_path.iterdir())
    assert_same(ScoreCache(classifier, images, 4).get(4), apac.Classifier(network, U).score(images, 0, 4))


@pytest.mark.parametrize("cached", [False, True])
def test_no_images_have_empty_sums(network, tmp_path, cached):
    nothing = torch.zeros(0, 1, 6, 6, dtype=torch.float64)
    scores = ScoreCache(apac.Classifier(network, U), nothing, 4, tmp_path if cached else None).get(4)
    assert scores.passes == 4
    assert scores.log_sum.shape == (0, 3)


def test_with_many_images_every_pass_is_saved(network, images, tmp_path, monkeypatch):
    monkeypatch.setattr(score_cache, "SAVE_EVERY", 1)
    classifier = apac.Classifier(network, U)
    network.limit = 3 * IMAGES
    with pytest.raises(KeyboardInterrupt):
        ScoreCache(classifier, images, 5, tmp_path).get(5)
    network.seen, network.limit = 0, math.inf
    ScoreCache(classifier, images, 5, tmp_path).get(5)
    assert network.seen == 2 * IMAGES


def test_an_evaluation_with_a_cache_has_the_same_result_and_computes_its_passes_once(network, images, tmp_path):
    labels = torch.arange(IMAGES) % 3
    classifier = apac.Classifier(network, U)
    plain = evaluate(classifier, images, labels, (1, 4, 16))
    network.seen = 0
    cached = [evaluate(classifier, images, labels, (1, 4, 16), cache=tmp_path) for _ in range(2)]
    assert network.seen == (1 + 16 + 1) * IMAGES  # the plain prediction twice
    for result in cached:
        assert result.to_json() | {"seconds": 0} == plain.to_json() | {"seconds": 0}
    assert cached[0].seconds == cached[1].seconds > 0  # of the first call, which computed the passes
    assert names(tmp_path) == ["1.safetensors", "16.safetensors", "4.safetensors"]


def test_a_network_that_fails_in_the_passes_of_one_rank_is_reported_on_all_of_them(images, monkeypatch):
    groups = local()
    monkeypatch.setattr(Group, "current", staticmethod(lambda: groups.own))

    def evaluate_on(group: Group) -> str:
        groups.own = group

        def network(batch: Tensor) -> Tensor:
            return torch.full((len(batch), 2), math.nan if group.rank else 0.0)

        with pytest.raises(apac.InputError) as refused:
            ScoreCache(apac.Classifier(network, U), images, 32).get(32)
        return str(refused.value)

    first, second = on_threads(2, evaluate_on)
    assert first == second
    assert first.startswith("on rank 1 of 2, the network returned NaN or an infinite logit for image 0 in pass 16; ")
