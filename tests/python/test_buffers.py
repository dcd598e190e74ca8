"""Accepted buffer objects, and the error messages for objects that are rejected."""

from __future__ import annotations

import array

import numpy as np
import pytest
from conftest import run_on_all_ranks

import isthmus


class OnlyDlpack:
    """An array object of another library that supports only DLPack."""

    def __init__(self, inner: np.ndarray) -> None:
        self._inner = inner

    def __dlpack__(self, **arguments):
        return self._inner.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._inner.__dlpack_device__()


@pytest.fixture
def single_rank():
    with isthmus.Communicator.create_all(1)[0] as communicator:
        yield communicator


def test_dlpack_objects_are_used_without_copy(pair) -> None:
    sources = [np.array([1.0, 2.0]), np.array([10.0, 20.0])]
    targets = [np.zeros(2), np.zeros(2)]
    run_on_all_ranks(
        pair, lambda comm: comm.allreduce(OnlyDlpack(sources[comm.rank]), OnlyDlpack(targets[comm.rank]))
    )
    assert [target.tolist() for target in targets] == [[11.0, 22.0]] * 2


def test_buffer_protocol_objects_are_accepted(pair) -> None:
    targets = [array.array("i", [0, 0]) for _ in range(2)]
    run_on_all_ranks(
        pair, lambda comm: comm.allreduce(memoryview(array.array("i", [3, 4])), targets[comm.rank])
    )
    assert [list(target) for target in targets] == [[6, 8]] * 2


def test_bytes_can_be_sent_but_not_written(single_rank) -> None:
    target = bytearray(3)
    single_rank.allreduce(b"abc", target, dtype="uint8")
    assert bytes(target) == b"abc"
    with pytest.raises(ValueError, match=r"^out is read-only"):
        single_rank.allreduce(b"abc", b"xyz")


def test_read_only_arrays_can_be_sent_but_not_written(single_rank) -> None:
    read_only_array = np.arange(3.0)
    read_only_array.setflags(write=False)
    assert single_rank.allreduce(read_only_array).tolist() == [0.0, 1.0, 2.0]
    with pytest.raises(ValueError, match=r"^out is read-only, but this call writes to it"):
        single_rank.allreduce(np.ones(3), read_only_array)
    with pytest.raises(ValueError, match=r"^send_buf is read-only"):
        single_rank.allreduce(read_only_array, isthmus.IN_PLACE)


def test_torch_tensors_return_torch_tensors(single_rank) -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4, dtype=torch.bfloat16)
    result = single_rank.allreduce(tensor)
    assert isinstance(result, torch.Tensor)
    assert torch.equal(result, tensor)


def test_strided_arrays_are_rejected(single_rank) -> None:
    with pytest.raises(ValueError, match=r"^send_buf must be C-contiguous"):
        single_rank.allreduce(np.zeros((4, 4))[:, 1])
    with pytest.raises(ValueError, match=r"^out must be C-contiguous"):
        single_rank.allreduce(np.zeros((2, 3)), np.zeros((3, 2)).T)


@pytest.mark.parametrize("dtype", ["complex64", "bool", "U3", ">f4", "datetime64[s]"])
def test_unsupported_dtypes_are_rejected(single_rank, dtype) -> None:
    with pytest.raises(TypeError, match=r"^send_buf has dtype .*allowed: int8, "):
        single_rank.allreduce(np.zeros(2, dtype))


def test_objects_without_buffer_are_rejected(single_rank) -> None:
    with pytest.raises(TypeError, match=r"^send_buf is a list, must be a NumPy array or an object with DLPack"):
        single_rank.allreduce([1.0, 2.0], np.zeros(2))
    for value, kind in (([1.0, 2.0], "list"), ((1, 2), "tuple"), (3.0, "float")):
        message = rf"^send_buf is a {kind}, must be a NumPy array .*; pass numpy\.array\(send_buf\)$"
        with pytest.raises(TypeError, match=message):
            single_rank.allreduce(value)
    with pytest.raises(TypeError, match=r"^cannot allocate a result like send_buf \(bytes\); pass out$"):
        single_rank.gather(b"text")


def test_mismatched_sizes_are_rejected_before_writing(pair) -> None:
    out = np.full(3, 7.0)
    with pytest.raises(
        ValueError, match=r"allreduce: element counts of the buffers must be equal: send_buf 2, out 3"
    ):
        pair[0].allreduce(np.zeros(2), out)
    assert out.tolist() == [7.0] * 3
    with pytest.raises(ValueError, match=r"alltoall: send_buf has 3 elements, must be a multiple of 2 ranks"):
        pair[0].alltoall(np.zeros(3), np.zeros(3))
    with pytest.raises(ValueError, match=r"allgatherv: out has 3 elements, but .* extend to 4"):
        pair[0].allgatherv(np.zeros(2), np.zeros(3), recv_counts=[2, 2])
    with pytest.raises(ValueError, match=r"recv_counts has 1 entries, but the communicator has 2 ranks"):
        pair[0].allgatherv(np.zeros(2), recv_counts=[2])
    with pytest.raises(ValueError, match=r"first axis must be a multiple of 2 ranks"):
        pair[0].reduce_scatter(np.zeros(3))


def test_mismatched_dtypes_are_rejected(single_rank) -> None:
    with pytest.raises(TypeError, match=r"send_buf holds float32, but out holds float64"):
        single_rank.allreduce(np.zeros(2, np.float32), np.zeros(2))


def test_explicit_dtype_reinterprets_integer_storage(pair) -> None:
    # 1.0 and 2.0 in bfloat16, which NumPy does not support.
    arrays = [np.array([0x3F80, 0x4000], np.uint16) for _ in range(2)]
    run_on_all_ranks(pair, lambda comm: comm.allreduce(arrays[comm.rank], isthmus.IN_PLACE, dtype="bfloat16"))
    assert [part.tolist() for part in arrays] == [[0x4000, 0x4080]] * 2


def test_explicit_dtype_must_match_the_array(single_rank) -> None:
    with pytest.raises(TypeError, match=r"send_buf holds float32, but dtype=int32"):
        single_rank.allreduce(np.zeros(2, np.float32), dtype="int32")
    with pytest.raises(ValueError, match=r"send_buf has 3 bytes, must be a multiple of 2 \(float16\)"):
        single_rank.allreduce(np.zeros(3, np.uint8), np.zeros(3, np.uint8), dtype="float16")
    with pytest.raises(ValueError, match=r"dtype 'float99' is unknown; allowed: int8"):
        single_rank.allreduce(np.zeros(2), dtype="float99")


def test_in_place_on_wrong_side_is_rejected(pair) -> None:
    with pytest.raises(ValueError, match=r"reduce_scatter: IN_PLACE is allowed for out only"):
        pair[0].reduce_scatter(isthmus.IN_PLACE, np.zeros(2))
    with pytest.raises(ValueError, match=r"allgather: IN_PLACE is allowed for send_buf only"):
        pair[0].allgather(np.zeros(2), isthmus.IN_PLACE)
    with pytest.raises(ValueError, match=r"IN_PLACE refers to the other buffer"):
        pair[0].allreduce(isthmus.IN_PLACE, isthmus.IN_PLACE)


def test_unknown_op_error_lists_allowed_ops(single_rank) -> None:
    with pytest.raises(ValueError, match=r"op 'xor' is unknown; allowed: sum, prod, min, max, avg"):
        single_rank.allreduce(np.zeros(2), op="xor")


def test_symmetric_arrays_outlive_closed_communicator(pair) -> None:
    arrays = run_on_all_ranks(pair, lambda comm: comm.empty((3, 5), "float32"))
    for rank, part in enumerate(arrays):
        assert part.shape == (3, 5)
        assert part.dtype == np.float32
        part[:] = rank + 1
    run_on_all_ranks(pair, lambda comm: comm.allreduce(arrays[comm.rank], isthmus.IN_PLACE))
    for communicator in pair:
        communicator.close()
    views = [part[1:] for part in arrays]
    arrays.clear()
    assert all((view == 3.0).all() for view in views)


def test_symmetric_arrays_release_their_memory(pair) -> None:
    def blocks(comm: isthmus.Communicator) -> int:
        return comm.info()["heap"]["blocks"]

    blocks_before = [blocks(comm) for comm in pair]
    arrays = run_on_all_ranks(pair, lambda comm: comm.empty(1000, "int64"))
    assert [blocks(comm) for comm in pair] != blocks_before
    arrays.clear()
    assert [blocks(comm) for comm in pair] == blocks_before


def test_empty_and_negative_symmetric_shapes(pair) -> None:
    assert [part.shape for part in run_on_all_ranks(pair, lambda comm: comm.empty((0, 4)))] == [(0, 4)] * 2
    with pytest.raises(ValueError, match="shape must not be negative"):
        pair[0].empty(-1)


def test_zero_dimensional_arrays_hold_one_element(pair) -> None:
    number = np.array(3.5)
    for out in run_on_all_ranks(pair, lambda rank: rank.allreduce(number)):
        assert out.shape == () and out == 7.0
    for out in run_on_all_ranks(pair, lambda rank: rank.allgather(number)):
        assert out.shape == (2,) and (out == 3.5).all()
    for name in ("reduce_scatter", "alltoall"):
        with pytest.raises(ValueError, match="multiple of 2"):
            getattr(pair[0], name)(number)
    with pytest.raises(TypeError, match="send_buf is a float, must be a NumPy array"):
        pair[0].allreduce(3.5)


@pytest.mark.parametrize("shape", [(2**32, 2**32), (2**31, 2**30), 2**62])
def test_oversized_symmetric_arrays_are_rejected(pair, shape) -> None:
    with pytest.raises(ValueError, match="exceeds the address space"):
        pair[0].empty(shape)


@pytest.mark.parametrize("shape", [(1.5,), "a", None, ("3",)])
def test_non_integer_shapes_are_rejected(pair, shape) -> None:
    with pytest.raises(TypeError, match="shape must be an integer or a sequence of integers"):
        pair[0].empty(shape)
