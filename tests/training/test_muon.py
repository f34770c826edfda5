"""Muon, compared with singular values and with torch's Nesterov momentum."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from apac.training.muon import BLOCK, WHOLE, Muon, orthogonal


@pytest.mark.parametrize("shape", [(5, 5), (8, 30), (30, 8), (1, 7), (7, 1), (20, 3, 5, 5), (6, 2, 3, 3)])
def test_a_step_keeps_its_singular_vectors_and_has_singular_values_near_one(shape, random):
    step = torch.randn(shape, generator=random)
    result = orthogonal(step)
    assert result.shape == step.shape
    left, before, right = torch.linalg.svd(step.flatten(1), full_matrices=False)
    outputs, inputs = step.flatten(1).shape
    product = left.T @ (result.flatten(1) / max(1.0, outputs / inputs) ** 0.5) @ right.T
    values = product.diag()[before > 0.05 * before.max()]  # the smallest take more iterations
    assert ((values > 0.6) & (values < 1.25)).all()
    torch.testing.assert_close(product, product.diag().diag(), atol=1e-4, rtol=0)


@pytest.mark.parametrize("rank", [1, 2, 10])
def test_a_gradient_of_low_rank_is_not_amplified(rank, random):
    step = torch.randn(64, rank, generator=random) @ torch.randn(rank, 500, generator=random)
    step += 1e-3 * torch.randn(64, 500, generator=random)
    values = torch.linalg.svdvals(orthogonal(step))
    assert values.max() < 1.25  # products in bfloat16 gave up to 4,000
    assert (values[:rank] > 0.6).all()
    half = orthogonal(step.bfloat16())  # a network of this type
    assert half.dtype == torch.bfloat16
    assert torch.linalg.svdvals(half.float()).max() < 1.25


def test_the_update_does_not_depend_on_the_gradient_norm_and_zero_stays_zero(random):
    step = torch.randn(6, 9, generator=random)
    torch.testing.assert_close(orthogonal(1e-3 * step), orthogonal(1e3 * step), atol=1e-4, rtol=0)
    assert torch.equal(orthogonal(torch.zeros(3, 4)), torch.zeros(3, 4))


def test_a_layer_of_medium_size_is_orthogonalized_as_a_whole(random):
    step = torch.randn(WHOLE // 2, 300, generator=random).repeat(2, 1)
    assert torch.linalg.svdvals(orthogonal(step)).max() < 1.25  # two blocks that are alike would have 1.4


def test_the_outputs_of_a_large_layer_are_orthogonalized_block_by_block(random):
    step = torch.randn(2 * BLOCK + 5, 40, generator=random)
    parts = [
        orthogonal(part) * (max(1.0, len(step) / 40) / max(1.0, len(part) / 40)) ** 0.5 for part in step.split(BLOCK)
    ]
    torch.testing.assert_close(orthogonal(step), torch.cat(parts), atol=1e-4, rtol=0)


def test_groups_that_are_not_orthogonal_use_nesterov_momentum(random):
    ours = nn.Linear(4, 3)
    theirs = copy.deepcopy(ours)
    optimizers = [
        Muon([{"params": ours.parameters()}], lr=0.05, momentum=0.8),
        torch.optim.SGD(theirs.parameters(), lr=0.05, momentum=0.8, nesterov=True),
    ]
    for _ in range(5):
        x = torch.randn(7, 4, generator=random)
        for network, optimizer in zip((ours, theirs), optimizers, strict=True):
            optimizer.zero_grad()
            network(x).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(ours.weight, theirs.weight)
    torch.testing.assert_close(ours.bias, theirs.bias)


def test_an_orthogonal_group_steps_by_its_learning_rate_for_any_gradient():
    weight = nn.Parameter(torch.zeros(3, 3))
    optimizer = Muon([{"params": [weight], "orthogonal": True}], lr=0.1, momentum=0.0)
    weight.grad = torch.diag(torch.tensor([5.0, 1.0, 0.4]))
    optimizer.step()
    assert (weight.diag() < -0.06).all()
    assert (weight.diag() > -0.125).all()


@pytest.mark.parametrize("orthogonalized", [False, True])
def test_the_weight_decay_does_not_change_the_direction_of_a_step(orthogonalized, random):
    weights = [nn.Parameter(torch.ones(3, 4)) for _ in range(2)]
    optimizers = [
        Muon([{"params": [weight], "orthogonal": orthogonalized, "weight_decay": decay}], lr=0.5, momentum=0.9)
        for weight, decay in zip(weights, (0.0, 0.2), strict=True)
    ]
    expected = torch.ones(3, 4)
    for _ in range(3):
        gradient = 1e-4 * torch.randn(3, 4, generator=random)  # much smaller than the penalty
        before = weights[0].detach().clone()
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
        expected = (1 - 0.5 * 0.2) * expected + weights[0].detach() - before
    torch.testing.assert_close(weights[1].detach(), expected)


def test_a_normalized_group_keeps_the_root_mean_square_norm_of_the_rows(random):
    weight = nn.Parameter(7 * torch.randn(4, 3, 2, generator=random))
    direction = weight.detach().clone()
    optimizer = Muon([{"params": [weight], "orthogonal": True, "normalized": True}], lr=1e-9, momentum=0.0)
    weight.grad = torch.randn(4, 3, 2, generator=random)
    optimizer.step()
    torch.testing.assert_close(weight.detach().flatten(1).square().sum(dim=1).mean(), torch.tensor(1.0))
    torch.testing.assert_close(weight.detach() / weight.detach().norm(), direction / direction.norm())
