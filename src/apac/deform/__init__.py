"""Deformations u(x; Θ). Every class is imported here, so that `Deformation.from_json` finds it."""

from apac.deform import presets
from apac.deform.amplitude import Amplitude
from apac.deform.base import Deformation
from apac.deform.color import Color
from apac.deform.compose import Compose
from apac.deform.elastic import Elastic
from apac.deform.feature_dropout import FeatureDropout
from apac.deform.flip import Flip
from apac.deform.homography import Homography
from apac.deform.jitter import Jitter
from apac.deform.layer import DeformationLayer
from apac.deform.per_class import PerClass
from apac.deform.scale_shift import ScaleShift
from apac.deform.shift import Shift
from apac.deform.thickness import Thickness
from apac.deform.time import TimeShift, TimeWarp

__all__ = [
    "Amplitude",
    "Color",
    "Compose",
    "Deformation",
    "DeformationLayer",
    "Elastic",
    "FeatureDropout",
    "Flip",
    "Homography",
    "Jitter",
    "PerClass",
    "ScaleShift",
    "Shift",
    "Thickness",
    "TimeShift",
    "TimeWarp",
    "presets",
]
