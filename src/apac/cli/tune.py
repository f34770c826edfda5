"""apac tune"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apac.cli.errors import handle_errors, print_error
from apac.cli.options import RunFolder, Seed
from apac.cli.terminal import print_table, show_progress
from apac.errors import InputError


@handle_errors
def tune(
    run: RunFolder,
    passes: Annotated[int, typer.Option(help="Passes of the comparison, M.")] = 64,
    data: Annotated[
        str | None,
        typer.Option(help="The folder of the training images, if it was moved.", show_default="the run's own"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for tuning.json and tuning.png.", show_default="RUN")] = None,
    seed: Seed = 0,
) -> None:
    """Find out on held-out training images whether APAC helps this network, and with what strength.

    Example:  apac tune runs/cnn

    Example:  apac tune runs/photos --data moved-photos

    Compares the plain prediction with deformations from a quarter to five quarters of the strength in training, by
    product and by sum, on the images that training held out (apac train --validation-fraction). Each is judged by its
    negative log-likelihood after a temperature that is fitted on other images. Of those within one standard error of
    the best, the one closest to the paper's rule (strength 1, product) is chosen.

    Writes tuning.json and tuning.png into RUN. From then on all commands and apac.load use the choice; --paper-rule
    ignores it, and removing tuning.json forgets it. For a network that is shipped with the package, RUN is its name,
    and a folder of that name holds the choice.
    """
    from apac.classify.rules.fixed import FixedPasses
    from apac.evaluation.tuning import STRENGTHS, validate_enough, validate_tunable
    from apac.evaluation.tuning import tune as choose
    from apac.reporting.tuning import candidates
    from apac.runs.labeled_images import images_held_out
    from apac.runs.run import load
    from apac.runs.storage import write_bytes
    from apac.runs.tuning_file import write_choice

    rule = FixedPasses(passes)
    loaded = load(run, paper_rule=True)  # whatever an earlier choice is
    validate_tunable(loaded.deformation)
    with show_progress() as progress:
        held_out = images_held_out(loaded, data=data, progress=progress)
        validate_enough(len(held_out.images))
        strengths = sum(strength > 0 for strength in STRENGTHS)
        images = f"{len(held_out.images):,} held-out images"
        print(f"Deciding {images} plainly, and by {passes:,} passes at each of {strengths} strengths.", flush=True)
        classifier = loaded.classifier(rule, seed=seed)
        choice = choose(classifier, held_out.images, held_out.labels, classes=loaded.classes, progress=progress)
    print_table(candidates(choice))
    for sentence in (choice.advice, *choice.notes):
        print(sentence)
    written = [write_choice(out or run, choice, loaded.deformation)]
    try:
        from apac.reporting.figures.tuning import nll_against_strength

        picture = nll_against_strength(choice)
    except InputError as missing:
        print_error(f"tuning.png is not drawn: {missing}")
    else:
        written.append(written[0].with_name("tuning.png"))
        write_bytes(written[-1], picture)
    print(f"wrote {', '.join(map(str, written))}")
