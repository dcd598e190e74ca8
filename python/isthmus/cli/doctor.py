"""`isthmus doctor`: self-tests with hints, each in its own process with a time limit."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import click
from rich.table import Column, Table

from .._console import styled
from .._names import unknown_name
from . import options
from .checks import CHECKS
from .console import BAD_ARGUMENT, FAILED, CommandError, note, notes, out, print_json
from .diagnosis import diagnose_jobs
from .isolation import environment_without_settings, run_isolated
from .options import COUNT, Number, flag, option

# Prefixes of the user's settings that are visible to a check. Invalid rules and broken plugins have their own
# checks and must not affect the others. Library paths (ISTHMUS_..._LIBRARY) are visible to all checks.
_VISIBLE_SETTINGS = {
    "configuration": ("ISTHMUS_",),
    "plug-ins": ("ISTHMUS_PLUGIN_PATH",),
    "backends": ("ISTHMUS_PLUGIN_PATH",),
    "shared memory": ("ISTHMUS_DOCTOR_",),
}
# Hints for failures without a hint.
_HINTS = {
    "package": "rebuild (make build) or reinstall Isthmus",
    "configuration": "fix that line (see docs/reference/configuration.md); ISTHMUS_CONFIG=none and "
    "ISTHMUS_PROFILE=none disable the files",
    "ranks": "allow processes of this machine to connect to 127.0.0.1 and to open the memory of each other",
    "gpus": "run `isthmus info` for the reason of each backend, and `nvidia-smi` to check the driver",
}
_DEFAULT_HINT = "report this with the output of `isthmus info --json`"
_TIME_LIMIT_S = 60.0
_LONG_TIME_LIMITS_S = {"pytorch": 300.0}  # the first import can compile the extension
_STYLE = {"ok": "green", "failed": "bold red", "unavailable": "dim", "not_tested": "dim"}


@dataclass(frozen=True)
class Result:
    """Result of one check. `result` is "ok", "failed", "unavailable" or "not_tested"."""

    check: str
    result: str
    seconds: float
    details: str
    hint: str


@click.command()
@click.argument("pid", type=COUNT, required=False)
@option("--job", default="", help="Diagnose the job with this name. `all`: all jobs of this user.")
@flag("--stacks", help="With a job: also print the stacks of its processes.")
@option("--only", multiple=True, help="Run only this check. Can be repeated.")
@option("--timeout", type=Number(1), help="Seconds per check. Default: 60, and 300 for pytorch.")
@options.json
def doctor(
    pid: int | None, job: str, stacks: bool, only: tuple[str, ...], timeout: float | None, as_json: bool
) -> int:
    """Tests this installation: configuration, plugins, shared memory, backends, MPI, GPUs, PyTorch, SYCL.

    With the process PID or a job it reports which rank blocks the other ranks, and for how long.

    The exit code is 1 if a check fails, or if a rank blocks other ranks.
    """
    if pid is not None or job:
        if pid is not None and job:
            raise CommandError("a process and --job exclude each other; pass one of them", BAD_ARGUMENT)
        if only:
            raise CommandError(
                "--only selects self-tests; it cannot be used with a process or --job", BAD_ARGUMENT
            )
        return diagnose_jobs(pid or 0, "" if job == "all" else job, stacks=stacks, as_json=as_json)
    if stacks:
        raise CommandError("--stacks requires a process or --job", BAD_ARGUMENT)
    for name in only:
        if name not in CHECKS:
            raise CommandError(unknown_name("--only", name, CHECKS), BAD_ARGUMENT)
    names = [name for name in CHECKS if not only or name in only]
    results = []
    for name in names:
        if notes.is_terminal:
            note(f"checking: {name}")
        results.append(run_check(name, timeout))
    healthy = all(result.result != "failed" for result in results)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(result) for result in results]})
    else:
        _print(results)
    return 0 if healthy else FAILED


def run_check(check: str, timeout: float | None = None) -> Result:
    """Runs one check in its own process. Never raises, and returns within the time limit.

    If `timeout` is None, the limit is the default of the check.
    """
    if timeout is None:
        timeout = _LONG_TIME_LIMITS_S.get(check, _TIME_LIMIT_S)
    started = time.monotonic()
    outcome = run_isolated(check, _environment(check), timeout)
    if outcome["result"] == "failed" and not outcome["hint"]:
        outcome["hint"] = _HINTS.get(check, _DEFAULT_HINT)
    return Result(check, seconds=round(time.monotonic() - started, 3), **outcome)


def _environment(check: str) -> dict[str, str]:
    environment = environment_without_settings(_VISIBLE_SETTINGS.get(check, ()))
    if check != "configuration":
        environment |= {"ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    return environment


def _print(results: list[Result]) -> None:
    table = Table("check", "", "seconds", Column("details", overflow="fold"), box=None, pad_edge=False)
    for result in results:
        state = styled(result.result.replace("_", " "), _STYLE[result.result])
        table.add_row(result.check, state, f"{result.seconds:.1f}", result.details)
    out.print(table)
    for result in results:
        if result.result == "failed":
            out.print()
            out.print(f"{result.check}: {result.hint or 'no hint for this one; please report it'}")
