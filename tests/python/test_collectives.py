"""All collectives and datatypes on 1 to 4 ranks of this process, compared with the NumPy oracle."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from conftest import TIMEOUT_S, isolate_configuration, poisoned, random_array, run_on_all_ranks
from oracle import check_reduction

import isthmus
from isthmus import DATATYPES, IN_PLACE, ReductionOp
from isthmus._buffers import numpy_dtype

COUNTS = (0, 1, 17, 1031)


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda size: f"ranks{size}")
def ranks(request: pytest.FixtureRequest) -> Iterator[list[isthmus.Communicator]]:
    """All ranks of a communicator of size 1 to 4. Shared by all tests, because creation is slow."""
    with pytest.MonkeyPatch.context() as environment:
        isolate_configuration(environment)
        communicators = isthmus.Communicator.create_all(request.param, timeout=TIMEOUT_S)
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


def assert_same_bits(left: np.ndarray, right: np.ndarray) -> None:
    assert left.tobytes() == right.tobytes()


def test_communicator_has_method_for_every_collective() -> None:
    for name in isthmus.COLLECTIVES:
        assert callable(getattr(isthmus.Communicator, name)), name


@pytest.mark.parametrize("count", COUNTS)
def test_allreduce(ranks, dtype, op, count) -> None:
    send_arrays = inputs(dtype, count, len(ranks))
    original = [part.copy() for part in send_arrays]
    results = run_on_all_ranks(
        ranks, lambda comm: comm.allreduce(send_arrays[comm.rank], poisoned(dtype, count), op)
    )
    check_reduction(results[0], original, op)
    for rank, result in enumerate(results):
        assert_same_bits(result, results[0])
        assert_same_bits(send_arrays[rank], original[rank])


def test_allreduce_in_place(ranks, dtype) -> None:
    send_arrays = inputs(dtype, 33, len(ranks))
    original = [part.copy() for part in send_arrays]
    for call in (
        lambda comm, array: comm.allreduce(array, array),
        lambda comm, array: comm.allreduce(IN_PLACE, array),
        lambda comm, array: comm.allreduce(array, IN_PLACE),
    ):
        arrays = [part.copy() for part in original]
        results = run_on_all_ranks(ranks, lambda comm: call(comm, arrays[comm.rank]))  # noqa: B023
        for rank, result in enumerate(results):
            assert result is arrays[rank]
            check_reduction(result, original, "sum")


@pytest.mark.parametrize("count", COUNTS)
def test_reduce(ranks, dtype, op, count) -> None:
    send_arrays = inputs(dtype, count, len(ranks))
    for root in range(len(ranks)):
        results = run_on_all_ranks(ranks, lambda comm: comm.reduce(send_arrays[comm.rank], None, op, root))  # noqa: B023
        check_reduction(results[root], send_arrays, op)
        assert all(result is None for rank, result in enumerate(results) if rank != root)


@pytest.mark.parametrize("count", COUNTS)
def test_reduce_scatter(ranks, dtype, op, count) -> None:
    size = len(ranks)
    send_arrays = inputs(dtype, size * count, size)
    results = run_on_all_ranks(
        ranks, lambda comm: comm.reduce_scatter(send_arrays[comm.rank], poisoned(dtype, count), op)
    )
    for rank, result in enumerate(results):
        check_reduction(result, [part.reshape(size, count)[rank] for part in send_arrays], op)


def test_reduce_scatter_in_place(ranks, dtype) -> None:
    size = len(ranks)
    send_arrays = inputs(dtype, size * 9, size)
    arrays = [part.copy() for part in send_arrays]
    results = run_on_all_ranks(ranks, lambda comm: comm.reduce_scatter(arrays[comm.rank], IN_PLACE))
    for rank, result in enumerate(results):
        assert np.shares_memory(result, arrays[rank])
        check_reduction(result.reshape(-1), [part.reshape(size, 9)[rank] for part in send_arrays], "sum")


def test_reduce_scatterv(ranks, dtype, op) -> None:
    size = len(ranks)
    counts, displs = isthmus.partition([rank % 3 for rank in range(1, size + 1)], 31)
    send_arrays = inputs(dtype, 31, size)
    results = run_on_all_ranks(
        ranks, lambda comm: comm.reduce_scatterv(send_arrays[comm.rank], None, op, send_counts=counts)
    )
    arrays = [part.copy() for part in send_arrays]
    in_place = run_on_all_ranks(
        ranks, lambda comm: comm.reduce_scatterv(arrays[comm.rank], IN_PLACE, op, send_counts=counts)
    )
    for rank, result in enumerate(results):
        own = slice(displs[rank], displs[rank] + counts[rank])
        check_reduction(result, [part[own] for part in send_arrays], op)
        assert_same_bits(in_place[rank], result)
        assert counts[rank] == 0 or np.shares_memory(in_place[rank], arrays[rank])


def test_partition_is_exact_and_rejects_bad_speeds() -> None:
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
        results = run_on_all_ranks(ranks, lambda comm: comm.broadcast(arrays[comm.rank], root=root))  # noqa: B023
        for result in results:
            assert_same_bits(result, source)
    outputs = run_on_all_ranks(
        ranks, lambda comm: comm.broadcast(source if comm.rank == root else None, poisoned(dtype, count), root)
    )
    for result in outputs:
        assert_same_bits(result, source)


@pytest.mark.parametrize("count", COUNTS)
def test_allgather(ranks, dtype, count) -> None:
    send_arrays = inputs(dtype, count, len(ranks))
    results = run_on_all_ranks(ranks, lambda comm: comm.allgather(send_arrays[comm.rank]))
    for result in results:
        assert result.shape == (len(ranks), count)
        assert_same_bits(result, np.stack(send_arrays))
    full_array = [poisoned(dtype, len(ranks) * count).reshape(len(ranks), count) for _ in ranks]
    for rank, part in enumerate(send_arrays):
        full_array[rank][rank] = part
    for result in run_on_all_ranks(ranks, lambda comm: comm.allgather(IN_PLACE, full_array[comm.rank])):
        assert_same_bits(result, np.stack(send_arrays))


def test_allgatherv(ranks, dtype) -> None:
    counts = [3 * rank + (rank == 1) for rank in range(len(ranks))]
    send_arrays = [random_array(dtype, count, seed=count) for count in counts]
    results = run_on_all_ranks(ranks, lambda comm: comm.allgatherv(send_arrays[comm.rank], recv_counts=counts))
    for result in results:
        assert_same_bits(result, np.concatenate(send_arrays))
    displs_with_gaps = [
        sum(counts[:rank]) + rank for rank in range(len(ranks))
    ]  # one untouched element between blocks
    outputs = [poisoned(dtype, sum(counts) + len(ranks)) for _ in ranks]
    run_on_all_ranks(
        ranks,
        lambda comm: comm.allgatherv(
            send_arrays[comm.rank], outputs[comm.rank], recv_counts=counts, recv_displs=displs_with_gaps
        ),
    )
    expected = poisoned(dtype, sum(counts) + len(ranks))
    for rank, part in enumerate(send_arrays):
        expected[displs_with_gaps[rank] : displs_with_gaps[rank] + counts[rank]] = part
    for out in outputs:
        assert_same_bits(out, expected)


@pytest.mark.parametrize("count", COUNTS)
def test_gather_and_scatter(ranks, dtype, count) -> None:
    send_arrays = inputs(dtype, count, len(ranks))
    full_array = np.stack(send_arrays)
    for root in range(len(ranks)):
        gathered = run_on_all_ranks(ranks, lambda comm: comm.gather(send_arrays[comm.rank], root=root))  # noqa: B023
        assert_same_bits(gathered[root], full_array)
        outputs = [poisoned(dtype, count) for _ in ranks]
        run_on_all_ranks(
            ranks,
            lambda comm: comm.scatter(full_array if comm.rank == root else None, outputs[comm.rank], root),  # noqa: B023
        )
        for rank, out in enumerate(outputs):
            assert_same_bits(out, send_arrays[rank])


def test_gatherv_and_scatterv(ranks, dtype) -> None:
    size = len(ranks)
    counts = [2 * rank + 1 for rank in range(size)]
    send_arrays = [random_array(dtype, count, seed=count) for count in counts]
    full_array = np.concatenate(send_arrays)
    for root in range(size):
        gathered = run_on_all_ranks(
            ranks,
            lambda comm: comm.gatherv(
                send_arrays[comm.rank],
                root=root,  # noqa: B023
                recv_counts=counts if comm.rank == root else None,  # noqa: B023
            ),
        )
        assert_same_bits(gathered[root], full_array)
        outputs = [poisoned(dtype, count) for count in counts]
        run_on_all_ranks(
            ranks,
            lambda comm: comm.scatterv(
                full_array if comm.rank == root else None,  # noqa: B023
                outputs[comm.rank],  # noqa: B023
                root,  # noqa: B023
                send_counts=counts if comm.rank == root else None,  # noqa: B023
            ),
        )
        for rank, out in enumerate(outputs):
            assert_same_bits(out, send_arrays[rank])


@pytest.mark.parametrize("count", COUNTS)
def test_alltoall(ranks, dtype, count) -> None:
    size = len(ranks)
    send_arrays = [part.reshape(size, count) for part in inputs(dtype, size * count, size)]
    expected = [np.stack([send_arrays[source][rank] for source in range(size)]) for rank in range(size)]
    results = run_on_all_ranks(ranks, lambda comm: comm.alltoall(send_arrays[comm.rank]))
    for rank, result in enumerate(results):
        assert_same_bits(result, expected[rank])
    arrays = [part.copy() for part in send_arrays]
    for rank, result in enumerate(
        run_on_all_ranks(ranks, lambda comm: comm.alltoall(arrays[comm.rank], IN_PLACE))
    ):
        assert_same_bits(result, expected[rank])


def test_alltoallv(ranks, dtype) -> None:
    size = len(ranks)
    counts = [[(source + 2 * target) % 4 for target in range(size)] for source in range(size)]
    send_arrays = [random_array(dtype, sum(counts[source]), seed=source) for source in range(size)]
    blocks = [np.split(send_arrays[source], np.cumsum(counts[source])[:-1]) for source in range(size)]
    results = run_on_all_ranks(
        ranks,
        lambda comm: comm.alltoallv(
            send_arrays[comm.rank],
            send_counts=counts[comm.rank],
            recv_counts=[counts[source][comm.rank] for source in range(size)],
        ),
    )
    for rank, result in enumerate(results):
        assert_same_bits(result, np.concatenate([blocks[source][rank] for source in range(size)]))


@pytest.mark.parametrize("count", COUNTS)
def test_send_and_recv_around_a_ring(ranks, dtype, count) -> None:
    size = len(ranks)
    send_arrays = inputs(dtype, count, size)
    outputs = [poisoned(dtype, count) for _ in ranks]

    def exchange_with_neighbors(comm: isthmus.Communicator) -> None:
        with isthmus.group():
            comm.send(send_arrays[comm.rank], (comm.rank + 1) % size)
            comm.recv(outputs[comm.rank], (comm.rank - 1) % size)

    run_on_all_ranks(ranks, exchange_with_neighbors)
    for rank, out in enumerate(outputs):
        assert_same_bits(out, send_arrays[(rank - 1) % size])


def test_barrier_waits_for_the_last_rank(pair) -> None:
    entered: list[int] = []

    def enter_barrier(comm: isthmus.Communicator) -> list[int]:
        if comm.rank == 1:
            import time

            time.sleep(0.2)
        entered.append(comm.rank)
        comm.barrier()
        return sorted(entered)

    assert run_on_all_ranks(pair, enter_barrier) == [[0, 1], [0, 1]]


def test_one_thread_drives_all_ranks_in_a_group(ranks) -> None:
    send_arrays = inputs(np.dtype("float32"), 100, len(ranks))
    with isthmus.group():
        results = [comm.allreduce(send_arrays[comm.rank]) for comm in ranks]
    for result in results:
        check_reduction(result, send_arrays, "sum")


def test_shapes_of_allocated_results(pair) -> None:
    array = np.ones((4, 3), np.float32)
    assert run_on_all_ranks(pair, lambda comm: comm.allreduce(array).shape) == [(4, 3)] * 2
    assert run_on_all_ranks(pair, lambda comm: comm.allgather(array).shape) == [(2, 4, 3)] * 2
    assert run_on_all_ranks(pair, lambda comm: comm.reduce_scatter(array).shape) == [(2, 3)] * 2
    assert run_on_all_ranks(pair, lambda comm: comm.reduce_scatter(array[:2]).shape) == [(3,)] * 2
    assert run_on_all_ranks(pair, lambda comm: comm.alltoall(array).shape) == [(4, 3)] * 2
