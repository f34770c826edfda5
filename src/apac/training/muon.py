"""Muon: momentum SGD with orthogonalized updates of the weight matrices.

After Jordan et al., "Muon: an optimizer for hidden layers in neural networks" (2024). It needs fewer samples than SGD
and adds a few matrix products per step, which are cheap for convolutions and expensive for the paper's MLPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

WHOLE = 256  # outputs of the largest layer that is orthogonalized as a whole
BLOCK = 128  # rows of a larger layer that are orthogonalized together; the cost grows with it
ITERATIONS = 5
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the odd polynomial that maps singular values in (0, 1] to about 1


class Muon(torch.optim.Optimizer):
    """Parameter groups with `orthogonal=True` use orthogonalized updates, the others plain Nesterov momentum.

    With `normalized=True`, each weight is first divided by the root mean square norm of its rows, so that an update
    always changes it by the same share. The weight decay is decoupled, as in AdamW: if a penalty were orthogonalized
    with the gradient, it would decide the step wherever the gradient is small.
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
                gradient = weight.grad.clone()
                state = self.state[weight]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(weight)
                buffer = state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
                direction = gradient.add_(buffer, alpha=group["momentum"])
                if group["orthogonal"]:
                    direction = orthogonal(direction)
                if group["normalized"]:
                    weight.mul_(len(weight) ** 0.5 / weight.norm())
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.sub_(direction, alpha=group["lr"])


def orthogonal(update: Tensor) -> Tensor:
    """Orthogonalize the update of a weight (outputs, inputs, ...) by Newton-Schulz iteration.

    The singular values become about 1 (0.7 to 1.2), and larger for a layer with more outputs than inputs. In a layer
    with more than 256 outputs this holds for each block of 128.
    """
    matrix = update.flatten(1).to(torch.promote_types(update.dtype, torch.float32))
    outputs, inputs = matrix.shape
    blocks = [_orthogonal(block) for block in matrix.split(BLOCK if outputs > WHOLE else WHOLE)]
    return torch.cat(blocks).mul_(max(1.0, outputs / inputs) ** 0.5).reshape(update.shape).to(update.dtype)


def _orthogonal(matrix: Tensor) -> Tensor:
    """Orthogonalize a matrix X. Iterations multiply X by polynomials in XXᵀ, which are accumulated first.

    It needs float32: rounded to bfloat16, XXᵀ has negative eigenvalues, which the polynomials increase a thousandfold.
    """
    tall = matrix.shape[0] > matrix.shape[1]
    matrix = matrix / matrix.norm().clamp_min(1e-7)
    matrix = matrix.T if tall else matrix
    square = matrix @ matrix.T
    product = factor = _polynomial(square)
    for _ in range(ITERATIONS - 1):
        square = factor @ square @ factor
        factor = _polynomial(square)
        product = factor @ product
    matrix = product @ matrix
    return matrix.T if tall else matrix


def _polynomial(square: Tensor) -> Tensor:
    first, third, fifth = COEFFICIENTS
    factor = torch.addmm(square, square, square, beta=third, alpha=fifth)
    factor.diagonal().add_(first)
    return factor
