"""Images that join and leave a session are decided as if they were alone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import apac
from apac.classify import session as sessions
from apac.classify.decision import TENSORS
from apac.classify.rules.base import Rule
from apac.classify.session import Session, Settings, Update

SHAPE = (1, 12, 12)


@pytest.fixture
def classifier(random: torch.Generator) -> apac.Classifier:
    network = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 5))
    for parameter in network.parameters():
        parameter.data = torch.randn(parameter.shape, generator=random) * 0.3
    u = apac.Compose(apac.Homography(std=0.1), apac.Elastic(sigma=3.0, alpha=10.0), apac.Thickness())
    return apac.Classifier(network, u)


@pytest.fixture
def images(random: torch.Generator) -> Tensor:
    return torch.rand(65, *SHAPE, generator=random)


def settings(rule: Rule | None = None, seed: int = 0, combine: Any = "product") -> Settings:
    return Settings(rule or apac.Certified(error=1e-3, limit=320), seed, combine)


def finish(session: Session) -> dict[int, Update]:
    updates: dict[int, Update] = {}
    while len(session):
        for update in session.advance():
            assert update.is_final
            assert update.ticket not in updates
            updates[update.ticket] = update
    return updates


def assert_same_bytes(one: Update, other: Update) -> None:
    assert one.decision.stopped == other.decision.stopped
    assert one.plain.numpy().tobytes() == other.plain.numpy().tobytes()
    for name in TENSORS:
        assert getattr(one.decision, name).numpy().tobytes() == getattr(other.decision, name).numpy().tobytes(), name


@pytest.mark.parametrize("combine", ["product", "sum"])
def test_an_image_has_the_same_decision_byte_for_byte_alone_and_among_64_others_and_in_a_new_session(
    classifier, images, combine
):
    with Session.open(classifier, SHAPE) as session:
        tickets = [session.join(image, settings(combine=combine)) for image in images]
        crowd = finish(session)
    with Session.open(classifier, SHAPE) as session:
        for index in (0, 31, 64):
            ticket = session.join(images[index], settings(combine=combine))
            assert_same_bytes(finish(session)[ticket], crowd[tickets[index]])


def test_images_that_join_later_with_other_rules_and_seeds_change_nothing(classifier, images):
    with Session.open(classifier, SHAPE) as session:
        alone = finish_one(session, images[0], settings(apac.FixedPasses(100)))
        ticket = session.join(images[0], settings(apac.FixedPasses(100)))
        others: list[int] = []
        results: dict[int, Update] = {}
        for index in range(1, 12):
            others.append(session.join(images[index], settings(seed=index % 3, combine=("sum", "product")[index % 2])))
            if index == 6:
                session.leave(others[2])
            results |= {update.ticket: update for update in session.advance()}
        results |= finish(session)
    assert_same_bytes(results[ticket], alone)
    assert set(results) == {ticket, *others} - {others[2]}


def finish_one(session: Session, image: Tensor, how: Settings) -> Update:
    ticket = session.join(image, how)
    return finish(session)[ticket]


@pytest.mark.parametrize(
    ("rule", "combine"),
    [
        (apac.Certified(error=1e-3, limit=200), "product"),
        (apac.Certified(limit=64), "sum"),
        (apac.FixedPasses(37), "sum"),
    ],
)
def test_decisions_are_those_of_the_classifier(classifier, images, rule, combine):
    few = images[:20]
    with Session.open(classifier, SHAPE) as session:
        tickets = [session.join(image, settings(rule, seed=3, combine=combine)) for image in few]
        updates = finish(session)
    ours = apac.Decision.concatenate([updates[ticket].decision for ticket in tickets])
    theirs = apac.Classifier(classifier.network, classifier.deformation, rule, seed=3, combine=combine).decide(few)
    assert ours.stopped == theirs.stopped
    assert torch.equal(ours.passes, theirs.passes)
    assert torch.equal(ours.labels, theirs.labels)
    # the logits differ by the rounding of batches of another size
    torch.testing.assert_close(ours.log_scores, theirs.log_scores, atol=1e-4, rtol=0)
    torch.testing.assert_close(ours.standard_errors, theirs.standard_errors, atol=1e-4, rtol=0)
    plain = torch.stack([updates[ticket].plain for ticket in tickets])
    torch.testing.assert_close(plain, classifier.plain(few), atol=1e-4, rtol=0)


def test_a_watched_image_has_an_update_after_every_16_passes(classifier, images):
    with Session.open(classifier, SHAPE) as session:
        session.join(images[0], settings(apac.FixedPasses(40)), watched=True)
        session.join(images[1], settings(apac.FixedPasses(40)))
        updates = [update for _ in range(3) for update in session.advance()]
    assert [(update.ticket, int(update.decision.passes), update.is_final) for update in updates] == [
        (0, 16, False),
        (0, 32, False),
        (0, 40, True),
        (1, 40, True),
    ]


def test_a_watched_image_that_leaves_is_forgotten(classifier, images):
    with Session.open(classifier, SHAPE) as session:
        ticket = session.join(images[0], settings(apac.FixedPasses(64)), watched=True)
        assert [update.ticket for update in session.advance()]
        session.leave(ticket)
        assert list(session.advance()) == []
        assert not session._watched


def test_an_image_with_nan_logits_stops_alone():
    def network(images: Tensor) -> Tensor:
        logits = images.flatten(1)
        return torch.where(logits[:, :1] > 5, torch.nan, logits)

    with Session.open(apac.Classifier(network, apac.Flip()), (1, 1, 2)) as session:
        for first in (1.0, 9.0):
            session.join(torch.tensor([[[first, 0.0]]]), settings(apac.FixedPasses(32)))
        updates = finish(session)
    assert updates[0].decision.stopped == ("fixed",)
    assert updates[1].decision.stopped == ("nan",)
    assert int(updates[1].decision.labels) == -1


def test_classes_with_their_own_deformations_are_scored_by_them():
    u = apac.PerClass({0: apac.Flip(1.0)}, default=apac.Compose(), classes=2)
    with Session.open(apac.Classifier(lambda images: images.flatten(1), u), (1, 1, 2)) as session:
        update = finish_one(session, torch.tensor([[[0.0, 3.0]]]), settings(apac.FixedPasses(16)))
    # class 0 sees the mirrored image, class 1 the image itself: both see 3 where the other class sees 0
    assert update.decision.log_scores[0, 0] == update.decision.log_scores[0, 1]


def test_the_memory_of_sampled_parameters_is_bounded(classifier, images, monkeypatch):
    monkeypatch.setattr(sessions, "CACHED_BYTES", 200_000)
    with Session.open(classifier, SHAPE) as session:
        for seed in range(20):
            finish_one(session, images[0], settings(apac.FixedPasses(64), seed=seed))
        assert 1 < len(session._cached) < 80
        alone = finish_one(session, images[0], settings(apac.FixedPasses(64), seed=0))
    with Session.open(classifier, SHAPE) as session:
        assert_same_bytes(alone, finish_one(session, images[0], settings(apac.FixedPasses(64), seed=0)))


def test_the_settings_compare_by_value():
    assert settings() == settings()
    assert {field.name for field in fields(Settings)} == {"rule", "seed", "combine"}
