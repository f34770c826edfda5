"""What `apac evaluate` evaluates, and where the results are written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from apac.cli.options import mention_choice
from apac.errors import InputError

if TYPE_CHECKING:  # imports torch, which is slow
    from torch import Tensor

    from apac.classify.classifier import Classifier
    from apac.distributed.ranks.group import Group
    from apac.progress import Progress
    from apac.runs.labeled_images import LabeledImages
    from apac.runs.run import Run

# Of the held-out images on which temperatures are fitted: fewer leave them to chance, more do not improve them.
MIN_HELD_OUT, MAX_HELD_OUT = 50, 2000


@dataclass(frozen=True)
class EvaluationFiles:
    """Which images are evaluated, and where the results are written."""

    run: Path
    data: str | None
    on_unreadable: Literal["refuse", "skip"] | None
    out: Path | None
    overwrite: bool
    paper_rule: bool

    @property
    def scores(self) -> Path:
        """The folder for the scores of passes: in the run; for a shipped network, in `out` if it is given."""
        from apac.runs.folder import holds_run, scores_path

        return scores_path(self.run if self.out is None or holds_run(self.run) else self.out)

    def load(self, run: Run, name: str, progress: Progress) -> tuple[LabeledImages, Path]:
        """Return the images, and the folder for the results, in which the file `name` describes them."""
        from apac.evaluation.stored import check_data
        from apac.runs.folder import EVALUATIONS
        from apac.runs.labeled_images import images_to_test

        tested = images_to_test(run, self.data, on_unreadable=self.on_unreadable, progress=progress)
        # RUN itself has the evaluation of what was tuned, on the data of the run.
        name_of_folder = Path(tested.data).name + ("-paper-rule" if self.paper_rule else "")
        in_run = tested.own and not self.paper_rule
        folder = self.out or (self.run if in_run else self.run / EVALUATIONS / name_of_folder)
        if not self.overwrite:
            check_data(folder / name, tested)
        return tested, folder

    def keep(self, path: Path, payload: Mapping[str, Any]) -> bool:
        """Return whether a larger evaluation is kept in the place of this one, and print that it is."""
        from apac.evaluation.stored import describe_larger

        larger = None if self.overwrite else describe_larger(path, payload)
        if larger is not None:
            print(f"kept {path}, which is larger: {larger}; --overwrite replaces it, --out writes elsewhere.")
        return larger is not None


def held_out_images(run: Run, tested: LabeledImages, progress: Progress) -> tuple[Tensor, Tensor] | None:
    """Return training images that the run held out, for the temperatures; None if there are too few."""
    from apac.runs.labeled_images import images_held_out

    try:
        moved = tested.data if tested.own and tested.data != run.data else None
        held_out = images_held_out(run, data=moved, progress=progress)
    except InputError:  # none were held out, or the training data are not available
        return None
    if len(held_out.images) < MIN_HELD_OUT:
        return None
    return held_out.images[:MAX_HELD_OUT], held_out.labels[:MAX_HELD_OUT]


def require_same_evaluation(
    group: Group,
    classifier: Classifier,
    tested: LabeledImages,
    held_out: tuple[Tensor, Tensor] | None,
    **options: object,
) -> None:
    """Raise InputError on all ranks if they do not have the same options, run and images."""
    from apac.evaluation.score_cache import cache_key
    from apac.runs.provenance import code_version

    if group.size == 1:
        return
    count = 0 if held_out is None else len(held_out[0])
    digest = cache_key(classifier, tested.images)  # also of the version of torch
    described = {
        "the version of apac": code_version(),
        "seed": classifier.seed,
        "the rule": classifier.rule,
        **options,
        "the number of held-out images": count,
    }
    group.require_same({**described, "what is evaluated": f"with digest {digest}"})


def described(run: Run, tested: LabeledImages) -> dict[str, Any]:
    tuned = {"strength": 1.0, "combine": "product"}
    if run.choice is not None:
        tuned = {"strength": run.choice.strength, "combine": run.choice.combine}
    return {"data": tested.data, "own": tested.own, **tuned}


def mention_cost(tested: LabeledImages, held_out: tuple[Tensor, Tensor] | None, passes: str) -> None:
    """Print what is decided, before it takes its time."""
    and_held_out = "" if held_out is None else f" and {len(held_out[0]):,} held-out images"
    print(f"Deciding {len(tested.images):,} test images{and_held_out}, {passes}.", flush=True)


def mention_data_and_choice(run: Run, tested: LabeledImages) -> None:
    if tested.own and tested.data != run.data:
        print(f"{tested.data} holds the images of the training; the files that it held out are evaluated.")
    mention_choice(run)


@contextmanager
def resumable(scores: Path) -> Iterator[None]:
    """Print how to continue after Ctrl-C, if scores are cached in the folder."""
    try:
        yield
    except KeyboardInterrupt:
        if not any(scores.glob("*.safetensors")):
            raise
        sentence = "interrupted; completed passes are cached. Run the same command to continue."
        raise KeyboardInterrupt(sentence) from None
