"""allocate_tensor: blocks of the symmetric heap, the same block on every rank."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

CPU = torch.device("cpu")


def allocate(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return dist.group.WORLD._get_backend(CPU).allocate_tensor(count, dtype=dtype, device=CPU)


def collectives() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    assert dist.group.WORLD._get_backend(CPU).supports_tensor_alloc(CPU)
    for dtype in (torch.float32, torch.bfloat16, torch.bool):
        for count in (1, 1000, 300_000):
            own_block, gathered = allocate(count, dtype), allocate(size * count, dtype)
            assert own_block.dtype == dtype and own_block.shape == (count,) and gathered.is_contiguous()
            own_block.fill_(rank)
            dist.all_gather_into_tensor(gathered, own_block)
            part = gathered[rank * count : (rank + 1) * count].fill_(rank)
            dist.all_gather_into_tensor(gathered, part)
            for source in range(size):
                assert gathered[source * count : (source + 1) * count].eq(torch.tensor(source).to(dtype)).all()
    data = allocate(5000).fill_(rank)
    works = [dist.all_reduce(data, async_op=True) for _ in range(3)]
    works[-1].wait()
    assert data.eq(sum(range(size)) * size**2).all()
    assert allocate(0).numel() == 0


def test_collectives_on_heap_tensors(ranks: RankProcesses) -> None:
    ranks.run(collectives)


def reuse_blocks() -> None:
    first, second = allocate(1000), allocate(1000)
    places = first.data_ptr(), second.data_ptr()
    assert places[0] != places[1]
    del first
    third = allocate(1010)
    assert third.data_ptr() == places[0], "similar sizes share blocks"
    part = third[5:]
    del third
    assert allocate(1000).data_ptr() not in places, "a view keeps its tensor's block"
    del part, second
    assert allocate(1000).data_ptr() == places[0]


def test_blocks_are_reused(ranks: RankProcesses) -> None:
    ranks.run(reuse_blocks)


def release_on_other_ranks() -> None:
    first = allocate(2000)
    place = first.data_ptr()
    held_block = first if dist.get_rank() == 2 else None
    del first
    assert allocate(2000).data_ptr() != place, "rank 2 still uses that block, so no rank may reuse it"
    del held_block
    assert allocate(2000).data_ptr() == place


def test_block_in_use_on_one_rank_is_not_reused(ranks: RankProcesses) -> None:
    ranks.run(release_on_other_ranks)


def use_after_group() -> float:
    tensor = allocate(100_000).fill_(2)
    free = allocate(500)
    del free
    dist.destroy_process_group()
    tensor.add_(1)
    return tensor.sum().item()


def test_tensor_outlives_its_group(ranks: RankProcesses) -> None:
    assert ranks.run(use_after_group) == [300_000.0] * ranks.size
    ranks.run(collectives)


def invalid_arguments() -> None:
    with pytest.raises(ValueError, match="size is -1"):
        allocate(-1)
    backend = dist.group.WORLD._get_backend(CPU)
    with pytest.raises(ValueError, match="tensors on meta are not supported"):
        backend.allocate_tensor(4, dtype=torch.float32, device=torch.device("meta"))


def test_invalid_arguments_raise(ranks: RankProcesses) -> None:
    ranks.run(invalid_arguments)
