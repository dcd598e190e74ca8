"""`isthmus doctor PID|--job`: who keeps a running, or dead, job waiting, out of its flight recorders."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from .._isthmus import diagnose
from .console import BAD_ARGUMENT, FAILED, CommandError, out, print_json

# A wait that is shorter is everyday work, where no process is gone or stopped and all calls agree.
_SHORT_WAIT_S = 1.0
_DEFINITE_DIAGNOSES = {"mismatch", "exited", "stopped", "destroyed"}
_STACK_TIMEOUT_S = 30


def diagnose_jobs(pid: int, job: str, *, stacks: bool, as_json: bool) -> int:
    """Prints what the recorders say about the jobs of that process (0: any) and name ("": any).

    Returns the exit code: 1 where some rank keeps others waiting.
    """
    jobs: list[dict[str, Any]] = json.loads(diagnose(pid, job))["jobs"]
    if not jobs:
        raise CommandError(_no_job(pid, job), BAD_ARGUMENT)
    stacks_by_process = {process: read_stacks(process) for process in _live_processes(jobs)} if stacks else {}
    if as_json:
        print_json({"jobs": jobs, "stacks": stacks_by_process})
    else:
        for each in jobs:
            _print(each)
        for process, stack_text in stacks_by_process.items():
            out.print(f"\nprocess {process}\n{stack_text}", markup=False)
    has_problem = any(_has_problem(communicator) for each in jobs for communicator in each["communicators"])
    return FAILED if has_problem else 0


def read_stacks(process: int) -> str:
    """The stacks of a process: by py-spy, else by gdb, else the kernel's own; or why there are none."""
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
            completed = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
        except subprocess.TimeoutExpired:
            problems.append(f"{name} took longer than {_STACK_TIMEOUT_S} s")
            continue
        if completed.returncode == 0 and completed.stdout.strip():
            return completed.stdout.rstrip()
        problems.append(f"{name}: {(completed.stderr or completed.stdout).strip() or f'exit code {completed.returncode}'}")
    kernel_stacks = []
    for task in sorted(Path(f"/proc/{process}/task").glob("*")):
        try:
            kernel_stacks.append(f"thread {task.name}, in the kernel\n{(task / 'stack').read_text().rstrip()}")
        except OSError as failure:
            problems.append(f"{task / 'stack'}: {failure.strerror}")
            break
    return "\n".join(["no stacks of the program: " + "; ".join(problems), *kernel_stacks])


def _has_problem(communicator: dict[str, Any]) -> bool:
    kind = communicator["diagnosis"]
    return kind in _DEFINITE_DIAGNOSES or (kind != "none" and communicator["waiting_s"] >= _SHORT_WAIT_S)


def _live_processes(jobs: list[dict[str, Any]]) -> list[int]:
    ranks = [rank for job in jobs for communicator in job["communicators"] for rank in communicator["ranks"]]
    return sorted({rank["pid"] for rank in ranks if rank["process"] in ("alive", "stopped")})


def _print(job: dict[str, Any]) -> None:
    out.print(f"job {job['job']}, processes {', '.join(map(str, job['pids']))}", markup=False, soft_wrap=True)
    for communicator in job["communicators"]:
        head = f"communicator {communicator['communicator'][:8]}, {communicator['size']} ranks"
        state = "" if _has_problem(communicator) else "at work: "
        out.print(f"{head}: {state}{communicator['sentence']}", markup=False, soft_wrap=True)
        ranks = [rank for rank in reversed(communicator["ranks"]) if rank["failure"]]
        for failure, rank in {rank["failure"]: rank["rank"] for rank in ranks}.items():
            out.print(f"  it has failed; rank {rank} knows: {failure}", markup=False, soft_wrap=True)


def _no_job(pid: int, job: str) -> str:
    selection = f"has process {pid}" if pid else f"is called {job}"
    jobs = json.loads(diagnose(0, ""))["jobs"]
    job_names = [f"{each['job']} ({', '.join(map(str, each['pids']))})" for each in jobs]
    existing = "; there are " + ", ".join(job_names) if job_names else "; there is none"
    return f"no job of this user on this machine {selection}{existing}"
