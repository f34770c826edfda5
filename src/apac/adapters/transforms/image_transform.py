"""What an adapter makes of a transform: functions of tensors that draw from the global generators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from apac.errors import InputError


@dataclass(frozen=True, eq=False)
class ImageTransform(ABC):
    """A transform of another library, or a function."""

    transform: Callable[..., Any]
    takes_batches: ClassVar[bool] = True  # whether `together` may be tried
    copies_input: ClassVar[bool] = False  # whether it leaves its input unchanged in any case
    draws_separately: ClassVar[bool] = False  # whether `separately` is supported

    @property
    def name(self) -> str:
        return getattr(self.transform, "__name__", type(self.transform).__name__)

    @abstractmethod
    def one(self, image: Tensor) -> Any:
        """Transform one image (C, H, W)."""

    @abstractmethod
    def together(self, images: Tensor) -> Any:
        """Transform images (N, C, H, W) by one draw, which they share."""

    def separately(self, images: Tensor) -> Any:
        """Transform images (N, C, H, W) by a draw for each, in one call of the library."""
        raise NotImplementedError

    @abstractmethod
    def describe(self) -> Any:
        """Return JSON from which `rebuild` builds the same transform. Raises InputError if that is impossible."""

    @classmethod
    @abstractmethod
    def rebuild(cls, payload: Any) -> ImageTransform:
        """Return the transform that `describe` describes."""


@dataclass(frozen=True, eq=False)
class CallableTransform(ImageTransform):
    """A function of one image."""

    takes_batches: ClassVar[bool] = False

    def one(self, image: Tensor) -> Any:
        return self.transform(image)

    def together(self, images: Tensor) -> Any:
        raise NotImplementedError

    def describe(self) -> Any:
        raise InputError(
            f"{self.name} is a function, which cannot be stored; write it as an apac.Deformation, or train without a "
            f"folder for the run and use a Classifier."
        )

    @classmethod
    def rebuild(cls, payload: Any) -> ImageTransform:
        raise InputError("a transform that is a function cannot be rebuilt from a file; train the run again.")
