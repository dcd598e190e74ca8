"""`isthmus doctor PID|--job`: finds the rank that blocks a running or dead job, from its flight recorders."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .._isthmus import diagnose
from .console import BAD_ARGUMENT, FAILED, CommandError, out, print_json

# Shorter waits are normal if no process has exited or is stopped and all calls match.
_SHORT_WAIT_S = 1.0
_DEFINITE_DIAGNOSES = {"mismatch", "exited", "stopped", "destroyed"}
_STACK_TIMEOUT_S = 30


def diagnose_jobs(pid: int, job: str, *, stacks: bool, as_json: bool) -> int:
    """Prints the diagnosis of jobs, selected by process (0: any) and name ("": any).

    Returns the exit code, which is 1 if a rank blocks other ranks.
    """
    jobs: list[dict[str, Any]] = json.loads(diagnose(pid, job))["jobs"]
    if not jobs:
        raise CommandError(_no_job_message(pid, job), BAD_ARGUMENT)
    stacks_by_process = {process: read_stacks(process) for process in _live_processes(jobs)} if stacks else {}
    if as_json:
        print_json({"jobs": jobs, "stacks": stacks_by_process})
    else:
        for entry in jobs:
            _print(entry)
        for process, stack_text in stacks_by_process.items():
            out.print()
            for line in (f"process {process}", *stack_text.expandtabs().split("\n")):
                out.print(line, soft_wrap=True)
    has_problem = any(_has_problem(communicator) for entry in jobs for communicator in entry["communicators"])
    return FAILED if has_problem else 0


def read_stacks(process: int) -> str:
    """Returns the stacks of a process from py-spy, gdb or the kernel, or the reason why no
    stacks are available."""
    tools = {
        "py-spy": ["dump", "--pid", str(process)],
        "gdb": ["-p", str(process), "-batch", "-nx", "-ex", "thread apply all bt"],
    }
    problems = []
    for name, arguments in tools.items():
        program = shutil.which(name)
        if program is None:
            problems.append(f"{name} is not installed")
            continue
        command, limit = [program, *arguments], _STACK_TIMEOUT_S
        try:
            completed = subprocess.run(
                command, capture_output=True, text=True, errors="replace", timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            problems.append(f"{name} took longer than {_STACK_TIMEOUT_S} s")
            continue
        if completed.returncode == 0 and completed.stdout.strip():
            return completed.stdout.rstrip()
        problems.append(
            f"{name}: {(completed.stderr or completed.stdout).strip() or f'exit code {completed.returncode}'}"
        )
    kernel_stacks = []
    for task in sorted(Path(f"/proc/{process}/task").glob("*")):
        try:
            kernel_stacks.append(f"thread {task.name} (kernel stack)\n{(task / 'stack').read_text().rstrip()}")
        except OSError as failure:
            problems.append(f"{task / 'stack'}: {failure.strerror}")
            break
    return "\n".join(["no user stacks: " + "; ".join(problems), *kernel_stacks])


def _has_problem(communicator: dict[str, Any]) -> bool:
    kind = communicator["diagnosis"]
    return kind in _DEFINITE_DIAGNOSES or (kind != "none" and communicator["waiting_s"] >= _SHORT_WAIT_S)


def _live_processes(jobs: list[dict[str, Any]]) -> list[int]:
    ranks = [rank for job in jobs for communicator in job["communicators"] for rank in communicator["ranks"]]
    return sorted({rank["pid"] for rank in ranks if rank["process"] in ("alive", "stopped")})


def _print(job: dict[str, Any]) -> None:
    out.print(f"job {job['job']}, processes {', '.join(map(str, job['pids']))}", soft_wrap=True)
    for communicator in job["communicators"]:
        head = f"communicator {communicator['communicator'][:8]}, {communicator['size']} ranks"
        state = "" if _has_problem(communicator) else "running: "
        out.print(f"{head}: {state}{communicator['sentence']}", soft_wrap=True)
        ranks = [rank for rank in reversed(communicator["ranks"]) if rank["failure"]]
        for failure, rank in {rank["failure"]: rank["rank"] for rank in ranks}.items():
            out.print(f"  failed (reported by rank {rank}): {failure}", soft_wrap=True)


def _no_job_message(pid: int, job: str) -> str:
    selection = f"has process {pid}" if pid else f"is named {job}"
    jobs = json.loads(diagnose(0, ""))["jobs"]
    job_names = [f"{entry['job']} ({', '.join(map(str, entry['pids']))})" for entry in jobs]
    existing = "; available jobs: " + ", ".join(job_names) if job_names else "; there are no jobs"
    return f"no job of this user on this machine {selection}{existing}"
