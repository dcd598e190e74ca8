"""Every collective of torch.distributed on CPU tensors, against values computed here."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

COUNT = 1000
REDUCED = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int8,
    torch.uint8,
    torch.int32,
    torch.int64,
]
MOVED = [*REDUCED, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2]


def part(rank: int, dtype: torch.dtype, count: int = COUNT) -> torch.Tensor:
    """Rank's contribution: small values, of which every sum of four is exact in every dtype of REDUCED."""
    values = torch.randint(0, 4, (count,), generator=torch.Generator().manual_seed(17 * rank + 3))
    return (values.to(dtype) + 1j * rank).to(dtype) if dtype.is_complex else values.to(dtype)


def poison(shape: tuple[int, ...] | int, dtype: torch.dtype) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    empty = torch.empty(shape, dtype=dtype)
    empty.view(torch.uint8).fill_(1 if dtype == torch.bool else 0xA5)
    return empty


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == expected.dtype and actual.shape == expected.shape
    assert torch.equal(actual.contiguous().view(torch.uint8), expected.contiguous().view(torch.uint8)), (
        f"{actual} instead of {expected}"
    )


def parts(dtype: torch.dtype, count: int = COUNT) -> list[torch.Tensor]:
    return [part(rank, dtype, count) for rank in range(dist.get_world_size())]


def combined(op: str, dtype: torch.dtype) -> torch.Tensor:
    all_parts = torch.stack([each.to(torch.float64) for each in parts(dtype)])
    value = {
        "SUM": lambda: all_parts.sum(0),
        "AVG": lambda: all_parts.mean(0),
        "PRODUCT": lambda: all_parts.prod(0),
        "MIN": lambda: all_parts.min(0).values,
        "MAX": lambda: all_parts.max(0).values,
    }[op]()
    return value.to(dtype)  # integers: truncated toward zero, as THE TABLE says


def moves(dtype: torch.dtype) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    all_parts = parts(dtype)
    mine = all_parts[rank]

    for root in range(size):
        data = mine.clone() if rank == root else poison(COUNT, dtype)
        dist.broadcast(data, root)
        same(data, all_parts[root])

        gathered = [poison(COUNT, dtype) for _ in range(size)] if rank == root else None
        dist.gather(mine, gathered, dst=root)
        for actual, expected in zip(gathered or [], all_parts, strict=False):
            same(actual, expected)

        received = poison(COUNT, dtype)
        dist.scatter(received, [each.clone() for each in all_parts] if rank == root else None, src=root)
        same(received, mine)

    listed = [poison(COUNT, dtype) for _ in range(size)]
    dist.all_gather(listed, mine)
    for actual, expected in zip(listed, all_parts, strict=True):
        same(actual, expected)

    whole = poison(size * COUNT, dtype)
    dist.all_gather_into_tensor(whole, mine)
    same(whole, torch.cat(all_parts))

    own = whole.clone()
    own[: rank * COUNT] = poison(rank * COUNT, dtype)
    own[(rank + 1) * COUNT :] = poison((size - rank - 1) * COUNT, dtype)
    dist.all_gather_into_tensor(own, own[rank * COUNT : (rank + 1) * COUNT])  # in place, as FSDP2 does it
    same(own, whole)

    # Block s of rank r's result is block r of rank s.
    sent = torch.cat([part(10 * rank + to, dtype, 7) for to in range(size)])
    expected = torch.cat([part(10 * source + rank, dtype, 7) for source in range(size)])
    exchanged = poison(7 * size, dtype)
    dist.all_to_all_single(exchanged, sent)
    same(exchanged, expected)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_data_movement(ranks: RankProcesses, dtype: torch.dtype) -> None:
    ranks.run(moves, dtype)


def reduces(dtype: torch.dtype) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        expected = combined(op, dtype)
        wanted = getattr(dist.ReduceOp, op)

        data = part(rank, dtype)
        dist.all_reduce(data, wanted)
        same(data, expected)

        data = part(rank, dtype)
        dist.reduce(data, 1, wanted)
        if rank == 1:
            same(data, expected)

        share = COUNT // size
        output = poison(share, dtype)
        dist.reduce_scatter_tensor(output, part(rank, dtype), wanted)
        same(output, expected[rank * share : (rank + 1) * share])

        output = poison(share, dtype)
        pieces = [each.clone() for each in part(rank, dtype).split(share)]
        dist.reduce_scatter(output, pieces, wanted)
        same(output, expected[rank * share : (rank + 1) * share])


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_reductions(ranks: RankProcesses, dtype: torch.dtype) -> None:
    ranks.run(reduces, dtype)


def reduces_what_has_no_image() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    flags = torch.tensor([rank == 2, rank < 9, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]
    dist.all_reduce(flags, dist.ReduceOp.MIN)
    assert flags.tolist() == [True, True, False]

    number = torch.tensor([complex(rank, 1), complex(0, -rank)], dtype=torch.complex64)
    dist.all_reduce(number)
    total = size * (size - 1) / 2
    assert number.tolist() == [complex(total, size), complex(0, -total)]

    scaled = torch.full((5,), float(rank))
    dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
    same(scaled, torch.full((5,), total * 0.5))
    block = torch.empty(5)
    dist.reduce_scatter_tensor(
        block, torch.full((5 * size,), 1.0), dist._make_nccl_premul_sum(torch.tensor([0.25]))
    )
    same(block, torch.full((5,), size * 0.25))


def test_bool_complex_and_premultiplied_sums(ranks: RankProcesses) -> None:
    ranks.run(reduces_what_has_no_image)


def uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [part(source, torch.float32, 3 * source + 1) for source in range(size)]
    gathered = [poison(each.numel(), torch.float32) for each in blocks]
    dist.all_gather(gathered, blocks[rank])
    for actual, expected in zip(gathered, blocks, strict=True):
        same(actual, expected)

    output = poison(rank + 1, torch.float32)
    dist.reduce_scatter(output, [torch.full((to + 1,), float(rank)) for to in range(size)])
    same(output, torch.full((rank + 1,), size * (size - 1) / 2))

    # rank r sends r + s + 1 rows of two numbers to rank s
    rows = [rank + to + 1 for to in range(size)]
    sent = torch.cat([torch.full((count, 2), 10.0 * rank + to) for to, count in enumerate(rows)])
    received = poison((sum(rows), 2), torch.float32)
    dist.all_to_all_single(received, sent, rows, rows)
    same(received, torch.cat([torch.full((count, 2), 10.0 * to + rank) for to, count in enumerate(rows)]))

    outputs = [poison((count, 2), torch.float32) for count in rows]
    dist.all_to_all(outputs, [torch.full((count, 2), 10.0 * rank + to) for to, count in enumerate(rows)])
    for source, actual in enumerate(outputs):
        same(actual, torch.full((rows[source], 2), 10.0 * source + rank))


def test_parts_of_different_sizes(ranks: RankProcesses) -> None:
    ranks.run(uneven)


def coalesces() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(size)))
    data = [torch.full((count,), float(rank)) for count in (1, 100, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for each in data:
            dist.all_reduce(each)
    manager.wait()
    for each in data:
        same(each, torch.full_like(each, total))

    # DeepSpeed's way: the backend's own coalescing, with a device
    outputs = [poison(size * count, torch.float32) for count in (3, 1000)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    manager.wait()
    for output in outputs:
        same(output, torch.arange(float(size)).repeat_interleave(output.numel() // size))

    blocks = [poison(4, torch.float32), poison(9, torch.float32)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for block in blocks:
            dist.reduce_scatter_tensor(block, torch.full((size * block.numel(),), float(rank)))
    manager.wait()
    for block in blocks:
        same(block, torch.full_like(block, total))


def test_coalescing(ranks: RankProcesses) -> None:
    ranks.run(coalesces)


def asynchronous() -> list[float]:
    rank, size = dist.get_rank(), dist.get_world_size()
    works = []
    data = [torch.full((20000,), float(rank + step)) for step in range(20)]
    for each in data:
        works.append(dist.all_reduce(each, async_op=True))
    gathered = [torch.empty(1) for _ in range(size)]
    last = dist.all_gather(gathered, torch.tensor([float(rank)]), async_op=True)
    future = last.get_future()
    doubled = future.then(lambda done: [2 * each for each in done.value()])
    last.wait()
    assert last.is_completed() and last.is_success()
    assert all(work.is_completed() for work in works), "the order of a group's calls is kept"
    for step, each in enumerate(data):
        assert torch.equal(each, torch.full((20000,), float(sum(range(size)) + size * step)))
    return [each.item() for each in doubled.wait()]


def test_asynchronous_calls_keep_their_order_and_give_futures(ranks: RankProcesses) -> None:
    assert ranks.run(asynchronous) == [[0.0, 2.0, 4.0, 6.0]] * ranks.size


def groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    odd_even = [dist.new_group(list(range(start, size, 2))) for start in range(2)]
    pair, column = pairs[rank // 2], odd_even[rank % 2]
    for _ in range(3):  # two groups in turn, and the world between them
        data = torch.tensor([float(rank)])
        dist.all_reduce(data, group=pair)
        assert data.item() == 4 * (rank // 2) + 1
        dist.all_reduce(data, group=column)
        assert data.item() == sum(4 * first + 1 for first in range(size // 2))
        dist.all_reduce(data)
        assert data.item() == size * sum(4 * first + 1 for first in range(size // 2))


def test_groups_within_the_world(ranks: RankProcesses) -> None:
    ranks.run(groups)


def objects() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "text": "x" * (rank + 1)})
    assert [each["rank"] for each in gathered] == list(range(size))
    sent = [("from", 2), [1, 2, 3]] if rank == 2 else [None, None]
    dist.broadcast_object_list(sent, src=2)
    assert sent == [("from", 2), [1, 2, 3]]


def test_object_collectives(ranks: RankProcesses) -> None:
    ranks.run(objects)


def zero_sizes_and_formats() -> None:
    rank = dist.get_rank()
    empty = torch.empty(0)
    dist.all_reduce(empty)
    dist.all_gather_into_tensor(torch.empty(0), empty)
    image = torch.full((2, 3, 4, 5), float(rank)).to(memory_format=torch.channels_last)
    dist.all_reduce(image)
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(image, torch.full((2, 3, 4, 5), 6.0))
    grid = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="is not contiguous"):
        dist.all_reduce(grid.t()[:, 1:])
    with pytest.raises(ValueError, match="the output has 3 elements; it must have 4 times the input's 1"):
        dist.all_gather_into_tensor(torch.empty(3), torch.empty(1))
    dist.barrier()  # every rank refused the same calls, so the group still works


def test_empty_strided_and_wrong_tensors(ranks: RankProcesses) -> None:
    ranks.run(zero_sizes_and_formats)


def autograd_modes() -> None:
    with torch.inference_mode():
        made = torch.ones(3)
    dist.all_reduce(made, async_op=True).wait()
    assert made.tolist() == [4.0] * 3
    leaf = torch.ones(3, requires_grad=True)
    outputs = [torch.empty(3, requires_grad=True) for _ in range(4)]
    with torch.no_grad():
        dist.all_gather(outputs, leaf, async_op=False)
    assert all(each.tolist() == [1.0] * 3 for each in outputs)


def test_inference_tensors_and_leaves(ranks: RankProcesses) -> None:
    ranks.run(autograd_modes)
