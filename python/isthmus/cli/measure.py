"""Runs the measurement programs of all providers in alternating order and merges their records."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .. import launch, layout, machine
from .._names import unknown_name
from ..communicator import Communicator
from ..errors import Error
from ..records import Record, Report, merge_rounds, report_from
from ..table import Status
from .console import BAD_ARGUMENT, CommandError, command_line, note, progress

# Exit code of a measurement program that does not support the request (see bench/peer_mpi.cpp).
_EXIT_UNSUPPORTED = 3

# Suffix of a peer that runs with libisthmus_mpi_preload.so.
SHIM = "+shim"


@dataclass(frozen=True)
class Sweep:
    """Measurement request for all providers."""

    collective: str
    sizes: Sequence[int]
    dtype: str = "float32"
    op: str = "sum"
    check: bool = True
    min_time_s: float = 0.05
    timeout_s: float = 120.0

    def arguments(self) -> list[str]:
        """Returns the arguments that all measurement programs support."""
        return [
            self.collective,
            "--sizes",
            ",".join(str(size) for size in self.sizes),
            "--dtype",
            self.dtype,
            "--op",
            self.op,
            "--check" if self.check else "--no-check",
            "--min-time",
            str(self.min_time_s),
            "--timeout",
            str(self.timeout_s),
        ]


@dataclass(frozen=True)
class Provider:
    """A measured implementation: how to start it, and which of its records to use."""

    name: str
    command: tuple[str, ...]
    variables: dict[str, str] = field(default_factory=dict)
    arguments: Callable[[Sweep, Path], list[str]] = lambda sweep, file: [
        *sweep.arguments(),
        "--json",
        str(file),
    ]
    selects: Callable[[Record], bool] = lambda record: True


@dataclass
class Outcome:
    """Result of all rounds: merged records, reported versions, and the reason for each skipped provider.

    `other_cores` is the number of cores that other processes used on average.
    """

    records: list[Record]
    versions: dict[str, str]
    skipped: dict[str, str]
    other_cores: float


def isthmus_provider(ranks: int, *, backend: str = "", heap: bool = False) -> Provider:
    """Returns the provider that runs Isthmus through the C API under MPICH. `backend` forces one path."""
    _check_backend(backend)
    program = str(layout.program("isthmus_bench"))  # check this before MPI, as in `demo`
    launcher = launch.launcher("mpich")
    variables = launch.oversubscription_variables(launcher, ranks) | (
        {"ISTHMUS_BACKEND": backend} if backend else {}
    )
    return Provider(
        "isthmus heap" if heap else "isthmus",
        (*launcher.command(ranks), program, *(["--heap"] if heap else [])),
        variables,
    )


def _check_backend(backend: str) -> None:
    """Raises the error of the core for an unknown backend before any program starts."""
    if not backend:
        return
    previous = os.environ.get("ISTHMUS_BACKEND")
    os.environ["ISTHMUS_BACKEND"] = backend
    try:
        Communicator.create_all(1)[0].close()
    except Error as failure:
        # The backend exists but can require features that a single rank lacks, such as MPI.
        if failure.code != Status.unsupported:
            raise
    finally:
        os.environ.pop("ISTHMUS_BACKEND")
        if previous is not None:
            os.environ["ISTHMUS_BACKEND"] = previous


def peer_provider(name: str, ranks: int) -> Provider:
    """Returns the provider of an MPI family with its own launcher. Installs the family if it is missing."""
    if name == "mpich":
        launcher = launch.launcher(name)
        program = layout.program("peer_mpi")
        return Provider(
            name, (*launcher.command(ranks), str(program)), launch.oversubscription_variables(launcher, ranks)
        )
    if name == "listing1":
        return _listing1_provider(ranks)
    if name in launch.PEERS:
        launch.ensure_peer_installed(name, note)
        program = launch.peer_folder(name) / "peer_mpi"
        return Provider(name, (*launch.launcher(name).command(ranks), str(program)))
    raise ValueError(unknown_name("peer", name, ("mpich", *launch.PEERS, "listing1")))


def shim_provider(peer: Provider) -> Provider:
    """Returns a peer with libisthmus_mpi_preload.so. Raises ValueError if the peer is not a supported MPI."""
    if peer.name not in ("mpich", *launch.PEERS):
        raise ValueError(
            f"--mpi-shim does not support peer {peer.name!r}; allowed: mpich, {', '.join(launch.PEERS)}"
        )
    family = "openmpi" if peer.name == "openmpi" else "mpich"
    *launcher, program = peer.command
    name = peer.name + SHIM
    preload_prefix = launch.shim_prefix(peer.name, family, report=False)
    return Provider(name, (*launcher, *preload_prefix, program, "--provider", name), peer.variables)


def _listing1_provider(ranks: int) -> Provider:
    """Returns the provider of Listing 1 of the paper (MPI through a host_accessor) and Isthmus on USM."""
    launcher = launch.launcher("mpich")

    def arguments(sweep: Sweep, file: Path) -> list[str]:
        if sweep.dtype != "float32" or sweep.op != "sum":
            raise CommandError(
                "peer listing1 supports only float32 and sum; remove it from --peers", BAD_ARGUMENT
            )
        sizes = ",".join(str(size) for size in sweep.sizes)
        return ["--collectives", sweep.collective, "--sizes", sizes, "--out", str(file)]

    return Provider(
        "listing1",
        (*launcher.command(ranks), str(layout.program("sycl_collectives"))),
        launch.variables(launcher, ranks),
        arguments,
        lambda record: record.provider == "listing1" or record.mode == "sycl_usm",
    )


class UnsupportedError(Exception):
    """The measurement program does not support the request. The message says why."""


def measure(providers: Sequence[Provider], sweep: Sweep, rounds: int) -> Outcome:
    """Runs each provider once per round. The order alternates, so that no provider is always first or last.

    A provider that does not support the request is skipped. Raises CommandError if a provider fails.
    """
    results: list[list[Record]] = []
    versions: dict[str, str] = {}
    skipped: dict[str, str] = {}
    with machine.OtherLoad() as load, progress() as progress_display:
        task = progress_display.add_task("", total=rounds * len(providers) * len(sweep.sizes))
        for index, provider in _alternating_order(providers, rounds):
            if provider.name in skipped:
                progress_display.advance(task, len(sweep.sizes))
                continue
            progress_display.update(task, description=f"round {index + 1} of {rounds}: {provider.name}")
            try:
                report = run_provider(provider, sweep, lambda: progress_display.advance(task))
            except UnsupportedError as reason:
                skipped[provider.name] = str(reason)
                continue
            results.append([record for record in report.records if provider.selects(record)])
            versions |= report.versions
    return Outcome(merge_rounds(results), versions, skipped, load.cores)


def _alternating_order(providers: Sequence[Provider], rounds: int) -> Iterator[tuple[int, Provider]]:
    for index in range(rounds):
        for provider in providers if index % 2 == 0 else reversed(providers):
            yield index, provider


def run_provider(provider: Provider, sweep: Sweep, point_done: Callable[[], None]) -> Report:
    """Runs a provider once. Raises UnsupportedError, or CommandError if the provider fails."""
    with tempfile.TemporaryDirectory(prefix="isthmus-bench-") as folder:
        file = Path(folder) / "report.json"
        command = [*provider.command, *provider.arguments(sweep, file)]
        code, error_lines = _watch(command, os.environ | measured_variables() | provider.variables, point_done)
        if code == 0:
            return Report.load(file)
    reason = main_error_line(error_lines, code)
    if code == _EXIT_UNSUPPORTED:
        raise UnsupportedError(reason)
    raise CommandError(
        f"{provider.name} failed with exit code {code}: {reason} (command: {shlex.join(command)})"
    )


def main_error_line(error_lines: list[str], code: int) -> str:
    """Returns the first error line of the program, not of the launcher."""
    own_lines = [
        line
        for line in error_lines
        if not line.startswith(("Abort(", "application called MPI_Abort", "[", "="))
    ]
    return next(iter(own_lines or error_lines), f"exit code {code} without output")


def measured_variables() -> dict[str, str]:
    """Returns variables for measurement programs: commit, name of the machine, and command line."""
    return {
        "ISTHMUS_BENCH_COMMIT": machine.commit(),
        "ISTHMUS_BENCH_MACHINE": machine.describe()["name"],
        "ISTHMUS_BENCH_COMMAND": command_line(),
    }


def _watch(
    command: list[str], environment: dict[str, str], point_done: Callable[[], None]
) -> tuple[int, list[str]]:
    """Runs a program in its own process group. Each line that starts with a digit is a completed point.

    Returns the exit code and the lines of standard error. If this process is interrupted, it kills the group.
    """
    lines = stream_lines(command, environment)
    while True:
        try:
            line = next(lines)
        except StopIteration as end:
            return end.value
        if line.strip()[:1].isdigit():
            point_done()


def stream_lines(
    command: list[str], environment: dict[str, str]
) -> Generator[str, None, tuple[int, list[str]]]:
    """Yields the lines of standard output of a program. Returns its exit code and the lines of standard error.

    The program has its own process group. The group is terminated if the generator is closed early.
    """
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            yield from process.stdout
            code = process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
            raise
        errors.seek(0)
        return code, [line.strip() for line in errors if line.strip()]


def report_of(outcome: Outcome, command: str) -> Report:
    """Returns a report with the current date, machine and checkout."""
    return report_from(
        outcome.records,
        command=command,
        commit=machine.commit(),
        machine=machine.describe() | {"other_load_cores": round(outcome.other_cores, 2)},
        versions=machine.versions() | outcome.versions,
    )
