"""Calls with tensors of different layouts on each rank, on the default device. Also used by tests/gpu/torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist

SIZES = (4, 3, 4, 4)


def channels_last(values: torch.Tensor) -> torch.Tensor:
    return values.to(memory_format=torch.channels_last)


def transposed(values: torch.Tensor) -> torch.Tensor:
    order = tuple(reversed(range(values.dim())))
    return values.permute(order).contiguous().permute(order)


def with_gaps(values: torch.Tensor) -> torch.Tensor:
    view = torch.full((*values.shape[:-1], 2 * values.shape[-1]), -5.0)[..., ::2]
    return view.copy_(values)


def inside_larger(values: torch.Tensor) -> torch.Tensor:
    return torch.full((values.numel() + 7,), -5.0)[3:-4].view(values.shape).copy_(values)


LAYOUTS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    torch.clone,
    channels_last,
    transposed,
    with_gaps,
    inside_larger,
]


def values_of(number: int) -> torch.Tensor:
    return (torch.arange(float(4 * 3 * 4 * 4)) % 97 + 100 * number).reshape(SIZES)


def pairs() -> Iterator[tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]]:
    """Yields the layouts of two tensors of this rank. Other ranks use other layouts at the same time."""
    for first in range(len(LAYOUTS)):
        for second in range(len(LAYOUTS)):
            shift = dist.get_rank()
            yield LAYOUTS[(first + shift) % len(LAYOUTS)], LAYOUTS[(second + 2 * shift) % len(LAYOUTS)]


def blank(layout: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return layout(torch.full(SIZES, -1.0))


def assert_values(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert torch.equal(actual, expected), f"strides {actual.stride()}: {actual} instead of {expected}"


def movements() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for first, second in pairs():
        data = first(values_of(rank))
        dist.broadcast(data, 1)
        assert_values(data, values_of(1))

        outputs = [blank(second), *(blank(first) for _ in range(size - 1))]
        dist.all_gather(outputs, second(values_of(rank)))
        for source, output in enumerate(outputs):
            assert_values(output, values_of(source))

        gathered = [blank(second) for _ in range(size)] if rank == size - 1 else None
        dist.gather(first(values_of(rank)), gathered, size - 1)
        for source, output in enumerate(gathered or []):
            assert_values(output, values_of(source))

        received = blank(first)
        dist.scatter(received, [second(values_of(to)) for to in range(size)] if rank == 0 else None, 0)
        assert_values(received, values_of(rank))

        outputs = [blank(first) for _ in range(size)]
        dist.all_to_all(outputs, [second(values_of(10 * rank + to)) for to in range(size)])
        for source, output in enumerate(outputs):
            assert_values(output, values_of(10 * source + rank))

        received = blank(first)
        dist.all_to_all_single(received, second(values_of(rank)))
        rows = SIZES[0] // size
        own_rows = slice(rank * rows, (rank + 1) * rows)
        assert_values(received, torch.cat([values_of(source)[own_rows] for source in range(size)]))

        whole = first(torch.full((size * SIZES[0], *SIZES[1:]), -1.0))
        dist.all_gather_into_tensor(whole, second(values_of(rank)))
        assert_values(whole, torch.cat([values_of(source) for source in range(size)]))


def sums() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(values_of(source) for source in range(size))
    for first, second in pairs():
        data = [first(values_of(rank)), second(values_of(rank))]
        dist.all_reduce(data[0])
        assert_values(data[0], total)
        dist.reduce(data[1], 1)
        assert_values(data[1], total if rank == 1 else values_of(rank))

        data = [first(values_of(rank)), second(values_of(rank))]
        dist.all_reduce_coalesced(data)
        for each in data:
            assert_values(each, total)
        with dist._coalescing_manager():
            for each in data:
                dist.all_reduce(each)
        for each in data:
            assert_values(each, size * total)

        block = blank(first)
        dist.reduce_scatter(block, [second(values_of(to)) for to in range(size)])
        assert_values(block, size * values_of(rank))
        block = blank(first)
        dist.reduce_scatter_tensor(block, second(torch.cat([values_of(to) for to in range(size)])))
        assert_values(block, size * values_of(rank))

        scaled = first(values_of(rank))
        dist.all_reduce(scaled, dist._make_nccl_premul_sum(0.5))
        assert_values(scaled, 0.5 * total)


def messages() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    following, previous = (rank + 1) % size, (rank - 1) % size
    for first, second in pairs():
        for sizes in (SIZES, (1, 2, 2, 4)):  # large and small messages are sent differently
            part = tuple(slice(length) for length in sizes)
            received = second(torch.full(sizes, -1.0))
            sending = dist.isend(first(values_of(rank)[part]), following)
            dist.recv(received, previous)
            sending.wait()
            assert_values(received, values_of(previous)[part])
            received = second(torch.full(sizes, -1.0))
            operations = [
                dist.P2POp(dist.isend, first(values_of(rank)[part]), following),
                dist.P2POp(dist.irecv, received, previous),
            ]
            for work in dist.batch_isend_irecv(operations):
                work.wait()
            assert_values(received, values_of(previous)[part])
