"""`isthmus doctor PID` and the errors of the surviving ranks name the faulty rank."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from job_faults import DEADLINE_S, FAULTS, device_sentence_pattern, wait_for_diagnosis
from rank_program import FAULTY_RANK, SIZE

import isthmus
from isthmus import launch, layout
from isthmus._isthmus import diagnose
from isthmus.cli.app import main
from isthmus.cli.diagnosis import read_stacks

PROGRAM = Path(__file__).parent / "rank_program.py"
# Faults that block the other ranks. A different count, datatype or root can cause wrong data instead.
BLOCKING_FAULTS = ["die", "stop", "slow", "skip", "reorder"]


@contextmanager
def start_job(
    fault: str, folder: Path, timeout_s: float, **variables: str
) -> Iterator[list[subprocess.Popen[str]]]:
    """Starts a job. Yields its processes when all ranks have completed their first calls."""
    package = str(Path(isthmus.__file__).parent.parent)
    environment = os.environ | {"PYTHONPATH": package, "ISTHMUS_TIMEOUT_S": str(timeout_s)} | variables
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), fault, str(folder), str(rank)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(SIZE)
    ]
    try:
        for process in processes:
            assert process.stdout is not None and process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for signal_number in (signal.SIGSTOP, signal.SIGKILL):  # no rank can observe the exit of another rank
            for process in processes:
                process.send_signal(signal_number)
        for process in processes:
            process.communicate()


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_rank_is_named(fault: str, tmp_path: Path) -> None:
    diagnosis_kind, sentence = FAULTS[fault]
    with start_job(fault, tmp_path, 3 if fault in BLOCKING_FAULTS else 600) as processes:
        for rank in {0, 1} if fault in BLOCKING_FAULTS else ():
            output = processes[rank].stdout
            assert output is not None
            line = output.readline()
            assert re.match("timeout|remote|aborted|mismatch", line), line
            assert re.search(sentence, line), line
        communicator = wait_for_diagnosis(processes[0].pid, diagnosis_kind)
        assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
        assert f"(pid {processes[FAULTY_RANK].pid})" in communicator["sentence"]


# Fake NCCL and device libraries, so that calls are enqueued on streams.
STANDINS = Path(layout.library_folder()) / "standins"
DEVICE_VARIABLES = {
    "RANK_PLATFORM": "cuda",
    "ISTHMUS_BACKEND": "nccl",
    "ISTHMUS_CUDA_DRIVER_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_CUDA_RUNTIME_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_NCCL_LIBRARY": str(STANDINS / "libstandin_nccl.so"),
}
# Faults that other ranks detect by process monitoring or by a stream timeout.
DETECTED_FAULTS = ["die", "stop"]
# As with NCCL, calls with a different datatype, root or order can complete. The recorders still contain them.


@pytest.mark.skipif(not (STANDINS / "libstandin_nccl.so").is_file(), reason="requires the stand-ins")
@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_rank_is_named_over_nccl(fault: str, tmp_path: Path) -> None:
    diagnosis_kind, _ = FAULTS[fault]
    with start_job(fault, tmp_path, 3 if fault in DETECTED_FAULTS else 600, **DEVICE_VARIABLES) as processes:
        for rank in {0, 1} if fault in DETECTED_FAULTS else ():
            output = processes[rank].stdout
            assert output is not None
            line = output.readline()
            assert re.match("timeout|remote|aborted", line), line
            assert re.search(rf"rank {FAULTY_RANK} (exited|\(pid \d+\) is stopped)", line), line
        communicator = wait_for_diagnosis(processes[0].pid, diagnosis_kind)
        assert re.search(device_sentence_pattern(fault), communicator["sentence"]), communicator["sentence"]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Runs `isthmus doctor`. Returns its exit code and output."""
    code = main(["doctor", *arguments])
    return code, "".join(capsys.readouterr())


def test_doctor_command_prints_diagnosis_and_stacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_py_spy = tmp_path / "py-spy"
    fake_py_spy.write_text('#!/bin/sh\necho "stack of $3"\n')
    fake_py_spy.chmod(0o700)
    with start_job("slow", tmp_path, 600) as processes:
        wait_for_diagnosis(processes[0].pid, "missing")
        time.sleep(1.1)  # a shorter wait is not reported
        with monkeypatch.context() as patched_environment:
            patched_environment.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            code, printed = doctor(capsys, str(processes[1].pid), "--stacks")
        assert code == 1, printed
        assert re.search(FAULTS["slow"][1], printed), printed
        assert all(f"stack of {each.pid}" in printed for each in processes)
        jobs = json.loads(doctor(capsys, "--job", "all", "--json")[1])["jobs"]
        (own_job,) = [each for each in jobs if processes[0].pid in each["pids"]]
        assert re.search(FAULTS["slow"][1], doctor(capsys, "--job", own_job["job"])[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["1"], "no job of this user on this machine has process 1"),
        (["1", "--job", "all"], "exclude each other"),
        (["--stacks"], "requires a process"),
        (["1", "--only", "package"], "self-tests"),
    ],
)
def test_doctor_rejects_conflicting_arguments(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed = doctor(capsys, *arguments)
    assert code == 2 and message in printed, printed


def test_missing_stack_tools_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert re.match("no user stacks: py-spy is not installed; gdb is not installed", read_stacks(os.getpid()))


def test_dead_job_can_be_diagnosed(tmp_path: Path) -> None:
    with start_job("slow", tmp_path, 600) as processes:
        pid = processes[0].pid
        wait_for_diagnosis(pid, "missing")
    communicator = wait_for_diagnosis(pid, "missing")
    assert {rank["process"] for rank in communicator["ranks"]} == {"exited"}


def recorded_communicators() -> set[str]:
    """Returns the communicators of this process, including those of other tests."""
    jobs = json.loads(diagnose(os.getpid(), ""))["jobs"]
    return {communicator["communicator"] for job in jobs for communicator in job["communicators"]}


def test_closed_communicators_leave_no_recorder_files() -> None:
    previous = recorded_communicators()
    ranks = isthmus.Communicator.create_all(2)
    names = recorded_communicators() - previous
    assert len(names) == 1, names
    for rank in ranks:
        rank.close()
    assert not [file for name in names for file in Path("/dev/shm").glob(f"isthmus-*-{name}-*")]


@pytest.mark.skipif(not Path(launch.launcher("mpich").executable).is_file(), reason="needs MPICH")
@pytest.mark.parametrize("fault", ["stop", "skip"])
def test_faulty_rank_is_named_under_mpi(fault: str) -> None:
    launcher = launch.launcher("mpich")
    arguments = [*launcher.command(SIZE, bind=False), sys.executable, str(PROGRAM), fault, "mpi"]
    variables = {"ISTHMUS_BACKEND": "mpi", "ISTHMUS_TIMEOUT_S": "4"}
    environment = launch.environment(launcher, SIZE) | variables
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            diagnosis_kind, sentence = FAULTS[fault]
            communicator = wait_for_diagnosis(rank_of_job(process.pid), diagnosis_kind)
            assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
            assert process.stderr is not None
            for line in process.stderr:  # printed by the watchdog before it terminates the job
                if re.search(sentence.encode(), line):
                    break
            else:
                pytest.fail("no error names the rank")
        finally:
            for rank in descendants(process.pid):
                with suppress(ProcessLookupError):
                    os.kill(rank, signal.SIGKILL)
            process.kill()


def rank_of_job(launcher: int) -> int:
    """Waits until a rank of the job has a flight recorder. Returns its process."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        started = descendants(launcher)
        for each in json.loads(diagnose(0, ""))["jobs"]:
            if ranks := started & set(each["pids"]):
                return ranks.pop()
        time.sleep(0.05)
    raise AssertionError("no rank has created its communicator")


def descendants(ancestor: int) -> set[int]:
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    descendant_pids, frontier = set(), {ancestor}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - descendant_pids
        descendant_pids |= frontier
    return descendant_pids
