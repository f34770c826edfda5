"""A deformation as a layer of a network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from apac.deform.base import Deformation
from apac.errors import InputError


class DeformationLayer(nn.Module):
    """Deform in training mode and only preprocess in evaluation mode. Use it as the first layer of a model.

    Like dropout, the layer draws from torch's default generator: `torch.manual_seed` makes it reproducible, and
    DataLoader workers draw different parameters. Pass the network without this layer to `apac.Classifier`, which
    deforms the images itself.

    >>> import torch, apac
    >>> network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
    >>> model = torch.nn.Sequential(apac.DeformationLayer(apac.presets.mnist()), network)
    >>> model.train()(torch.rand(8, 1, 28, 28)).shape
    torch.Size([8, 10])
    """

    def __init__(self, deformation: Deformation) -> None:
        super().__init__()
        if not isinstance(deformation, Deformation):
            raise InputError(f"a DeformationLayer takes a Deformation, got {deformation!r}.")
        self.deformation = deformation

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        """Deform or preprocess images (N, C, H, W). Only a `PerClass` needs labels (N,)."""
        if not self.training:
            return self.deformation.preprocess(images)
        return self.deformation(images, generator=torch.default_generator, labels=labels)

    def extra_repr(self) -> str:
        return repr(self.deformation)
