"""`isthmus tune`: measures candidates on this machine and writes a profile for the selection."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import layout, machine
from .._console import lines
from ..communicator import Communicator
from ..records import Record, utc_now
from ..sizes import format_size, format_us, parse_sizes
from ..table import COLLECTIVES
from ..table import collective as find_collective
from . import job_query, measure
from .console import NOT_AVAILABLE, CommandError, command_line, note, out, print_json, write_output

# Minimum speedup over the baseline for a rule. Smaller differences are noise, and few rules keep
# the profile readable.
_MIN_SPEEDUP = 1.05


def tune(
    collectives: Annotated[str, typer.Option(help="List of collectives.")] = (
        ",".join(name for name, row in COLLECTIVES.items() if row.has_equal_count)
    ),
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=2, help="Number of ranks.")] = 4,
    sizes: Annotated[str, typer.Option(help="FIRST:LAST (doubling) or a list of sizes in bytes.")] = (
        "128,1K,8K,64K,256K,1M,4M,16M"
    ),
    candidates: Annotated[
        str, typer.Option(help="List of BACKEND[:ALGORITHM]. Empty: all that are available.")
    ] = "",
    rounds: Annotated[
        int, typer.Option(min=1, help="Number of rounds. Each candidate runs once per round.")
    ] = 3,
    min_time: Annotated[
        float, typer.Option(min=0.0, help="Minimum seconds per size, candidate and round.")
    ] = 0.02,
    minutes: Annotated[float, typer.Option(min=0.0, help="Time limit. No measurement starts after it.")] = 4.5,
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="Profile to write. Default: the profile of this machine.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print, but do not write the profile.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measures backends and algorithms, and writes rules for the fastest to the profile of this machine.

    The baseline is the selection without a profile. A candidate gets a rule only if it is at least 5% faster.
    An existing profile is replaced. If the time limit expires, rounds are skipped first, then candidates.
    """
    layout.program("isthmus_bench")  # check this before MPI, as in `demo`
    names = [find_collective(name).name for name in collectives.split(",")]
    candidate_names = [name for name in candidates.split(",") if name] or available_candidates(ranks)
    target = Path(profile) if profile else default_profile()
    size_list = parse_sizes(sizes)
    end_time = time.monotonic() + 60 * minutes
    records_by_candidate: dict[str, dict[str, list[Record]]] = {}
    for index, name in enumerate(names):
        now = time.monotonic()
        deadline = now + max(0.0, end_time - now) / (len(names) - index)  # equal share of the remaining time
        records_by_candidate[name] = _measure(
            name, candidate_names, ranks, size_list, rounds, min_time, deadline
        )
    rules = [rule for name in names for rule in rules_of(name, records_by_candidate[name], ranks)]
    text = profile_text(rules, command_line())
    if not dry_run:
        write_output(str(target), text)
    if as_json:
        document = {
            "profile": None if dry_run else str(target),
            "candidates": candidate_names,
            "rules": rules,
            "records": [
                record.model_dump(mode="json", exclude_none=True)
                for by_candidate in records_by_candidate.values()
                for records in by_candidate.values()
                for record in records
            ],
        }
        print_json(document)
        return
    for name in names:
        out.print(_table(name, records_by_candidate[name]))
    for line in text.split("\n"):
        out.print(line, soft_wrap=True)
    note(f"--dry-run: {target} was not written" if dry_run else f"wrote {target}")


def default_profile() -> Path:
    """Returns the path of the profile of this machine. Raises CommandError if there is none."""
    configured = os.environ.get("ISTHMUS_PROFILE", "")
    if configured and configured != "none":
        return Path(configured)
    with Communicator.create_all(1)[0] as communicator:
        path = communicator.info().get("profile_path", "")
    if not path:
        raise CommandError("there is no user configuration folder; pass --profile FILE and set ISTHMUS_PROFILE")
    return Path(path)


def available_candidates(ranks: int) -> list[str]:
    """Returns every available backend[:algorithm] of a job with `ranks` ranks on this machine."""
    candidates = []
    for backend in job_query.query_job(ranks, {"info": {}}, {"ISTHMUS_PROFILE": "none"})["backends"]:
        # A backend that no rule names was not created, but the measurement selects it by name.
        if backend["available"] or backend["reason"].startswith("no rule names it"):
            candidates += [f"{backend['name']}:{name}" for name in backend["algorithms"]] or [backend["name"]]
    if not candidates:
        raise CommandError(
            f"no backend is available for {ranks} ranks; run isthmus info for the reasons", NOT_AVAILABLE
        )
    return candidates


def _measure(
    name: str,
    candidates: list[str],
    ranks: int,
    sizes: list[int],
    rounds: int,
    min_time: float,
    deadline: float,
) -> dict[str, list[Record]]:
    """Returns records by candidate. "" is the baseline: the selection without a profile."""
    providers = {"": measure.isthmus_provider(ranks)}
    providers |= {candidate: measure.isthmus_provider(ranks, backend=candidate) for candidate in candidates}
    labeled = [
        measure.Provider(
            candidate or "rules",
            (*provider.command, "--provider", candidate or "rules"),
            provider.variables | {"ISTHMUS_PROFILE": "none"},
        )
        for candidate, provider in providers.items()
    ]
    outcome = measure.measure(labeled, measure.Sweep(name, sizes, min_time_s=min_time), rounds, deadline)
    if reason := machine.unreliable_reason(ranks, outcome.other_cores):
        note(f"{name}: {reason}")
    for candidate, reason in outcome.skipped.items():
        note(f"{name}: {candidate} was skipped: {reason}")
    wrong = [record for record in outcome.records if record.wrong]
    if wrong:
        raise CommandError(f"{wrong[0].provider} returned wrong results for {name} of {wrong[0].bytes} bytes")
    by_candidate: dict[str, list[Record]] = {}
    for record in outcome.records:
        by_candidate.setdefault("" if record.provider == "rules" else record.provider, []).append(record)
    return by_candidate


def rules_of(name: str, records_by_candidate: dict[str, list[Record]], ranks: int) -> list[dict[str, Any]]:
    """Returns rules for the sizes at which a candidate is faster than the baseline.

    Consecutive sizes with the same winner share a rule. Its range extends to the next measured size with
    another winner, so a size between two measured sizes uses the winner of the smaller one. The first range
    starts at 0, the last one is open.
    """
    baseline = {record.bytes: record.time_us.median for record in records_by_candidate.get("", [])}
    sizes = sorted(baseline)
    winners = [_winner(size, baseline[size], records_by_candidate) for size in sizes]
    rules = []
    start = 0
    for index in range(1, len(sizes) + 1):
        if index < len(sizes) and winners[index] == winners[start]:
            continue
        if winners[start]:
            lower = format_size(sizes[start]) if start else "0"
            upper = format_size(sizes[index]) if index < len(sizes) else ""
            rules.append(
                {
                    "collective": [name],
                    "platform": ["host"],
                    "ranks": str(ranks),
                    "nodes": "1",
                    "bytes": f"{lower}..{upper}",
                    "use": winners[start],
                }
            )
        start = index
    return rules


def _winner(size: int, baseline: float, records_by_candidate: dict[str, list[Record]]) -> str:
    """Returns the candidate that is clearly faster than the baseline at that size, or ""."""
    best, fastest = "", baseline / _MIN_SPEEDUP
    for candidate, records in records_by_candidate.items():
        for record in records:
            if candidate and record.bytes == size and record.time_us.median < fastest:
                best, fastest = candidate, record.time_us.median
    return best


def profile_text(rules: list[dict[str, Any]], command: str) -> str:
    """Returns the profile as TOML (see docs/reference/configuration.md)."""
    lines = [f"# Measured by `{command}` on {utc_now().isoformat()}, {os.cpu_count()} cores."]
    if not rules:
        lines.append("# No candidate was faster than the built-in rules, so this profile has no rules.")
    for rule in rules:
        lines += ["", "[[rule]]"]
        for key, value in rule.items():
            text = ", ".join(f'"{item}"' for item in value) if isinstance(value, list) else f'"{value}"'
            lines.append(f"{key} = [{text}]" if isinstance(value, list) else f"{key} = {text}")
    return "\n".join(lines)


def _table(name: str, records_by_candidate: dict[str, list[Record]]) -> Table:
    table = Table(title=name, title_justify="left", box=None, pad_edge=False, header_style="bold")
    table.add_column("bytes", justify="right")
    for candidate in records_by_candidate:
        table.add_column(lines(candidate or "rules", "median us"), justify="right")
    table.add_column("fastest")
    for size in sorted({record.bytes for record in records_by_candidate[""]}):
        times = {
            candidate: record.time_us.median
            for candidate, records in records_by_candidate.items()
            for record in records
            if record.bytes == size
        }
        cells = [
            format_us(times[candidate]) if candidate in times else "" for candidate in records_by_candidate
        ]
        table.add_row(format_size(size), *cells, min(times, key=times.get) or "rules")
    return table
