"""Reference implementation of reductions in NumPy. It shares no code with Isthmus.

Results are compared with exact arithmetic in wider types. Integers wrap around. Floating-point results must be
within the rounding error bound of any order of evaluation.
"""

from __future__ import annotations

import numpy as np

# Largest relative rounding error of one operation: half a unit in the last place.
_EPSILON = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
_EPSILON |= {"float8_e4m3fn": 2.0**-4, "float8_e5m2": 2.0**-3}


def check_reduction(result: np.ndarray, contributions: list[np.ndarray], op: str) -> None:
    """Asserts that `result` is the reduction of the contributions."""
    dtype = contributions[0].dtype
    if np.issubdtype(dtype, np.integer):
        np.testing.assert_array_equal(result, _integer(contributions, op))
        return
    wide_values = np.stack([part.astype(np.float64) for part in contributions])
    exact, magnitude = _floating(wide_values, op)
    epsilon = _EPSILON[dtype.name]
    # float16 and smaller types are accumulated in float32 and rounded once (collectives.def).
    inner_epsilon = _EPSILON["float32"] if dtype.itemsize < 4 else epsilon
    steps = len(contributions) + 1  # one more for the division of avg
    bound = (
        magnitude * steps * inner_epsilon * 1.01
        + np.abs(exact) * epsilon * 1.01
        + _subnormal_rounding_error(dtype)
    )
    error = np.abs(result.astype(np.float64) - exact)
    assert np.all(error <= bound), f"{op} of {dtype}: error {error.max()}, bound there {bound[error.argmax()]}"


def _subnormal_rounding_error(dtype: np.dtype) -> float:
    """Returns half the spacing of subnormal numbers, which is the absolute rounding error near zero."""
    return {"float8_e4m3fn": 2.0**-10, "float8_e5m2": 2.0**-17, "float16": 2.0**-25}.get(dtype.name, 0.0)


def _floating(wide_values: np.ndarray, op: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the exact values and the magnitudes that rounding errors are relative to."""
    total, size = np.abs(wide_values).sum(axis=0), len(wide_values)
    if op == "sum":
        return wide_values.sum(axis=0), total
    if op == "avg":
        return wide_values.sum(axis=0) / size, total / size
    if op == "prod":
        return wide_values.prod(axis=0), np.abs(wide_values).prod(axis=0)
    zero = np.zeros(wide_values.shape[1])
    return (wide_values.min(axis=0) if op == "min" else wide_values.max(axis=0)), zero


def _integer(contributions: list[np.ndarray], op: str) -> np.ndarray:
    """Returns exact results with two's complement wraparound. avg truncates the wrapped sum toward zero."""
    dtype = contributions[0].dtype
    values = [[int(value) for value in part] for part in contributions]
    columns = zip(*values, strict=True)
    results = []
    for column in columns:
        if op in ("sum", "avg"):
            value = _wrap(sum(column), dtype)
            if op == "avg":
                value = abs(value) // len(column) * (1 if value >= 0 else -1)
        elif op == "prod":
            product = 1
            for factor in column:
                product *= factor
            value = _wrap(product, dtype)
        else:
            value = min(column) if op == "min" else max(column)
        results.append(value)
    return np.array(results, dtype=dtype)


def _wrap(value: int, dtype: np.dtype) -> int:
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    signed = np.issubdtype(dtype, np.signedinteger)
    return value - (1 << bits) if signed and value >> (bits - 1) else value
