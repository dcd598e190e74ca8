"""Communicator.allreduce_rmsnorm, compared with values in float64 and with the bits of separate steps."""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from conftest import TIMEOUT_S, run_on_all_ranks

import isthmus

EPS = 1e-5
SHAPES = [(1, 1), (5, 7), (3, 4, 96), (2, 5000)]
UNIT_ROUNDOFF = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "float32": 2.0**-24}
FLOAT8 = ml_dtypes.float8_e4m3fn
LARGEST_FLOAT8 = np.float32(448)


class Case(NamedTuple):
    contributions: list[np.ndarray]
    residual: np.ndarray
    weight: np.ndarray


class Outputs(NamedTuple):
    normalized: np.ndarray
    residual: np.ndarray
    scales: np.ndarray


def case_of(dtype: Any, shape: tuple[int, ...], size: int) -> Case:
    """Random numbers whose sum depends on the order. The last row is zero."""
    generator = np.random.default_rng([size, *shape])

    def values(*extents: int) -> np.ndarray:
        exponents = generator.integers(-5, 5, extents)
        return (generator.standard_normal(extents) * 2.0**exponents).astype(dtype)

    case = Case([values(*shape) for _ in range(size)], values(*shape), values(shape[-1]))
    if len(shape) > 1 and shape[0] > 2:
        for each in (*case.contributions, case.residual):
            each[-1] = 0
    return case


def sum_of_squares(rows: np.ndarray, item_bytes: int) -> np.ndarray:
    """The documented order: vectors of 16 bytes, 1,024 accumulators, then halves of groups of 32."""
    length = 16 // item_bytes
    padding = -rows.shape[1] % (1024 * length)
    squares = np.pad(rows * rows, ((0, 0), (0, padding))).reshape(len(rows), -1, 1024, length)
    vectors = np.zeros(squares.shape[:-1], np.float32)
    for index in range(length):
        vectors = vectors + squares[..., index]
    sums = np.zeros((len(rows), 1024), np.float32)
    for index in range(vectors.shape[1]):
        sums = sums + vectors[:, index]
    sums = sums.reshape(len(rows), 32, 32)
    for _ in range(2):
        while sums.shape[-1] > 1:
            half = sums.shape[-1] // 2
            sums = sums[..., :half] + sums[..., half:]
        sums = sums[..., 0]
    return sums


def separate_steps(
    case: Case, scale: np.ndarray | None, has_row_scales: bool, round_before_weight: bool = False
) -> Outputs:
    """Allreduce in rank order, addition, RMSNorm and quantization, each rounded to its type."""
    dtype, shape = case.residual.dtype, case.residual.shape
    total = case.contributions[0].astype(np.float32)
    for each in case.contributions[1:]:
        total = total + each.astype(np.float32)
    residual = (total.astype(dtype).astype(np.float32) + case.residual.astype(np.float32)).astype(dtype)
    rows = residual.astype(np.float32).reshape(-1, shape[-1])
    mean = sum_of_squares(rows, dtype.itemsize) / np.float32(shape[-1])
    factor = np.float32(1) / np.sqrt(mean + np.float32(EPS))
    normalized = rows * factor[:, np.newaxis]
    if round_before_weight:
        normalized = normalized.astype(dtype).astype(np.float32)
    normalized = (normalized * case.weight.astype(np.float32)).astype(dtype)
    scales = np.empty(0, np.float32)
    if scale is not None or has_row_scales:
        wide = normalized.astype(np.float32)
        largest = np.abs(wide).max(axis=1)
        scales = np.where(largest == 0, np.float32(1), largest / LARGEST_FLOAT8)
        divisor = scales[:, np.newaxis] if scale is None else scale
        normalized = np.clip(wide / divisor, -LARGEST_FLOAT8, LARGEST_FLOAT8).astype(FLOAT8)
    return Outputs(normalized.reshape(shape), residual, scales)


def poisoned(dtype: Any, shape: tuple[int, ...]) -> np.ndarray:
    result = np.empty(shape, dtype)
    result.view(np.uint8)[...] = 0xA5
    return result


def check_exact_values(case: Case, outputs: Outputs) -> None:
    """Compares `normalized` with float64, from the residual that was stored."""
    u = UNIT_ROUNDOFF[case.residual.dtype.name]
    exact_sum = sum(each.astype(np.float64) for each in [*case.contributions, case.residual])
    magnitude = sum(np.abs(each.astype(np.float64)) for each in [*case.contributions, case.residual])
    residual = outputs.residual.astype(np.float64)
    bound = 2 * u * magnitude + len(case.contributions) * 2.0**-24 * magnitude
    assert np.all(np.abs(residual - exact_sum) <= 1.01 * bound)
    exact = residual / np.sqrt((residual**2).mean(axis=-1, keepdims=True) + EPS)
    exact = exact * case.weight.astype(np.float64)
    error = np.abs(outputs.normalized.astype(np.float64) - exact)
    assert np.all(error <= (u + 2.0**-18) * np.abs(exact) + 2.0**-25)  # the second term: subnormals of float16


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("round_before_weight", [False, True])
def test_results_have_the_bits_of_separate_steps(size: int, dtype: Any, round_before_weight: bool) -> None:
    communicators = isthmus.Communicator.create_all(size, timeout=TIMEOUT_S)
    for shape in SHAPES:
        case = case_of(dtype, shape, size)
        for kind in ("plain", "scale", "scales"):
            scale = np.array([0.004], np.float32) if kind == "scale" else None
            expected = separate_steps(case, scale, kind == "scales", round_before_weight)

            def check(rank: isthmus.Communicator) -> None:
                out = Outputs(
                    poisoned(dtype if kind == "plain" else FLOAT8, shape),  # noqa: B023
                    poisoned(dtype, shape),  # noqa: B023
                    poisoned(np.float32, expected.scales.shape),  # noqa: B023
                )
                result = rank.allreduce_rmsnorm(
                    case.contributions[rank.rank],  # noqa: B023
                    case.residual,  # noqa: B023
                    case.weight,  # noqa: B023
                    EPS,
                    normalized=out.normalized,
                    residual_out=out.residual,
                    scale=scale,  # noqa: B023
                    scales=out.scales if kind == "scales" else None,  # noqa: B023
                    round_before_weight=round_before_weight,
                )
                assert result[0] is out.normalized and result[1] is out.residual
                assert out.residual.tobytes() == expected.residual.tobytes(), (shape, kind)  # noqa: B023
                assert out.normalized.tobytes() == expected.normalized.tobytes(), (shape, kind)  # noqa: B023
                if kind == "scales":  # noqa: B023
                    assert out.scales.tobytes() == expected.scales.tobytes(), shape  # noqa: B023
                if kind == "plain" and not round_before_weight:  # noqa: B023
                    check_exact_values(case, out)  # noqa: B023

            run_on_all_ranks(communicators, check)
    for communicator in communicators:
        communicator.close()


def test_residual_has_the_bits_of_an_allreduce(pair: list[isthmus.Communicator]) -> None:
    case = case_of(np.float16, (4, 300), 2)

    def check(rank: isthmus.Communicator) -> None:
        own = case.contributions[rank.rank]
        normalized, residual = rank.allreduce_rmsnorm(own, case.residual, case.weight, EPS)
        assert normalized.dtype == residual.dtype == own.dtype
        assert normalized.shape == residual.shape == own.shape
        assert residual.tobytes() == (rank.allreduce(own) + case.residual).tobytes()

    run_on_all_ranks(pair, check)


def test_outputs_may_be_inputs_or_bytes(pair: list[isthmus.Communicator]) -> None:
    case = case_of(np.float16, (4, 24), 2)
    expected = separate_steps(case, None, False)
    quantized = separate_steps(case, None, True)

    def check(rank: isthmus.Communicator) -> None:
        own, residual = case.contributions[rank.rank].copy(), case.residual.copy()
        rank.allreduce_rmsnorm(own, residual, case.weight, EPS, normalized=own, residual_out=residual)
        assert own.tobytes() == expected.normalized.tobytes()
        assert residual.tobytes() == expected.residual.tobytes()
        arrays = [each.view(np.uint16) for each in (case.contributions[rank.rank], case.residual, case.weight)]
        data = np.full((4, 24), 7, np.uint8)
        rank.allreduce_rmsnorm(*arrays, EPS, normalized=data, scales=np.empty(4, np.float32), dtype="float16")
        assert data.tobytes() == quantized.normalized.tobytes()

    run_on_all_ranks(pair, check)


def test_invalid_arguments_are_rejected(pair: list[isthmus.Communicator]) -> None:
    rank, rows, weight = pair[0], np.ones((2, 3), np.float32), np.ones(3, np.float32)
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match=r"input has shape \(2, 3\), its last axis must have the 2 elements"):
        rank.allreduce_rmsnorm(rows, rows, weight[:2], EPS)
    with pytest.raises(ValueError, match="residual has 3 elements, must have 6"):
        rank.allreduce_rmsnorm(rows, rows[:1], weight, EPS)
    with pytest.raises(TypeError, match="weight holds float64, must be float32"):
        rank.allreduce_rmsnorm(rows, rows, weight.astype(np.float64), EPS)
    with pytest.raises(TypeError, match="normalized is required with scale or scales"):
        rank.allreduce_rmsnorm(rows, rows, weight, EPS, scale=one)
    with pytest.raises(ValueError, match="scales has 1 elements, must have 2"):
        rank.allreduce_rmsnorm(rows, rows, weight, EPS, normalized=np.empty((2, 3), FLOAT8), scales=one)
    with pytest.raises(TypeError, match="normalized holds float32, but dtype=float8_e4m3"):
        rank.allreduce_rmsnorm(rows, rows, weight, EPS, normalized=np.empty_like(rows), scale=one)
    with pytest.raises(isthmus.Error, match="datatype = int32 must be float16, bfloat16 or float32"):
        rank.allreduce_rmsnorm(*(each.astype(np.int32) for each in (rows, rows, weight)), EPS)
    with pytest.raises(isthmus.Error, match="eps = -1 must be a finite float32"):
        rank.allreduce_rmsnorm(rows, rows, weight, -1.0)
    with pytest.raises(isthmus.Error, match="overlap"):
        rank.allreduce_rmsnorm(rows, rows, weight, EPS, normalized=rows, residual_out=rows)
    with pytest.raises(isthmus.Error, match="inside a group"), isthmus.group():
        rank.allreduce_rmsnorm(rows, rows, weight, EPS)

    def without_rows(each: isthmus.Communicator) -> tuple[int, ...]:
        return each.allreduce_rmsnorm(rows[:0], rows[:0], weight, EPS)[0].shape

    assert run_on_all_ranks(pair, without_rows) == [(0, 3), (0, 3)]
