"""Run passes: sample parameters, deform the images, evaluate the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from apac import trees
from apac.classify.network_outputs import CLASSES_VARY, Outputs, log_probabilities, to_logits
from apac.classify.pass_parameters import all_values, digest_of_all, sample_independent, sample_shared
from apac.deform.base import Deformation
from apac.distributed.ranks.group import Group
from apac.errors import InputError
from apac.inference.engine import Network, evaluating, is_thread_safe, prepare
from apac.inference.workers import WorkerPool, worker_pool

Item = TypeVar("Item")

SHARED = 8  # blocks that a rank runs before the ranks exchange their results
PART = 4  # batches of the network that are deformed at once
CACHE = 16 << 20  # bytes of a core's cache
LIBRARY_CACHE = 10 << 20  # of the images that another library transforms at once, and copies several times
CALLING_THREAD = WorkerPool()
ALONE = Group()


@dataclass(frozen=True, eq=False)
class Block:
    """A unit of work for one worker: some images in some passes."""

    images: Tensor  # (N, C, H, W)
    numbers: range  # of the passes
    parameters: list[Any] | None  # per set, one row per pass; None where each image has its own


@dataclass(frozen=True)
class PassRunner:
    """Runs the passes of a seed, for any images."""

    network: Network
    deformation: Deformation
    seed: int
    independent: bool
    device_batch: int
    outputs: Outputs = "logits"
    all_values: bool = False  # pass m has value m of the deformation, instead of a random one
    workers: WorkerPool = CALLING_THREAD
    ranks: Group = ALONE  # all of them run the same passes, and share the work

    @contextmanager
    def running(self) -> Iterator[PassRunner]:
        """Yield the same runner with worker threads, where the network allows it, and in evaluation mode."""
        # A deformation that serves one thread at a time uses all torch threads, in the calling thread.
        pool = (
            worker_pool(limit_caller=self.deformation.thread_safe)
            if is_thread_safe(self.network)
            else nullcontext(CALLING_THREAD)
        )
        with evaluating(self.network), pool as workers:
            yield replace(self, workers=workers)

    def prepared(self, images: Tensor, passes: int) -> PassRunner:
        """Return the same runner with the network prepared for `passes` passes of these images, where that pays."""
        # Outside `running` there are no workers yet; inside it, the calling thread is limited to one torch thread.
        threads = max(self.workers.count, torch.get_num_threads())
        return replace(
            self,
            network=prepare(
                self.network,
                self.deformation.preprocess(images[:64]),
                passes * len(self.deformation.sets) * len(images),
                threads,
                logits=partial(to_logits, outputs=self.outputs),
            ),
        )

    def plain(self, images: Tensor) -> Tensor:
        """Return the log-probabilities of the undeformed images, (N, K)."""
        # Without images, a blank one tells the number of classes.
        batches = (images if len(images) else images.new_zeros(1, *images.shape[1:])).split(self.device_batch)
        with closing(self._shared(self._run_plain, batches, images, range(0))) as parts:
            return torch.cat(list(parts))[: len(images)]

    def log_probabilities(self, images: Tensor, numbers: range) -> Generator[Tensor, None, None]:
        """Yield the log-probabilities of the images, (N, K), for one pass after the other."""
        parts = images.split(self._part_size(images))
        with closing(self._shared(self._run, self._blocks(images, parts, numbers), images, numbers)) as results:
            classes = None
            while same_passes := list(islice(results, len(parts))):  # all parts of the images, (passes, n, K) each
                classes = classes or same_passes[0].shape[2]
                if any(part.shape[2] != classes for part in same_passes):
                    raise InputError(CLASSES_VARY)
                yield from torch.cat(same_passes, dim=1)  # (passes, N, K), one pass at a time

    def _blocks(self, images: Tensor, parts: Sequence[Tensor], numbers: range) -> Iterator[Block]:
        """Divide the work: many images into parts of one pass, few images into several passes at once."""
        together = max(1, min(self.device_batch, self._part_size(images), _fitting(images, CACHE)) // len(images))
        for start in range(0, len(numbers), together):
            block = numbers[start : start + together]
            parameters = self._parameters(images, block)
            for part in parts:
                yield Block(part, block, parameters)

    def _part_size(self, images: Tensor) -> int:
        """Return how many images to deform at once: several batches hide the cost of calls, but must fit the cache."""
        if self.deformation.thread_safe or images.device.type != "cpu":
            return max(self.device_batch, min(PART * self.device_batch, _fitting(images, CACHE)))
        # A call of another library costs as much as hundreds of small images: as many as fit, in equal parts.
        parts = math.ceil(len(images) / max(1, _fitting(images, LIBRARY_CACHE)))
        return math.ceil(len(images) / parts)

    def _parameters(self, images: Tensor, numbers: range) -> list[Any] | None:
        """Return the parameters of passes for each set, or None if every image has its own.

        The sets use the same random numbers.
        """
        if self.all_values:
            return [all_values(deformation, images, numbers) for deformation in self.deformation.sets]
        if self.independent:
            return None
        return [sample_shared(deformation, images, self.seed, numbers) for deformation in self.deformation.sets]

    def _run_plain(self, images: Tensor) -> Tensor:
        return self._evaluate(in_own_memory(self.deformation.preprocess(images), images))

    def _run(self, block: Block) -> Tensor:
        """Return the log-probabilities of a block, (passes, images, K)."""
        images, numbers = block.images, block.numbers
        # Row p * N + i is image i in pass p of the block.
        repeated = images.repeat(len(numbers), 1, 1, 1) if len(numbers) > 1 else images
        per_set = []
        for index, deformation in enumerate(self.deformation.sets):
            if block.parameters is None:
                parameters = sample_independent(deformation, images, self.seed, numbers)
            else:
                parameters = _repeat_rows(block.parameters[index], len(numbers), len(images))
            virtual = _deform(deformation, repeated, parameters)
            per_set.append(self._evaluate(in_own_memory(virtual, images, repeated)))
        return select_set_of_class(per_set, self.deformation).view(len(numbers), len(images), -1)

    def map(self, function: Callable[[Item], Tensor], items: Iterable[Item]) -> Generator[Tensor, None, None]:
        """Deform and evaluate items in the workers, or in the calling thread if only one thread can deform."""
        workers = self.workers if self.deformation.thread_safe else CALLING_THREAD
        yield from workers.map(function, items)

    def _shared(
        self, function: Callable[[Item], Tensor], items: Iterable[Item], images: Tensor, numbers: range
    ) -> Generator[Tensor, None, None]:
        """Map items, which are the passes `numbers` of images; all ranks share them."""
        if self.ranks.size == 1:
            return self.map(function, items)
        work = f"{function.__name__} of {digest_of_all(images)} in {numbers} with seed {self.seed}"
        return self.ranks.share(lambda own: list(self.map(function, own)), items, each=SHARED, work=work)

    def _evaluate(self, virtual: Tensor) -> Tensor:
        if self.deformation.thread_safe or self.workers.count == 1:
            return log_probabilities(self.network, virtual, self.device_batch, self.outputs)
        # The calling thread has deformed the images; the workers share the batches of the network.
        size = min(self.device_batch, -(-len(virtual) // self.workers.count))
        evaluate = partial(log_probabilities, self.network, batch_size=size, outputs=self.outputs)
        with closing(self.workers.map(evaluate, virtual.split(size))) as parts:
            return torch.cat(list(parts))


def _fitting(images: Tensor, cache: int) -> int:
    """Return how many images of this shape fit a cache, given in bytes."""
    return cache // (images[0].numel() * images.element_size())


def _repeat_rows(parameters: Any, passes: int, images: int) -> Any:
    """Repeat the parameters of each pass for every image; a single row serves all images as it is."""
    if trees.size(parameters) in (1, passes * images):
        return parameters
    return trees.rows(parameters, torch.arange(passes).repeat_interleave(images))


def _deform(deformation: Deformation, images: Tensor, parameters: Any) -> Tensor:
    """Apply the deformation; raise InputError unless it returns as many floating-point images."""
    virtual = deformation.apply(images, parameters)
    if isinstance(virtual, Tensor) and len(virtual) == len(images) and virtual.is_floating_point():
        return virtual
    got = f"{virtual.dtype} {tuple(virtual.shape)}" if isinstance(virtual, Tensor) else type(virtual).__name__
    raise InputError(
        f"{type(deformation).__name__}.apply must return {len(images)} floating-point images for {len(images)}, "
        f"got {got}."
    )


def select_set_of_class(per_set: list[Tensor], deformation: Deformation) -> Tensor:
    """Score each class by the passes of its own set: (N, K) per set to (N, K)."""
    deformation.validate_classes(per_set[0].shape[1])
    if len(per_set) == 1:
        return per_set[0]
    set_of_class = torch.tensor(deformation.set_of_class)  # (K,)
    return torch.stack(per_set).gather(0, set_of_class.expand(1, *per_set[0].shape))[0]


def in_own_memory(virtual: Tensor, *originals: Tensor) -> Tensor:
    """Copy virtual samples that share memory with the originals: a network may work in place."""
    address = virtual.untyped_storage().data_ptr()
    shared = any(original.untyped_storage().data_ptr() == address for original in originals)
    return virtual.clone() if shared else virtual
