"""The command: parse, call, print. What takes long to import is imported by the command that needs it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from apac.errors import InputError
from apac.refusal import complain, in_one_sentence, kindly
from apac.terminal import answers_of, print_answer, print_table, watched

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Augmented PAttern Classification: train on randomly deformed images, decide by the same expectation.

    A first look, a few minutes:  [bold]apac reproduce --out report[/bold]""",
)
data_app = typer.Typer(no_args_is_help=True, help="The data sets: where they are kept, and how to get them.")
app.add_typer(data_app, name="data")

Seed = Annotated[int, typer.Option(help="Decides every random number.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what the folder holds.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what the folder holds.")]
RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="A folder that apac train made.", show_default=False)]


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", is_eager=True, help="Print the version.")] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"apac {installed('augmented-pattern-classification')}")
        raise typer.Exit


@app.command()
@kindly
def train(
    out: Annotated[Path, typer.Option(help="The folder for the run.", show_default=False)],
    data: Annotated[str | None, typer.Option(help="mnist-5k, mnist or cifar10.", show_default="mnist-5k")] = None,
    model: Annotated[str | None, typer.Option(help="cnn or mlp: the paper's for the data.", show_default="cnn")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="Train on the original data, without deformation.")] = False,
    epochs: Annotated[
        int | None, typer.Option(help="How often as many samples as the set has.", show_default="100")
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Virtual samples a step.", show_default="100")] = None,
    rate: Annotated[float | None, typer.Option(help="Initial learning rate.", show_default="the paper's")] = None,
    schedule: Annotated[
        str | None, typer.Option(help="paper (times 0.9993 an epoch) or cosine.", show_default="paper")
    ] = None,
    l2: Annotated[float | None, typer.Option(help="L2 factor on the weights.", show_default="the paper's")] = None,
    average: Annotated[
        float | None, typer.Option(help="Decay a step of averaged weights; 0: none.", show_default="0")
    ] = None,
    validation: Annotated[
        float | None, typer.Option(help="Part of the images to hold out.", show_default="0.1")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Decides every random number.", show_default="0")] = None,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train a network with on-line deformation.

    Example:  apac train --data mnist --model cnn --epochs 3 --out runs/cnn

    Ctrl-C keeps a checkpoint:  apac train --resume --out runs/cnn  goes on as if nothing had happened.
    """
    from dataclasses import replace

    from apac import run as runs
    from apac.deform.compose import Compose
    from apac.run_folder import read_config
    from apac.training.config import TrainConfig

    options = {
        "data": data,
        "model": model,
        "epochs": epochs,
        "batch": batch,
        "rate": rate,
        "schedule": schedule,
        "l2": l2,
        "average": average,
        "validation": validation,
        "seed": seed,
        "deformation": Compose() if plain else None,
    }
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    config = replace(read_config(out), **given) if resume else TrainConfig(**given)
    with watched() as progress:
        run = runs.train(config, out, resume=resume, overwrite=overwrite, progress=progress)
    last = run.history[-1]
    held = "" if last.validation_error is None else f", plain error on held-out images {last.validation_error:.2%}"
    print(f"{out}: {config.network}, {last.epoch} epochs in {last.seconds:.0f} s, loss {last.loss:.4f}{held}")
    print(f"next: apac evaluate {shlex.quote(str(out))}")


@app.command()
@kindly
def evaluate(
    run: RunFolder,
    passes: Annotated[str, typer.Option(help="The M to evaluate, separated by commas.")] = "1,4,16,64,256",
    seed: Seed = 0,
) -> None:
    """Error on the test images, plain and by APAC: by product and by sum, top-2, what changed.

    Example:  apac evaluate runs/cnn --passes 1,16,256

    Writes evaluation.json and evaluation.csv into RUN.
    """
    from apac import data
    from apac.deform.compose import Compose
    from apac.evaluate import evaluate as measure
    from apac.paper.table import changes, error_against_m
    from apac.run import load
    from apac.storage import write_json, write_text

    marks = _numbers(passes)
    loaded = load(run)
    if loaded.config.deformation == Compose():
        print("This network was trained on original data: without deformation APAC is the plain prediction.")
        marks = []
    with watched() as progress:
        dataset = data.load(loaded.config.data, progress=progress)
        images = loaded.normalise(dataset.test_images)
        result = measure(loaded.classifier(seed=seed), images, dataset.test_labels, marks, progress=progress)
    print_table(error_against_m(result))
    if marks:
        print(changes(result))
    write_json(run / "evaluation.json", result.to_json())
    write_text(run / "evaluation.csv", result.to_csv())
    print(f"wrote {run / 'evaluation.json'} and {run / 'evaluation.csv'}")


@app.command()
@kindly
def classify(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.", show_default=False)],
    passes: Annotated[int, typer.Option(help="Passes of each image.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
    seed: Seed = 0,
) -> None:
    """Decide image files by APAC.

    Example:  apac classify runs/cnn digit.png

    Images of another size or polarity are resized, centred and inverted as the training data asks, and it is said so.
    """
    import torch

    from apac.classify.stopping import FixedPasses
    from apac.data.image_file import read_image
    from apac.run import load

    rule = FixedPasses(passes)
    loaded = load(run)
    read, failed = [], False
    for path in images:
        try:
            read.append((path, *read_image(path, loaded.image_shape)))
        except InputError as error:
            complain(str(error))
            failed = True
    answers: list[dict[str, Any]] = []
    if read:
        pixels = loaded.normalise(torch.stack([image for _, image, _ in read]))
        with watched() as progress:
            decision = loaded.classifier(rule, seed=seed).decide(pixels, progress=progress)
        prepared = [(path, notes) for path, _, notes in read]
        answers = answers_of(prepared, decision, loaded.classes)
    if as_json:
        print(json.dumps(answers, indent=2))
    else:
        for answer in answers:
            print_answer(answer)
    if failed:
        raise typer.Exit(2)


@app.command()
@kindly
def reproduce(
    recipe: Annotated[str, typer.Argument(help="mnist-5k-cnn or mnist-5k-mlp.")] = "mnist-5k-cnn",
    out: Annotated[Path, typer.Option(help="The folder for the report.")] = Path("report"),
    seed: Seed = 0,
    resume: Resume = False,
    overwrite: Overwrite = False,
) -> None:
    """Train with and without deformation, evaluate, and write a report with table and figures.

    Example:  apac reproduce --out report

    Without a recipe: the paper's MNIST network on the 5,000 digits that come with the package.
    """
    from apac.paper import recipes, table
    from apac.paper.reproduce import reproduce as make

    chosen = recipes.find(recipe, seed=seed)
    try:
        with watched() as progress:
            result = make(chosen, out, resume=resume, overwrite=overwrite, progress=progress)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"stopped, and what is done is kept; go on with: "
            f"apac reproduce {recipe} --seed {seed} --resume --out {shlex.quote(str(out))}"
        ) from None
    print_table(table.error_against_m(result.deformed))
    print_table(table.summary(result.deformed, result.original, chosen.paper))
    print(table.changes(result.deformed))
    print(f"wrote {out / 'report.html'} (training {result.training:.0f} s, deciding {result.deciding:.0f} s)")


@app.command()
@kindly
def bench(
    only: Annotated[str, typer.Option(help="What to measure, separated by commas.")] = "deform,decide,train,process",
    rounds: Annotated[int, typer.Option(help="Turns of each contestant; its best counts.")] = 5,
    out: Annotated[Path, typer.Option(help="The file for the figures.")] = Path("bench.json"),
) -> None:
    """Measure the speed, beside other libraries and beside what the machine can do.

    Example:  apac bench --only deform --out deform.json

    Other libraries are measured where they are installed (the extra "bench"). Leave the machine idle meanwhile.
    """
    from apac.bench.result import bench as measure
    from apac.bench.result import tables, to_json
    from apac.storage import write_json

    if not out.parent.is_dir():
        raise InputError(f"the folder {out.parent} does not exist; make it, or choose another --out.")
    with watched() as progress:
        entries = measure([part.strip() for part in only.split(",")], rounds, progress=progress)
    for table in tables(entries):
        print_table(table)
    write_json(out, to_json(entries, rounds))
    print(f"wrote {out}")


@data_app.command()
@kindly
def fetch(name: Annotated[str, typer.Argument(help="mnist or cifar10.", show_default=False)]) -> None:
    """Download a data set, check its digests and keep it.

    Example:  apac data fetch mnist
    """
    from apac import data

    with watched() as progress:
        path = data.fetch(name, progress=progress)
    print(path)


@data_app.command()
@kindly
def path() -> None:
    """Print the folder of the downloaded data (the environment variable APAC_DATA overrides it).

    Example:  apac data path
    """
    from apac import data

    print(data.cache_folder())


def _numbers(text: str) -> list[int]:
    from apac.classify.stopping import FixedPasses

    try:
        return [FixedPasses(int(part)).passes for part in text.split(",")]
    except InputError:
        raise
    except ValueError:
        raise InputError(f"--passes takes whole numbers separated by commas, such as 1,4,16, got {text!r}.") from None


def main() -> None:
    in_one_sentence(app)
