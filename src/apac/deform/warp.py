"""Geometric deformations: coordinate convention and interpolation.

Convention: a pixel is a square of side 1. Its coordinates (x, y) are those of its center, in pixels from the center of
the image, x to the right and y down: in a row of W pixels, x runs from −(W − 1)/2 to (W − 1)/2. A flow maps the
coordinates of each output pixel to the point of the input image that it shows.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn import functional

from apac import trees
from apac.deform.cpu import apply_in_tiles, as_arrays, as_tensor, kernels_for
from apac.deform.parameters import prepare
from apac.deform.thickness import Thickness
from apac.errors import InputError

Padding = float | Literal["edge"]  # the value of all points outside the image, or that of the nearest edge pixel


_NO_CHANGE = torch.zeros(1, dtype=torch.int8, device="cpu")


@dataclass(frozen=True, eq=False)
class Flow:
    """A map from output to input coordinates: a projective map, a displacement added to its result, or both."""

    matrix: Tensor | None = None  # (n, 3, 3), acts on (x, y, 1) in pixels from the center
    displacement: Tensor | None = None  # (n, 2, H, W), x then y, in pixels

    def repeat(self, times: int) -> Flow:
        """Return all n rows, `times` times in a row."""
        terms = (self.matrix, self.displacement)
        return Flow(*(None if term is None else trees.repeat(term, times) for term in terms))


@runtime_checkable
class Geometric(Protocol):
    """A deformation that only moves pixels.

    Consecutive geometric parts of a `Compose` share one resampling, which uses their `flow` and not their `apply`.
    """

    @property
    def padding(self) -> Padding | None:
        """A background value, "edge" to repeat the edge pixels, or None if no point outside the image is shown."""

    def flow(self, parameters: Any, image_size: tuple[int, int]) -> Flow: ...


def can_share_resampling(group: Sequence[Geometric], part: Geometric) -> bool:
    """Return whether a part can share the resampling of a group, which requires the same padding."""
    return part.padding is None or group_padding(group) in (None, part.padding)


def group_padding(group: Sequence[Geometric]) -> Padding | None:
    return next((part.padding for part in group if part.padding is not None), None)


def warp(images: Tensor, group: Sequence[Geometric], parameters: Sequence[Any]) -> Tensor:
    """Resample images (N, C, H, W) once, bilinearly, for a group of parts in the order in which they are applied.

    Projective maps compose. Displacements are added to the projected coordinates: input = H(output) +
    displacement(output). This is how "homography and elastic distortion" becomes one interpolation.
    """
    return apply_in_tiles(partial(resample, group), images, prepare(images, tuple(parameters)))


def resample(
    group: Sequence[Geometric],
    images: Tensor,
    parameters: Sequence[Any],
    thickness: Thickness | None = None,
    flow: Flow | None = None,
) -> Tensor:
    """Resample as `warp` does, with prepared parameters, and then apply `thickness`, if any, with the last of them.

    The CPU kernel fuses both: the morphology costs little while the image is in the cache. `flow` is `combined_flow` of
    the same parameters, if it is known already.
    """
    height, width = images.shape[2:]
    flow = combined_flow(group, images, parameters) if flow is None else flow
    matrix, displacement, padding = flow.matrix, flow.displacement, group_padding(group) or 0.0
    originals = _to(_coordinate_type(images), images)
    kernels = kernels_for(images, tuple(parameters))
    if kernels is not None:
        change = None if thickness is None else (parameters[-1].change, thickness.window((height, width)))
        return _to(images.dtype, _resample_kernel(kernels, originals, matrix, displacement, padding, change))
    result = _resample_torch(originals, matrix, displacement, padding).to(images.dtype)
    return result if thickness is None else thickness.apply(result, parameters[-1])


def combined_flow(group: Sequence[Geometric], images: Tensor, parameters: Sequence[Any]) -> Flow:
    """Return the flow of all parts together, for images of this shape and type."""
    height, width = images.shape[2:]
    flows = [part.flow(p, (height, width)) for part, p in zip(group, parameters, strict=False)]
    dtype = _coordinate_type(images)
    return Flow(
        _combine(operator.matmul, [flow.matrix for flow in flows if flow.matrix is not None], dtype),
        _combine(operator.add, [flow.displacement for flow in flows if flow.displacement is not None], dtype),
    )


def _coordinate_type(images: Tensor) -> torch.dtype:
    # Half precision is too coarse for coordinates.
    return torch.float64 if images.dtype == torch.float64 else torch.float32


def _to(dtype: torch.dtype, tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype == dtype else tensor.to(dtype)  # which takes time even if nothing changes


def _combine(operation: Callable[[Any, Any], Any], terms: list[Tensor], dtype: torch.dtype) -> Tensor | None:
    """Combine the terms in order: images deformed by A and then B are sampled at x → A(B(x)), which is A @ B."""
    if len(terms) < 2:
        return _to(dtype, terms[0]) if terms else None
    return as_tensor(reduce(operation, as_arrays(*[_to(dtype, term) for term in terms])))


def _resample_kernel(
    kernels: Any,
    images: Tensor,
    matrix: Tensor | None,
    displacement: Tensor | None,
    padding: Padding,
    thickness: tuple[Tensor, int] | None,
) -> Tensor:
    n, channels, height, width = images.shape
    matrix = torch.eye(3, dtype=images.dtype, device="cpu")[None] if matrix is None else matrix
    displacement = images.new_zeros(1, 2, height, width) if displacement is None else displacement
    background, edge = (0.0, True) if padding == "edge" else (padding, False)
    change, size = (_NO_CHANGE, 1) if thickness is None else thickness
    # The kernel does not check bounds.
    for name, tensor, shape in (
        ("matrix", matrix, (3, 3)),
        ("displacement", displacement, (2, height, width)),
        ("change", change, ()),
    ):
        if tensor.shape[1:] != shape or tensor.shape[0] not in (1, n):
            raise InputError(
                f"the {name} of {n} images must have the shape (1 or {n}, {', '.join(map(str, shape))}), got "
                f"{tuple(tensor.shape)}."
            )
    out = torch.empty(images.shape, dtype=images.dtype, device="cpu")
    # reshaped in numpy, where a view takes a third of the time that it takes in torch
    kernels.warp(
        images.detach().contiguous().numpy().reshape(n, channels, height * width),
        matrix.contiguous().numpy(),
        displacement.contiguous().numpy().reshape(-1, 2, height * width),
        height,
        width,
        background,
        edge,
        change.contiguous().numpy(),
        size,
        out.numpy().reshape(n, channels, height * width),
    )
    return out


def _resample_torch(images: Tensor, matrix: Tensor | None, displacement: Tensor | None, padding: Padding) -> Tensor:
    height, width = images.shape[2:]
    x = torch.arange(width, device=images.device, dtype=images.dtype) - (width - 1) / 2  # (W,)
    y = (torch.arange(height, device=images.device, dtype=images.dtype) - (height - 1) / 2)[:, None]  # (H, 1)
    x, y = _project(matrix, x, y)  # (n, H, W)
    if displacement is not None:
        x, y = x + displacement[:, 0], y + displacement[:, 1]
    return _interpolate(images, x, y, padding)


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


def _interpolate(images: Tensor, x: Tensor, y: Tensor, padding: Padding) -> Tensor:
    height, width = images.shape[2:]
    # For grid_sample the image spans [-1, 1], pixel edges included.
    grid = torch.stack((_clamp(x * (2 / width), width), _clamp(y * (2 / height), height)), dim=-1)  # (n, H, W, 2)
    grid = grid.expand(len(images), height, width, 2)
    if padding == "edge":
        return functional.grid_sample(images, grid, padding_mode="border", align_corners=False)
    if padding == 0:
        return functional.grid_sample(images, grid, padding_mode="zeros", align_corners=False)
    assert not isinstance(padding, str)
    return functional.grid_sample(images - padding, grid, padding_mode="zeros", align_corners=False) + padding


def _clamp(coordinate: Tensor, length: int) -> Tensor:
    """Clamp coordinates to one pixel outside the image, where only padding is visible, and replace NaN."""
    limit = 1 + 2 / length
    return torch.nan_to_num(coordinate, nan=limit).clamp(-limit, limit)
