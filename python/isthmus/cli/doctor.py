"""`isthmus doctor`: small self-tests, each in a process of its own with a time limit, and what to do then."""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.table import Table

from .checks import CHECKS
from .isolation import run_isolated
from .console import BAD_ARGUMENT, FAILED, CommandError, note, notes, out, print_json
from .diagnosis import diagnose_jobs

# Where each check looks at the user's own settings. The others must not fail for a wrong rule or a broken
# plug-in, which have a check of their own; where libraries are (ISTHMUS_..._LIBRARY) holds for all.
_GLOBAL_SUFFIXES = ("_LIBRARY", "_CACHE_DIR")
_VISIBLE_SETTINGS = {
    "configuration": ("ISTHMUS_",),
    "plug-ins": ("ISTHMUS_PLUGIN_PATH",),
    "backends": ("ISTHMUS_PLUGIN_PATH",),
    "shared memory": ("ISTHMUS_DOCTOR_",),
}
# Where a failure itself does not say what to do.
_HINTS = {
    "package": "build it anew (make build), or install it anew",
    "configuration": "correct that line (docs/selection.md has the grammar); ISTHMUS_CONFIG=none and "
    "ISTHMUS_PROFILE=none leave the files out",
    "ranks": "processes of this machine must be able to connect to 127.0.0.1 and to open each other's memory",
    "gpus": "`isthmus info` says what each backend lacks; `nvidia-smi` whether the driver is well",
    "pytorch": "build isthmus.torch for this PyTorch: scripts/setup torch && make build; an installed package "
    "compiles it at the first import, which needs a C++ compiler and minutes (--timeout 600)",
}
_DEFAULT_HINT = "report it, with the output of `isthmus info --json`"
_STYLE = {"ok": "green", "failed": "bold red", "not here": "dim"}


@dataclass(frozen=True)
class Result:
    """Of one check. result: "ok", "failed" or "not here"."""

    check: str
    result: str
    seconds: float
    details: str
    hint: str


def doctor(
    pid: Annotated[int | None, typer.Argument(min=1, help="Examine the job of this process instead.")] = None,
    job: Annotated[str, typer.Option(help="Examine the job of this name; `all`: every one of this user.")] = "",
    stacks: Annotated[bool, typer.Option("--stacks", help="Of a job: its processes' stacks, too.")] = False,
    only: Annotated[list[str] | None, typer.Option(help="Only this check; may be repeated.")] = None,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for each check.")] = 60,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Tries what should work here: meeting, shared memory, backends, MPI, GPUs, PyTorch, SYCL, settings.

    With a process or a job: says which rank keeps the others waiting, since when.

    Exit code 1 when something that is there does not work, or when a rank keeps others waiting.
    """
    if pid is not None or job:
        if pid is not None and job:
            raise CommandError("give a process or --job, not both", BAD_ARGUMENT)
        if only:
            raise CommandError("--only picks self-tests; a job has none", BAD_ARGUMENT)
        code = diagnose_jobs(pid or 0, "" if job == "all" else job, stacks=stacks, as_json=as_json)
        if code:
            raise typer.Exit(code)
        return
    if stacks:
        raise CommandError("--stacks needs a process or --job", BAD_ARGUMENT)
    for name in only or ():
        if name not in CHECKS:
            raise CommandError(f"--only {name!r} is unknown; allowed: {', '.join(CHECKS)}", BAD_ARGUMENT)
    names = [name for name in CHECKS if not only or name in only]
    results = []
    for name in names:
        if notes.is_terminal:
            note(f"trying: {name}")
        results.append(run_check(name, timeout))
    healthy = all(result.result != "failed" for result in results)
    if as_json:
        print_json({"healthy": healthy, "checks": [asdict(result) for result in results]})
    else:
        _print(results)
    if not healthy:
        raise typer.Exit(FAILED)


def run_check(check: str, timeout: float = 60) -> Result:
    """Runs one check in a process of its own. Never raises, and takes no longer than the time limit."""
    started = time.monotonic()
    outcome = run_isolated(check, _environment(check), timeout)
    if outcome["result"] == "failed" and not outcome["hint"]:
        outcome["hint"] = _HINTS.get(check, _DEFAULT_HINT)
    return Result(check, seconds=round(time.monotonic() - started, 3), **outcome)


def _environment(check: str) -> dict[str, str]:
    prefixes = _VISIBLE_SETTINGS.get(check, ())
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("ISTHMUS_") or name.endswith(_GLOBAL_SUFFIXES) or name.startswith(prefixes)
    }
    if check != "configuration":
        environment |= {"ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    return environment


def _print(results: list[Result]) -> None:
    table = Table("check", "", "s", "what was found", box=None, pad_edge=False)
    for result in results:
        state = f"[{_STYLE[result.result]}]{result.result}[/]"
        table.add_row(result.check, state, f"{result.seconds:.1f}", result.details)
    out.print(table)
    for result in results:
        if result.result == "failed":
            out.print(
                f"\n{result.check}: {result.hint or 'no hint for this one; please report it'}", markup=False
            )
