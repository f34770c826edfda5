"""Passes: draw Θ, deform, ask the network. What the network says depends on the seed and the number of a pass alone."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from apac import trees
from apac.deform.base import Deformation
from apac.deform.per_class import PerClass
from apac.errors import InputError
from apac.inference.engine import Network, evaluating, prepare, serves_threads
from apac.inference.workers import WorkerPool, worker_pool
from apac.randomness import generator

PART = 4  # batches of the network
CACHE = 16 << 20  # bytes
ALONE = WorkerPool()
NOT_ALWAYS = "the network must return the same number of classes for all images; it returns now more and now fewer."

Outputs = Literal["logits", "probabilities", "log-probabilities"]  # of a network


@dataclass(frozen=True)
class Passes:
    """The passes of a seed, for any images."""

    network: Network
    deformation: Deformation
    seed: int
    independent: bool
    device_batch: int
    outputs: Outputs = "logits"
    threads: WorkerPool = ALONE

    @contextmanager
    def at_work(self) -> Iterator[Passes]:
        """The same on all cores where the network allows it, and with the network in evaluation mode."""
        with (
            evaluating(self.network),
            worker_pool(limit_caller=True) if serves_threads(self.network) else nullcontext(ALONE) as threads,
        ):
            yield replace(self, threads=threads)

    def prepared(self, images: Tensor, passes: int) -> Passes:
        """The same with the network ready for so many passes of these images, where that pays."""
        threads = max(self.threads.count, torch.get_num_threads())
        number = passes * len(self._sets()) * len(images)
        examples = self.deformation.preprocess(images[:64])
        logits = partial(_logits, outputs=self.outputs)
        return replace(self, network=prepare(self.network, examples, number, threads, logits=logits))

    def plain(self, images: Tensor) -> Tensor:
        """Log-probabilities of the undeformed images, (N, K)."""
        # Without an image, a blank one tells the number of classes.
        some = images if len(images) else images.new_zeros(1, *images.shape[1:])
        batches = some.split(self.device_batch)
        with closing(
            self.threads.map(
                lambda part: self._log_probabilities(_apart(self.deformation.preprocess(part), part)), batches
            )
        ) as said:
            return torch.cat(list(said))[: len(images)]

    def of(self, images: Tensor, numbers: range) -> Generator[Tensor, None, None]:
        """Log-probabilities of images, (N, K), in one pass after the other."""
        parts = len(images.split(self._part(images)))
        with closing(self.threads.map(lambda item: self._said(*item), self._work(images, numbers))) as said:
            # those of the parts, (passes of a block, images of a part, K)
            classes = None
            while block := list(islice(said, parts)):
                classes = classes or block[0].shape[2]
                if any(each.shape[2] != classes for each in block):
                    raise InputError(NOT_ALWAYS)
                yield from torch.cat(block, dim=1)

    def _work(self, images: Tensor, numbers: range) -> Iterator[tuple[Tensor, range, list[Any] | None]]:
        """What the cores share: some of the images in some of the passes, with the Θ that serve them all.

        Many images: each pass in parts. Few: all of them, in blocks of passes.
        """
        together = max(1, self.device_batch // len(images))
        parts = images.split(self._part(images))
        for block in (numbers[i : i + together] for i in range(0, len(numbers), together)):
            thetas = None if self.independent else self._draw(images, block)
            for part in parts:
                yield part, block, thetas

    def _part(self, images: Tensor) -> int:
        """How many images are deformed at once: some batches of the network, which hides the calls, but no more than a
        core's cache can hold."""
        at_hand = CACHE // (images[0].numel() * images.element_size())
        return max(self.device_batch, min(PART * self.device_batch, at_hand))

    def _said(self, images: Tensor, numbers: range, thetas: list[Any] | None) -> Tensor:
        """Log-probabilities of images in a block of passes, (passes, images, K)."""
        sets = self._sets()
        thetas = [self._draw_independent(u, images, numbers) for u in sets] if thetas is None else thetas
        # The images once for each pass: row p · N + i is image i in the block's pass p.
        originals = images.repeat(len(numbers), 1, 1, 1) if len(numbers) > 1 else images
        each = []
        for deformation, theta in zip(sets, thetas, strict=True):
            if trees.size(theta) not in (1, len(originals)):
                theta = trees.rows(theta, torch.arange(len(numbers)).repeat_interleave(len(images)))
            virtual = deformation.apply(originals, theta)
            if not isinstance(virtual, Tensor) or len(virtual) != len(originals) or not virtual.is_floating_point():
                got = (
                    f"{virtual.dtype} {tuple(virtual.shape)}" if isinstance(virtual, Tensor) else type(virtual).__name__
                )
                raise InputError(
                    f"{type(deformation).__name__}.apply must make {len(originals)} floating-point images of "
                    f"{len(originals)}, got {got}."
                )
            each.append(self._log_probabilities(_apart(virtual, images, originals)))
        if isinstance(self.deformation, PerClass):
            # Class c is scored by c's own set.
            own = torch.tensor(self.deformation.set_of_class)  # (K,)
            if each[0].shape[1] != len(own):
                raise InputError(
                    f"PerClass was made for {len(own)} classes, but the network has {each[0].shape[1]} outputs."
                )
            each = [torch.stack(each).gather(0, own.expand(1, *each[0].shape))[0]]
        return each[0].view(len(numbers), len(images), -1)

    def _sets(self) -> tuple[Deformation, ...]:
        return self.deformation.sets if isinstance(self.deformation, PerClass) else (self.deformation,)

    def _draw(self, images: Tensor, numbers: range) -> list[Any]:
        """The Θ of a block of passes, one draw for each set; the sets go in step, with the same random numbers."""
        each = (
            [u.sample(1, _shape(images), generator=generator(self.seed, "pass", m)) for m in numbers]
            for u in self._sets()
        )
        return [trees.to_device(trees.concatenate(thetas), images.device) for thetas in each]

    def _draw_independent(self, deformation: Deformation, images: Tensor, numbers: range) -> Any:
        keys = [_digest(image) for image in images]
        each = [
            deformation.sample(1, _shape(images), generator=generator(self.seed, f"pass of {key}", m))
            for m in numbers
            for key in keys
        ]
        return trees.to_device(trees.concatenate(each), images.device)

    def _log_probabilities(self, virtual: Tensor) -> Tensor:
        each: list[Tensor] = []
        for batch in virtual.split(self.device_batch):
            logits = self.network(_as_parameters(batch, self.network))
            if not isinstance(logits, Tensor) or logits.ndim != 2 or len(logits) != len(batch):
                got = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
                raise InputError(f"the network must return {self.outputs} of shape ({len(batch)}, classes), got {got}.")
            if logits.shape[1] < 2:
                raise InputError(
                    f"the network must return a number for each of two classes or more, it returned {logits.shape[1]} "
                    f"an image; a network for yes or no has the logits (0, z), as torch.cat([0 * z, z], dim=1) makes."
                )
            if logits.is_complex():
                raise InputError(f"the network must return real numbers, got {logits.dtype}.")
            if each and logits.shape[1] != each[0].shape[1]:
                raise InputError(NOT_ALWAYS)
            each.append(logits)
        return _logits(torch.cat(each).cpu(), self.outputs).log_softmax(dim=1)


def _logits(said: Tensor, outputs: Outputs) -> Tensor:
    """What a network says, (N, K), as logits in double precision. Logarithms of probabilities are some; a probability
    of 0 counts as the least number that float32 has."""
    exact = said.double()
    if outputs == "logits":
        return exact
    probabilities = exact if outputs == "probabilities" else exact.exp()
    total = probabilities.sum(dim=1)
    # each as far from what it should be as its type rounds
    astray = max(1e-3, 2 * torch.finfo(said.dtype).eps) if said.is_floating_point() else 0.0
    if (probabilities < 0).any() or ((total - 1).abs() > astray).any():
        worst = float(total[(total - 1).abs().nan_to_num().argmax()])
        raise InputError(
            f"the network does not return {outputs}: the least of them is {float(probabilities.min()):.3g}, those of "
            f'an image sum to {worst:.4g}; say what it returns by outputs="logits" or another.'
        )
    return probabilities.clamp_min(torch.finfo(torch.float32).tiny).log()


def _apart(virtual: Tensor, *originals: Tensor) -> Tensor:
    """Virtual samples in memory of their own: a network may work in place."""
    at = virtual.untyped_storage().data_ptr()
    return virtual.clone() if any(each.untyped_storage().data_ptr() == at for each in originals) else virtual


def _digest(image: Tensor) -> str:
    """An image by its pixels, of whatever type."""
    return hashlib.blake2b(image.cpu().double().contiguous().numpy().tobytes(), digest_size=16).hexdigest()


def _as_parameters(images: Tensor, network: Network) -> Tensor:
    """Images of the type and on the device of a module's weights; as they are for any other callable."""
    weights = [*network.parameters(), *network.buffers()] if isinstance(network, nn.Module) else []
    weight = next((each for each in weights if each.is_floating_point()), None)
    return images if weight is None else images.to(weight.device, weight.dtype)


def _shape(images: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = images.shape
    return channels, height, width
