"""Trains a small language model with DDP, FSDP2 and DeepSpeed and returns the losses of every step.

The data depends only on a seed, each rank uses its own part, and nothing depends on timing. Two runs can
differ only in the results of the collectives.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 32, 12, 4


class Block(nn.Module):
    """A transformer block: attention and a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norms[0](x)
        x = x + self.attention(normed, normed, normed, need_weights=False)[0]
        return x + self.perceptron(self.norms[1](x))


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self, layers: int = 2) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batches(steps: int) -> list[torch.Tensor]:
    """Returns this rank's part of a random text. Two batches repeat, so that the loss decreases."""
    generator = torch.Generator().manual_seed(100 + dist.get_rank())
    words = torch.randint(0, VOCABULARY, (2, BATCH, LENGTH + 1), generator=generator)
    return [words[step % 2] for step in range(steps)]


def loss_of(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    logits = model(words[:, :-1])
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), words[:, 1:].flatten())


@dataclass
class Trained:
    """Losses of this rank by step and the (collective, path) pairs of report()."""

    losses: list[float]
    paths: set[tuple[str, str]]


def reported_paths() -> set[tuple[str, str]]:
    import isthmus.torch

    return {(row.collective, row.path) for row in isthmus.torch.report()}


def train(model: nn.Module, device: str, steps: int) -> Trained:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for words in batches(steps):
        loss = loss_of(model, words.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(losses, reported_paths())


def ddp(device: str, steps: int, **options: Any) -> Trained:
    model = Model().to(device)
    return train(nn.parallel.DistributedDataParallel(model, **options), device, steps)


def bfloat16_hook(_state, bucket):  # DDP rejects annotations that are strings
    """A communication hook that sends bfloat16 and uses the future of the collective."""
    future = dist.all_reduce(bucket.buffer().bfloat16() / dist.get_world_size(), async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


def ddp_compressed(device: str, steps: int) -> Trained:
    model = nn.parallel.DistributedDataParallel(Model().to(device))
    model.register_comm_hook(None, bfloat16_hook)
    return train(model, device, steps)


def own_collectives() -> tuple[Any, Any]:
    """Returns custom collectives for FSDP2 that allocate tensors in the symmetric heap."""
    from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter

    class FromHeap:
        def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            backend = dist.group.WORLD._get_backend(device)
            return backend.allocate_tensor(math.prod(size), dtype=dtype, device=device).view(size)

    class Gather(FromHeap, AllGather):
        def __call__(self, output_tensor, input_tensor, group, async_op=False):
            return dist.all_gather_into_tensor(output_tensor, input_tensor, group, async_op)

    class Scatter(FromHeap, ReduceScatter):
        def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
            return dist.reduce_scatter_tensor(output_tensor, input_tensor, op, group, async_op)

    return Gather(), Scatter()


def fsdp2(
    device: str,
    steps: int,
    half: bool = False,
    allocate: bool = False,
    custom: bool = False,
    in_place: dict[str, Any] | None = None,
    reshard: bool | int = True,
) -> Trained:
    """Trains with FSDP2, optionally with the allocator of the group, with own_collectives() or in place."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.split(":")[0], (dist.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if half else MixedPrecisionPolicy()
    model = Model().to(device)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy)
    if allocate:
        for module in [*model.blocks, model]:
            module.set_allocate_memory_from_process_group_for_comm(True)
    if custom:
        for module in [*model.blocks, model]:
            gather, own_scatter = own_collectives()
            module.set_custom_all_gather(gather)
            module.set_custom_reduce_scatter(own_scatter)
    if in_place is not None:
        import isthmus.torch

        isthmus.torch.gather_in_place(model, **in_place)
    return train(model, device, steps)


def tensor_parallel(device: str, steps: int) -> Trained:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    mesh = init_device_mesh(device.split(":")[0], (dist.get_world_size(),))
    model = Model().to(device)
    for block in model.blocks:
        parallelize_module(block.perceptron, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    losses = []
    for words in batches(steps):
        dist.broadcast(words := words.to(device), 0)  # all ranks use the same batch
        loss = loss_of(model, words)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return Trained(losses, reported_paths())


def deepspeed_zero(
    device: str, steps: int, backend: str, prepare: Callable[[Any], None] | None = None, **zero: Any
) -> Trained:
    """Trains with DeepSpeed as users do: with dist_backend, and only an import for Isthmus."""
    import deepspeed

    # Otherwise, DeepSpeed compiles a C++ extension for CPU tensors, which takes most of a minute.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed(
        dist_backend=backend,
        init_method=os.environ.get("TEST_STORE"),
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        verbose=False,
    )
    half = zero.pop("half", False)
    configuration = {
        "train_micro_batch_size_per_gpu": BATCH,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2, "torch_adam": True}},
        "zero_optimization": {"stage3_param_persistence_threshold": 0, "reduce_bucket_size": 5000} | zero,
        "zero_allow_untested_optimizer": True,
        "bf16": {"enabled": half},
    }
    engine, *_ = deepspeed.initialize(model=Model(), config=configuration)
    if prepare is not None:
        prepare(engine)
    losses = []
    for words in batches(steps):
        loss = loss_of(engine, words.to(device))
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    trained = Trained(losses, reported_paths())
    engine.destroy()
    return trained
