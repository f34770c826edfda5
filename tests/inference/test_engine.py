"""A prepared network returns the logits of the network, or it is not used."""

from __future__ import annotations

import copy
import logging
import sys
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import apac
from apac import models
from apac.evaluation.fixed import evaluate
from apac.inference import engine
from apac.randomness import generator
from kinds import PER_CLASS

SHAPES = {
    "mnist-cnn": (1, 28, 28),
    "mnist-mlp": (1, 28, 28),
    "cifar10-cnn": (3, 32, 32),
    "cifar10-mlp": (3, 32, 32),
}
MANY = 10**9


def build(name: str) -> nn.Module:
    return models.build(name, generator=generator(0, "test", 0)).eval()


def small(*parts: nn.Module, convolution: bool = False) -> nn.Sequential:
    """Return a network that runs in ONNX Runtime, or in OpenVINO with a convolution of 3 channels."""
    random = generator(2, "test", 0)
    first = [nn.Conv2d(1, 3, 5, stride=4), nn.Flatten(), nn.Linear(108, 16)] if convolution else []
    network = nn.Sequential(*(first or [nn.Flatten(), nn.Linear(784, 16)]), nn.ReLU(), *parts, nn.Linear(16, 10))
    with torch.no_grad():
        for p in network.parameters():
            p.copy_(torch.randn(p.shape, generator=random) / max(p.shape) ** 0.5)
    return network.eval()


ENGINES = {"onnxruntime": small(), "openvino": small(convolution=True)}
READY: dict[nn.Module, engine.Network] = {}
each_engine = pytest.mark.parametrize("network", ENGINES.values(), ids=ENGINES)


def images_of(n: int, shape: tuple[int, int, int] = (1, 28, 28), seed: int = 1) -> Tensor:
    return torch.rand(n, *shape, generator=generator(seed, "test", n))


def ready(network: nn.Module) -> engine.Network:
    """One of ENGINES, prepared once for all tests."""
    if network not in READY:
        READY[network] = engine.prepare(network, images_of(3), MANY, 2)
        assert isinstance(READY[network], engine.Prepared)
    return READY[network]


@torch.no_grad()
def same_logits(prepared: Callable[[Tensor], Tensor], network: nn.Module, images: Tensor) -> None:
    got = prepared(images)
    assert got.shape == (len(images), 10)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, network(images), atol=1e-4, rtol=0)


@pytest.fixture(autouse=True)
def _no_network_has_failed_before() -> None:
    engine._not_prepared.clear()


def only_line(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = caplog.messages
    assert "\n" not in line
    assert line.startswith("running the network by torch alone, which is slower: ")
    return line


@pytest.mark.parametrize("name", SHAPES)
def test_a_network_of_the_paper_is_prepared_with_the_same_logits_for_any_batch(name, caplog):
    network = build(name)
    prepared = engine.prepare(network, images_of(3, SHAPES[name]), MANY, 2)
    assert isinstance(prepared, engine.Prepared)
    for n in (1, 2, 65):
        same_logits(prepared, network, images_of(n, SHAPES[name]))
    assert not caplog.messages


@pytest.mark.parametrize("n", [1])  # the tests above prepare with three
@each_engine
def test_a_network_may_be_prepared_with_any_number_of_images(network, n):
    same_logits(engine.prepare(network, images_of(n), MANY, 2), network, images_of(7))


@each_engine
def test_images_for_a_prepared_network_may_have_any_memory_layout(network):
    whole = images_of(6, (1, 28, 56))
    same_logits(ready(network), network, whole[..., :28].contiguous(memory_format=torch.channels_last))
    same_logits(ready(network), network, whole[::2, :, :, ::2])  # strided
    same_logits(ready(network), network, whole[:1, :, :, 28:].expand(5, -1, -1, -1))


@each_engine
def test_the_logits_of_one_call_are_not_overwritten_by_the_next(network):
    prepared = ready(network)
    first = prepared(images_of(4))
    kept = first.clone()
    prepared(images_of(4, seed=9))
    assert torch.equal(first, kept)


def test_a_network_is_not_prepared_for_a_small_job(monkeypatch, caplog):
    network = build("mnist-cnn")
    monkeypatch.setattr(engine, "_prepare", lambda *a: pytest.fail("it was prepared"))
    monkeypatch.setattr(engine, "operations", lambda *a: pytest.fail("operations were counted"))
    assert engine.prepare(network, images_of(4), 10, 2) is network
    assert not caplog.messages


def test_the_size_of_a_job_is_its_passes_times_the_operations_of_one(monkeypatch):
    one = 2 * (784 * 16 + 16 * 10)
    for passes, prepared in ((99, False), (100, True)):
        monkeypatch.setattr(engine, "MIN_OPERATIONS", 100 * one)
        assert isinstance(engine.prepare(ENGINES["onnxruntime"], images_of(5), passes, 2), engine.Prepared) == prepared


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.functional.relu,
        lambda: lambda images: images.flatten(1)[:, :10],
        lambda: build("mnist-cnn").double(),
        lambda: build("mnist-cnn").bfloat16(),
        lambda: nn.Flatten(),
        lambda: engine.Prepared(lambda images: images),
    ],
    ids=["function", "lambda", "float64", "bfloat16", "without weights", "prepared"],
)
def test_a_network_that_is_not_a_float32_module_is_returned_unchanged(make, caplog):
    network = make()
    assert engine.prepare(network, images_of(2), MANY, 2) is network
    assert not caplog.messages


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_a_module_with_a_hook_is_returned_unchanged(register, caplog):
    network = small()
    handle = getattr(network[1], register)(lambda *a: None)
    assert engine.prepare(network, images_of(2), MANY, 2) is network
    handle.remove()
    assert isinstance(engine.prepare(network, images_of(2), MANY, 2), engine.Prepared)
    assert not caplog.messages


class Part(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x if x.sum() > 0 else -x, ""),
        (lambda x: x * float(x.mean()), ""),
        (lambda x: x if x.shape[0] > 1 else 2 * x, ""),
        (lambda x: x + torch.from_numpy(x.detach().numpy()).sign(), ""),
        (lambda x: x + torch.randn_like(x), "it would change a logit by"),
        (lambda x: nn.functional.dropout(x, 0.9, training=True), ""),
        (lambda x: torch.linalg.matrix_exp(x[:, :, None] * x[:, None])[:, 0], ""),
    ],
    ids=["if", "float", "batch size", "numpy", "noise", "dropout always on", "unknown to ONNX"],
)
def test_a_network_that_cannot_be_prepared_is_returned_unchanged_and_one_line_is_logged(function, reason, caplog):
    network = small(Part(function))
    with caplog.at_level(logging.DEBUG, logger="apac"):
        assert engine.prepare(network, images_of(3), MANY, 2) is network
    assert reason in only_line(caplog)


def test_a_prepared_network_with_other_logits_is_not_used(monkeypatch, caplog):
    network = small()
    prepare = engine._prepare
    monkeypatch.setattr(engine, "_prepare", lambda *a: lambda images: prepare(*a)(images) + 2e-4)
    assert engine.prepare(network, images_of(3), MANY, 2) is network
    assert "it would change a logit by 0.0002" in only_line(caplog)


def test_prepared_networks_are_compared_by_logits(monkeypatch, caplog):
    network = small(nn.Softmax(dim=1))
    prepare = engine._prepare
    monkeypatch.setattr(engine, "_prepare", lambda *a: lambda images: prepare(*a)(images) + 5e-5)
    assert (
        engine.prepare(network, images_of(3), MANY, 2) is not network
    )  # the probabilities differ by less than the tolerance
    assert engine.prepare(network, images_of(3), MANY, 2, logits=torch.log) is network
    assert "it would change a logit by" in only_line(caplog)


def test_a_prepared_network_that_returns_nan_is_not_used(monkeypatch, caplog):
    network = small()
    monkeypatch.setattr(engine, "_prepare", lambda *a: lambda images: torch.full((len(images), 10), torch.nan))
    assert engine.prepare(network, images_of(3), MANY, 2) is network
    only_line(caplog)


@pytest.mark.parametrize(
    ("package", "engine_of_it"),
    [("onnx", "onnxruntime"), ("onnx", "openvino"), ("onnxruntime", "onnxruntime"), ("openvino", "openvino")],
)
def test_without_a_package_the_network_is_returned_unchanged_and_one_line_names_the_package(
    package, engine_of_it, monkeypatch, caplog
):
    network = ENGINES[engine_of_it]
    monkeypatch.setitem(sys.modules, package, None)
    assert engine.prepare(network, images_of(3), MANY, 2) is network
    assert package in only_line(caplog)


def test_dropout_and_batch_norm_are_prepared_in_evaluation_mode_and_modes_are_restored(caplog):
    network = small(nn.Dropout(0.7), nn.BatchNorm1d(16))
    with torch.no_grad():
        network.get_buffer("4.running_mean").fill_(0.3)
        network.get_buffer("4.running_var").fill_(2.0)
    deciding = copy.deepcopy(network).eval()
    network.train()
    network[0].eval()
    modes = [part.training for part in network.modules()]
    prepared = engine.prepare(network, images_of(5), MANY, 2)
    assert isinstance(prepared, engine.Prepared)
    same_logits(prepared, deciding, images_of(9))
    assert [part.training for part in network.modules()] == modes
    assert torch.equal(network.get_buffer("4.running_mean"), deciding.get_buffer("4.running_mean"))
    assert not caplog.messages


def test_modes_are_restored_after_a_failed_preparation():
    network = small(Part(lambda x: x if x.sum() > 0 else -x), nn.Dropout())
    network.train()
    network[2].eval()
    modes = [part.training for part in network.modules()]
    assert engine.prepare(network, images_of(2), MANY, 2) is network
    assert [part.training for part in network.modules()] == modes


def test_the_root_logger_stays_as_it_is_when_a_conversion_fails_or_several_threads_convert():
    root = logging.getLogger()
    before = root.level, root.filters[:], root.handlers[:]
    with pytest.raises(Exception, match="import of ONNX model"):
        engine._by_openvino(b"no model", 1)
    assert (root.level, root.filters, root.handlers) == before
    network = models.build("mnist-cnn", generator=generator(0, "test", 0)).eval()
    model = engine.to_onnx(network, torch.zeros(2, 1, 28, 28))
    threads = [threading.Thread(target=engine._by_openvino, args=(model, 1)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (root.level, root.filters, root.handlers) == before


def test_weights_keep_their_gradients_and_requires_grad():
    network = small()
    network(images_of(2)).sum().backward()
    before = [p.grad.clone() for p in network.parameters()]
    engine.prepare(network, images_of(2), MANY, 2)
    assert all(p.requires_grad for p in network.parameters())
    assert all(torch.equal(p.grad, g) for p, g in zip(network.parameters(), before, strict=True))


@each_engine
def test_two_threads_may_call_a_prepared_network_concurrently(network):
    prepared = ready(network)
    batches = [[images_of(5 + i % 3, seed=10 * thread + i) for i in range(40)] for thread in range(2)]
    together = threading.Barrier(2)
    logits_of: dict[int, list[Tensor]] = {}

    def run(thread: int) -> None:
        together.wait(timeout=10)
        logits_of[thread] = [prepared(batch) for batch in batches[thread]]

    threads = [threading.Thread(target=run, args=(thread,)) for thread in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(2):
        for batch, logits in zip(batches[number], logits_of[number], strict=True):
            with torch.no_grad():
                torch.testing.assert_close(logits, network(batch), atol=1e-4, rtol=0)


@each_engine
def test_threads_may_share_modules_on_the_cpu_and_prepared_networks_but_no_other_callable(network):
    assert engine.is_thread_safe(network)
    assert engine.is_thread_safe(ready(network))
    assert not engine.is_thread_safe(lambda images: images)
    assert not engine.is_thread_safe(nn.Linear(2, 2, device="meta"))


def prepared_count(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Return a list that collects the networks prepared from now on."""
    networks: list[nn.Module] = []
    prepare = engine._prepare
    monkeypatch.setattr(engine, "_prepare", lambda network, *rest: networks.append(network) or prepare(network, *rest))
    return networks


@pytest.mark.parametrize(
    ("u", "threads"),
    [(apac.presets.mnist(), 1), (PER_CLASS, 2)],
    ids=["indistinctive", "distinctive, two threads"],
)
@each_engine
def test_a_prepared_network_gives_the_decision_of_the_network(network, threads, u, digits, monkeypatch):
    classifier = apac.Classifier(network, u, apac.FixedPasses(5), device_batch=16)
    eager = classifier.decide(digits[0][:40])
    used = prepared_count(monkeypatch)
    monkeypatch.setattr(engine, "MIN_OPERATIONS", 0)
    torch.set_num_threads(threads)
    try:
        prepared = classifier.decide(digits[0][:40])
    finally:
        torch.set_num_threads(1)
    assert len(used) == 1
    torch.testing.assert_close(prepared.log_scores, eager.log_scores, atol=1e-4, rtol=0)
    clear = eager.margins > 1e-3  # more than the logits may differ by
    assert torch.equal(prepared.labels[clear], eager.labels[clear])


@each_engine
@pytest.mark.parametrize("dtype", [torch.float64], ids=str)
def test_a_prepared_network_decides_images_of_every_float_type(dtype, network, digits, monkeypatch):
    images = digits[0][:6].to(dtype)
    classifier = apac.Classifier(network, apac.presets.mnist(), apac.FixedPasses(3))
    eager = classifier.decide(images)
    monkeypatch.setattr(engine, "MIN_OPERATIONS", 0)
    torch.testing.assert_close(classifier.decide(images).log_scores, eager.log_scores, atol=1e-4, rtol=0)


@pytest.mark.parametrize("minimum", [0, engine.MIN_OPERATIONS], ids=["prepared", "unchanged"])
@pytest.mark.parametrize("u", [apac.Compose(), apac.presets.mnist()], ids=["plain", "deformed"])
def test_images_that_require_gradients_can_be_decided(u, minimum, digits, monkeypatch):
    images = digits[0][:6]
    classifier = apac.Classifier(ENGINES["onnxruntime"], u, apac.FixedPasses(2))
    expected = classifier.decide(images).log_scores
    monkeypatch.setattr(engine, "MIN_OPERATIONS", minimum)
    got = classifier.decide(images.clone().requires_grad_()).log_scores
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=0)


def test_changed_weights_change_the_next_decision(digits, monkeypatch):
    monkeypatch.setattr(engine, "MIN_OPERATIONS", 0)
    used = prepared_count(monkeypatch)
    network = small()
    classifier = apac.Classifier(network, apac.presets.mnist(), apac.FixedPasses(2))
    before = classifier.decide(digits[0][:8])
    with torch.no_grad():
        network.get_parameter("3.bias")[3] += 50.0
    after = classifier.decide(digits[0][:8])
    assert len(used) == 2
    assert not (before.labels == 3).all()
    assert (after.labels == 3).all()


def test_an_evaluation_prepares_its_network_once(digits, monkeypatch):
    images, labels = digits[0][:30], digits[1][:30]
    classifier = apac.Classifier(small(), apac.presets.mnist())
    eager = evaluate(classifier, images, labels, passes=(1, 2, 4))
    used = prepared_count(monkeypatch)
    monkeypatch.setattr(engine, "MIN_OPERATIONS", 0)
    prepared = evaluate(classifier, images, labels, passes=(1, 2, 4))
    assert len(used) == 1
    torch.testing.assert_close(prepared.scores.log_mean, eager.scores.log_mean, atol=1e-4, rtol=0)


def test_the_warning_is_logged_once_per_network(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "onnx", None)
    network = models.build("mnist-mlp", generator=generator(0, "test", 0))
    for _ in range(3):
        assert engine.prepare(network, torch.rand(3, 1, 28, 28), 10**9, 2) is network
    assert len(caplog.messages) == 1
    assert "pip install 'augmented-pattern-classification[fast]'" in caplog.text
