"""ISTHMUS_DETERMINISTIC: floating-point sums equal sequential additions in rank order, bit by bit."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import isthmus

COUNTS = [1, 17, 1000, 5000, 70001]


def algorithms() -> list[str]:
    """Returns the algorithms of `shm` that support allreduce."""
    with isthmus.Communicator.create_all(1)[0] as communicator:
        (shm,) = [each for each in communicator.info()["backends"] if each["name"] == "shm"]
    assert "rank_order" in shm["capabilities"]
    return [name for name in shm["algorithms"] if name != "channel"]


def sum_in_rank_order(contributions: list[np.ndarray]) -> np.ndarray:
    """Adds sequentially. Types below 4 bytes are accumulated in float32 and rounded once."""
    wide_dtype = np.float32 if contributions[0].itemsize < 4 else contributions[0].dtype
    total = contributions[0].astype(wide_dtype)
    for contribution in contributions[1:]:
        total = total + contribution.astype(wide_dtype)
    return total.astype(contributions[0].dtype)


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_every_shm_algorithm_reduces_in_rank_order(
    ranks: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    generator = np.random.default_rng(ranks)
    checked_calls = 0
    names = algorithms()
    monkeypatch.setenv("ISTHMUS_DETERMINISTIC", "1")
    for name in names:
        monkeypatch.setenv("ISTHMUS_BACKEND", f"shm:{name}")
        communicators = isthmus.Communicator.create_all(ranks)
        for count in COUNTS:
            scale = 10.0 ** generator.uniform(-3, 3, count)
            inputs = [(generator.standard_normal(count) * scale).astype(dtype) for _ in range(ranks)]
            outputs = [np.full(count, np.nan, dtype) for _ in range(ranks)]
            failures: list[isthmus.Error] = []

            def run_rank(rank: int) -> None:
                try:
                    communicators[rank].allreduce(inputs[rank], outputs[rank])  # noqa: B023
                except isthmus.Error as failure:
                    failures.append(failure)  # noqa: B023

            threads = [threading.Thread(target=run_rank, args=(rank,)) for rank in range(ranks)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if failures:  # an algorithm that supports only small messages
                assert all("no backend can run" in str(failure) for failure in failures)
                continue
            checked_calls += 1
            expected = sum_in_rank_order(inputs).tobytes()
            for output in outputs:
                assert output.tobytes() == expected, (name, count)
        for communicator in communicators:
            communicator.close()
    assert checked_calls > 3 * len(names), "too few algorithms ran"


def test_invalid_deterministic_setting_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_DETERMINISTIC", "perhaps")
    with pytest.raises(isthmus.Error, match=r'environment ISTHMUS_DETERMINISTIC: .*"perhaps"'):
        isthmus.Communicator.create_all(1)
