"""A deformation of every kind, with values other than the defaults, and the presets."""

import apac

KINDS = [
    apac.Homography(std=0.2),
    apac.Homography(std=0.05, padding="edge"),
    apac.Elastic(sigma=2.0, alpha=9.0),
    apac.Elastic(sigma=3.5, alpha=20.0, padding=-1.0),
    apac.Elastic(sigma=3.0, alpha=12.0, reference_size=14),
    apac.ScaleShift(scale=(1.2, 1.8)),
    apac.Flip(0.3),
    apac.Shift(3),
    apac.Thickness(dilate=0.4, erode=0.3, size=3),
    apac.Thickness(dilate=0.4, erode=0.3, reference_size=3),
    apac.Color(gamma=(0.5, 2.0), cast=0.1),
    apac.Jitter(std=0.3),
    apac.FeatureDropout(p=0.3, value=0.5),
    apac.Amplitude(std=0.4),
    apac.TimeShift(max_shift=0.3),
    apac.TimeWarp(std=0.5, parts=3),
    apac.Compose(),
    apac.Compose(apac.Color(), apac.Flip()),
    apac.presets.mnist(),
    apac.presets.cifar10(),
    apac.presets.photos(),
]
PER_CLASS = apac.PerClass({1: apac.Homography(std=0.02), 7: apac.Compose()}, default=apac.presets.mnist(), classes=10)
