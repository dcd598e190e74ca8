"""Every collective of THE TABLE x datatype on 1 to 4 in-process ranks against the NumPy oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import TIMEOUT_S, on_all, poisoned, random_array, without_outside_configuration
from oracle import check_reduction

import isthmus
from isthmus import DATATYPES, IN_PLACE, ReductionOp
from isthmus._buffers import numpy_dtype

COUNTS = (0, 1, 17, 1031)


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda size: f"ranks{size}")
def ranks(request: pytest.FixtureRequest) -> Iterator[list[isthmus.Communicator]]:
    """All ranks of a communicator of 1 to 4, for all tests: making them takes longer than most tests."""
    with pytest.MonkeyPatch.context() as environment:
        without_outside_configuration(environment)
        communicators = isthmus.Communicator.all(request.param, timeout=TIMEOUT_S)
    yield communicators
    for communicator in communicators:
        communicator.close()


@pytest.fixture(params=list(DATATYPES))
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    if request.param in ("bfloat16", "float8_e4m3", "float8_e5m2"):
        pytest.importorskip("ml_dtypes")
    return numpy_dtype(request.param)


@pytest.fixture(params=[op.name for op in ReductionOp])
def op(request: pytest.FixtureRequest) -> str:
    return request.param


def inputs(dtype: np.dtype, count: int, size: int) -> list[np.ndarray]:
    return [random_array(dtype, count, seed=1000 * count + rank) for rank in range(size)]


def same_bits(left: np.ndarray, right: np.ndarray) -> None:
    assert left.tobytes() == right.tobytes()


def test_the_package_has_every_collective_of_the_table() -> None:
    for name in isthmus.COLLECTIVES:
        assert callable(getattr(isthmus.Communicator, name)), name


@pytest.mark.parametrize("count", COUNTS)
def test_allreduce(ranks, dtype, op, count) -> None:
    given = inputs(dtype, count, len(ranks))
    before = [part.copy() for part in given]
    results = on_all(ranks, lambda comm: comm.allreduce(given[comm.rank], poisoned(dtype, count), op))
    check_reduction(results[0], before, op)
    for rank, result in enumerate(results):
        same_bits(result, results[0])
        same_bits(given[rank], before[rank])


def test_allreduce_in_place(ranks, dtype) -> None:
    given = inputs(dtype, 33, len(ranks))
    before = [part.copy() for part in given]
    for call in (
        lambda comm, array: comm.allreduce(array, array),
        lambda comm, array: comm.allreduce(IN_PLACE, array),
        lambda comm, array: comm.allreduce(array, IN_PLACE),
    ):
        arrays = [part.copy() for part in before]
        results = on_all(ranks, lambda comm: call(comm, arrays[comm.rank]))  # noqa: B023
        for rank, result in enumerate(results):
            assert result is arrays[rank]
            check_reduction(result, before, "sum")


@pytest.mark.parametrize("count", COUNTS)
def test_reduce(ranks, dtype, op, count) -> None:
    given = inputs(dtype, count, len(ranks))
    for root in range(len(ranks)):
        results = on_all(ranks, lambda comm: comm.reduce(given[comm.rank], None, op, root))  # noqa: B023
        check_reduction(results[root], given, op)
        assert all(result is None for rank, result in enumerate(results) if rank != root)


@pytest.mark.parametrize("count", COUNTS)
def test_reduce_scatter(ranks, dtype, op, count) -> None:
    size = len(ranks)
    given = inputs(dtype, size * count, size)
    results = on_all(ranks, lambda comm: comm.reduce_scatter(given[comm.rank], poisoned(dtype, count), op))
    for rank, result in enumerate(results):
        check_reduction(result, [part.reshape(size, count)[rank] for part in given], op)


def test_reduce_scatter_in_place(ranks, dtype) -> None:
    size = len(ranks)
    given = inputs(dtype, size * 9, size)
    arrays = [part.copy() for part in given]
    results = on_all(ranks, lambda comm: comm.reduce_scatter(arrays[comm.rank], IN_PLACE))
    for rank, result in enumerate(results):
        assert np.shares_memory(result, arrays[rank])
        check_reduction(result.reshape(-1), [part.reshape(size, 9)[rank] for part in given], "sum")


def test_reduce_scatterv(ranks, dtype, op) -> None:
    size = len(ranks)
    counts, displs = isthmus.partition([rank % 3 for rank in range(1, size + 1)], 31)
    given = inputs(dtype, 31, size)
    results = on_all(ranks, lambda comm: comm.reduce_scatterv(given[comm.rank], None, op, send_counts=counts))
    arrays = [part.copy() for part in given]
    in_place = on_all(
        ranks, lambda comm: comm.reduce_scatterv(arrays[comm.rank], IN_PLACE, op, send_counts=counts)
    )
    for rank, result in enumerate(results):
        own = slice(displs[rank], displs[rank] + counts[rank])
        check_reduction(result, [part[own] for part in given], op)
        same_bits(in_place[rank], result)
        assert counts[rank] == 0 or np.shares_memory(in_place[rank], arrays[rank])


def test_partition_refuses_what_is_no_speed() -> None:
    assert isthmus.partition([5, 3, 2], 11) == ([6, 3, 2], [0, 6, 9])
    assert isthmus.partition([1, 2], 100, granularity=16)[0] == [32, 68]
    with pytest.raises(isthmus.Error, match="speeds"):
        isthmus.partition([1, -1], 8)
    with pytest.raises(isthmus.Error, match="n must be"):
        isthmus.partition([], 8)


@pytest.mark.parametrize("count", COUNTS)
def test_broadcast(ranks, dtype, count) -> None:
    for root in range(len(ranks)):
        source = random_array(dtype, count, seed=root)
        arrays = [source.copy() if rank == root else poisoned(dtype, count) for rank in range(len(ranks))]
        results = on_all(ranks, lambda comm: comm.broadcast(arrays[comm.rank], root=root))  # noqa: B023
        for result in results:
            same_bits(result, source)
    outs = on_all(
        ranks, lambda comm: comm.broadcast(source if comm.rank == root else None, poisoned(dtype, count), root)
    )
    for result in outs:
        same_bits(result, source)


@pytest.mark.parametrize("count", COUNTS)
def test_allgather(ranks, dtype, count) -> None:
    given = inputs(dtype, count, len(ranks))
    results = on_all(ranks, lambda comm: comm.allgather(given[comm.rank]))
    for result in results:
        assert result.shape == (len(ranks), count)
        same_bits(result, np.stack(given))
    whole = [poisoned(dtype, len(ranks) * count).reshape(len(ranks), count) for _ in ranks]
    for rank, part in enumerate(given):
        whole[rank][rank] = part
    for result in on_all(ranks, lambda comm: comm.allgather(IN_PLACE, whole[comm.rank])):
        same_bits(result, np.stack(given))


def test_allgatherv(ranks, dtype) -> None:
    counts = [3 * rank + (rank == 1) for rank in range(len(ranks))]
    given = [random_array(dtype, count, seed=count) for count in counts]
    results = on_all(ranks, lambda comm: comm.allgatherv(given[comm.rank], recv_counts=counts))
    for result in results:
        same_bits(result, np.concatenate(given))
    gap = [sum(counts[:rank]) + rank for rank in range(len(ranks))]  # one untouched element between blocks
    outs = [poisoned(dtype, sum(counts) + len(ranks)) for _ in ranks]
    on_all(
        ranks,
        lambda comm: comm.allgatherv(given[comm.rank], outs[comm.rank], recv_counts=counts, recv_displs=gap),
    )
    expected = poisoned(dtype, sum(counts) + len(ranks))
    for rank, part in enumerate(given):
        expected[gap[rank] : gap[rank] + counts[rank]] = part
    for out in outs:
        same_bits(out, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_gather_and_scatter(ranks, dtype, count) -> None:
    given = inputs(dtype, count, len(ranks))
    whole = np.stack(given)
    for root in range(len(ranks)):
        gathered = on_all(ranks, lambda comm: comm.gather(given[comm.rank], root=root))  # noqa: B023
        same_bits(gathered[root], whole)
        outs = [poisoned(dtype, count) for _ in ranks]
        on_all(
            ranks,
            lambda comm: comm.scatter(whole if comm.rank == root else None, outs[comm.rank], root),  # noqa: B023
        )
        for rank, out in enumerate(outs):
            same_bits(out, given[rank])


def test_gatherv_and_scatterv(ranks, dtype) -> None:
    size = len(ranks)
    counts = [2 * rank + 1 for rank in range(size)]
    given = [random_array(dtype, count, seed=count) for count in counts]
    whole = np.concatenate(given)
    for root in range(size):
        gathered = on_all(
            ranks,
            lambda comm: comm.gatherv(
                given[comm.rank],
                root=root,  # noqa: B023
                recv_counts=counts if comm.rank == root else None,  # noqa: B023
            ),
        )
        same_bits(gathered[root], whole)
        outs = [poisoned(dtype, count) for count in counts]
        on_all(
            ranks,
            lambda comm: comm.scatterv(
                whole if comm.rank == root else None,  # noqa: B023
                outs[comm.rank],  # noqa: B023
                root,  # noqa: B023
                send_counts=counts if comm.rank == root else None,  # noqa: B023
            ),
        )
        for rank, out in enumerate(outs):
            same_bits(out, given[rank])


@pytest.mark.parametrize("count", COUNTS)
def test_alltoall(ranks, dtype, count) -> None:
    size = len(ranks)
    given = [part.reshape(size, count) for part in inputs(dtype, size * count, size)]
    expected = [np.stack([given[source][rank] for source in range(size)]) for rank in range(size)]
    results = on_all(ranks, lambda comm: comm.alltoall(given[comm.rank]))
    for rank, result in enumerate(results):
        same_bits(result, expected[rank])
    arrays = [part.copy() for part in given]
    for rank, result in enumerate(on_all(ranks, lambda comm: comm.alltoall(arrays[comm.rank], IN_PLACE))):
        same_bits(result, expected[rank])


def test_alltoallv(ranks, dtype) -> None:
    size = len(ranks)
    counts = [[(source + 2 * target) % 4 for target in range(size)] for source in range(size)]
    given = [random_array(dtype, sum(counts[source]), seed=source) for source in range(size)]
    blocks = [np.split(given[source], np.cumsum(counts[source])[:-1]) for source in range(size)]
    results = on_all(
        ranks,
        lambda comm: comm.alltoallv(
            given[comm.rank],
            send_counts=counts[comm.rank],
            recv_counts=[counts[source][comm.rank] for source in range(size)],
        ),
    )
    for rank, result in enumerate(results):
        same_bits(result, np.concatenate([blocks[source][rank] for source in range(size)]))


@pytest.mark.parametrize("count", COUNTS)
def test_send_and_recv_around_a_ring(ranks, dtype, count) -> None:
    size = len(ranks)
    given = inputs(dtype, count, size)
    outs = [poisoned(dtype, count) for _ in ranks]

    def ring(comm: isthmus.Communicator) -> None:
        with isthmus.group():
            comm.send(given[comm.rank], (comm.rank + 1) % size)
            comm.recv(outs[comm.rank], (comm.rank - 1) % size)

    on_all(ranks, ring)
    for rank, out in enumerate(outs):
        same_bits(out, given[(rank - 1) % size])


def test_barrier_holds_every_rank_until_the_last(pair) -> None:
    entered: list[int] = []

    def late(comm: isthmus.Communicator) -> list[int]:
        if comm.rank == 1:
            import time

            time.sleep(0.2)
        entered.append(comm.rank)
        comm.barrier()
        return sorted(entered)

    assert on_all(pair, late) == [[0, 1], [0, 1]]


def test_one_thread_drives_all_ranks_in_a_group(ranks) -> None:
    given = inputs(np.dtype("float32"), 100, len(ranks))
    with isthmus.group():
        results = [comm.allreduce(given[comm.rank]) for comm in ranks]
    for result in results:
        check_reduction(result, given, "sum")


def test_shapes_of_allocated_results(pair) -> None:
    array = np.ones((4, 3), np.float32)
    assert on_all(pair, lambda comm: comm.allreduce(array).shape) == [(4, 3)] * 2
    assert on_all(pair, lambda comm: comm.allgather(array).shape) == [(2, 4, 3)] * 2
    assert on_all(pair, lambda comm: comm.reduce_scatter(array).shape) == [(2, 3)] * 2
    assert on_all(pair, lambda comm: comm.reduce_scatter(array[:2]).shape) == [(3,)] * 2
    assert on_all(pair, lambda comm: comm.alltoall(array).shape) == [(4, 3)] * 2
