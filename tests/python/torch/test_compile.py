"""Collectives under torch.compile: one graph, and the results of a single process."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import compiled
import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from torch.distributed import _functional_collectives as functional

import isthmus.torch
from isthmus.torch._compile import torch_version

# Left out: cases for GPUs, and cases whose collectives are those of another case or not compiled.
CASES = [
    "functional_collectives",
    "gathered_columns",
    "coalesced_collectives",
    "calls_in_place",
    "functional_gradients",
    "allreduce_gradient",
    "sequence_parallel",
]
SINCE = {"allreduce_gradient": (2, 13)}


@pytest.fixture(scope="module")
def pair() -> Iterator[RankProcesses]:
    ranks = RankProcesses(2)  # each one compiles
    yield ranks
    ranks.close()


@pytest.mark.parametrize("name", CASES)
def test_case_is_one_graph(pair: RankProcesses, name: str) -> None:
    if torch_version() < SINCE.get(name, (2, 11)):
        pytest.skip("this version of PyTorch does not compile it")
    pair.run(compiled.check_all, [name], "cpu", "aot_eager")  # to generate code would take most of a minute


def generated_code() -> None:
    """Reuses buffers while collectives use them. Without element-wise operations, the code is only Python."""
    group, rank, size = dist.group.WORLD, dist.get_rank(), dist.get_world_size()
    weight = torch.eye(8) * 2

    def call(own: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(own @ weight, "sum", group)
        gathered = functional.all_gather_tensor(total @ weight, 0, group)
        return functional.reduce_scatter_tensor(gathered @ weight, "sum", 0, group) @ weight

    compiled_call = torch.compile(call, fullgraph=True)
    for step in range(5):
        result = compiled_call(torch.full((8, 8), float(rank + step)))
        assert result.eq(16 * size * sum(each + step for each in range(size))).all(), result


def direct_call() -> None:
    def call(own: torch.Tensor) -> torch.Tensor:
        total = own * 2
        isthmus.torch.all_reduce(total)
        return total

    result = torch.compile(call, fullgraph=True, backend="aot_eager")(torch.ones(3))
    assert result.eq(2 * dist.get_world_size()).all()


@pytest.mark.parametrize("work", [generated_code, direct_call])
def test_compiled_calls(pair: RankProcesses, work: Callable[[], None]) -> None:
    pair.run(work)
