"""examples/zero3: the trainer under DeepSpeed, on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from crew import Crew

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/zero3"
TINY = ["--device", "cpu", "--length", "16", "--batch", "4", "--warmup", "1"]
TINY += ["--batches", "2", "--steps", "30", "--rate", "5e-3"]


def trains(*arguments: str) -> dict[str, Any]:
    sys.path.insert(0, str(EXAMPLE))
    import train

    return train.run(train.parse([*TINY, *arguments, "--init-method", os.environ["TEST_STORE"]]))


def check(result: dict[str, Any]) -> None:
    assert result["losses"][-1] < result["losses"][0] - 0.5
    paths = {row["collective"]: row["path"] for row in result["paths"]}
    assert paths["allgather"].startswith("host") and paths["reduce_scatter"].startswith("host"), paths
    assert not any(row["path"].startswith("torch") for row in result["paths"])


def test_zero3_with_deepspeed(fresh_crew: Callable[..., Crew]) -> None:
    results = fresh_crew().run(trains, "--model", "gpt-tiny", backend=None)
    check(results[0])
    assert all(result["losses"] == results[0]["losses"] for result in results), "they are means over the ranks"
