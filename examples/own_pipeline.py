"""A trained model, the augmentation that it was trained with, of another library, and the better decision.

pip install kornia; then python examples/own_pipeline.py
"""

from __future__ import annotations

import sys

import kornia.augmentation as augmentation

import apac
from apac import data


def main(images: int = 1000) -> tuple[float, float]:
    # Yours: any module that returns logits, and the pipeline of its training.
    model = apac.load("mnist-cnn").network
    pipeline = augmentation.AugmentationSequential(
        augmentation.RandomAffine(degrees=8.0, translate=(0.05, 0.05), scale=(0.9, 1.1), shear=8.0, p=1.0),
        augmentation.RandomPerspective(0.15, p=0.5),
        data_keys=["input"],
    )

    # Three lines: the pipeline as a deformation, the classifier, the decision.
    u = apac.from_kornia(pipeline)
    classifier = apac.Classifier(model, u, rule=apac.Certified(error=0.01, limit=128))
    digits = data.load("mnist-5k")
    x, y = digits.test_images[:images].float() / 255, digits.test_labels[:images]
    decision = classifier.decide(x)

    plain = (classifier.plain(x).argmax(dim=1) != y).double().mean().item()
    error = (decision.labels != y).double().mean().item()
    passes, open_ = decision.passes.double().mean(), sum(why == "limit" for why in decision.stopped)
    print(
        f"{images:,} digits: plain {plain:.2%}, APAC {error:.2%}; {passes:.1f} passes on average, {open_} not certain"
    )
    return plain, error


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
