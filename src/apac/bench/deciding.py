"""Passes per second when deciding 10,000 images, compared with the network alone and the peak of the machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from apac import models
from apac.bench import peers
from apac.bench.gemm_peak import matrix_product
from apac.bench.race import Entry, race
from apac.bench.residual import resnet18
from apac.classify.classifier import Classifier
from apac.classify.rules.base import PASSES_PER_UPDATE
from apac.classify.rules.certified import Certified
from apac.deform import presets
from apac.deform.cpu import torch_path
from apac.inference import engine
from apac.inference.workers import worker_pool
from apac.progress import Progress
from apac.randomness import generator
from apac.runs.presets import PRESETS

IMAGES = 10_000
FEW = 1_000  # for slow contestants; their speed does not depend on the number of images
PASSES = 4
LARGE = (3, 224, 224)
LARGE_IMAGES, LARGE_PASSES = 32, 4
BATCH_SIZES = (100, 500)  # of the plain loops
# No image is certified within this limit, so that the scheduler is measured with all images undecided.
CERTIFIED = Certified(error=1e-12, limit=2 * PASSES_PER_UPDATE)
FIXED_RULE, CERTIFIED_RULE, NETWORK = "apac, fixed passes", "apac, certified rule", "network alone"
PEAK = "peak: matrix product"


def measure(rounds: int, progress: Progress) -> list[Entry]:
    small = [entry for name in models.BUILDERS for entry in _measure(name, rounds, progress)]
    return [*small, *_measure_large(rounds, progress)]


def _measure_large(rounds: int, progress: Progress) -> list[Entry]:
    images, count = torch.rand(LARGE_IMAGES, *LARGE), LARGE_PASSES * LARGE_IMAGES
    classifier = Classifier(resnet18().eval(), presets.photos()).prepared(images, LARGE_PASSES)

    def fixed() -> float:
        classifier.score(images, 0, LARGE_PASSES)
        return count

    alone = _network_alone(classifier, images, LARGE_PASSES)
    group = f"passes per second, ResNet-18, photos preset, {' × '.join(map(str, LARGE))}"
    with torch.no_grad():
        speed = race(group, {FIXED_RULE: fixed, NETWORK: alone}, rounds, progress)
    return [
        Entry(group, name, value, "passes/s", FIXED_RULE, speed[FIXED_RULE] / value) for name, value in speed.items()
    ]


def _network_alone(classifier: Classifier, images: Tensor, passes: int) -> Callable[[], float]:
    """Return a contestant that runs the prepared network on images that are not deformed."""
    batches = images.split(classifier.device_batch)

    def work() -> float:
        with worker_pool() as pool:
            list(pool.map(classifier.network, batches * passes))
        return passes * len(images)

    return work


def _measure(network_name: str, rounds: int, progress: Progress) -> list[Entry]:
    preset = network_name.partition("-")[0]
    images, u = torch.rand(IMAGES, *peers.SHAPES[preset]), PRESETS[preset]()
    network = models.build(network_name, generator=generator(0, "bench", 0)).eval()
    classifier = Classifier(network, u).prepared(images, 1_000)
    few = images[:FEW]

    def fixed() -> float:
        classifier.score(images, 0, PASSES)
        return PASSES * IMAGES

    def certified() -> float:
        return int(replace(classifier, rule=CERTIFIED).decide(few).passes.sum())

    network_alone = _network_alone(classifier, images, PASSES)
    plain = peers.plain_network(network_name).eval()

    def deform(batch: Tensor) -> Tensor:
        return u.apply(batch, u.sample(1, peers.SHAPES[preset], generator=generator(0, "bench", 0)))

    def eager(batch: int) -> float:
        with torch_path():
            return _loop(plain, deform, few, batch)

    contestants: dict[str, Callable[[], float]] = {FIXED_RULE: fixed, CERTIFIED_RULE: certified, NETWORK: network_alone}
    for batch in BATCH_SIZES:
        suffix = f"batches of {batch}"
        contestants[f"plain loop, {suffix}"] = partial(eager, batch)
        if peers.installed("kornia"):
            chain = peers.kornia(preset, same_on_batch=True)
            contestants[f"kornia, plain loop, {suffix}"] = partial(_loop, plain, chain, few, batch)
        if peers.installed("ttach"):
            wrapper, views = peers.ttach_wrapper(plain)
            contestants[f"ttach, {views} fixed views, {suffix}"] = partial(_views, views, wrapper, few, batch)
    group = f"passes per second, {network_name}"
    product = matrix_product()
    with torch.no_grad():
        speed = race(group, contestants | {PEAK: product}, rounds, progress)
    peak = speed.pop(PEAK)
    entries = [
        Entry(group, name, value, "passes/s", FIXED_RULE, speed[FIXED_RULE] / value) for name, value in speed.items()
    ]
    reached = speed[NETWORK] * engine.operations(network, images[:1])
    return [
        *entries,
        Entry(group, PEAK, peak / 1e9, "GFLOPS"),
        Entry(group, NETWORK, reached / 1e9, "GFLOPS"),
        Entry(group, NETWORK, reached / peak, "of the peak"),
    ]


def _loop(network: nn.Module, deform: Callable[[Tensor], Tensor], images: Tensor, batch: int) -> float:
    """Run one pass in a plain loop over batches."""
    torch.cat([network(deform(part)).log_softmax(dim=1) for part in images.split(batch)])
    return len(images)


def _views(views: int, wrapper: nn.Module, images: Tensor, batch: int) -> float:
    return views * _loop(wrapper, lambda part: part, images, batch)
