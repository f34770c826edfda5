"""Run a network fast for inference on the CPU.

In trials with the paper's networks, on two cores with AVX-512, ONNX Runtime was the fastest of torch, its compiler,
ONNX Runtime and OpenVINO where channels fill its blocks of 16, and for matrices in batches of about 100; OpenVINO where
channels do not. The choice depends on the network alone, so that an answer does not change with the machine's load.
"""

from __future__ import annotations

import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

Network = Callable[[Tensor], Tensor]

WORTH = 1e11  # multiplications and additions, about a second: a smaller job is done before a network is prepared
TOLERANCE = 1e-4  # of a logit; a preparation that changes one by more is not used
BLOCK = 16  # channels that ONNX Runtime's convolutions take at a time
_not_prepared: WeakSet[nn.Module] = WeakSet()  # networks that only torch can run, as was said once


@dataclass(frozen=True)
class Prepared:
    """A network with the weights of one moment. Several threads may call it; each uses one core."""

    run: Network

    def __call__(self, images: Tensor) -> Tensor:
        return self.run(images)


def _as_it_is(said: Tensor) -> Tensor:
    return said


def prepare(
    network: Network, images: Tensor, passes: int, threads: int, *, logits: Callable[[Tensor], Tensor] = _as_it_is
) -> Network:
    """The network, ready for so many passes of images like these (at least one) by so many threads: the same logits,
    to 1e-4. `logits` makes them of what the network returns.

    What is not a float32 module on the CPU comes back as it is, and so does every network for a small job, or one that
    could not be prepared before.
    """
    if not isinstance(network, nn.Module) or not _suits(network) or network in _not_prepared:
        return network
    examples = images[:64].to("cpu", torch.float32).expand(max(2, min(len(images), 64)), -1, -1, -1).clone()
    if passes * operations(network, examples) < WORTH * len(examples):
        return network
    try:
        with evaluating(network):
            prepared = _prepare(network, examples, threads)
            # of another number of images too, lest the number is fixed
            change = max(_change(logits, prepared, network, some) for some in (examples, examples[:1]))
    except Exception as error:  # exporters refuse networks, and packages are missing, in many ways
        reason = str(error.__cause__ or error).strip().partition("\n")[0] or type(error).__name__
        return _eager(network, reason)
    return prepared if change <= TOLERANCE else _eager(network, f"it would change a logit by {change:.1g}")


def _change(logits: Callable[[Tensor], Tensor], ours: Network, theirs: Network, images: Tensor) -> float:
    # each with images of its own: a network may work in place
    return float((logits(ours(images.clone())) - logits(theirs(images.clone()))).abs().max())


def serves_threads(network: Network) -> bool:
    """Whether several threads may call the network at once: modules on the CPU, unless they have hooks, which may do
    anything, or run by a setting of the calling thread; not any callable."""
    if not isinstance(network, nn.Module):
        return isinstance(network, Prepared)
    on_cpu = all(t.device.type == "cpu" for t in [*network.parameters(), *network.buffers()])
    hooked = any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())
    return on_cpu and not hooked and not torch.is_autocast_enabled("cpu")


def _suits(network: nn.Module) -> bool:
    single = {parameter.dtype for parameter in network.parameters()} == {torch.float32}
    return single and serves_threads(network)


def operations(network: nn.Module, images: Tensor) -> int:
    """Multiplications and additions of one pass of these images, in convolutions and matrix products."""
    counts = []

    def count(layer: nn.Module, given: Any, result: Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        counts.append(2 * weight[0].numel() * result.numel())

    layers = [part for part in network.modules() if isinstance(part, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with evaluating(network):
            network(images.clone())
    finally:
        for hook in hooks:
            hook.remove()
    return sum(counts)


def _prepare(network: nn.Module, examples: Tensor, threads: int) -> Network:
    channels = [part.out_channels for part in network.modules() if isinstance(part, nn.Conv2d)]
    blocked = all(count % BLOCK == 0 for count in channels)
    model = _export(network, examples)
    return Prepared(_by_onnxruntime(model) if blocked else _by_openvino(model, threads))


def _export(network: nn.Module, examples: Tensor) -> bytes:
    model = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # A network that asks for the values of a tensor may run otherwise for other images.
        warnings.simplefilter("error", torch.jit.TracerWarning)  # type: ignore[attr-defined]
        axes = {"images": {0: "n"}}
        torch.onnx.export(
            network,
            (examples,),
            model,  # type: ignore[arg-type]
            input_names=["images"],
            dynamic_axes=axes,
            dynamo=False,
        )
    return model.getvalue()


def _by_onnxruntime(model: bytes) -> Network:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": _array(images)})[0])


def _by_openvino(model: bytes, threads: int) -> Network:
    import openvino

    settings = {"INFERENCE_PRECISION_HINT": "f32", "NUM_STREAMS": threads, "INFERENCE_NUM_THREADS": threads}
    compiled = openvino.compile_model(openvino.convert_model(io.BytesIO(model)), "CPU", settings)
    own = threading.local()  # a request serves one thread

    def run(images: Tensor) -> Tensor:
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        result: Any = own.request.infer([_array(images)], share_inputs=True)
        return torch.from_numpy(result[0])

    return run


def _array(images: Tensor) -> Any:
    return images.detach().to("cpu", torch.float32).contiguous().numpy()


def _eager(network: nn.Module, reason: str) -> Network:
    _not_prepared.add(network)
    logging.getLogger("apac").warning("running the network by torch alone, which is slower: %s.", reason.rstrip("."))
    return network


@contextmanager
def evaluating(network: Network) -> Iterator[None]:
    """No gradients, and every part of a module in evaluation mode for the while; of another callable, the modules that
    it calls."""
    training: list[nn.Module] = []

    def evaluate(module: nn.Module, *given: Any) -> None:
        if threading.get_ident() == here:
            now = [part for part in module.modules() if part.training]
            training.extend(now)
            for part in now:
                part.training = False

    here = threading.get_ident()
    with ExitStack() as stack:
        if isinstance(network, nn.Module):
            evaluate(network)
        else:
            stack.callback(register_module_forward_pre_hook(evaluate).remove)
        try:
            with torch.no_grad():
                yield
        finally:
            for part in training:
                part.training = True
