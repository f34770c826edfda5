"""apac evaluate with the certified rule"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from apac.cli.evaluate_images import (
    EvaluationFiles,
    described,
    held_out_images,
    mention_cost,
    mention_data_and_choice,
    require_same_evaluation,
    resumable,
)
from apac.cli.ranks import on_first_rank
from apac.cli.terminal import show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.classify.rules.certified import Certified
    from apac.distributed.ranks.group import Group
    from apac.progress import Progress
    from apac.runs.run import Run


def certified_evaluation(
    files: EvaluationFiles, run: Run, rule: Certified, against: int | None, seed: int, group: Group
) -> None:
    """Evaluate the certified rule. Several ranks share the passes, and the first one writes."""
    from apac.classify.scores import rank
    from apac.cli.evaluate_output import print_certified, write_certified
    from apac.deform.compose import Compose
    from apac.evaluation.by_class import Predictions
    from apac.evaluation.certified import compare, decisions_csv, evaluate_certified
    from apac.evaluation.certified_measures import measure_certified
    from apac.evaluation.reliability import store
    from apac.evaluation.score_cache import ScoreCache
    from apac.reporting import tables
    from apac.runs.storage import write_json

    if run.deformation == Compose() or (run.choice is not None and not run.choice.strength):
        raise InputError("this run decides by one pass of the undeformed image; omit --rule certified.")
    classifier = run.classifier(rule, seed=seed)
    with show_progress() as shown:
        progress = on_first_rank(shown)
        tested, folder = group.together(lambda: files.load(run, "certified.json", progress))
        held_out = held_out_images(run, tested, progress)
        images, labels = tested.images, tested.labels
        require_same_evaluation(group, classifier, tested, held_out, against=against)
        if group.first:
            mention_cost(tested, held_out, f"at most {rule.limit:,} passes each")
        plain = classifier.plain(images)
        result = evaluate_certified(classifier, images, labels, progress=progress)
        measured = measure_certified(classifier, result.decision, plain, labels, held_out=held_out, progress=progress)
    plain_labels = rank(plain)[:, 0]
    plain_error = int((plain_labels != labels).sum()) / len(labels)
    predictions = Predictions(run.classes, labels, plain_labels, result.decision.labels, tested.files)
    payload = result.to_json() | measured.to_json() | {"plain": plain_error}
    payload |= described(run, tested) | predictions.to_json()
    path = folder / "certified.json"
    kept = True
    if group.first:
        mention_data_and_choice(run, tested)
        print_certified(result, measured, plain_error, predictions)
        kept = files.keep(path, payload | ({} if against is None else {"against": {"passes": against}}))
    if not kept:
        contents = {
            path.name: json.dumps(payload, indent=2) + "\n",
            "certified.csv": decisions_csv(result.decision, labels, tested.files),
        }
        write_certified(folder, contents, result, labels)
    if group.first and tested.own:
        store(files.out or files.run, measured.reliability)
    if against is None:
        return
    with show_progress() as shown, resumable(files.scores):
        progress = _named(on_first_rank(shown), f"deciding with {against:,} passes")
        cache = ScoreCache(classifier, images, against, files.scores)
        scores = cache.get(against, progress=progress)
    agreement = compare(result.decision, scores, labels, cache.seconds)
    if not kept:
        write_json(path, payload | {"against": agreement.to_json()})
    if group.first:
        print(tables.agreement(agreement, result))


def _named(progress: Progress, name: str) -> Progress:
    return lambda task, done, total, note="": progress(name, done, total, note)
