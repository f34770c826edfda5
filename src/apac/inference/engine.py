"""Fast inference on the CPU.

torch, torch.compile, ONNX Runtime and OpenVINO were compared on the paper's networks, on two cores with AVX-512. ONNX
Runtime is the fastest if the number of channels is a multiple of 16, and for matrix products in batches of about 100;
OpenVINO is the fastest otherwise. The choice depends only on the network, so that results do not change with the load
of the machine.
"""

from __future__ import annotations

import io
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from apac.errors import ApacError, require
from apac.inference.locks import ProcessLock
from apac.inference.modules import modules_of
from apac.inference.onnx_export import to_onnx
from apac.inference.workers import cores

Network = Callable[[Tensor], Tensor]

MIN_OPERATIONS = 1e11  # about one second; preparing a network for fewer operations does not pay off
TOLERANCE = 1e-4  # in logits; a prepared network that differs by more is not used
BLOCK = 16  # channels that ONNX Runtime's convolutions process at a time
_one_conversion = ProcessLock()
_not_prepared: WeakSet[nn.Module] = WeakSet()  # networks that only torch can run; each is logged once


@dataclass(frozen=True)
class Prepared:
    """A network with frozen weights. It is thread-safe; each call uses one core."""

    run: Network

    def __call__(self, images: Tensor) -> Tensor:
        return self.run(images)


def _identity(outputs: Tensor) -> Tensor:
    return outputs


def prepare(
    network: Network, images: Tensor, passes: int, threads: int, *, logits: Callable[[Tensor], Tensor] = _identity
) -> Network:
    """Prepare a network for `passes` passes over images of this shape, called from `threads` threads.

    The prepared network returns the same logits to within 1e-4; `logits` converts the outputs of the network to
    logits. `images` must not be empty. The network is returned unchanged if it is not a float32 module on the CPU, if
    the job is small, or if an earlier preparation failed.
    """
    if not isinstance(network, nn.Module) or not _is_supported(network) or network in _not_prepared:
        return network
    if passes * _max_operations(network, images) < MIN_OPERATIONS:  # a bound that needs no slow import
        return network
    examples = images[:64].to("cpu", torch.float32).expand(max(2, min(len(images), 64)), -1, -1, -1).clone()
    if passes * operations(network, examples) < MIN_OPERATIONS * len(examples):
        return network
    try:
        with evaluating(network):
            prepared = _prepare(network, examples, threads)
            # two batch sizes, in case the export has fixed the batch size
            change = max(_max_change(logits, prepared, network, batch) for batch in (examples, examples[:1]))
    except Exception as error:  # exporters and missing packages raise many kinds of exceptions
        cause = error if isinstance(error, ApacError) else error.__cause__ or error
        reason = str(cause).strip().partition("\n")[0] or type(error).__name__
        return _run_by_torch(network, reason)
    return prepared if change <= TOLERANCE else _run_by_torch(network, f"it would change a logit by {change:.1g}")


def _max_change(logits: Callable[[Tensor], Tensor], prepared: Network, network: Network, images: Tensor) -> float:
    # copies, because a network may modify its input in place
    return float((logits(prepared(images.clone())) - logits(network(images.clone()))).abs().max())


def is_thread_safe(network: Network) -> bool:
    """Return whether several threads may call the network concurrently.

    True for prepared networks and for modules on the CPU, unless they have hooks, which may not be thread-safe, or
    autocast is enabled, which is a setting of the calling thread.
    """
    if not isinstance(network, nn.Module):
        return isinstance(network, Prepared)
    on_cpu = all(t.device.type == "cpu" for t in [*network.parameters(), *network.buffers()])
    hooked = any(module._forward_hooks or module._forward_pre_hooks for module in network.modules())
    return on_cpu and not hooked and not torch.is_autocast_enabled("cpu")


def _is_supported(network: nn.Module) -> bool:
    float32 = {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    return float32 and is_thread_safe(network)


def _max_operations(network: nn.Module, images: Tensor) -> int:
    """Return an upper bound for one image, if layers use each weight at most once per pixel, as convolutions do."""
    return 2 * sum(parameter.numel() for parameter in network.parameters()) * images.shape[-2:].numel()


class _NoModuleTracker:
    """Replaces the tracker of FlopCounterMode, whose global module hooks would see the modules of other threads."""

    parents = ("Global",)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None: ...


def operations(network: nn.Module, images: Tensor) -> int:
    """Count the multiplications and additions of one pass in convolutions and matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    counter.mod_tracker = _NoModuleTracker()  # type: ignore[assignment]
    with evaluating(network), counter:
        network(images.clone())
    return int(counter.get_total_flops())


def _prepare(network: nn.Module, examples: Tensor, threads: int) -> Network:
    channels = [module.out_channels for module in network.modules() if isinstance(module, nn.Conv2d)]
    blocked = all(count % BLOCK == 0 for count in channels)
    require("onnx", extra="fast")  # torch exports with it
    model = to_onnx(network, examples)
    return Prepared(_by_onnxruntime(model) if blocked else _by_openvino(model, threads))


def _by_onnxruntime(model: bytes) -> Network:
    onnxruntime = require("onnxruntime", extra="fast")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": _array(images)})[0])


def _by_openvino(model: bytes, threads: int) -> Network:
    openvino = require("openvino", extra="fast")
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": threads,
        "INFERENCE_NUM_THREADS": threads,
        # Processes that share the machine, such as ranks, would all be pinned to its first cores.
        "ENABLE_CPU_PINNING": threads >= cores(),
    }
    with _restored_root_logger():
        converted = openvino.convert_model(io.BytesIO(model))
    compiled = openvino.compile_model(converted, "CPU", settings)
    local = threading.local()  # a request serves one thread

    def run(images: Tensor) -> Tensor:
        if not hasattr(local, "request"):
            local.request = compiled.create_infer_request()
        result: Any = local.request.infer([_array(images)], share_inputs=True)
        return torch.from_numpy(result[0])

    return run


@contextmanager
def _restored_root_logger() -> Iterator[None]:
    """Restore the root logger, which OpenVINO silences while it converts, and for good if two threads convert."""
    root = logging.getLogger()
    with _one_conversion:
        level, filters, handlers = root.level, root.filters[:], root.handlers[:]
        try:
            yield
        finally:
            root.setLevel(level)
            root.filters, root.handlers = filters, handlers


def _array(images: Tensor) -> Any:
    return images.detach().to("cpu", torch.float32).contiguous().numpy()


def _run_by_torch(network: nn.Module, reason: str) -> Network:
    _not_prepared.add(network)
    logging.getLogger("apac").warning("running the network by torch alone, which is slower: %s.", reason.rstrip("."))
    return network


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """Disable gradients and put the modules of a network into evaluation mode during the block.

    For a callable that is not a module, these are the modules that `modules_of` finds.
    """
    training = [part for module in modules_of(network) for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True
