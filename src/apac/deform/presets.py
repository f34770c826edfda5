"""The two deformations of the paper, each a `Compose`."""

from __future__ import annotations

from apac.deform.compose import Compose
from apac.deform.elastic import Elastic
from apac.deform.flip import Flip
from apac.deform.homography import Homography
from apac.deform.scale_shift import ScaleShift
from apac.deform.thickness import Thickness


def mnist() -> Compose:
    """Return the MNIST deformation: homography and elastic distortion in one interpolation, then thickness.

    Examples
    --------
    >>> import apac
    >>> [type(part).__name__ for part in apac.presets.mnist().parts]
    ['Homography', 'Elastic', 'Thickness']
    """
    return Compose(Homography(std=0.1), Elastic(sigma=6.0, alpha=38.0), Thickness(dilate=0.25, erode=0.25))


def cifar10() -> Compose:
    """Return the CIFAR-10 deformation: scale, shift, elastic distortion and flip in one interpolation.

    Whitened images have no background value, so the edge pixels are repeated outside the image.

    Examples
    --------
    >>> import apac
    >>> [type(part).__name__ for part in apac.presets.cifar10().parts]
    ['ScaleShift', 'Elastic', 'Flip']
    """
    return Compose(ScaleShift(scale=(1.0, 2.0)), Elastic(sigma=8.0, alpha=40.0, padding="edge"), Flip(0.5))
