"""Deformations for common kinds of images, each a `Compose` for images of any size."""

from __future__ import annotations

from apac.deform.color import Color
from apac.deform.compose import Compose
from apac.deform.elastic import Elastic
from apac.deform.flip import Flip
from apac.deform.homography import Homography
from apac.deform.scale_shift import ScaleShift
from apac.deform.thickness import Thickness


def mnist() -> Compose:
    """Return the paper's MNIST deformation: homography and elastic distortion in one interpolation, then thickness.

    The strengths in pixels are those of the paper, for images of 28 × 28.

    Examples
    --------
    >>> import apac
    >>> [type(part).__name__ for part in apac.presets.mnist().parts]
    ['Homography', 'Elastic', 'Thickness']
    """
    return Compose(
        Homography(std=0.1),
        Elastic(sigma=6.0, alpha=38.0, reference_size=28),
        Thickness(dilate=0.25, erode=0.25, reference_size=28),
    )


def cifar10() -> Compose:
    """Return the paper's CIFAR-10 deformation: scale, shift, elastic distortion and flip in one interpolation.

    Whitened images have no background value, so the edge pixels are repeated outside the image. The strengths in pixels
    are those of the paper, for images of 32 × 32.

    Examples
    --------
    >>> import apac
    >>> [type(part).__name__ for part in apac.presets.cifar10().parts]
    ['ScaleShift', 'Elastic', 'Flip']
    """
    return Compose(
        ScaleShift(scale=(1.0, 2.0)), Elastic(sigma=8.0, alpha=40.0, padding="edge", reference_size=32), Flip(0.5)
    )


def photos() -> Compose:
    """Return a mild deformation for photos of any size, in color or gray, with pixels in [0, 1].

    A crop, a change of the point of view and a flip in one interpolation, then a change of the light. Objects stay
    upright: there is no vertical flip. Use `mnist` for digits and letters, which a horizontal flip would change.

    Examples
    --------
    >>> import apac
    >>> [type(part).__name__ for part in apac.presets.photos().parts]
    ['ScaleShift', 'Homography', 'Flip', 'Color']
    """
    return Compose(
        # A crop of 44 to 100 % of the area: a main object that fills half of a photo stays mostly in view.
        ScaleShift(scale=(1.0, 1.5)),
        # Rotations and shears of about 4 degrees, 3 % of stretch and perspective, shifts of 1.5 % of the side.
        Homography(std=0.03, padding="edge", shear=0.07),
        Flip(0.5),
        # Mid gray between 0.42 and 0.57, as with two thirds of a stop of exposure; casts as of another white balance.
        Color(gamma=(0.8, 1.25), cast=0.03),
    )
