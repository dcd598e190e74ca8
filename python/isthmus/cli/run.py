"""`isthmus run`: starts a program with the right MPI and SYCL environment."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from typing import Annotated

import typer

from .. import launch
from .console import BAD_ARGUMENT, CommandError, print_json


def run(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="The program; its own arguments follow.")],
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Ranks to start.")] = 1,
    mpi: Annotated[str, typer.Option(help="mpich, openmpi, impi or system (mpiexec from PATH).")] = "mpich",
    bind: Annotated[bool, typer.Option(help="A core for each rank, where there are enough.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="After the program, print command, environment, seconds, exit code.")
    ] = False,
) -> None:
    """Starts PROGRAM as N ranks under MPI, with the SYCL CPU device visible.

    Signals reach the program and its exit code is the command's.
    """
    found = shutil.which(program)
    if found is None:
        raise CommandError(f"program {program!r} was not found or is not executable", BAD_ARGUMENT)
    launcher = launch.launcher(mpi)
    command = [*launcher.command(ranks, bind=bind), found, *context.args]
    if not as_json:
        # The launcher takes this process' place, so signals and the exit code need no forwarding.
        os.execve(command[0], command, launch.environment(launcher))
    started = time.monotonic()
    exit_code = _supervise(command, launch.environment(launcher))
    print_json(
        {
            "command": shlex.join(command),
            "environment": launch.variables(launcher),
            "seconds": round(time.monotonic() - started, 3),
            "exit_code": exit_code,
        }
    )
    raise typer.Exit(exit_code)


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Runs the command, hands on the signals that reach only this process, and gives its exit code."""
    child = subprocess.Popen(command, env=environment)
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        before[number] = signal.signal(number, lambda received, _: child.send_signal(received))
    # A terminal gives Ctrl-C to the launcher as well; this process only has to wait for it.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 - code if code < 0 else code
