"""apac classify"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from apac import limits
from apac.cli.errors import handle_errors, in_options, print_error
from apac.cli.options import Error, Limit, PaperRule, RunFolder, Seed, certified, load_run, mention_choice
from apac.cli.terminal import print_record, show_progress
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from apac.classify.combine import Combine


@handle_errors
def classify(
    run: RunFolder,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE|FOLDER...",
            help="Image files, or folders of them; with --out also quoted patterns, @FILE with one path per line, or "
            "- for such lines on the standard input.",
            show_default=False,
        ),
    ],
    error: Error = None,
    limit: Limit = None,
    passes: Annotated[
        int | None, typer.Option(help="A fixed number of passes instead of the certified rule.", show_default=False)
    ] = None,
    combine: Annotated[
        str | None,
        typer.Option(
            help="product: mean of log-probabilities, the paper's rule. sum: mean of probabilities.",
            show_default="as tuned, or product",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="One pass of the undeformed image, the conventional prediction.")
    ] = False,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write the decisions to this file.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the decisions to this folder in parts, of any number of files; the same command continues "
            "after an interruption, and torchrun or other processes share the work.",
            show_default=False,
        ),
    ] = None,
    parquet: Annotated[bool, typer.Option("--parquet", help="With --out: parts in Parquet instead of CSV.")] = False,
    part_size: Annotated[
        int | None, typer.Option(help="With --out: files in a part.", show_default="512, more for very many files")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the decisions as JSON.")] = False,
    paper_rule: PaperRule = False,
    max_pixels: Annotated[
        int, typer.Option(min=1, help="Refuse image files with more pixels; each takes 4 bytes of memory.")
    ] = limits.PIXELS,
    seed: Seed = 0,
) -> None:
    """Classify image files by APAC, with as many passes as each answer needs to be settled.

    Example:  apac classify runs/cnn digit.png

    Example:  apac classify runs/photos holiday/ more/*.jpg --csv decisions.csv

    Example:  apac classify runs/photos holiday/ --plain --json

    Example:  apac classify runs/photos archive/ --out decisions; apac merge decisions --csv decisions.csv

    Example:  torchrun --nproc-per-node 2 -m apac classify runs/photos archive/ --out decisions

    A folder stands for the image files in it and in its subfolders. Images are resized, centered and inverted to match
    the training data, and the output lists the conversions. The probability of a class is the normalized geometric mean
    of its probabilities in all passes, or with --combine sum their mean.

    Settled means that more passes would not change the answer, not that it is right. If the run was evaluated on test
    images (apac evaluate RUN), the output says how often answers with such a probability were right.
    """
    from apac.classify.rules.base import Rule
    from apac.classify.rules.fixed import FixedPasses
    from apac.evaluation.records import decision_records, records_to_csv
    from apac.evaluation.reliability import Reliability, find_reliability
    from apac.runs.file_classifier import FileClassifier, file_classifier
    from apac.runs.run import Run
    from apac.runs.storage import check_replaceable, write_bytes

    if passes is not None and (error, limit) != (None, None):
        raise InputError(
            "--passes fixes the number of passes, --error and --limit belong to the certified rule; choose one."
        )
    if combine not in (None, "product", "sum"):
        raise InputError(f"--combine must be product or sum, got {combine!r}.")
    if plain and (passes, error, limit, combine) != (None, None, None, None):
        raise InputError("--plain is one pass of the undeformed image; omit --passes, --error, --limit and --combine.")
    if out is None and (parquet or part_size is not None):
        raise InputError("--parquet and --part-size belong to --out; give a folder by --out.")
    if out is not None and (as_json or csv is not None):
        raise InputError("--out writes parts; omit --json and --csv, and join the parts with apac merge.")
    if csv is not None:
        check_replaceable(csv)  # before the work
    for path in images if out is None else ():
        if (str(path)[:1] == "@" or str(path) == "-" or set("*?[") & set(str(path))) and not path.exists():
            raise InputError(f"there is no file {path}; lists of files (@list, -) and patterns need --out.")
    rule: Rule | None = None if passes is None else FixedPasses(passes)
    if (error, limit) != (None, None):
        rule = certified(error, limit)
    combined = cast("Combine | None", combine)

    def load() -> tuple[Run, FileClassifier, Reliability | None]:
        loaded = load_run(run, paper_rule=paper_rule)
        decider = file_classifier(loaded, rule, seed=seed, combine=combined, plain=plain, max_pixels=max_pixels)
        # For a shipped network, RUN is its name, and an evaluation of one's own comes first.
        folders = (run, loaded.folder)
        return loaded, decider, find_reliability(folders, decider.classifier, plain=decider.plain is not None)

    if out is not None:
        from apac.cli.classify_files import classify_files

        paths = [str(path) for path in images]
        classify_files(lambda: load()[1:], paths, out, parquet=parquet, part_size=part_size)
        return
    loaded, decider, reliability = load()
    with show_progress() as progress:
        classified = decider.classify(images, progress=progress)
    for reason in classified.unreadable.values():
        print_error(in_options(reason))
    records = decision_records(classified, strength=decider.strength, reliability=reliability)
    if as_json:
        print(json.dumps(records, indent=2))
    else:
        if records and not plain:
            mention_choice(loaded, decider.classifier)
        for record in records:
            print_record(record)
    if csv is not None:
        write_bytes(csv, records_to_csv(records, classified.classes).encode(errors="surrogateescape"))
    if classified.unreadable or "nan" in classified.decision.stopped:
        raise typer.Exit(2)
