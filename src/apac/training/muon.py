"""Muon: momentum SGD with orthogonalized updates of the weight matrices.

After Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). It needs fewer samples than SGD
and adds a few matrix products per step, which are cheap for convolutions and expensive for the paper's MLPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256  # rows that are orthogonalized together; the cost grows with it
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the odd polynomial that maps singular values in (0, 1] to about 1


class Muon(torch.optim.Optimizer):
    """Parameter groups with `orthogonal=True` use orthogonalized updates, the others plain Nesterov momentum.

    With `normalized=True`, each weight is first divided by the root mean square norm of its rows, so that an update
    always changes it by the same share.
    """

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float) -> None:
        super().__init__(
            groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "orthogonal": False, "normalized": False}
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                gradient = weight.grad.add(weight, alpha=group["weight_decay"])
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
                direction = gradient.add_(buffer, alpha=group["momentum"])
                if group["orthogonal"]:
                    direction = orthogonal(direction)
                if group["normalized"]:
                    weight.mul_(len(weight) ** 0.5 / weight.norm())
                weight.sub_(direction, alpha=group["lr"])


def orthogonal(update: Tensor) -> Tensor:
    """Orthogonalize the update of a weight (outputs, inputs, ...) by Newton-Schulz iteration.

    The singular values become about 1 (0.7 to 1.2), and larger for a layer with more outputs than inputs. In a layer
    with more than 256 outputs this holds for each block of 256.
    """
    matrix = update.flatten(1)
    outputs, inputs = matrix.shape
    blocks = [_orthogonal(block) for block in matrix.split(BLOCK)]
    return torch.cat(blocks).mul_(max(1.0, outputs / inputs) ** 0.5).reshape(update.shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Orthogonalize a matrix X. Iterations multiply X by polynomials in XXᵀ, which are accumulated first."""
    tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix / matrix.norm().clamp_min(1e-7)
    matrix = matrix.T if tall else matrix
    first, third, fifth = COEFFICIENTS
    square = matrix @ matrix.T
    product = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(ITERATIONS):
        factor = torch.addmm(square, square, square, beta=third, alpha=fifth)
        factor.diagonal().add_(first)
        product = factor @ product
        square = factor @ square @ factor
    matrix = product @ matrix
    return matrix.T if tall else matrix
