"""Evaluations for the tests of tables and figures."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import apac
from apac.evaluation.certified import CertifiedEvaluation
from apac.evaluation.fixed import Evaluation, Row
from decisions import make_decision


def evaluation(plain: float, *rows: Row) -> Evaluation:
    labels = torch.zeros(1000, dtype=torch.int64)
    return Evaluation(1000, 0, plain, 0.001, rows, (1, 2), (3,), (), 1.0, None, 0.0, labels, labels)


def certified(decision: apac.Decision, error: float = 1e-4, **others: Any) -> CertifiedEvaluation:
    passes, stopped = decision.passes.double().numpy(), np.array(decision.stopped)
    result = CertifiedEvaluation(
        images=len(passes),
        seed=0,
        rule=apac.Certified(error),
        wrong=0.02,
        mean=passes.mean(),
        median=np.median(passes),
        percentile99=np.percentile(passes, 99),
        unsettled=int((stopped == "limit").sum()),
        clipped=0,
        failed=int((stopped == "nan").sum()),
        seconds=2.0,
        decision=decision,
    )
    return replace(result, **others)


FAILED: dict[str, Any] = {"labels": [0, -1, 1], "margins": [2.0, math.nan, 0.5]}
DECISIONS = {
    "passes of every number": make_decision(
        ["certified"] * 3 + ["limit"], margins=[9.0, 2.0, 0.3, 0.01], passes=[16, 48, 1040, 16384], labels=[0, 1, 0, 0]
    ),
    "the same passes": make_decision(["certified"] * 4, margins=[1.0, 2.0, 3.0, 4.0]),
    "the fewest passes": make_decision(["certified"] * 2, passes=16),
    "all at the limit": make_decision(["limit"] * 3, passes=[40, 40, 40], margins=[0.1, 0.2, 0.0]),
    "one not decided": make_decision(["certified", "nan", "limit"], passes=[32, 0, 64], **FAILED),
    "one image": make_decision(["certified"]),
    "a margin of zero": make_decision(["certified", "limit"], margins=[1.0, 0.0]),
    "margins of zero alone": make_decision(["limit"] * 2, margins=0.0),
    "an infinite margin": make_decision(["certified"] * 2, margins=[math.inf, 1.0]),
    "infinite margins alone": make_decision(["certified"] * 2, margins=math.inf),
}
