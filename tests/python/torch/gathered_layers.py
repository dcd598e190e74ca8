"""FSDP2 with gather_in_place: the parameters while a layer computes. Also used by tests/gpu/torch.

The host runs ahead of a device, so that memory that is used again too early holds the parameters of another
layer.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import isthmus.torch

LAYERS, STEPS = 6, 4
ENGINES = "collective=allgather,allgatherv platform=cuda use=copy_engine"
# backend, rule, arguments of gather_in_place, layers that are gathered in advance
WAYS: dict[str, tuple[str, str, dict[str, Any], int]] = {
    "NCCL": ("nccl", "", {}, 1),
    "default": ("isthmus", "", {}, 1),
    "every size, two layers in advance": ("isthmus", "", {"minimum_bytes": 1}, 2),
    "copy engines": ("isthmus", ENGINES, {"symmetric": True}, 1),
    "copy engines, two layers in advance": ("isthmus", ENGINES, {"symmetric": True}, 2),
}


class Compare(torch.autograd.Function):
    """Counts elements that differ from the expected parameters, in the forward and in the backward pass."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, layer: Layer) -> torch.Tensor:
        context.layer = layer
        layer.compare()
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.layer.compare()
        return gradient, None


class Layer(nn.Module):
    def __init__(self, width: int, device: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.up = nn.Linear(width, 4 * width, device=device)
        self.down = nn.Linear(4 * width, width, device=device)
        self.expected: dict[str, torch.Tensor] = {}
        self.wrong: torch.Tensor | None = None

    def keep_values(self) -> None:
        self.expected = {name: each.detach().bfloat16() for name, each in self.named_parameters()}
        self.wrong = torch.zeros((), dtype=torch.int64, device=self.up.weight.device)

    def compare(self) -> None:
        for name, each in self.named_parameters():
            self.wrong += (each.detach() != self.expected[name]).sum()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = Compare.apply(x, self)
        x = x + self.down(torch.relu(self.up(self.norm(x))))
        return Compare.apply(x, self)


def make_model(way: str, group: dist.ProcessGroup, width: int, device: str) -> nn.Sequential:
    _, _, arguments, advance = WAYS[way]
    torch.manual_seed(1)  # equal weights on all ranks
    model = nn.Sequential(*(Layer(width, device) for _ in range(LAYERS)))
    mesh = DeviceMesh.from_group(group, device)
    for layer in model:
        for each in layer.parameters():
            nn.init.normal_(each, std=width**-0.5)
        layer.keep_values()
        fully_shard(layer, mesh=mesh, mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16))
    fully_shard(model, mesh=mesh)
    if device == "cpu":
        arguments = arguments | {"minimum_bytes": 1}
    isthmus.torch.gather_in_place(model, **arguments)
    layers = list(model)
    for index, layer in enumerate(layers):
        layer.set_modules_to_forward_prefetch(layers[index + 1 : index + 1 + advance])
        layer.set_modules_to_backward_prefetch(layers[max(0, index - advance) : index][::-1])
    return model


def check_way(way: str, width: int, device: str) -> int:
    """Returns the number of comparisons."""
    backend, rule, *_ = WAYS[way]
    os.environ["ISTHMUS_RULE"] = rule
    if device == "cpu":
        backend = backend.replace("nccl", "gloo")
    group = dist.new_group(backend=backend, timeout=timedelta(seconds=60))
    model = make_model(way, group, width, device)
    x = torch.randn(256, width, device=device)
    for _ in range(STEPS):
        model(x).sum().backward()
        model.zero_grad()
    for index, layer in enumerate(model):
        assert int(layer.wrong) == 0, f"{way}: {int(layer.wrong)} elements of layer {index} are wrong"
    dist.destroy_process_group(group)
    return LAYERS * STEPS * 4
