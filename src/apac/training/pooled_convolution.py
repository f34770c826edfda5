"""A convolution, max pooling and ReLU as one operation, whose gradients take a fraction of the time of torch's.

Max pooling with windows of 2 × 2 passes on the gradient of one in four outputs of the convolution, and ReLU that of
about half of these. torch multiplies all of them by the weights and the inputs, including the zeros; the kernels here
multiply only those that are not zero.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.module import _has_any_global_hook

from apac.deform.cpu import load_kernels
from apac.inference.workers import worker_pool

KERNELS = "apac.training.pooled_kernels"
WINDOW = 32  # weights; a window of at most this size is one vector of a kernel
ROW = 32  # weights; for larger windows whose rows are shorter than this, torch is faster
PART = 128  # images that are convolved together, so that `keep_freed_blocks` keeps the memory of their outputs


def forward(network: nn.Module, images: Tensor) -> Tensor:
    """Return network(images), whose gradients are the same up to rounding, for finite values.

    A Conv2d, a MaxPool2d and a ReLU that follow each other in an `nn.Sequential` on the CPU are computed as one
    operation in float32, if the convolution has neither padding nor dilation nor groups, its windows have a size for
    which the kernels are faster (`WINDOW`, `ROW`), and the pooling windows do not overlap. The result can be
    differentiated once.
    """
    if type(network) is not nn.Sequential or _is_changed(network) or _has_any_global_hook():
        return network(images)  # type: ignore[no-any-return]
    layers, x = list(network), images
    while layers:
        if _is_pooled_convolution(layers[:3], x):
            convolution, pooling, _ = layers[:3]
            x = _PooledConvolution.apply(x, convolution.weight, convolution.bias, convolution.stride, pooling)  # type: ignore[no-untyped-call]
            del layers[:3]
        else:
            x = layers.pop(0)(x)
    return x


def _is_pooled_convolution(layers: list[nn.Module], x: Tensor) -> bool:
    if [type(layer) for layer in layers] != [nn.Conv2d, nn.MaxPool2d, nn.ReLU] or any(map(_is_changed, layers)):
        return False
    convolution, pooling, _ = layers
    assert isinstance(convolution, nn.Conv2d) and isinstance(pooling, nn.MaxPool2d)
    weight = convolution.weight
    return (
        convolution.padding == (0, 0)
        and convolution.dilation == (1, 1)
        and convolution.groups == 1
        and pooling.stride == pooling.kernel_size
        and pooling.dilation == 1
        and not pooling.return_indices
        and x.ndim == 4
        and len(x) > 0
        and x.is_cpu
        and x.dtype == weight.dtype == torch.float32
        and not torch.is_autocast_enabled("cpu")
        and torch.is_grad_enabled()
        and weight.requires_grad
        and ((_is_short(weight) and not x.requires_grad) or weight[0, :, 0].numel() >= ROW)
        and load_kernels(KERNELS) is not None
    )


def _is_short(weight: Tensor) -> bool:
    return weight[0].numel() <= WINDOW


def _is_changed(layer: nn.Module) -> bool:
    """Return whether calling a layer does more than its class says: hooks, a method of its own, or a compiled one."""
    hooks = layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks
    return bool(hooks) or "forward" in vars(layer) or layer._compiled_call_impl is not None


class _PooledConvolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, stride: tuple[int, int], pooling: nn.MaxPool2d
    ) -> Tensor:
        parts = []
        for part in x.split(PART):
            convolved = functional.conv2d(part, weight, bias, stride)  # (n, O, h, w)
            parts.append(
                functional.max_pool2d(
                    convolved,
                    pooling.kernel_size,
                    pooling.stride,
                    pooling.padding,
                    pooling.dilation,
                    pooling.ceil_mode,
                    return_indices=True,
                )
            )
        y, index = (torch.cat(tensors) for tensors in zip(*parts, strict=True))  # (N, O, h', w')
        y.relu_()
        ctx.save_for_backward(x, weight, y, index)
        ctx.convolved, ctx.stride, ctx.kernels = convolved.shape[2:], stride, load_kernels(KERNELS)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, y, index = ctx.saved_tensors
        outputs, channels, height, width = weight.shape
        row_stride = x.shape[3] * channels
        first_row, first_column = (torch.arange(n) * step for n, step in zip(ctx.convolved, ctx.stride, strict=True))
        offsets = (first_row[:, None] * row_stride + first_column * channels).flatten()  # (h · w,)
        w = _channels_last(weight).view(outputs, height, width * channels)
        images = _channels_last(x).flatten(1)
        pooled = [_channels_last(tensor).flatten(1, 2) for tensor in (dy, y, index)]  # (N, h' · w', O)
        dx = torch.zeros_like(images) if ctx.needs_input_grad[0] else None
        kernels, short = ctx.kernels, _is_short(weight)

        def gradients(part: slice) -> tuple[Tensor, Tensor]:
            """Compute the gradients of these images and return those of weights and biases."""
            dw, dbias = torch.zeros(outputs, 1, WINDOW) if short else torch.zeros_like(w), torch.zeros(outputs)
            terms = _arrays(*(tensor[part] for tensor in pooled), offsets)
            if dx is not None:
                kernels.input_gradient(*terms, *_arrays(w), row_stride, *_arrays(dx[part]))
            if short:
                window = (height, width * channels)
                kernels.short_weight_gradient(*terms, *_arrays(images[part]), row_stride, *window, *_arrays(dw, dbias))
            else:
                kernels.weight_gradient(*terms, *_arrays(images[part]), row_stride, *_arrays(dw, dbias))
            return dw.flatten(1)[:, : height * width * channels], dbias

        with worker_pool() as workers:
            size = -(-len(x) // workers.count)
            parts = [slice(first, min(first + size, len(x))) for first in range(0, len(x), size)]
            dw, dbias = (sum(terms) for terms in zip(*workers.map(gradients, parts), strict=True))
        dw = dw.view(outputs, height, width, channels).permute(0, 3, 1, 2)
        if dx is not None:
            dx = dx.view(len(x), *x.shape[2:], channels).permute(0, 3, 1, 2)
        return dx, dw, dbias if ctx.needs_input_grad[2] else None, None, None


def _channels_last(tensor: Tensor) -> Tensor:
    return tensor.detach().permute(0, 2, 3, 1).contiguous()


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.numpy() for tensor in tensors]
