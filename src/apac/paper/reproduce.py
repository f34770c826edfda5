"""One recipe from data to report: train twice, evaluate, draw, write."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from apac import data, run_folder
from apac.certainty import Certainty, certify
from apac.classify.stopping import FixedPasses
from apac.data.base import Dataset
from apac.errors import InputError
from apac.evaluate import Evaluation, evaluate
from apac.paper import figures, report, table
from apac.paper.recipes import Recipe
from apac.progress import Progress, silent
from apac.run import Run, train
from apac.storage import write_bytes, write_json, write_text

EXPECTED = 32  # passes that an image takes until it is certain, or more


@dataclass(frozen=True, eq=False)
class Result:
    """What one recipe came to."""

    recipe: Recipe
    dataset: Dataset
    run: Run  # trained on deformed data
    original_run: Run
    deformed: Evaluation
    original: Evaluation  # plain only: without deformation there is nothing to average
    certified: tuple[Certainty, ...]
    training: float  # seconds, of both runs
    deciding: float  # seconds


def reproduce(
    recipe: Recipe, out: Path, *, resume: bool = False, overwrite: bool = False, progress: Progress = silent
) -> Result:
    """Write `out`/report.html, results.json, results.csv, the figures and both runs."""
    dataset = data.load(recipe.deformed.data, progress=progress)
    _claim(out, resume=resume, overwrite=overwrite)

    def named(name: str) -> Progress:
        return lambda task, done, total, note="": progress(f"{task}, {name}", done, total, note)

    run = train(recipe.deformed, out / "runs" / "deformed", resume=resume, progress=named("deformed data"))
    original_run = train(recipe.original, out / "runs" / "original", resume=resume, progress=named("original data"))
    began = time.monotonic()
    seed, labels = recipe.deformed.seed, dataset.test_labels
    images = run.normalise(dataset.test_images)
    kept = run_folder.scores_of(out / "runs" / "deformed")
    deformed = evaluate(run.classifier(seed=seed), images, labels, recipe.passes, keep=kept, progress=progress)
    ready = run.classifier(seed=seed).prepared(images, EXPECTED * len(recipe.certified))
    certified = tuple(
        certify(replace(ready, rule=rule), images, labels, progress=named(f"certified, error {rule.error:g}"))
        for rule in recipe.certified
    )
    original = evaluate(original_run.classifier(), original_run.normalise(dataset.test_images), labels, ())
    deciding = time.monotonic() - began
    training = run.history[-1].seconds + original_run.history[-1].seconds
    result = Result(recipe, dataset, run, original_run, deformed, original, certified, training, deciding)
    _write(result, out)
    return result


def _claim(out: Path, *, resume: bool, overwrite: bool) -> None:
    if resume and overwrite:
        raise InputError("choose --resume to go on with a report or --overwrite to replace it, not both.")
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file; a report needs a folder.")
    runs = [out / "runs" / name for name in ("deformed", "original")]
    if resume or not any(map(run_folder.holds_run, runs)):
        return
    if not overwrite:
        raise InputError(
            f"{out} already holds a report or a part of one; go on with it by --resume, replace it by --overwrite, "
            f"or choose another folder."
        )
    for folder in runs:
        run_folder.discard(folder)


def _write(result: Result, out: Path) -> None:
    pictures = _draw(result)
    for name in ("corrected", "first-layer-weights"):  # not in every report: none of an earlier one may stay
        if name not in pictures:
            (out / f"{name}.png").unlink(missing_ok=True)
    for name, (picture, _, _) in pictures.items():
        write_bytes(out / f"{name}.png", picture)
    write_json(out / "results.json", _form(result))
    write_text(out / "results.csv", result.deformed.to_csv())
    write_text(out / "report.html", _html(result, pictures))


def _draw(result: Result) -> dict[str, tuple[bytes, str, str]]:
    """The figures by file name, each with title and caption."""
    dataset, run, deformed = result.dataset, result.run, result.deformed
    pixels = dataset.test_images.float() / 255
    labels, classes = dataset.test_labels, dataset.classes
    assert run.config.deformation is not None
    largest = deformed.rows[-1].passes
    found: dict[str, tuple[bytes, str, str]] = {}
    if deformed.corrected:
        assert deformed.scores is not None
        best_two = deformed.scores.log_mean.topk(2).values
        clearest = max(deformed.corrected, key=lambda index: float(best_two[index, 0] - best_two[index, 1]))
        chosen = slice(clearest, clearest + 1)
        classifier = run.classifier(FixedPasses(largest), seed=run.config.seed)
        found["corrected"] = (
            figures.corrected(
                run.normalise(dataset.test_images[chosen]), labels[chosen], classifier, pixels[chosen], classes
            ),
            "How APAC decides",
            "A test image that the plain prediction gets wrong and APAC gets right. Bars beside an image: its two "
            "most probable classes, blue for the truth. The mean log-probability "
            "weighs what the network says of all virtual samples.",
        )
    found["error-against-m"] = (
        figures.error_against_m(deformed, result.original),
        "Error against M",
        f"The more passes, the better the expected loss of each class is known. {table.changes(deformed)}",
    )
    found["certified"] = (
        figures.certified(result.certified, deformed),
        "Stopping when certain",
        "Left, how many passes an image takes until its decision is certain. Right, the test error over the mean "
        "number of passes, for the same number for every image and for the certified rule with the allowed error "
        "beside each point.",
    )
    # one image of each of the first eight classes
    originals = pixels[[int((labels == c).nonzero()[0]) for c in range(min(8, len(classes)))]]
    found["deformed-samples"] = (
        figures.deformed_samples(originals, run.config.deformation, seed=run.config.seed),
        "Deformed samples",
        "What the network was trained on, and what it is asked about: fresh draws of the same distribution.",
    )
    found["misclassified"] = (
        figures.misclassified(pixels, labels, deformed, classes),
        "Misclassified images",
        f"Test images that APAC gets wrong with M = {largest:,}. Top left the truth; bars: the two best classes.",
    )
    networks = [("trained on deformed data", run.network), ("trained on original data", result.original_run.network)]
    weights = figures.first_layer_weights(networks, run.image_shape)
    if weights is not None:
        found["first-layer-weights"] = (
            weights,
            "First-layer weights",
            "Randomly chosen weight maps. The paper finds local features after deformed training, and only global "
            "patterns after training on original data.",
        )
    return found


def _form(result: Result) -> dict[str, Any]:
    recipe, deformed = result.recipe, result.deformed
    return {
        "recipe": recipe.name,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": {"training": round(result.training, 1), "deciding": round(result.deciding, 1)},
        "versions": result.run.versions,
        "paper_percent": {"apac": recipe.paper.apac, "plain": recipe.paper.plain, "original": recipe.paper.original},
        "deformed": {"config": result.run.config.to_json(), "evaluation": deformed.to_json()},
        "certified": [certainty.to_json() for certainty in result.certified],
        "original": {"config": result.original_run.config.to_json(), "evaluation": result.original.to_json()},
    }


def _html(result: Result, pictures: dict[str, tuple[bytes, str, str]]) -> str:
    config, run = result.run.config, result.run
    images = len(result.dataset.train_images)
    held = round(config.validation * images)
    sections = [
        report.Section(
            "Result",
            table=table.summary(result.deformed, result.original, result.recipe.paper),
            text=f"The paper trains on the full set for 15,000 epochs; here it was {config.epochs} epochs on "
            f"{images - held:,} images, with {held:,} held out.",
        ),
        *(report.Section(title, picture=picture, caption=caption) for picture, title, caption in pictures.values()),
        report.Section("All M", table=table.error_against_m(result.deformed)),
        report.Section("Certified", table=table.certainties(result.certified, result.deformed)),
        report.Section(
            "How it was made",
            facts={
                "command": f"apac reproduce {result.recipe.name} --seed {config.seed}",
                "deformation": repr(config.deformation),
                "training": f"{config.network}, {config.epochs} epochs, batch {config.batch}, rate {config.rate:g}, "
                f"{config.schedule} schedule, momentum {config.momentum}, L2 {config.l2:g}, "
                f"average {config.average:g}, validation {config.validation:g}, seed {config.seed}",
                "time": f"training {result.training:.0f} s, deciding {result.deciding:.0f} s",
                **run.versions,
            },
        ),
    ]
    return report.html(
        f"APAC on {config.data}",
        "A network trained on randomly deformed images minimises the expected loss over deformations. APAC decides a "
        "test image by that same expectation: deform it M times, average the log-softmax, take the largest class.",
        sections,
    )
