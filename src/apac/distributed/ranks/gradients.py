"""The sum of the gradients of all ranks, with the loss and a request to stop, in one message per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from apac.distributed.ranks.exchange import Exchange, exchange
from apac.distributed.ranks.group import Group


class GradientSum:
    """Turns the gradients of each rank's share of a batch into those of the batch.

    DistributedDataParallel does the same with hooks during the backward pass. Here a step needs one message, which also
    carries the loss and the request to stop, and the network stays as it is: layers may be unused, frozen or replaced.
    On CPUs, where the ranks occupy all cores, there is nothing for its overlap to hide.
    """

    def __init__(self, group: Group | None = None, should_stop: Callable[[], bool] | None = None) -> None:
        self.group = group or Group()
        self._requested = should_stop
        self._stop = False
        self._exchange: Exchange | None = None

    def should_stop(self) -> bool:
        """Return whether a rank was asked to stop before the last step; all ranks return the same."""
        if self.group.size > 1:
            return self._stop
        return self._requested is not None and self._requested()

    def share(self, rows: int, batch_size: int, loss: Tensor) -> Tensor | None:
        """Return the weight of the mean loss of this rank's rows in that of the batch; None stands for 1."""
        return None if self.group.size == 1 else loss.new_tensor(rows / batch_size)

    def __call__(self, network: nn.Module, loss: Tensor, share: Tensor | None) -> Tensor:
        """Replace the gradients by their sums over the ranks, and return the loss of the whole batch."""
        if share is None:
            return loss
        parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
        stop = self._requested is not None and self._requested()
        used = [float(parameter.grad is not None) for parameter in parameters]
        shared = self._exchange_for(parameters, 2 + len(used), loss)
        views, numbers = _views(shared.own, parameters)
        for parameter, view in zip(parameters, views, strict=True):
            if parameter.grad is None:
                view.zero_()
            else:
                view.copy_(parameter.grad)
        numbers.copy_(torch.tensor([float(loss.detach() * share), float(stop), *used]))
        views, numbers = _views(shared.sum(), parameters)
        _, stops, *uses = numbers.tolist()
        for parameter, view, count in zip(parameters, views, uses, strict=True):
            parameter.grad = view.to(parameter.dtype) if count else None
        self._stop = stops > 0
        return numbers[0]

    def _exchange_for(self, parameters: Sequence[Tensor], extra: int, loss: Tensor) -> Exchange:
        values = extra + sum(parameter.numel() for parameter in parameters)
        dtype = loss.dtype
        for parameter in parameters:
            dtype = torch.promote_types(dtype, parameter.dtype)
        if self._exchange is None or not self._exchange.fits(values, dtype, loss.device):
            self._exchange = exchange(self.group, values, dtype, loss.device)
        return self._exchange


def _views(values: Tensor, parameters: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return a view of the values for the gradient of each parameter, in its memory format, and the values left."""
    views, start = [], 0
    for parameter in parameters:
        part = values[start : start + parameter.numel()]
        if parameter.ndim == 4 and parameter.is_contiguous(memory_format=torch.channels_last):
            part = part.as_strided(parameter.shape, parameter.stride())
        views.append(part.view(parameter.shape) if part.ndim == 1 else part)
        start += parameter.numel()
    return views, values[start:]
