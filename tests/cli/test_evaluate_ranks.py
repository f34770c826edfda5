"""Ranks that evaluate together: they compute the same passes by the same code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

import apac
from apac.cli.evaluate_images import require_same_evaluation
from apac.distributed.ranks.group import Group
from apac.runs import provenance
from commands import refusal
from threaded_ranks import on_threads

RANKS = 3


def sentences(seed: int = 0) -> set[str]:
    """Return what the ranks say, of which the last one has another seed."""
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 2))
    tested = cast(Any, SimpleNamespace(images=torch.zeros(3, 1, 2, 2)))

    def compare(group: Group) -> str:
        classifier = apac.Classifier(network, apac.Flip(), seed=seed * (group.rank == RANKS - 1))
        try:
            require_same_evaluation(group, classifier, tested, None, passes=(1, 4))
        except apac.InputError as error:
            return str(error)
        return ""

    return set(on_threads(RANKS, compare))


def test_ranks_with_another_seed_or_another_code_are_refused(monkeypatch):
    assert sentences() == {""}
    (sentence,) = sentences(seed=1)
    assert sentence.startswith("the ranks disagree: seed is 0 on rank 0 and 1 on rank 2; start all of them")
    versions = iter(("0.1 (aaaa)", "0.1 (bbbb)", "0.1 (aaaa)"))
    monkeypatch.setattr(provenance, "code_version", lambda: next(versions))
    (sentence,) = sentences()
    assert sentence.startswith("the ranks disagree: the version of apac is 0.1 (")


@pytest.mark.parametrize(
    ("port", "sentence"),
    [
        (None, "but MASTER_ADDR and MASTER_PORT, by which they meet, are not set; start the command with torchrun"),
        ("29500", "but MASTER_ADDR, by which they meet, is not set; start the command with torchrun"),
    ],
)
def test_ranks_without_an_address_to_meet_at_are_refused_in_one_sentence(monkeypatch, port, sentence):
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)
    if port is not None:
        monkeypatch.setenv("MASTER_PORT", port)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert sentence in refusal("evaluate", "mnist-cnn")
