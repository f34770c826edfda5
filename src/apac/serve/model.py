"""A run that is served under a name."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from apac.classify.combine import Combine
from apac.classify.decision import Decision
from apac.classify.rules.base import PASSES_PER_UPDATE, Rule
from apac.classify.rules.certified import Certified
from apac.classify.rules.fixed import FixedPasses
from apac.classify.session import Settings, Update
from apac.data.normalize import Identity
from apac.data.zca import FEW
from apac.errors import InputError
from apac.runs.run import Run
from apac.serve.engine import Engine
from apac.serve.limits import Limits
from apac.serve.refusal import bad_request
from apac.validation import MAX_INTEGER


class Parameters(BaseModel):
    """How to decide: a fixed number of passes, or error and limit of the certified rule. None: as the server does."""

    model_config = ConfigDict(strict=True)

    passes: int | None = None
    error: float | None = None
    limit: int | None = None
    seed: int | None = None
    combine: Combine | None = None
    top_k: int | None = None


class Model:
    """A run and the engine that decides its images."""

    def __init__(self, name: str, run: Run, limits: Limits, seed: int = 0) -> None:
        self.name, self.run, self.limits, self.seed = name, run, limits, seed
        self.classifier = run.classifier()
        self.engine = Engine(self.classifier, run.image_shape, limits.queue)
        self._temperature = lru_cache(1000)(self._find_temperature)

    @property
    def takes_pixels(self) -> bool:
        """Whether the run was trained on pixels and prepares image files itself."""
        return not isinstance(self.run.normalization, Identity)

    @property
    def takes_pictures(self) -> bool:
        return self.takes_pixels and self.run.image_shape[0] in (1, 3)

    def settings(self, choices: Parameters) -> Settings:
        """Return how to decide, or refuse what the limits exclude."""
        seed = self.seed if choices.seed is None else choices.seed
        if not 0 <= seed <= MAX_INTEGER:
            raise bad_request(f"seed must be between 0 and {MAX_INTEGER}.")
        if choices.top_k is not None and not 1 <= choices.top_k <= len(self.run.classes):
            raise bad_request(f"top_k must be between 1 and the {len(self.run.classes)} classes.")
        return Settings(self._rule(choices), seed, choices.combine or self.classifier.combine)

    def _rule(self, choices: Parameters) -> Rule:
        max_passes = self.limits.passes
        if choices.passes is not None:
            if choices.error is not None or choices.limit is not None:
                raise bad_request("choose passes, or error and limit, not both.")
            if not 1 <= choices.passes <= max_passes:
                raise bad_request(f"passes must be between 1 and {max_passes}.")
            return FixedPasses(choices.passes)
        default = self.classifier.rule
        if choices.error is None and choices.limit is None and not isinstance(default, Certified):
            return default
        rule = default if isinstance(default, Certified) else Certified()
        limit = min(rule.limit, max_passes) if choices.limit is None else choices.limit
        if not PASSES_PER_UPDATE <= limit <= max_passes:
            raise bad_request(f"limit must be between {PASSES_PER_UPDATE} and {max_passes}.")
        try:
            return replace(rule, limit=limit, error=rule.error if choices.error is None else choices.error)
        except InputError:
            raise bad_request("error must be above 0 and below 1.") from None

    def normalize(self, pixels: Tensor) -> Tensor:
        """Return the images of pixels (n, C, H, W), a few at a time: the result must not depend on their number."""
        return torch.cat([self.run.normalize(few) for few in pixels.split(FEW)])

    def check_images(self, images: Tensor) -> None:
        """Refuse floating-point images (n, C, H, W) that the classifier cannot decide."""
        if not images.isfinite().all():
            raise bad_request("images must not contain NaN or infinite values.")
        try:
            self.classifier.deformation.validate_pixels(images)
        except InputError:
            raise bad_request("FP32 images must be in 0 … 1, as this model takes them.") from None

    def decision(self, updates: list[Update], settings: Settings) -> Decision:
        """Return the decision of several images, with the temperature that the run has for these settings."""
        decision = Decision.concatenate([update.decision for update in updates])
        return replace(decision, temperature=self._temperature(settings))

    def _find_temperature(self, settings: Settings) -> float:
        return self.run.classifier(settings.rule, combine=settings.combine).temperature
