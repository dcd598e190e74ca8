"""scripts/cpu_check with fake programs: steps, records, table and exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.records import Report

ROOT = Path(__file__).resolve().parents[2]

# Fake measurement program. Reports a fixed time, or fails if FAKE_FAILURE is its name.
PROGRAM = """#!{python}
import json, os, sys
words = sys.argv[1:]
value = lambda name, default="": words[words.index(name) + 1] if name in words else default
if os.environ.get("FAKE_FAILURE") == "{name}":
    sys.exit(1)
record = dict(collective="allreduce", dtype="float32", op="sum", bytes=8, ranks=1,
              provider=value("--provider", "{name}"), backend="", reason="", mode="host", placement="3",
              wrong=0, time_us=dict(min={us}, median={us}, max={us}), algbw_gbs=1.0, busbw_gbs=1.0)
record["mode"] = "shared_heap" if "--heap" in words else "host"
document = dict(schema=1, date="2026-11-23T00:00:00Z", commit=os.environ["ISTHMUS_BENCH_COMMIT"],
                command="fake", versions={{"{name}": "1"}}, records=[record],
                machine=dict(name=os.environ["ISTHMUS_BENCH_MACHINE"], cpu="fake", cores=2, gpus=[]))
json.dump(document, open(value("--json"), "w"))
"""


def write_program(path: Path, name: str, us: float) -> None:
    path.parent.mkdir(parents=True)
    path.write_text(PROGRAM.format(python=sys.executable, name=name, us=us))
    path.chmod(0o755)


@pytest.fixture
def carry_folder(tmp_path) -> Path:
    """A folder like that of scripts/cpu_carry. Times: Isthmus 2 us, MPICH 3 us, Open MPI 5 us."""
    programs = tmp_path / "programs"
    write_program(programs / "builds/isthmus/bin/isthmus_bench", "isthmus", 2.0)
    (programs / "builds/isthmus/commit").write_text("0123abc")
    for name, us in (("mpich", 3.0), ("openmpi", 5.0)):
        write_program(programs / "peers" / name / "peer_mpi", name, us)
        launch = programs / "peers" / name / "launch"
        launch.write_text('#!/bin/sh\nshift; exec "$@"\n')
        launch.chmod(0o755)
    folder = tmp_path / "carry"
    folder.mkdir()
    archive_command = ["tar", "-C", str(tmp_path), "-cJf", str(folder / "programs.tar.xz"), "programs"]
    subprocess.run(archive_command, check=True)
    (folder / "cpu_check").write_bytes((ROOT / "scripts/cpu_check").read_bytes())
    return folder


def run_cpu_check(
    folder: Path, *options: str, failing_program: str = ""
) -> tuple[subprocess.CompletedProcess, Path]:
    out = folder / "out"
    environment = os.environ | {"OUT": str(out), "FAKE_FAILURE": failing_program}
    command = [
        sys.executable,
        str(folder / "cpu_check"),
        "--ranks",
        "1",
        "--collectives",
        "allreduce",
        *options,
    ]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120), out


def test_report_compares_all_providers_with_best_peer(carry_folder):
    completed, out = run_cpu_check(carry_folder, "--heap", "--rounds", "2")
    assert completed.returncode == 0, completed.stderr
    (file,) = out.glob("cpu*-host.json")
    report = Report.load(file)
    assert report.commit == "0123abc" and set(report.versions) == {"isthmus", "mpich", "openmpi"}
    assert {record.path for record in report.records} == {
        ("isthmus", "host"), ("isthmus", "shared_heap"), ("mpich", "host"), ("openmpi", "host"),
    }  # fmt: skip
    assert all(len(record.round_medians_us) == 2 for record in report.records)
    assert "3.00 mpich" in completed.stdout and "2.00  1.50" in completed.stdout
    assert "1 ranks on cores: 3" in completed.stdout
    assert "isthmus: of 1 points 1 above 1.0, 1 above 1.3" in completed.stdout
    assert "mpich: slowest over fastest round: median 1.00" in completed.stdout
    assert "mpich: 0 of 1 points with a rank that waited over 1 ms for its core" in completed.stdout
    assert "CPU seconds of other tasks: " in completed.stdout


def test_one_start_measures_all_collectives(carry_folder):
    completed, out = run_cpu_check(carry_folder, "--collectives", "allreduce,reduce", "--rounds", "3")
    assert completed.returncode == 0, completed.stderr
    results = json.loads((out / "cpu-check.json").read_text())["results"]
    assert len(results) == 3 * 3
    assert (out / "cpu-check.log").read_text().count(" allreduce,reduce --sizes ") == len(results)


def test_threads_and_crowded_options_add_measurements(carry_folder):
    completed, out = run_cpu_check(carry_folder, "--threads", "--crowded", "--ranks", "1,9999", "--rounds", "1")
    assert completed.returncode == 0, completed.stderr
    results = json.loads((out / "cpu-check.json").read_text())["results"]
    assert {each["step"].split(",")[0] for each in results} == {
        "isthmus",
        "isthmus threads",
        "mpich",
        "openmpi",
    }
    assert sum("9999 ranks" in each["step"] for each in results) == 4


def test_together_option_runs_two_concurrent_jobs(carry_folder):
    completed, out = run_cpu_check(carry_folder, "--together", "--rounds", "1")
    assert completed.returncode == 0, completed.stdout + completed.stderr
    steps = [each["step"] for each in json.loads((out / "cpu-check.json").read_text())["results"]]
    places = ["the same cores"] + (["other cores"] if len(os.sched_getaffinity(0)) > 1 else [])
    assert steps == [
        f"{name}, 1 ranks next to 1 on {place}, round 1"
        for place in places
        for name in ("isthmus", "mpich", "openmpi")
    ]
    assert all(f"next to as many on {place}" in completed.stdout for place in places), completed.stdout
    log = (out / "cpu-check.log").read_text()
    assert log.count("raw0.json") == log.count("raw1.json") == len(steps)


def test_failed_provider_is_reported_and_others_run(carry_folder):
    completed, out = run_cpu_check(carry_folder, "--rounds", "1", failing_program="mpich")
    assert completed.returncode == 1
    results = json.loads((out / "cpu-check.json").read_text())["results"]
    assert [each["result"] for each in results] == ["passed", "failed", "passed"]
    assert "5.00 openmpi" in completed.stdout


def test_expired_time_limit_is_reported(carry_folder):
    completed, _ = run_cpu_check(carry_folder, "--limit", "0")
    assert (completed.returncode, "not run (time limit reached)" in completed.stdout) == (1, True)


def test_missing_archive_error_names_cpu_carry(tmp_path):
    (tmp_path / "cpu_check").write_bytes((ROOT / "scripts/cpu_check").read_bytes())
    completed, _ = run_cpu_check(tmp_path)
    assert (completed.returncode, "scripts/cpu_carry" in completed.stderr) == (2, True)
