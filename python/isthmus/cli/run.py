"""`isthmus run`: starts a program with the environment for MPI and SYCL."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import click

from .. import launch, layout
from .._names import unknown_name
from ..layout import MissingError
from .console import BAD_ARGUMENT, CommandError, print_json
from .options import COUNT, flag, option

WIRES = ("rule", "exact", "bfloat16")


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("program", metavar="PROGRAM [ARGS]...", nargs=-1, required=True)
@option("--ranks", "-n", type=COUNT, default=1, help="Number of ranks.")
@option("--mpi", default="mpich", help="mpich, openmpi, impi or system (mpiexec from PATH).")
@flag("--ggml", help="Start one process without MPI. Isthmus reduces the split tensors of llama.cpp.")
@option("--wire", default="rule", help="With --ggml: data format for float32 tensors: rule, exact or bfloat16.")
@flag(
    "--torch",
    help="PROGRAM is an unchanged PyTorch script (or -m MODULE), started with torchrun. Isthmus replaces gloo "
    "and nccl.",
)
@flag("--mpi-shim", help="PROGRAM is an unchanged MPI program. Isthmus replaces its collectives.")
@flag(
    "--nccl",
    help="PROGRAM is unchanged and uses NCCL, or starts such programs (torchrun, mpiexec). Isthmus replaces "
    "the collectives.",
)
@flag("--report", help="With --torch, --mpi-shim or --nccl: rank 0 prints calls, paths and times at the end.")
@option("--bind/--no-bind", default=True, help="Bind each rank to its own core, if there are enough cores.")
@flag("--json", "as_json", help="Print command, environment, seconds and exit code after the program.")
def run(
    program: tuple[str, ...],
    ranks: int,
    mpi: str,
    ggml: bool,
    wire: str,
    torch: bool,
    mpi_shim: bool,
    nccl: bool,
    report: bool,
    bind: bool,
    as_json: bool,
) -> int:
    """Starts PROGRAM with N ranks under MPI, and makes the CPU device of SYCL visible to it.

    --ggml starts one process and preloads libisthmus_ggml.so. --torch starts N ranks with torchrun. --mpi-shim
    starts N ranks under MPI and preloads libisthmus_mpi_preload.so. --nccl starts one process and preloads
    libisthmus_nccl_preload.so in it and in its child processes.

    Signals are forwarded to the program. The exit code is that of the program.
    """
    _check_launch_options(
        {"--ggml": ggml, "--torch": torch, "--mpi-shim": mpi_shim, "--nccl": nccl}, report, mpi
    )
    name, *arguments = program
    if torch:
        command, variables = _torch_command([*program], ranks, report), {}
    elif nccl:
        if ranks != 1:
            raise CommandError(
                "--nccl starts PROGRAM once; use torchrun or mpiexec to start ranks", BAD_ARGUMENT
            )
        command, variables = [_find_program(name), *arguments], launch.nccl_variables(report)
    elif ggml:
        _check_ggml(ranks, wire)
        command, variables = [_find_program(name), *arguments], launch.ggml_variables(wire)
    else:
        launcher = launch.launcher(mpi)
        variables = launch.variables(launcher, ranks)
        shim, inherited = _shim_options(_find_program(name), mpi, variables, report) if mpi_shim else ([], {})
        variables |= inherited
        command = [*launcher.command(ranks, bind=bind), *shim, _find_program(name), *arguments]
    if not as_json:
        # The program replaces this process, so signals and the exit code need no forwarding.
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
    return exit_code


def _find_program(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        is_script = program.endswith(".py") and Path(program).is_file()
        hint = f"; use --torch for a script of PyTorch, otherwise python {program}" if is_script else ""
        raise CommandError(f"program {program!r} was not found or is not executable{hint}", BAD_ARGUMENT)
    return path


def _check_launch_options(options: dict[str, bool], report: bool, mpi: str) -> None:
    selected = [option for option, is_selected in options.items() if is_selected]
    if len(selected) > 1:
        raise CommandError(f"{' and '.join(selected)} exclude each other", BAD_ARGUMENT)
    if report and selected not in (["--torch"], ["--mpi-shim"], ["--nccl"]):
        raise CommandError("--report requires --torch, --mpi-shim or --nccl", BAD_ARGUMENT)
    if options["--torch"] and mpi != "mpich":
        raise CommandError(
            f"--mpi {mpi} cannot be used with --torch, because torchrun starts the ranks", BAD_ARGUMENT
        )


def _shim_options(
    program: str, mpi: str, variables: dict[str, str], report: bool
) -> tuple[list[str], dict[str, str]]:
    """Returns a command prefix of the program, and variables of the launcher."""
    family = launch.linked_mpi_family(program, os.environ | variables)
    if family in ("mpich", "openmpi") and launch.launcher_family(mpi) not in (family, None):
        if mpi == "system":
            hint = "use --mpi mpich" if family == "mpich" else "put the mpiexec of Open MPI first in PATH"
        else:
            hint = "use --mpi system for the mpiexec in PATH"
            if layout.checkout() is not None:
                hint += f", or {family} for that of scripts/setup_peers"
        raise CommandError(
            f"{program} is linked with {launch.SHIM_FAMILIES[family]}, which --mpi {mpi} cannot start; {hint}",
            BAD_ARGUMENT,
        )
    # Open MPI starts spawned processes with the environment of its launcher, and -x does not apply to them.
    inherited = launch.shim_variables(family, report) if mpi == "openmpi" else {}
    return launch.shim_prefix(mpi, family, report), inherited


def _torch_command(program: list[str], ranks: int, report: bool) -> list[str]:
    """Returns the torchrun command for this machine. It runs the script with isthmus.torch."""
    if importlib.util.find_spec("torch") is None:
        raise MissingError(f"--torch: {layout.missing_torch()}")
    name = os.path.basename(program[0])
    if name == "torchrun" or re.fullmatch(r"python[\d.]*", name):
        raise CommandError(
            f"--torch starts the script with torchrun; leave out {program[0]!r} and write "
            f"isthmus run -n {ranks} --torch SCRIPT",
            BAD_ARGUMENT,
        )
    if program[0] != "-m" and not os.path.isfile(program[0]):
        hint = "use -m MODULE for a module"
        if program[0] == "--elastic":
            hint = f"elastic jobs need torchrun --nproc-per-node {ranks} -m isthmus.torch --elastic SCRIPT"
        raise CommandError(f"script {program[0]!r} does not exist; {hint}", BAD_ARGUMENT)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*launcher, "-m", "isthmus.torch", *(["--report"] if report else []), *program]


def _check_ggml(ranks: int, wire: str) -> None:
    if ranks != 1:
        raise CommandError("--ggml starts one process that uses all devices; remove --ranks", BAD_ARGUMENT)
    if wire not in WIRES:
        raise CommandError(unknown_name("--wire", wire, WIRES), BAD_ARGUMENT)


def _supervise(command: list[str], environment: dict[str, str]) -> int:
    """Runs the command, forwards signals that only this process receives, and returns the exit code."""
    process = subprocess.Popen(command, env=environment)
    previous_handlers = {}
    for signal_number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        previous_handlers[signal_number] = signal.signal(
            signal_number, lambda received_signal, _: process.send_signal(received_signal)
        )
    # On Ctrl-C the terminal also signals the launcher, so this process only waits for it.
    previous_handlers[signal.SIGINT] = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        code = process.wait()
    finally:
        for signal_number, handler in previous_handlers.items():
            signal.signal(signal_number, handler)
    return 128 - code if code < 0 else code
