"""`isthmus doctor PID` and the errors of the survivors name the rank that does something wrong, or nothing."""

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
from job_faults import FAULTS, PATIENCE_S, examined, sentence_on_devices
from rank_program import CULPRIT, SIZE

import isthmus
from isthmus import launch, layout
from isthmus._isthmus import diagnose
from isthmus.cli.app import main
from isthmus.cli.diagnosis import stack_of

PROGRAM = Path(__file__).parent / "rank_program.py"
# The survivors wait: those with another count, datatype or root may get wrong data instead.
WAITING = ["die", "stop", "slow", "skip", "reorder"]


@contextmanager
def job(fault: str, folder: Path, timeout_s: float, **variables: str) -> Iterator[list[subprocess.Popen[str]]]:
    """The ranks, once all have made their first calls."""
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
        for ending in (signal.SIGSTOP, signal.SIGKILL):  # nobody lives to see another's end
            for process in processes:
                process.send_signal(ending)
        for process in processes:
            process.communicate()


@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named(fault: str, tmp_path: Path) -> None:
    trouble, sentence = FAULTS[fault]
    with job(fault, tmp_path, 3 if fault in WAITING else 600) as processes:
        for rank in {0, 1} if fault in WAITING else ():
            output = processes[rank].stdout
            assert output is not None
            line = output.readline()
            assert re.match("timeout|remote|aborted", line), line
            assert re.search(sentence, line), line
        communicator = examined(processes[0].pid, trouble)
        assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
        assert f"(pid {processes[CULPRIT].pid})" in communicator["sentence"]


# Over stand-ins of NCCL and its devices: calls are handed over to streams.
STANDINS = Path(layout.library_folder()) / "standins"
ON_DEVICES = {
    "RANK_PLATFORM": "cuda",
    "ISTHMUS_BACKEND": "nccl",
    "ISTHMUS_CUDA_DRIVER_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_CUDA_RUNTIME_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_NCCL_LIBRARY": str(STANDINS / "libstandin_nccl.so"),
}
# The others' errors come from the watch over processes, and from the timeout of a stream.
FAILING = ["die", "stop"]
# Like NCCL a stand-in may let calls of another datatype, root or order come to their ends: recorders keep them.


@pytest.mark.skipif(not (STANDINS / "libstandin_nccl.so").is_file(), reason="needs the stand-ins")
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_is_named_over_nccl(fault: str, tmp_path: Path) -> None:
    trouble, _ = FAULTS[fault]
    with job(fault, tmp_path, 3 if fault in FAILING else 600, **ON_DEVICES) as processes:
        for rank in {0, 1} if fault in FAILING else ():
            output = processes[rank].stdout
            assert output is not None
            line = output.readline()
            assert re.match("timeout|remote|aborted", line), line
            assert re.search(rf"rank {CULPRIT} (ended|\(pid \d+\) is stopped)", line), line
        communicator = examined(processes[0].pid, trouble)
        assert re.search(sentence_on_devices(fault), communicator["sentence"]), communicator["sentence"]


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The exit code of the command, and all that it printed."""
    code = main(["doctor", *arguments])
    return code, "".join(capsys.readouterr())


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text('#!/bin/sh\necho "stack of $3"\n')
    spy.chmod(0o700)
    with job("slow", tmp_path, 600) as processes:
        examined(processes[0].pid, "missing")
        time.sleep(1.1)  # a shorter wait is no trouble
        with monkeypatch.context() as patched:
            patched.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
            code, told = doctor(capsys, str(processes[1].pid), "--stacks")
        assert code == 1, told
        assert re.search(FAULTS["slow"][1], told), told
        assert all(f"stack of {each.pid}" in told for each in processes)
        jobs = json.loads(doctor(capsys, "--job", "all", "--json")[1])["jobs"]
        (own,) = [each for each in jobs if processes[0].pid in each["pids"]]
        assert re.search(FAULTS["slow"][1], doctor(capsys, "--job", own["job"])[1])


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["1"], "no job of this user on this machine has process 1"),
        (["1", "--job", "all"], "not both"),
        (["--stacks"], "needs a process"),
        (["1", "--only", "package"], "self-tests"),
    ],
)
def test_what_the_command_refuses(arguments: list[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = doctor(capsys, *arguments)
    assert code == 2 and what in told, told


def test_without_tools_the_doctor_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert re.match(
        "no stacks of the program: py-spy is not installed; gdb is not installed", stack_of(os.getpid())
    )


def test_a_dead_job_can_be_read(tmp_path: Path) -> None:
    with job("slow", tmp_path, 600) as processes:
        pid = processes[0].pid
        examined(pid, "missing")
    communicator = examined(pid, "missing")
    assert {rank["process"] for rank in communicator["ranks"]} == {"ended"}


def recorded_here() -> set[str]:
    """The names of this process's communicators; other tests may have left some."""
    jobs = json.loads(diagnose(os.getpid(), ""))["jobs"]
    return {communicator["communicator"] for job in jobs for communicator in job["communicators"]}


def test_whoever_leaves_in_order_leaves_nothing() -> None:
    before = recorded_here()
    ranks = isthmus.Communicator.all(2)
    names = recorded_here() - before
    assert len(names) == 1, names
    for rank in ranks:
        rank.close()
    assert not [file for name in names for file in Path("/dev/shm").glob(f"isthmus-*-{name}-*")]


@pytest.mark.skipif(not Path(launch.launcher("mpich").executable).is_file(), reason="needs MPICH")
@pytest.mark.parametrize("fault", ["stop", "skip"])
def test_ranks_under_mpi(fault: str) -> None:
    launcher = launch.launcher("mpich")
    arguments = [*launcher.command(SIZE, bind=False), sys.executable, str(PROGRAM), fault, "mpi"]
    variables = {"ISTHMUS_BACKEND": "mpi", "ISTHMUS_TIMEOUT_S": "4"}
    environment = launch.environment(launcher, SIZE) | variables
    with subprocess.Popen(
        arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        try:
            trouble, sentence = FAULTS[fault]
            communicator = examined(rank_of_job(process.pid), trouble)
            assert re.search(sentence, communicator["sentence"]), communicator["sentence"]
            assert process.stderr is not None
            for line in process.stderr:  # the watchdog's, before it ends the job
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
    """A process of the job, once it records."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        started = descendants(launcher)
        for each in json.loads(diagnose(0, ""))["jobs"]:
            if ranks := started & set(each["pids"]):
                return ranks.pop()
        time.sleep(0.05)
    raise AssertionError("no rank has made its communicator")


def descendants(ancestor: int) -> set[int]:
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(process.name)] = int((process / "stat").read_text().rpartition(")")[2].split()[1])
    found, new = set(), {ancestor}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found
