"""Layers that depend on the whole batch: batch normalization and dropout, computed as in a single process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from apac.distributed.ranks.group import Group


@contextmanager
def whole_batches(network: nn.Module, group: Group, batch_size: int) -> Iterator[None]:
    """Let the layers of a network see batches of `batch_size` rows, of which each rank has its share.

    In training mode, batch normalization uses the mean and the variance of the rows of all ranks, and `nn.Dropout`
    drops what it would drop in a single process with the same random numbers. nn.SyncBatchNorm does the former on GPUs
    only, and replaces the layers. On exit the layers are as before.
    """
    patched: list[nn.Module] = []
    try:
        if group.size > 1:
            for layer in network.modules():
                forward: Any = None
                if isinstance(layer, _BatchNorm) and not isinstance(layer, nn.SyncBatchNorm):
                    forward = partial(_batch_norm, layer, group)
                elif type(layer) is nn.Dropout:
                    forward = partial(_dropout, layer, group.rows(batch_size), batch_size)
                if forward is not None and "forward" not in vars(layer):
                    layer.forward = forward
                    patched.append(layer)
        yield
    finally:
        for layer in patched:
            del layer.forward


def _dropout(layer: nn.Dropout, rows: slice, batch_size: int, x: Tensor) -> Tensor:
    if not layer.training or len(x) != rows.stop - rows.start or not 0 < layer.p < 1:
        return type(layer).forward(layer, x)
    # As torch does: one random number for each value of the batch, in its memory format.
    channels_last = x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    kept = torch.empty(batch_size, *x.shape[1:], dtype=x.dtype, device=x.device, memory_format=memory_format)
    return x * kept.bernoulli_(1 - layer.p).div_(1 - layer.p)[rows]


def _batch_norm(layer: _BatchNorm, group: Group, x: Tensor) -> Tensor:
    if not layer.training:
        return type(layer).forward(layer, x)
    layer._check_input_dim(x)
    y, mean, variance, count = _SharedStatistics.apply(x, layer.weight, layer.bias, layer.eps, group)  # type: ignore[no-untyped-call]
    if layer.track_running_stats and layer.running_mean is not None and layer.running_var is not None:
        assert layer.num_batches_tracked is not None
        layer.num_batches_tracked.add_(1)
        momentum = 1 / float(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        layer.running_mean.lerp_(mean.to(layer.running_mean), momentum)
        unbiased = variance * (count / (count - 1).clamp_min(1))
        layer.running_var.lerp_(unbiased.to(layer.running_var), momentum)
    return y  # type: ignore[no-any-return]


class _SharedStatistics(torch.autograd.Function):
    """Normalize x (N, C, ...) by the mean and the variance of each channel over the rows of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, group: Group) -> Any:
        axes = [axis for axis in range(x.ndim) if axis != 1]
        own_variance, own_mean = torch.var_mean(x.float() if x.dtype.itemsize < 4 else x, axes, correction=0)
        own_mean, own_variance = own_mean.double(), own_variance.double()
        own = torch.tensor(x.numel() / x.shape[1], dtype=torch.float64, device=x.device)
        # The ranks' own means and variances, combined without cancellation: first the mean, then the squares around it.
        sums = group.sum_(torch.cat([own_mean * own, own[None]]))
        count, mean = sums[-1], sums[:-1] / sums[-1]
        variance = group.sum_((own_variance + (own_mean - mean).square()) * own) / count
        inverse = (variance + eps).rsqrt()
        ctx.save_for_backward(x, weight, mean, inverse, count)
        ctx.group, ctx.axes = group, axes
        # Under autocast, x is in bfloat16 and the statistics are in float32, as in a single process.
        kind = torch.float32 if x.dtype.itemsize < 4 and weight is None else (x if weight is None else weight).dtype
        y = functional.batch_norm(x, mean.to(kind), variance.to(kind), weight, bias, False, 0.0, eps)
        ctx.mark_non_differentiable(mean, variance, count)
        return y, mean, variance, count

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        x, weight, mean, inverse, count = ctx.saved_tensors
        kind = x.dtype
        if kind.itemsize < 4:
            x, dy = x.float(), dy.float()
        shape = [1, -1, *[1] * (x.ndim - 2)]
        normalized = (x - mean.to(x).view(shape)).mul_(inverse.to(x).view(shape))
        dbias = dy.sum(ctx.axes)
        dweight = (dy * normalized).sum(ctx.axes)
        sums = ctx.group.sum_(torch.cat([dbias, dweight]).double()) / count
        mean_dy, mean_dy_normalized = sums.to(dy).chunk(2)
        scale = inverse.to(dy) if weight is None else inverse.to(dy) * weight
        dx = (dy - mean_dy.view(shape)).sub_(normalized.mul_(mean_dy_normalized.view(shape))).mul_(scale.view(shape))
        needs = ctx.needs_input_grad
        return dx.to(kind), dweight if needs[1] else None, dbias if needs[2] else None, None, None
