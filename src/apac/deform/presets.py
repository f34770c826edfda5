"""The paper's two distributions, by name. Each is a plain Compose that prints as what it is."""

from __future__ import annotations

from apac.deform.compose import Compose
from apac.deform.elastic import Elastic
from apac.deform.flip import Flip
from apac.deform.homography import Homography
from apac.deform.scale_shift import ScaleShift
from apac.deform.thickness import Thickness


def mnist() -> Compose:
    """Deformation on MNIST: homography and elastic distortion as one interpolation, then thickening or thinning."""
    return Compose(Homography(std=0.1), Elastic(sigma=6.0, alpha=38.0), Thickness(dilate=0.25, erode=0.25))


def cifar10() -> Compose:
    """Deformation on CIFAR-10, of whitened images: scale, shift, elastic distortion and flip as one interpolation.

    Whitened images have no background: the edge repeats outside.
    """
    return Compose(ScaleShift(scale=(1.0, 2.0)), Elastic(sigma=8.0, alpha=40.0, padding="edge"), Flip(0.5))
