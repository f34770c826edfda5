"""The report of a recipe: report.html, the figures, results.json and results.csv."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apac.evaluation.fixed import Evaluation
from apac.paper import comparison, opening
from apac.paper.recipe import LABELS, ORIGINAL
from apac.paper.reproduce import Result
from apac.reporting import html, tables
from apac.reporting.figures import corrected, curves, images
from apac.reporting.figures.linear_output import linear_output
from apac.runs import provenance
from apac.runs.run import Run
from apac.runs.storage import write_bytes, write_json, write_text

FREE_MAPS = (
    "The paper finds local features after deformed training, and only global patterns after training on original data."
)
TIED_MAPS = (
    "Both training runs started with convolutional weight sharing, which makes the maps local: the weights around each "
    "window were learned after the sharing ended."
)
RULE = (
    "A network trained on randomly deformed images minimizes the expected loss over deformations. APAC decides a test "
    "image by that same expectation: deform it M times, average the log-softmax, take the largest class."
)
OPTIONAL = (
    "rule",
    "corrected",
    "linear-output",
    "certified",
    "first-layer-weights",
)  # figures that not every report has


@dataclass(frozen=True)
class Picture:
    title: str
    png: bytes
    caption: str


def write(result: Result, out: Path, command: str) -> None:
    """Write `out`/report.html, with the command that made it, results.json, results.csv and the figures."""
    pictures = draw(result)
    for name in OPTIONAL:  # remove stale figures of an earlier report
        if name not in pictures:
            (out / f"{name}.png").unlink(missing_ok=True)
    for name, picture in pictures.items():
        write_bytes(out / f"{name}.png", picture.png)
    write_json(out / "results.json", to_json(result))
    write_text(out / "results.csv", to_csv(result))
    write_text(out / "report.html", _html(result, pictures, command))


def draw(result: Result) -> dict[str, Picture]:
    """Draw the figures and return them by file name."""
    pictures: dict[str, Picture] = {}
    showcase = result.showcase
    if showcase and showcase.example:
        picture = corrected.corrected(showcase.example, showcase.classifier)
        pictures["rule"] = Picture("", picture, opening.caption(showcase))
    # With class-distinctive deformation no single pass compares the classes.
    if result.evaluation.corrected and result.recipe.baseline == ORIGINAL:
        pictures |= _corrected(result)
    sets = _sets(result)[next(iter(result.recipe.trainings))]
    pictures["error-against-m"] = Picture(
        "Error against M",
        _error_against_m(result),
        "More passes give a better estimate of the expected loss of each class. "
        + (f"Class-distinctive deformation takes M passes with each of {sets} sets. " if sets > 1 else "")
        + " ".join(sentences(result)),
    )
    if result.certified:
        pictures["certified"] = Picture(
            "Certified decisions",
            curves.certified(result.certified, result.evaluation),
            "Left: number of passes until the decision for an image is settled. Right: test error against the mean "
            "number of passes, for fixed M and for the certified rule, labeled with its error.",
        )
    return pictures | _samples(result)


def _error_against_m(result: Result) -> bytes:
    if result.recipe.baseline == ORIGINAL:
        return curves.error_against_m(result.evaluation, result.baseline)
    return curves.networks_against_m({f"class-{name}": result for name, result in _evaluations(result).items()})


def _corrected(result: Result) -> dict[str, Picture]:
    """Draw two corrected images: the one that improves the most, and the closest miss of the plain prediction."""
    dataset, run, evaluation = result.dataset, result.run, result.evaluation
    labels, classes = dataset.test_labels, dataset.classes
    classifier = run.classifier(seed=run.config.seed, paper_rule=True)
    inputs = run.normalize(dataset.test_images)
    assert evaluation.scores is not None
    plain = classifier.plain(inputs)  # (N, K)
    best = corrected.most_improved(
        evaluation.corrected,
        labels,
        dataset.test_images,
        inputs,
        plain.exp(),
        evaluation.scores.log_mean.softmax(dim=1),
        passes=evaluation.rows[-1].passes,
        classes=classes,
    )
    behind = plain.amax(dim=1) - plain.gather(1, labels[:, None])[:, 0]
    closest = min(evaluation.corrected, key=lambda index: float(behind[index]))
    pixels = dataset.test_images[closest].float() / 255
    return {
        "corrected": Picture(
            "How APAC decides",
            corrected.corrected(best, classifier),
            f"Of the {len(evaluation.corrected):,} test images that APAC corrects, the one whose true class gains the "
            "most probability. Below each copy is the prediction of its pass. The bars are the scores as "
            "probabilities, not calibrated; blue is the true class.",
        ),
        "linear-output": Picture(
            "Between two classes",
            linear_output(inputs, labels, classifier, closest, pixels, classes),
            "Logits of the true class and of the plain prediction, for the test images of both classes. The image is "
            "the one that APAC corrects and that the plain prediction misses by the least. Its virtual samples are "
            "also shown: above the dotted line the true class has the larger logit.",
        ),
    }


def _samples(result: Result) -> dict[str, Picture]:
    dataset, run = result.dataset, result.run
    labels, classes = dataset.test_labels, dataset.classes
    pixels = dataset.test_images.float() / 255
    first = [int((labels == c).nonzero()[0]) for c in range(min(8, len(classes)))]  # of each of the first eight classes
    largest, wrong = result.evaluation.rows[-1].passes, result.evaluation.wrong
    shown = (
        "All test images" if len(wrong) <= images.MAX_SHOWN else f"{images.MAX_SHOWN} of the {len(wrong):,} test images"
    )
    pictures = {
        "deformed-samples": Picture(
            "Deformed samples",
            images.deformed_samples(pixels[first], labels[first], run.deformation, seed=run.config.seed),
            "Virtual samples as in training and in decisions: new parameters from the same distribution.",
        ),
        "misclassified": Picture(
            "Misclassified images",
            images.misclassified(pixels, labels, result.evaluation, classes),
            f"{shown} that APAC gets wrong with M = {largest:,}. Top left: the true class. Bars: the top 2 classes.",
        ),
    }
    networks = {f"trained on {LABELS[name]}": run.network for name, run in _runs(result).items()}
    weights = images.first_layer_weights(networks, run.image_shape)
    if weights is not None:
        pictures["first-layer-weights"] = Picture(
            "First-layer weights",
            weights,
            f"Randomly chosen weight maps. {TIED_MAPS if run.config.tied else FREE_MAPS}",
        )
    return pictures


def to_json(result: Result) -> dict[str, Any]:
    recipe = result.recipe
    trainings = {
        name: {
            **run.settings.to_json(),
            "versions": run.versions,
            "history": [epoch.to_json() for epoch in run.history],
            "evaluation": evaluation.to_json(),
        }
        for (name, run), evaluation in zip(_runs(result).items(), _evaluations(result).values(), strict=True)
    }
    return {
        "recipe": recipe.name,
        "written": provenance.describe(),  # at the time of the report; `versions` below are those of the training runs
        "seconds": {"training": round(result.training_seconds, 1), "deciding": round(result.deciding_seconds, 1)},
        "paper_percent": {name: asdict(errors) for name, errors in recipe.paper.items()},
        "certified": [evaluation.to_json() for evaluation in result.certified],
        "trainings": trainings,
        **({"showcase": result.showcase.to_json()} if result.showcase else {}),
    }


def to_csv(result: Result) -> str:
    """Return one line per training and rule."""
    parts = {name: evaluation.to_csv().splitlines() for name, evaluation in _evaluations(result).items()}
    header = next(iter(parts.values()))[0]
    lines = [f"{name},{line}" for name, (_, *rows) in parts.items() for line in rows]
    return "\n".join([f"training,{header}", *lines]) + "\n"


def result_tables(result: Result) -> list[tables.Table]:
    """Return the tables of the recipe, in the order of printing; those of its showcase are in `opening`."""
    shown = _by_passes(result)
    if result.certified:
        shown.append(tables.certified_by_error(result.certified, result.evaluation))
    return [*shown, summary(result)]


def summary(result: Result) -> tables.Table:
    """Return the recipe's rows of the paper's Table 2, with the baseline first."""
    return comparison.summary(dict(reversed(_evaluations(result).items())), result.recipe.paper, _sets(result))


def sentences(result: Result) -> list[str]:
    """Compare APAC with the plain prediction and with the baseline."""
    (name, evaluation), (other_name, other) = _evaluations(result).items()
    if not other.rows:
        return [tables.changes(evaluation)]
    both = [f"After {LABELS[n]}: {tables.changes(e)}" for n, e in ((name, evaluation), (other_name, other))]
    return [*both, comparison.differences(evaluation, name, other, other_name)]


def _by_passes(result: Result) -> list[tables.Table]:
    """Return a table for each training with deformation."""
    evaluations, sets = {name: e for name, e in _evaluations(result).items() if e.rows}, _sets(result)
    if len(evaluations) == 1:
        return [tables.error_against_m(result.evaluation)]
    return [
        tables.error_against_m(e, LABELS[name] + (f", passes with each of {sets[name]} sets" * (sets[name] > 1)))
        for name, e in evaluations.items()
    ]


def _sets(result: Result) -> dict[str, int]:
    """Return N_d, the number of deformation sets, of each training."""
    deformations = {name: run.deformation for name, run in _runs(result).items()}
    return {name: len(u.sets) for name, u in deformations.items()}


def _runs(result: Result) -> dict[str, Run]:
    return dict(zip(result.recipe.trainings, (result.run, result.baseline_run), strict=True))


def _evaluations(result: Result) -> dict[str, Evaluation]:
    return dict(zip(result.recipe.trainings, (result.evaluation, result.baseline), strict=True))


def _html(result: Result, pictures: dict[str, Picture], command: str) -> str:
    config, run = result.run.config, result.run
    count = len(result.dataset.train_images)
    held_out = round(config.validation_fraction * count)
    epochs = " and ".join(f"{run.config.epochs:,} with {LABELS[name]}" for name, run in _runs(result).items())
    sections = [
        html.Section(
            f"Result: {result.recipe.network} on {result.recipe.data}",
            table=summary(result),
            text=f"The paper trains on the full set for 15,000 epochs; this report for {epochs}, on "
            f"{count - held_out:,} images, with {held_out:,} held out.",
        ),
        *(html.Section(p.title, picture=p.png, caption=p.caption) for p in pictures.values() if p.title),
        *(html.Section("All M", table=table) for table in _by_passes(result)),
    ]
    if result.certified:
        sections.append(html.Section("Certified", table=tables.certified_by_error(result.certified, result.evaluation)))
    facts = {
        "command": command,
        **{f"training, {LABELS[name]}": _training(run) for name, run in _runs(result).items()},
        "time": f"training {result.training_seconds:,.0f} s, deciding {result.deciding_seconds:,.0f} s",
        **run.versions,
    }
    sections.append(html.Section("Settings", facts=facts))
    if result.showcase is None:
        return html.page(f"APAC: {result.recipe.name}", RULE, [*opening.sections(result), *sections])
    picture = [html.Section("", picture=p.png, caption=p.caption) for p in pictures.values() if not p.title]
    lead = opening.headline(result.showcase)
    return html.page("APAC in one picture", lead, [*picture, *opening.sections(result, RULE), *sections])


def _training(run: Run) -> str:
    """Describe the deformation, the configuration and the last epoch."""
    last = run.history[-1]
    held_out = "" if last.validation_error is None else f", plain error on held-out images {last.validation_error:.2%}"
    return f"{run.deformation!r}, {run.config!r}: loss {last.loss:.4f}{held_out}, {last.seconds:,.0f} s"
