"""Communicator.tree_allreduce: sums whose bits do not depend on the number of ranks. The oracle is NumPy."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from conftest import TIMEOUT_S, run_on_all_ranks

import isthmus

# 24 leaves can be divided among 1, 2, 3, 4, 6 and 8 ranks, also into parts that are not subtrees. With few
# elements, the partial sums are gathered. With many, they are added in slices.
LEAVES, COUNTS = 24, (1, 33, 12000, 30011)
TYPES = [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, np.float32, np.float64]


def leaves_of(dtype: Any, count: int) -> np.ndarray:
    """All leaves. Large even ones cancel, so the rounding errors of the small odd ones depend on the order."""
    generator = np.random.default_rng(count)
    scale = np.where(np.arange(LEAVES) % 2 == 0, 2.0**9, 2.0**-12)[:, np.newaxis]
    leaves = (generator.standard_normal((LEAVES, count)) * scale).astype(dtype)
    leaves[LEAVES // 2 :: 2] = -leaves[: LEAVES // 2 : 2]
    return leaves


def tree_sum(leaves: np.ndarray) -> np.ndarray:
    """Adds level by level."""
    level = list(leaves.astype(np.float64 if leaves.dtype == np.float64 else np.float32))
    while len(level) > 1:
        level = [sum(level[first + 1 : first + 2], level[first]) for first in range(0, len(level), 2)]
    return level[0].astype(leaves.dtype)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_bits_do_not_depend_on_the_number_of_ranks(size: int) -> None:
    cases = [leaves_of(dtype, count) for dtype in TYPES for count in COUNTS]
    expected = [tree_sum(leaves) for leaves in cases]

    def check(communicator: isthmus.Communicator) -> None:
        for leaves, result in zip(cases, expected, strict=True):
            share = np.split(leaves, size)[communicator.rank]
            out = np.empty_like(result)
            out.view(np.uint8)[:] = 0xFF
            assert communicator.tree_allreduce(share, out) is out
            assert out.tobytes() == result.tobytes(), (leaves.dtype, leaves.shape)

    communicators = isthmus.Communicator.create_all(size, timeout=TIMEOUT_S)
    run_on_all_ranks(communicators, check)
    for communicator in communicators:
        communicator.close()


@pytest.mark.parametrize("dtype", TYPES)
def test_other_orders_give_other_bits(dtype: Any) -> None:
    leaves = leaves_of(dtype, COUNTS[-1])
    assert tree_sum(leaves).tobytes() != tree_sum(np.roll(leaves, 1, axis=0)).tobytes()


def test_row_parallel_layer_has_equal_logits() -> None:
    """The weight is cut into 8 slices, and 1, 2, 4 and 8 ranks multiply 8, 4, 2 and 1 of them."""
    generator = np.random.default_rng(1)
    inputs = np.split(generator.standard_normal((5, 64)).astype(np.float32), 8, axis=1)
    weight = np.split(generator.standard_normal((64, 40)).astype(np.float32), 8, axis=0)
    products = np.stack([x @ w for x, w in zip(inputs, weight, strict=True)]).astype(ml_dtypes.bfloat16)
    logits, plain_sums = set(), set()
    for size in (1, 2, 4, 8):
        communicators = isthmus.Communicator.create_all(size, timeout=TIMEOUT_S)
        shares = np.split(products, size)
        logits.update(
            each.tobytes()
            for each in run_on_all_ranks(communicators, lambda each: each.tree_allreduce(shares[each.rank]))  # noqa: B023
        )
        plain_sums.update(
            each.tobytes()
            for each in run_on_all_ranks(
                communicators,
                lambda each: each.allreduce(shares[each.rank].sum(axis=0)),  # noqa: B023
            )
        )
        for communicator in communicators:
            communicator.close()
    assert len(logits) == 1
    assert len(plain_sums) > 1


def test_invalid_arguments_are_rejected(pair: list[isthmus.Communicator]) -> None:
    rank = pair[0]
    with pytest.raises(ValueError, match=r"shape \(2, 3\), and out has 2 elements"):
        rank.tree_allreduce(np.ones((2, 3)), np.ones(2))
    with pytest.raises(ValueError, match="at least one leaf"):
        rank.tree_allreduce(np.ones((0, 3)))
    with pytest.raises(isthmus.Error, match="datatype = int32 must be a floating-point type"):
        rank.tree_allreduce(np.ones((2, 3), np.int32))
    both = np.ones((3, 3))
    with pytest.raises(isthmus.Error, match="overlap"):
        rank.tree_allreduce(both[:2], both[1])
    with pytest.raises(isthmus.Error, match="inside a group"), isthmus.group():
        rank.tree_allreduce(both)
    # The ranks also compare empty calls.
    assert run_on_all_ranks(pair, lambda each: each.tree_allreduce(np.ones((2, 0))).shape) == [(0,), (0,)]
