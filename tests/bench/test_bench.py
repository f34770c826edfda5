"""`apac bench` with small sizes and without other libraries."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from apac import models
from apac.bench import deciding, deforming, gemm_peak, peers, pipelines, residual, result, serving, training
from apac.bench.race import Entry, race
from apac.cli import app
from apac.errors import InputError
from apac.inference import engine
from apac.progress import no_progress
from apac.randomness import generator


@pytest.fixture
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small sizes, and none of the other libraries."""
    for module in (deforming, deciding):
        monkeypatch.setattr(module, "IMAGES", 8)
        monkeypatch.setattr(module, "LARGE_IMAGES", 2)
    monkeypatch.setattr(deforming, "LARGE", 40)
    monkeypatch.setattr(deforming, "CALLS", (1, 3))
    monkeypatch.setattr(deforming, "IMAGES_PER_TURN", 3)
    monkeypatch.setattr(deciding, "LARGE", (3, 32, 32))
    monkeypatch.setattr(deciding, "resnet18", lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)))
    monkeypatch.setattr(training, "STEPS", dict.fromkeys(models.BUILDERS, 1))
    monkeypatch.setattr(gemm_peak, "SIZE", 16)
    monkeypatch.setattr(peers, "installed", lambda *names: False)


def test_the_best_turn_of_each_counts(monkeypatch):
    clock = iter([0.0, 3.0, 10.0, 11.0, 20.0, 22.0])  # turns of 3, 1 and 2 seconds after the warm-up
    monkeypatch.setattr("apac.bench.race.time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert race("group", {"one": lambda: 7.0}, 3, no_progress) == {"one": 7.0}


@pytest.mark.parametrize("part", ["deform", "decide", "train"])
def test_every_benchmark_measures_apac_and_the_ratios(part, small_sizes):
    entries = result.bench([part], rounds=1)
    assert all(entry.value > 0 for entry in entries)
    by_name = {(entry.group, entry.name): entry.value for entry in entries if entry.ratio is not None}
    for entry in entries:
        if entry.ratio is not None:
            assert entry.ratio == pytest.approx(by_name[entry.group, entry.against] / entry.value)
    groups = {entry.group for entry in entries}
    # three presets at two sizes and in two calls; the networks, and one at 224 pixels
    assert len(groups) == {"deform": 12, "decide": 5, "train": 4}[part]
    assert [table.title for table in result.tables(entries)] == list(dict.fromkeys(entry.group for entry in entries))


def test_pipelines_of_other_libraries_are_compared_with_loops_over_batches(monkeypatch):
    monkeypatch.setattr(pipelines, "SIZES", {8: (3, (1, 2))})
    entries = result.bench(["pipelines"], rounds=1)
    assert len(entries) == 3 * sum(map(peers.installed, ("kornia", "torchvision", "albumentations")))
    assert all(entry.value > 0 and entry.against == "apac" for entry in entries)
    # the loop by hand transforms in the same way: a batch in, a batch out
    for make in pipelines.PIPELINES.values():
        assert make()[1](torch.rand(2, 3, 8, 8)).shape == (2, 3, 8, 8)


def test_the_command_prints_a_table_and_writes_the_machine_and_the_results(small_sizes, tmp_path):
    out = tmp_path / "bench.json"
    done = CliRunner().invoke(app, ["bench", "--only", "deform", "--rounds", "1", "--out", str(out)])
    assert done.exit_code == 0
    assert "deformations per second, mnist preset" in done.output
    payload = json.loads(out.read_text())
    assert {"date", "commit", "processor", "cores", "torch threads", "python", "versions"} <= set(payload["machine"])
    assert payload["machine"]["versions"]["torch"] == torch.__version__
    assert {entry["unit"] for entry in payload["entries"]} == {"images/s"}


@pytest.mark.slow
def test_a_server_is_measured_under_load(monkeypatch):
    monkeypatch.setattr(serving, "IMAGES", 32)
    monkeypatch.setattr(serving, "LATENCIES", 4)
    entries = result.bench(["serve"], rounds=1)
    assert [entry.name for entry in entries] == ["classifier.decide", "apac serve"] * 4
    assert {entry.unit for entry in entries} == {"images/s", "ms"}


def test_unknown_benchmarks_are_rejected():
    with pytest.raises(InputError, match="there is no benchmark 'speed'; choose among deform, decide"):
        result.bench(["speed"])
    with pytest.raises(InputError, match="at least 1, got 0"):
        result.bench(["deform"], rounds=0)


def test_the_residual_network_has_the_parameters_of_resnet18():
    network = residual.resnet18(1000).eval()
    assert sum(parameter.numel() for parameter in network.parameters()) == 11_689_512  # He et al., as in torchvision
    assert network(torch.zeros(2, 3, 64, 64)).shape == (2, 1000)


@pytest.mark.parametrize("name", models.BUILDERS)
def test_the_plain_network_computes_the_same_logits(name):
    plain = peers.plain_network(name)
    network = models.build(name, generator=generator(0, "bench", 0))
    images = torch.rand(3, *peers.SHAPES[name.partition("-")[0]])
    # float32 sums of up to 4,096 products in another memory format
    torch.testing.assert_close(plain(images), network(images), atol=1e-4, rtol=1e-5)
    kinds = [type(layer) for layer in plain]
    assert all(kinds[i + 1] is nn.ReLU for i, kind in enumerate(kinds) if kind is nn.Conv2d)


def test_operations_are_counted_as_by_hand():
    by_hand = {
        "mnist-cnn": 2 * (25 * 20 * 24**2 + 25 * 20 * 40 * 8**2 + 640 * 150 + 150 * 10),
        "mnist-mlp": 2 * (784 * 2500 + 2500 * 2000 + 2000 * 10),
        "cifar10-cnn": 2 * (27 * 64 * 30**2 + 576 * 128 * 8**2 + 1152 * 256 * 2**2 + 256 * 128 + 128 * 10),
        "cifar10-mlp": 2 * (3072 * 4096 + 4096 * 3072 + 3072 * 10),
    }
    for name, count in by_hand.items():
        network = models.build(name, generator=generator(0, "bench", 0))
        assert engine.operations(network, torch.zeros(1, *peers.SHAPES[name.partition("-")[0]])) == count


def test_a_table_shows_values_units_and_ratios():
    table = result.tables([Entry("speed", "apac", 1234.5, "images/s", "apac", 1.0), Entry("speed", "x", 0.5, "s")])[0]
    assert table.columns == ("", "best", "", "apac / this")
    assert table.rows == (("apac", "1,234", "images/s", "1.00"), ("x", "0.50", "s", ""))
