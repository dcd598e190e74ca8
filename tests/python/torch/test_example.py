"""examples/zero3 on the CPU: both frameworks, the scripts and the plot."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from rank_processes import RankProcesses

EXAMPLE = Path(__file__).resolve().parents[3] / "examples/zero3"
TINY = ["--device", "cpu", "--length", "16", "--batch", "4", "--warmup", "1"]
TINY += ["--batches", "2", "--steps", "30", "--rate", "5e-3"]


def run_training(*arguments: str) -> dict[str, Any]:
    sys.path.insert(0, str(EXAMPLE))
    import train

    return train.run(train.parse([*TINY, *arguments, "--init-method", os.environ["TEST_STORE"]]))


def check(result: dict[str, Any]) -> None:
    assert result["losses"][-1] < result["losses"][0] - 0.5
    paths = {row["collective"]: row["path"] for row in result["paths"]}
    assert paths["allgather"].startswith("shm") and paths["reduce_scatter"].startswith("shm"), paths
    assert not any(row["path"].startswith("torch") for row in result["paths"])


def test_zero3_with_deepspeed(fresh_ranks: Callable[..., RankProcesses]) -> None:
    results = fresh_ranks().run(run_training, "--model", "gpt-tiny", backend=None)
    check(results[0])
    assert all(result["losses"] == results[0]["losses"] for result in results), (
        "losses are means over the ranks"
    )


def live_parameters_after_close() -> dict[str, int]:
    """Returns the number of parameters of each framework that are alive after a step and close()."""
    sys.path.insert(0, str(EXAMPLE))
    import train

    live = {}
    for framework in train.FRAMEWORKS:
        options = train.parse([*TINY, "--model", "gpt-tiny", "--framework", framework])
        shape = train.shape_of(options)
        trainer = train.start(options, shape, dist.group.WORLD)
        model = trainer.engine.module if framework == "zero3" else trainer.model
        references = [weakref.ref(parameter) for parameter in model.parameters()]
        trainer.step(train.make_batches(1, 2, options.length, shape.vocabulary, dist.get_rank())[0])
        trainer.close()
        del trainer, model
        gc.collect()
        live[framework] = sum(reference() is not None for reference in references)
    return live


def test_closed_trainers_release_their_parameters(fresh_ranks: Callable[..., RankProcesses]) -> None:
    assert fresh_ranks().run(live_parameters_after_close) == 4 * [{"zero3": 0, "fsdp2": 0, "ddp": 0}]


def test_scripts_and_plot(tmp_path: Path) -> None:
    arguments = [*TINY, "--framework", "fsdp2", "--model", "qwen3-tiny", "--deterministic"]
    variables = {**os.environ, "OUT": str(tmp_path), "RANKS": "2", "OMP_NUM_THREADS": "1"}
    variables["PATH"] = f"{Path(sys.executable).parent}:{variables['PATH']}"
    scripts = [
        subprocess.Popen([EXAMPLE / name, *arguments], env=variables, stdout=subprocess.PIPE, text=True)
        for name in ("off.sh", "on.sh")
    ]
    for script in scripts:
        output, _ = script.communicate(timeout=120)
        assert script.returncode == 0 and "ms a step" in output, output
    off, on = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("off", "on"))
    check(off)
    assert on["dma_allgather"] and not off["dma_allgather"]
    picture = tmp_path / "loss.png"
    command = [sys.executable, EXAMPLE / "plot_loss.py", tmp_path / "off.json", tmp_path / "on.json", picture]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    assert output == "largest difference: 0.0\n"
    assert picture.stat().st_size > 5000
