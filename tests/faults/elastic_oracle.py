"""The training problem of elastic_rank.py: data, gradients and a single-process replay in float64."""

from __future__ import annotations

import torch

WIDTH, ROWS, RATE = 8, 16, 0.05


def initialize(model: torch.nn.Linear) -> None:
    with torch.no_grad():
        model.weight.copy_(torch.linspace(-1, 1, WIDTH))
        model.bias.zero_()


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy targets, so that gradients stay away from zero."""
    random = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(ROWS, WIDTH, generator=random)
    return inputs, inputs.sum(1, keepdim=True) + torch.randn(ROWS, 1, generator=random)


def gradient(
    weight: torch.Tensor, bias: torch.Tensor, step: int, size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean over all ranks of the gradient of the mean square error."""
    batches = [batch(step, rank) for rank in range(size)]
    inputs, targets = (torch.cat(parts).double() for parts in zip(*batches, strict=True))
    errors = inputs @ weight.double().T + bias.double() - targets
    return 2 * errors.T @ inputs / len(inputs), 2 * errors.mean(0)


def check_gradient(model: torch.nn.Linear, step: int, size: int) -> None:
    expected = gradient(model.weight.detach().cpu(), model.bias.detach().cpu(), step, size)
    for parameter, right in zip((model.weight, model.bias), expected, strict=True):
        assert parameter.grad is not None
        if not torch.allclose(parameter.grad.cpu().double(), right, rtol=1e-4, atol=1e-5):
            raise SystemExit(f"step {step} of {size} ranks: gradient {parameter.grad}, expected {right}")


def replay(entries: list[tuple[int, int]], steps: int) -> list[float]:
    """The parameters after these steps. Each entry has a step and the number of ranks from then on."""
    weight, bias = torch.linspace(-1, 1, WIDTH).double()[None], torch.zeros(1).double()
    for (begin, size), (end, _) in zip(entries, [*entries[1:], (steps, 0)], strict=True):
        for step in range(begin, end):
            weight_gradient, bias_gradient = gradient(weight, bias, step, size)
            weight, bias = weight - RATE * weight_gradient, bias - RATE * bias_gradient
    return [*weight.flatten().tolist(), *bias.tolist()]
