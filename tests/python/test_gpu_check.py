"""scripts/gpu_check on simulated machines: executed steps, skipped steps with reasons, and exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from gpu_topics import TOPICS  # noqa: E402

# Fake tool. Logs its command line, and fails if it matches FAKE_FAILURE.
TOOL = """#!/bin/sh
echo "$(basename "$0") $*" >>"$FAKE_FOLDER/calls"
case "$*" in *"$FAKE_FAILURE"*) exit 1 ;; esac
"""


def run_gpu_check(
    folder: Path, gpus: int, only: str = "", failing_command: str = "nothing at all", tools=("nvcc", "cmake")
) -> tuple:
    """Runs gpu_check with fake tools. Returns the process, steps by name, and the log of calls."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(parents=True)
    for tool in tools:
        (bin_folder / tool).write_text(TOOL)
    (bin_folder / "nvidia-smi").write_text("#!/bin/sh\n" + "echo NVIDIA H200\n" * gpus)
    for tool in bin_folder.iterdir():
        tool.chmod(0o755)
    (bin_folder / "python3").symlink_to(sys.executable)
    environment = {
        "PATH": f"{bin_folder}:/usr/bin:/bin",
        "FAKE_FOLDER": str(folder),
        "FAKE_FAILURE": failing_command,
        "OUT": str(folder / "out"),
        "BUILD": str(folder / "build"),
        "ONLY": only,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    completed = subprocess.run(
        [bin_folder / "python3", ROOT / "scripts/gpu_check"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    report = folder / "out/gpu-check.json"
    results = json.loads(report.read_text())["results"] if report.exists() else []
    calls = folder / "calls"
    return completed, {entry["step"]: entry for entry in results}, calls.read_text() if calls.exists() else ""


@pytest.mark.parametrize("gpus", [1, 2, 4, 8])
def test_steps_without_enough_gpus_are_skipped(tmp_path, gpus):
    # The programs do not exist, so every step that is not skipped fails.
    completed, results, _ = run_gpu_check(tmp_path, gpus, "collectives,asynchrony")
    assert completed.returncode == 1
    for topic in TOPICS:
        for step in topic.steps if topic.name in ("collectives", "asynchrony") else ():
            is_shared = step.share and step.gpus > gpus
            entry = results[step.name + (" (two share the GPU)" if is_shared else "")]
            assert entry["result"] == ("failed" if step.gpus <= gpus or is_shared else "skipped"), entry
            if entry["result"] == "skipped":
                assert entry["reason"] == f"needs {step.gpus} GPUs, this machine has {gpus}"


def test_topic_without_requirements_is_not_built(tmp_path):
    completed, results, calls = run_gpu_check(tmp_path, 2, "mpi")
    assert completed.returncode == 0
    assert results["mpi"] == {
        "step": "mpi",
        "result": "skipped",
        "reason": "no mpicc and mpiexec",
        "seconds": 0,
    }
    assert "gpu_mpi_test" not in calls


def test_failed_build_does_not_stop_other_topics(tmp_path):
    completed, results, _ = run_gpu_check(
        tmp_path, 2, "collectives,asynchrony", failing_command="gpu_asynchrony_test"
    )
    assert completed.returncode == 1
    assert results["build of asynchrony"]["result"] == "failed"
    assert results["build of collectives"]["result"] == "passed"
    assert results["asynchrony, graphs, abort"]["reason"] == "its build failed"
    assert results["collectives, one rank"]["result"] == "failed"  # the step ran


def test_missing_gpu_passes_and_unknown_topic_fails(tmp_path):
    completed, _, _ = run_gpu_check(tmp_path / "none", 0)
    assert (completed.returncode, "no NVIDIA GPU" in completed.stdout) == (0, True)
    completed, _, _ = run_gpu_check(tmp_path / "compiler", 1, tools=("cmake",))
    assert (completed.returncode, "no nvcc" in completed.stdout) == (0, True)
    completed, _, _ = run_gpu_check(tmp_path / "unknown", 1, "nonsense")
    assert (completed.returncode, "no topic 'nonsense'" in completed.stderr) == (2, True)


def test_topic_table_is_consistent():
    assert len({topic.name for topic in TOPICS}) == len(TOPICS)
    placeholders = dict.fromkeys(
        [
            "bin",
            "lib",
            "pythonpath",
            "python",
            "ranks",
            "out",
            "scripts",
            "carry",
            "llama",
            "architectures",
            "mpiexec",
            "each",
        ],
        "word",
    )
    for topic in TOPICS:
        assert topic.steps and topic.targets
        for step in topic.steps:
            assert step.command.format(**placeholders) and step.gpus >= 1 and step.limit_s <= 400
            assert not step.records or step.records in step.command
