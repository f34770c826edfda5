"""Muon: momentum whose step of each weight matrix is made orthogonal, so that all its directions advance alike.

After Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). It learns from fewer samples than
SGD, and costs some products of matrices a step: little for convolutions, much for the paper's MLPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

BLOCK = 256  # outputs that are made orthogonal to each other; the cost grows with it
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the odd polynomial that takes singular values in (0, 1] to about 1


class Muon(torch.optim.Optimizer):
    """Groups with `orthogonal` take steps of one size in all directions of a matrix; others, Nesterov's momentum."""

    def __init__(self, groups: Iterable[dict[str, Any]], *, lr: float, momentum: float) -> None:
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": 0.0, "orthogonal": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for weight in group["params"]:
                gradient = weight.grad.add(weight, alpha=group["weight_decay"])
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                velocity = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
                direction = gradient.add_(velocity, alpha=group["momentum"])
                if group["orthogonal"]:
                    direction = orthogonal(direction)
                weight.sub_(direction, alpha=group["lr"])


def orthogonal(step: Tensor) -> Tensor:
    """The step of a weight (outputs, inputs, ...) with singular values of about 1, 0.7 to 1.2, by Newton-Schulz
    iteration; more for a layer with more outputs than inputs. In a large layer that holds for each block of outputs."""
    matrix = step.flatten(1)
    outputs, inputs = matrix.shape
    each = [_orthogonal(block) for block in matrix.split(BLOCK)]
    return torch.cat(each).mul_(max(1.0, outputs / inputs) ** 0.5).reshape(step.shape)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Each iteration multiplies X by a polynomial in XXᵀ, so they all come down to one small matrix times X."""
    tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix / matrix.norm().clamp_min(1e-7)
    matrix = matrix.T if tall else matrix
    first, third, fifth = COEFFICIENTS
    square = matrix @ matrix.T
    whole = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for _ in range(ITERATIONS):
        factor = torch.addmm(square, square, square, beta=third, alpha=fifth)
        factor.diagonal().add_(first)
        whole = factor @ whole
        square = factor @ square @ factor
    matrix = whole @ matrix
    return matrix.T if tall else matrix
