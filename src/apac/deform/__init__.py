"""Deformations: distributions over Θ, and u(x; Θ). All kinds are imported here, so that `from_json` knows them."""

from apac.deform import presets
from apac.deform.base import Deformation
from apac.deform.color import Color
from apac.deform.compose import Compose
from apac.deform.elastic import Elastic
from apac.deform.flip import Flip
from apac.deform.homography import Homography
from apac.deform.per_class import PerClass
from apac.deform.scale_shift import ScaleShift
from apac.deform.thickness import Thickness

__all__ = [
    "Color",
    "Compose",
    "Deformation",
    "Elastic",
    "Flip",
    "Homography",
    "PerClass",
    "ScaleShift",
    "Thickness",
    "presets",
]
