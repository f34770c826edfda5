"""Where pixels come from: the coordinates that all geometric kinds share, and the only interpolation.

Convention. A pixel is a square of side 1. Its coordinates (x, y) are those of its center, measured in pixels from the
center of the image, x to the right and y down: in a row of W pixels, x runs from −(W − 1)/2 to (W − 1)/2. A flow maps
the coordinates of an output pixel to the place of the input that it shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from apac.deform.base import prepare
from apac.deform.cpu import by_tiles, kernels
from apac.deform.thickness import Thickness
from apac.errors import InputError

Padding = float | Literal["edge"]


@dataclass(frozen=True, eq=False)
class Flow:
    """output → input: a projective map, a displacement added after it, or both."""

    matrix: Tensor | None = None  # (n, 3, 3), acts on (x, y, 1) in pixels from the center
    displacement: Tensor | None = None  # (n, 2, H, W), x then y, in pixels


@runtime_checkable
class Geometric(Protocol):
    """A deformation that only moves pixels. In a `Compose` neighbors of this kind share one resampling: there they are
    used by their flows, not by their `apply`."""

    @property
    def padding(self) -> Padding | None:
        """What lies beyond the image: a background value, "edge" to repeat the edge, None if it is never seen."""

    def flow(self, parameters: Any, image_size: tuple[int, int]) -> Flow: ...


def share(group: Sequence[Geometric], part: Geometric) -> bool:
    """Whether a further part can join the one resampling of a group: they agree on what lies padding."""
    return part.padding is None or padding_of(group) in (None, part.padding)


def padding_of(group: Sequence[Geometric]) -> Padding | None:
    return next((part.padding for part in group if part.padding is not None), None)


def warp(images: Tensor, group: Sequence[Geometric], parameters: Sequence[Any]) -> Tensor:
    """Resample images (N, C, H, W) once, bilinearly, for a group of parts in the order in which they are applied.

    The projective maps compose as the parts would. Displacements are added to the place that they give:
    input = H(output) + displacement(output), the reading of "homography and elastic distortion" as one interpolation.
    """
    return by_tiles(partial(resample, group), images, prepare(images, tuple(parameters)))


def resample(
    group: Sequence[Geometric], images: Tensor, parameters: Sequence[Any], thickness: Thickness | None = None
) -> Tensor:
    """What `warp` does, for parameters that are prepared, and the thickness of the last of them if there is one: on the
    CPU a thickness costs little while the image is still at hand."""
    height, width = images.shape[2:]
    moves = [part.flow(draw, (height, width)) for part, draw in zip(group, parameters, strict=thickness is None)]
    # Half precision has too few digits for a coordinate; double keeps its own.
    precision = torch.float64 if images.dtype == torch.float64 else torch.float32
    matrix = _combine(torch.matmul, [flow.matrix.to(precision) for flow in moves if flow.matrix is not None])
    aside = _combine(torch.add, [flow.displacement.to(precision) for flow in moves if flow.displacement is not None])
    originals, padding = images.to(precision), padding_of(group) or 0.0
    fast = kernels(images, tuple(parameters))
    if fast is not None:
        change = None if thickness is None else (parameters[-1].change, thickness.size)
        return _by_kernel(fast, originals, matrix, aside, padding, change).to(images.dtype)
    result = _by_torch(originals, matrix, aside, padding).to(images.dtype)
    return result if thickness is None else thickness.apply(result, parameters[-1])


def _combine(operation: Callable[[Tensor, Tensor], Tensor], flows: list[Tensor]) -> Tensor | None:
    """Displacements add. Of maps, A then B applied to images is x → A(B(x)) in coordinates: A @ B, the same order."""
    return reduce(operation, flows) if flows else None


def _by_kernel(
    fast: Any,
    images: Tensor,
    matrix: Tensor | None,
    displacement: Tensor | None,
    padding: Padding,
    thickness: tuple[Tensor, int] | None,
) -> Tensor:
    height, width = images.shape[2:]
    matrix = torch.eye(3, dtype=images.dtype, device="cpu")[None] if matrix is None else matrix
    displacement = images.new_zeros(1, 2, height, width) if displacement is None else displacement
    background, edge = (0.0, True) if padding == "edge" else (padding, False)
    change, size = (torch.zeros(1, dtype=torch.int8, device="cpu"), 1) if thickness is None else thickness
    # The kernel trusts what it is given.
    whole = {"matrix": (matrix, (3, 3)), "displacement": (displacement, (2, height, width)), "change": (change, ())}
    for name, (tensor, shape) in whole.items():
        if tensor.shape[1:] != shape or len(tensor) not in (1, len(images)):
            raise InputError(
                f"the {name} of {len(images)} images must have the shape (1 or {len(images)}, "
                f"{', '.join(map(str, shape))}), got {tuple(tensor.shape)}."
            )
    out = torch.empty(images.shape, dtype=images.dtype, device="cpu")
    fast.warp(
        images.detach().flatten(2).contiguous().numpy(),
        matrix.contiguous().numpy(),
        displacement.flatten(2).contiguous().numpy(),
        height,
        width,
        background,
        edge,
        change.contiguous().numpy(),
        size,
        out.flatten(2).numpy(),
    )
    return out


def _by_torch(images: Tensor, matrix: Tensor | None, displacement: Tensor | None, padding: Padding) -> Tensor:
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2  # (W,)
    y = (torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2)[:, None]  # (H, 1)
    x, y = _project(matrix, x, y)  # (n, H, W)
    if displacement is not None:
        x, y = x + displacement[:, 0], y + displacement[:, 1]
    return _resample(images, x, y, padding)


def _project(matrix: Tensor | None, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if matrix is None:
        grid_y, grid_x = torch.broadcast_tensors(y, x)
        return grid_x[None], grid_y[None]
    m = matrix[:, :, :, None, None]  # (n, 3, 3, 1, 1)
    scale = 1 / (m[:, 2, 0] * x + m[:, 2, 1] * y + m[:, 2, 2])  # (n, H, W)
    return (
        (m[:, 0, 0] * x + m[:, 0, 1] * y + m[:, 0, 2]) * scale,
        (m[:, 1, 0] * x + m[:, 1, 1] * y + m[:, 1, 2]) * scale,
    )


def _resample(images: Tensor, x: Tensor, y: Tensor, padding: Padding) -> Tensor:
    height, width = images.shape[2:]
    # grid_sample wants the image to span [-1, 1], pixel edges included. One pixel beyond is as far as anything is seen;
    # the clamp also keeps a projective map's infinities out.
    grid = torch.stack((_clamp(x * (2 / width), width), _clamp(y * (2 / height), height)), dim=-1)  # (n, H, W, 2)
    grid = grid.expand(len(images), height, width, 2)
    if padding == "edge":
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    if padding == 0:
        return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
    assert not isinstance(padding, str)
    return functional.grid_sample(images - padding, grid, padding_mode="zeros", align_corners=False) + padding


def _clamp(coordinate: Tensor, length: int) -> Tensor:
    reach = 1 + 2 / length
    return torch.nan_to_num(coordinate, nan=reach).clamp(-reach, reach)
