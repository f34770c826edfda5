"""The optimizers: SGD, Muon and AdamW, with weight decay on the weights only; that of Muon and AdamW is decoupled."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from apac.training.config import TrainConfig
from apac.training.muon import Muon


def make_optimizer(network: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Return the optimizer of a resolved configuration. Biases and normalization layers have no weight decay."""
    assert config.learning_rate is not None and config.weight_decay is not None
    trainable = [p for p in network.parameters() if p.requires_grad]
    weights = [p for p in trainable if p.ndim > 1]
    biases = [p for p in trainable if p.ndim <= 1]
    decay: dict[str, Any] = {"weight_decay": config.weight_decay}
    if config.optimizer == "muon":
        hidden, last = weights[:-1], weights[-1:]
        scale_free = {id(layer.weight) for layer in network.modules() if getattr(layer, "scale_free", False)}
        groups = [
            {"params": [p for p in hidden if id(p) not in scale_free], "orthogonal": True, **decay},
            {"params": last, **decay},
            {"params": biases},
            {"params": [p for p in hidden if id(p) in scale_free], "orthogonal": True, "normalized": True},
        ]
        groups = [group for group in groups if group["params"]]
        return Muon(groups, lr=config.learning_rate, momentum=config.momentum)
    # 0 is explicit, because the default of AdamW is 0.01.
    groups = [{"params": weights, **decay}, {"params": biases, "weight_decay": 0.0}]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.learning_rate, betas=(config.momentum, 0.999), fused=True)
    return torch.optim.SGD(groups, lr=config.learning_rate, momentum=config.momentum, fused=True)
