"""What one recipe came to, for people and for machines: report.html, the figures, results.json and results.csv."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from apac.evaluation.fixed import Evaluation
from apac.paper import comparison
from apac.paper.recipes import LABELS, ORIGINAL, Recipe, find
from apac.paper.reproduce import Result
from apac.reporting import html, tables
from apac.reporting.figures import curves, images
from apac.reporting.figures.linear_output import linear_output
from apac.runs import provenance
from apac.runs.run import Run
from apac.runs.storage import write_bytes, write_json, write_text

FREE_MAPS = (
    "The paper finds local features after deformed training, and only global patterns after training on original data."
)
TIED_MAPS = (
    "Both trainings began with the weights tied as those of a convolution, which makes maps local from the start: "
    "what the weights became when they were free lies around each window."
)
OPTIONAL = ("corrected", "linear-output", "certified", "first-layer-weights")  # figures that not every report has


@dataclass(frozen=True)
class Picture:
    title: str
    png: bytes
    caption: str


def write(result: Result, out: Path) -> None:
    """Write `out`/report.html, results.json, results.csv and the figures."""
    pictures = draw(result)
    for name in OPTIONAL:  # none may stay of an earlier report
        if name not in pictures:
            (out / f"{name}.png").unlink(missing_ok=True)
    for name, picture in pictures.items():
        write_bytes(out / f"{name}.png", picture.png)
    write_json(out / "results.json", to_json(result))
    write_text(out / "results.csv", to_csv(result))
    write_text(out / "report.html", _html(result, pictures))


def draw(result: Result) -> dict[str, Picture]:
    """The figures by file name."""
    found: dict[str, Picture] = {}
    # Where each class has a deformation of its own, no one pass tells how classes compare.
    if result.evaluation.corrected and result.recipe.baseline == ORIGINAL:
        found |= _corrected(result)
    sets = _sets(result)[next(iter(result.recipe.trainings))]
    found["error-against-m"] = Picture(
        "Error against M",
        _error_against_m(result),
        "The more passes, the better the expected loss of each class is known. "
        + (f"Class-distinctively an image takes M passes with each of {sets} sets. " if sets > 1 else "")
        + " ".join(sentences(result)),
    )
    if result.certified:
        found["certified"] = Picture(
            "Stopping when certain",
            curves.certified(result.certified, result.evaluation),
            "Left, how many passes an image takes until its decision is certain. Right, the test error over the mean "
            "number of passes, for the same number for every image and for the certified rule with the allowed error "
            "beside each point.",
        )
    return found | _samples(result)


def _error_against_m(result: Result) -> bytes:
    if result.recipe.baseline == ORIGINAL:
        return curves.error_against_m(result.evaluation, result.other)
    return curves.networks_against_m({f"class-{name}": each for name, each in _evaluations(result).items()})


def _corrected(result: Result) -> dict[str, Picture]:
    """Two images that APAC corrects: the one that it is surest of, and the one that plain prediction just misses."""
    dataset, run, evaluation = result.dataset, result.run, result.evaluation
    labels, classes = dataset.test_labels, dataset.classes
    classifier = run.classifier(seed=run.config.seed)
    inputs = run.normalize(dataset.test_images)
    assert evaluation.scores is not None
    means = evaluation.scores.log_mean
    surest = max(evaluation.corrected, key=lambda index: float(means[index].topk(2).values.diff().abs()))
    chosen = list(evaluation.corrected)
    plain = classifier.plain(inputs[chosen])  # (n, K)
    behind = plain.amax(dim=1) - plain.gather(1, labels[chosen][:, None])[:, 0]
    closest = chosen[int(behind.argmin())]
    one = slice(surest, surest + 1)
    pixels = dataset.test_images.float() / 255
    return {
        "corrected": Picture(
            "How APAC decides",
            images.corrected(inputs[one], int(labels[surest]), classifier, means[surest], pixels[one], classes),
            "A test image that the plain prediction gets wrong and APAC gets right. Bars beside an image: its two "
            "most probable classes, blue for the truth. The mean log-probability "
            f"weighs what the network says of all {evaluation.rows[-1].passes:,} virtual samples.",
        ),
        "linear-output": Picture(
            "Between two classes",
            linear_output(inputs, labels, classifier, closest, pixels[closest], classes),
            "Outputs of the network before the softmax, of the true class and of the plain prediction, for the test "
            "images of both. Of the images that APAC corrects the one whose plain prediction is wrong by the least, "
            "and where its virtual samples lie: above the dotted line the truth is ahead.",
        ),
    }


def _samples(result: Result) -> dict[str, Picture]:
    dataset, run = result.dataset, result.run
    labels, classes = dataset.test_labels, dataset.classes
    pixels = dataset.test_images.float() / 255
    assert run.config.deformation is not None
    first = [int((labels == c).nonzero()[0]) for c in range(min(8, len(classes)))]  # of each of the first eight classes
    largest, wrong = result.evaluation.rows[-1].passes, result.evaluation.wrong
    shown = "All test images" if len(wrong) <= images.MOST else f"{images.MOST} of the {len(wrong):,} test images"
    found = {
        "deformed-samples": Picture(
            "Deformed samples",
            images.deformed_samples(pixels[first], labels[first], run.config.deformation, seed=run.config.seed),
            "What the network was trained on, and what it is asked about: fresh draws of the same distribution.",
        ),
        "misclassified": Picture(
            "Misclassified images",
            images.misclassified(pixels, labels, result.evaluation, classes),
            f"{shown} that APAC gets wrong with M = {largest:,}. Top left the truth; bars: the two best classes.",
        ),
    }
    networks = {f"trained on {LABELS[name]}": run.network for name, run in _runs(result).items()}
    weights = images.first_layer_weights(networks, run.image_shape)
    if weights is not None:
        found["first-layer-weights"] = Picture(
            "First-layer weights",
            weights,
            f"Randomly chosen weight maps. {TIED_MAPS if run.config.tied else FREE_MAPS}",
        )
    return found


def to_json(result: Result) -> dict[str, Any]:
    recipe = result.recipe
    trainings = {
        name: {
            "config": run.config.to_json(),
            "versions": run.versions,
            "history": [epoch.to_json() for epoch in run.history],
            "evaluation": evaluation.to_json(),
        }
        for (name, run), evaluation in zip(_runs(result).items(), _evaluations(result).values(), strict=True)
    }
    return {
        "recipe": recipe.name,
        "written": provenance.describe(),  # where and when; `versions` below are those of the trainings
        "seconds": {"training": round(result.training, 1), "deciding": round(result.deciding, 1)},
        "paper_percent": {name: asdict(errors) for name, errors in recipe.paper.items()},
        "certified": [certainty.to_json() for certainty in result.certified],
        "trainings": trainings,
    }


def to_csv(result: Result) -> str:
    """A line for each training and rule."""
    forms = {name: evaluation.to_csv().splitlines() for name, evaluation in _evaluations(result).items()}
    head = next(iter(forms.values()))[0]
    lines = [f"{name},{line}" for name, (_, *own) in forms.items() for line in own]
    return "\n".join([f"training,{head}", *lines]) + "\n"


def result_tables(result: Result) -> list[tables.Table]:
    """What the command prints."""
    found = _by_passes(result)
    if result.certified:
        found.append(tables.certified_by_error(result.certified, result.evaluation))
    return [*found, summary(result)]


def summary(result: Result) -> tables.Table:
    """The recipe's part of the paper's Table 2, the recipe's own training last."""
    return comparison.summary(dict(reversed(_evaluations(result).items())), result.recipe.paper, _sets(result))


def sentences(result: Result) -> list[str]:
    """What APAC changed against the plain prediction, and against the other training."""
    (name, evaluation), (other_name, other) = _evaluations(result).items()
    if not other.rows:
        return [tables.changes(evaluation)]
    both = [f"After {LABELS[n]}: {tables.changes(e)}" for n, e in ((name, evaluation), (other_name, other))]
    return [*both, comparison.differences(evaluation, name, other, other_name)]


def _by_passes(result: Result) -> list[tables.Table]:
    """A table for each training that has virtual samples to pass."""
    found, sets = {name: each for name, each in _evaluations(result).items() if each.rows}, _sets(result)
    if len(found) == 1:
        return [tables.error_against_m(result.evaluation)]
    return [
        tables.error_against_m(each, LABELS[name] + (f", passes with each of {sets[name]} sets" * (sets[name] > 1)))
        for name, each in found.items()
    ]


def _sets(result: Result) -> dict[str, int]:
    """N_d of each training by name."""
    made = {name: run.config.deformation for name, run in _runs(result).items()}
    return {name: 1 if each is None else len(each.sets) for name, each in made.items()}


def _runs(result: Result) -> dict[str, Run]:
    return dict(zip(result.recipe.trainings, (result.run, result.other_run), strict=True))


def _evaluations(result: Result) -> dict[str, Evaluation]:
    return dict(zip(result.recipe.trainings, (result.evaluation, result.other), strict=True))


def _html(result: Result, pictures: dict[str, Picture]) -> str:
    config, run = result.run.config, result.run
    of_all = len(result.dataset.train_images)
    held = round(config.validation * of_all)
    epochs = " and ".join(f"{run.config.epochs:,} with {LABELS[name]}" for name, run in _runs(result).items())
    sections = [
        html.Section(
            "Result",
            table=summary(result),
            text=f"The paper trains on the full set for 15,000 epochs; here it was {epochs}, on {of_all - held:,} "
            f"images, with {held:,} held out.",
        ),
        *(html.Section(each.title, picture=each.png, caption=each.caption) for each in pictures.values()),
        *(html.Section("All M", table=each) for each in _by_passes(result)),
    ]
    if result.certified:
        sections.append(html.Section("Certified", table=tables.certified_by_error(result.certified, result.evaluation)))
    facts = {
        "command": _command(result.recipe),
        **{f"training, {LABELS[name]}": _training(each) for name, each in _runs(result).items()},
        "time": f"training {result.training:,.0f} s, deciding {result.deciding:,.0f} s",
        **run.versions,
    }
    return html.page(
        f"APAC: {result.recipe.name}",
        "A network trained on randomly deformed images minimizes the expected loss over deformations. APAC decides a "
        "test image by that same expectation: deform it M times, average the log-softmax, take the largest class.",
        [*sections, html.Section("How it was made", facts=facts)],
    )


def _command(recipe: Recipe) -> str:
    """What makes this report."""
    short, paper = (find(recipe.name, seed=recipe.deformed.seed, schedule=s) for s in ("short", "paper"))
    command = f"apac reproduce {recipe.name} --seed {recipe.deformed.seed}"
    if recipe.passes != short.passes:
        command += f" --passes {','.join(map(str, recipe.passes))}"
    if recipe.deformed == paper.deformed:
        return f"{command} --schedule paper"
    return command if recipe.deformed == short.deformed else f"{command} --epochs {recipe.deformed.epochs}"


def _training(run: Run) -> str:
    """The configuration, and how the history ends."""
    config, last = run.config, run.history[-1]
    held = "" if last.validation_error is None else f", plain error on held-out images {last.validation_error:.2%}"
    return f"{config!r}: loss {last.loss:.4f}{held}, {last.seconds:,.0f} s"
