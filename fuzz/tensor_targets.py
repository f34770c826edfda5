"""Files of tensors: weights, checkpoints, cached scores and decisions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch

import apac
from apac.classify.scores import Scores
from apac.evaluation.certified import decisions_csv, evaluate_certified
from apac.evaluation.score_cache import SUMS, ScoreCache, cache_key
from apac.runs.initial_weights import load_weights
from apac.runs.storage import read_tensors, write_tensors
from apac.training import checkpoint as checkpoints
from apac.training.loop import init_state
from fuzz.mutate import mutate_tensors
from fuzz.run_targets import small_run
from fuzz.target import IMAGES, SHAPE, Target, in_file, network


def weights(folder: Path) -> Target:
    run = small_run(folder)

    def load() -> None:
        apac.load(run, network()).classifier(apac.FixedPasses(2)).decide(IMAGES)

    return in_file(run / "weights.safetensors", mutate_tensors, load)


def initial_weights(folder: Path) -> Target:
    """Weights for apac train: of the same network, and of a run of a network for other classes."""
    path = folder / "weights.safetensors"
    seeds = []
    for prefix, classes in (("", 3), ("network.", 5)):
        layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, classes))
        write_tensors(path, {f"{prefix}{name}": tensor for name, tensor in layers.state_dict().items()}, {})
        seeds.append(path.read_bytes())

    def load(data: bytes) -> None:
        path.write_bytes(data)
        layers = network()
        load_weights(layers, path)
        assert all(parameter.isfinite().all() for parameter in layers.parameters())

    return Target(tuple(seeds), load, mutate_tensors)


def checkpoint(folder: Path) -> Target:
    path = folder / "checkpoint.safetensors"
    config = apac.TrainConfig(epochs=3).resolve(None, None)
    write_tensors(path, *checkpoints.to_tensors(init_state(network(), config), config))

    def load() -> None:
        fresh = init_state(network(), config)
        check = partial(checkpoints.check_shapes, fresh.network, config)
        checkpoints.restore(fresh, config, SHAPE, *read_tensors(path, "start again", check))
        assert isinstance(fresh.step, int)

    return in_file(path, mutate_tensors, load)


def scores(folder: Path) -> Target:
    classifier = apac.Classifier(network(), apac.Jitter(), apac.FixedPasses(4))
    path = folder / f"{cache_key(classifier, IMAGES)}-2.safetensors"
    sums = Scores.zero(2, 3).add(torch.full((2, 2, 3), -1.0))
    metadata = {"passes": "2", "seconds": "1.5"}
    write_tensors(path, {name: getattr(sums, name) for name in SUMS}, metadata)
    seed = path.read_bytes()

    def load(data: bytes) -> None:
        for other in folder.iterdir():
            other.unlink()
        path.write_bytes(data)
        assert ScoreCache(classifier, IMAGES, 4, folder).get(4).log_sum.shape == (2, 3)

    return Target((seed,), load, mutate_tensors)


def certified_decision(folder: Path) -> Target:
    """The decisions of the certified rule, which `apac reproduce` stores."""
    path = folder / "certified.safetensors"
    classifier = apac.Classifier(network(), apac.Jitter(), apac.Certified(limit=32))
    labels = torch.tensor([0, 2])
    evaluate_certified(classifier, IMAGES, labels, cache=path)
    seed = path.read_bytes()

    def load(data: bytes) -> None:
        path.write_bytes(data)
        result = evaluate_certified(classifier, IMAGES, labels, cache=path)
        assert decisions_csv(result.decision, labels).count("\n") == 3

    return Target((seed,), load, mutate_tensors)
