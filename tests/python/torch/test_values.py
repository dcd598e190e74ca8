"""All collectives of torch.distributed on CPU tensors, compared with values computed here."""

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
    """Returns a rank's contribution: small values, so that sums of four are exact in each dtype of REDUCED."""
    values = torch.randint(0, 4, (count,), generator=torch.Generator().manual_seed(17 * rank + 3))
    return (values.to(dtype) + 1j * rank).to(dtype) if dtype.is_complex else values.to(dtype)


def filled_with_pattern(shape: tuple[int, ...] | int, dtype: torch.dtype) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else shape
    empty = torch.empty(shape, dtype=dtype)
    empty.view(torch.uint8).fill_(1 if dtype == torch.bool else 0xA5)
    return empty


def assert_same(actual: torch.Tensor, expected: torch.Tensor) -> None:
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
    return value.to(dtype)  # integers are truncated toward zero, as the collective table specifies


def data_movement(dtype: torch.dtype) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    all_parts = parts(dtype)
    own_part = all_parts[rank]

    for root in range(size):
        data = own_part.clone() if rank == root else filled_with_pattern(COUNT, dtype)
        dist.broadcast(data, root)
        assert_same(data, all_parts[root])

        gathered = [filled_with_pattern(COUNT, dtype) for _ in range(size)] if rank == root else None
        dist.gather(own_part, gathered, dst=root)
        for actual, expected in zip(gathered or [], all_parts, strict=False):
            assert_same(actual, expected)

        received = filled_with_pattern(COUNT, dtype)
        dist.scatter(received, [each.clone() for each in all_parts] if rank == root else None, src=root)
        assert_same(received, own_part)

    tensor_list = [filled_with_pattern(COUNT, dtype) for _ in range(size)]
    dist.all_gather(tensor_list, own_part)
    for actual, expected in zip(tensor_list, all_parts, strict=True):
        assert_same(actual, expected)

    whole = filled_with_pattern(size * COUNT, dtype)
    dist.all_gather_into_tensor(whole, own_part)
    assert_same(whole, torch.cat(all_parts))

    own = whole.clone()
    own[: rank * COUNT] = filled_with_pattern(rank * COUNT, dtype)
    own[(rank + 1) * COUNT :] = filled_with_pattern((size - rank - 1) * COUNT, dtype)
    dist.all_gather_into_tensor(own, own[rank * COUNT : (rank + 1) * COUNT])  # in place, like FSDP2
    assert_same(own, whole)

    # Block s of rank r's result is block r of rank s.
    sent = torch.cat([part(10 * rank + to, dtype, 7) for to in range(size)])
    expected = torch.cat([part(10 * source + rank, dtype, 7) for source in range(size)])
    exchanged = filled_with_pattern(7 * size, dtype)
    dist.all_to_all_single(exchanged, sent)
    assert_same(exchanged, expected)


@pytest.mark.parametrize("dtype", MOVED, ids=str)
def test_data_movement(ranks: RankProcesses, dtype: torch.dtype) -> None:
    ranks.run(data_movement, dtype)


def reductions(dtype: torch.dtype) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
        expected = combined(op, dtype)
        reduce_op = getattr(dist.ReduceOp, op)

        data = part(rank, dtype)
        dist.all_reduce(data, reduce_op)
        assert_same(data, expected)

        data = part(rank, dtype)
        dist.reduce(data, 1, reduce_op)
        if rank == 1:
            assert_same(data, expected)

        share = COUNT // size
        output = filled_with_pattern(share, dtype)
        dist.reduce_scatter_tensor(output, part(rank, dtype), reduce_op)
        assert_same(output, expected[rank * share : (rank + 1) * share])

        output = filled_with_pattern(share, dtype)
        blocks = [each.clone() for each in part(rank, dtype).split(share)]
        dist.reduce_scatter(output, blocks, reduce_op)
        assert_same(output, expected[rank * share : (rank + 1) * share])


@pytest.mark.parametrize("dtype", REDUCED, ids=str)
def test_reductions(ranks: RankProcesses, dtype: torch.dtype) -> None:
    ranks.run(reductions, dtype)


def special_reductions() -> None:
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
    assert_same(scaled, torch.full((5,), total * 0.5))
    block = torch.empty(5)
    dist.reduce_scatter_tensor(
        block, torch.full((5 * size,), 1.0), dist._make_nccl_premul_sum(torch.tensor([0.25]))
    )
    assert_same(block, torch.full((5,), size * 0.25))


def test_bool_complex_and_premultiplied_sums(ranks: RankProcesses) -> None:
    ranks.run(special_reductions)


def uneven() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    blocks = [part(source, torch.float32, 3 * source + 1) for source in range(size)]
    gathered = [filled_with_pattern(each.numel(), torch.float32) for each in blocks]
    dist.all_gather(gathered, blocks[rank])
    for actual, expected in zip(gathered, blocks, strict=True):
        assert_same(actual, expected)

    output = filled_with_pattern(rank + 1, torch.float32)
    dist.reduce_scatter(output, [torch.full((to + 1,), float(rank)) for to in range(size)])
    assert_same(output, torch.full((rank + 1,), size * (size - 1) / 2))

    # Rank r sends r + s + 1 rows of two numbers to rank s.
    rows = [rank + to + 1 for to in range(size)]
    sent = torch.cat([torch.full((count, 2), 10.0 * rank + to) for to, count in enumerate(rows)])
    received = filled_with_pattern((sum(rows), 2), torch.float32)
    dist.all_to_all_single(received, sent, rows, rows)
    assert_same(
        received, torch.cat([torch.full((count, 2), 10.0 * to + rank) for to, count in enumerate(rows)])
    )

    # Ranks may pass splits or not, and only one of the two.
    sent = torch.full((size, 2), float(rank))
    received = filled_with_pattern((size, 2), torch.float32)
    equal = [1] * size
    input_splits, output_splits = [(None, None), (equal, equal), (equal, None), (None, equal)][rank]
    dist.all_to_all_single(received, sent, output_splits, input_splits)
    assert_same(received, torch.arange(float(size)).repeat_interleave(2).view(size, 2))

    outputs = [filled_with_pattern((count, 2), torch.float32) for count in rows]
    dist.all_to_all(outputs, [torch.full((count, 2), 10.0 * rank + to) for to, count in enumerate(rows)])
    for source, actual in enumerate(outputs):
        assert_same(actual, torch.full((rows[source], 2), 10.0 * source + rank))


def test_uneven_blocks(ranks: RankProcesses) -> None:
    ranks.run(uneven)


def coalescing() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(size)))
    data = [torch.full((count,), float(rank)) for count in (1, 100, 5000)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for each in data:
            dist.all_reduce(each)
    manager.wait()
    for each in data:
        assert_same(each, torch.full_like(each, total))

    # As in DeepSpeed: coalescing of the backend, with a device.
    outputs = [filled_with_pattern(size * count, torch.float32) for count in (3, 1000)]
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        for output in outputs:
            dist.all_gather_into_tensor(output, torch.full((output.numel() // size,), float(rank)))
    manager.wait()
    for output in outputs:
        assert_same(output, torch.arange(float(size)).repeat_interleave(output.numel() // size))

    blocks = [filled_with_pattern(4, torch.float32), filled_with_pattern(9, torch.float32)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for block in blocks:
            dist.reduce_scatter_tensor(block, torch.full((size * block.numel(),), float(rank)))
    manager.wait()
    for block in blocks:
        assert_same(block, torch.full_like(block, total))


def test_coalescing(ranks: RankProcesses) -> None:
    ranks.run(coalescing)


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
    assert all(work.is_completed() for work in works), "calls of a group complete in order"
    for step, each in enumerate(data):
        assert torch.equal(each, torch.full((20000,), float(sum(range(size)) + size * step)))
    return [each.item() for each in doubled.wait()]


def test_asynchronous_calls_and_futures(ranks: RankProcesses) -> None:
    assert ranks.run(asynchronous) == [[0.0, 2.0, 4.0, 6.0]] * ranks.size


def groups() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = [dist.new_group([first, first + 1]) for first in range(0, size, 2)]
    odd_even = [dist.new_group(list(range(start, size, 2))) for start in range(2)]
    pair, column = pairs[rank // 2], odd_even[rank % 2]
    for _ in range(3):  # two groups alternate, with the default group in between
        data = torch.tensor([float(rank)])
        dist.all_reduce(data, group=pair)
        assert data.item() == 4 * (rank // 2) + 1
        dist.all_reduce(data, group=column)
        assert data.item() == sum(4 * first + 1 for first in range(size // 2))
        dist.all_reduce(data)
        assert data.item() == size * sum(4 * first + 1 for first in range(size // 2))


def test_subgroups(ranks: RankProcesses) -> None:
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
    with pytest.raises(ValueError, match="the output has 3 elements; it must have 4 times the input's 1"):
        dist.all_gather_into_tensor(torch.empty(3), torch.empty(1))
    dist.barrier()  # every rank rejected the same calls, so the group still works


def test_empty_and_invalid_tensors(ranks: RankProcesses) -> None:
    ranks.run(zero_sizes_and_formats)


def autograd_modes() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    dist.all_reduce(tensor, async_op=True).wait()
    assert tensor.tolist() == [4.0] * 3
    leaf = torch.ones(3, requires_grad=True)
    outputs = [torch.empty(3, requires_grad=True) for _ in range(4)]
    with torch.no_grad():
        dist.all_gather(outputs, leaf, async_op=False)
    assert all(each.tolist() == [1.0] * 3 for each in outputs)


def test_inference_tensors_and_leaves(ranks: RankProcesses) -> None:
    ranks.run(autograd_modes)
