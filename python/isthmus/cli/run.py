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

WIRES = ("rule", "exact", "bfloat16")


def run(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="The program; its own arguments follow.")],
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=1, help="Ranks to start.")] = 1,
    mpi: Annotated[str, typer.Option(help="mpich, openmpi, impi or system (mpiexec from PATH).")] = "mpich",
    ggml: Annotated[
        bool,
        typer.Option(
            "--ggml", help="One process, without MPI: Isthmus sums the tensors that llama.cpp splits."
        ),
    ] = False,
    wire: Annotated[
        str, typer.Option(help="With --ggml: rule, exact or bfloat16, what travels for float32 tensors.")
    ] = "rule",
    bind: Annotated[bool, typer.Option(help="A core for each rank, where there are enough.")] = True,
    as_json: Annotated[
        bool, typer.Option("--json", help="After the program, print command, environment, seconds, exit code.")
    ] = False,
) -> None:
    """Starts PROGRAM as N ranks under MPI, with the SYCL CPU device visible; with --ggml as one process into
    which libisthmus_ggml.so is preloaded.

    Signals reach the program and its exit code is the command's.
    """
    found = shutil.which(program)
    if found is None:
        raise CommandError(f"program {program!r} was not found or is not executable", BAD_ARGUMENT)
    if ggml:
        _check_ggml(ranks, wire)
        command, variables = [found, *context.args], launch.ggml_variables(wire)
    else:
        launcher = launch.launcher(mpi)
        command = [*launcher.command(ranks, bind=bind), found, *context.args]
        variables = launch.variables(launcher, ranks)
    if not as_json:
        # What is started takes this process' place, so signals and the exit code need no forwarding.
        os.execve(command[0], command, os.environ | variables)
    started = time.monotonic()
    exit_code = _supervise(command, os.environ | variables)
    print_json(
        {
            "command": shlex.join(command),
            "environment": variables,
            "seconds": round(time.monotonic() - started, 3),
            "exit_code": exit_code,
        }
    )
    raise typer.Exit(exit_code)


def _check_ggml(ranks: int, wire: str) -> None:
    if ranks != 1:
        raise CommandError(
            "--ggml starts one process, which drives all its devices; leave out --ranks", BAD_ARGUMENT
        )
    if wire not in WIRES:
        raise CommandError(f"--wire {wire!r} is unknown; allowed: {', '.join(WIRES)}", BAD_ARGUMENT)


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
