"""`isthmus tune`: measures the candidates on this machine and writes the profile that selection reads."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import layout
from ..communicator import Communicator
from ..records import Record, utc_now
from ..sizes import format_size, format_us, parse_sizes
from ..table import COLLECTIVES
from ..table import collective as find_collective
from . import job_query, measure
from .console import NOT_AVAILABLE, CommandError, note, out, print_json, write_output

# A candidate must be this much faster than what the rules choose already to earn a rule of its own:
# differences below that are noise, and a short profile is one that can be read.
_MIN_SPEEDUP = 1.05


def tune(
    collectives: Annotated[str, typer.Option(help="List of collectives.")] = (
        ",".join(name for name, row in COLLECTIVES.items() if row.has_equal_count)
    ),
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=2, help="Ranks.")] = 4,
    sizes: Annotated[str, typer.Option(help="FIRST:LAST (doubling) or a list, in bytes.")] = (
        "128,1K,8K,64K,256K,1M,4M,16M"
    ),
    candidates: Annotated[
        str, typer.Option(help="List of BACKEND[:ALGORITHM]; empty: all of this machine.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Times that every candidate runs.")] = 3,
    min_time: Annotated[float, typer.Option(min=0.0, help="Seconds per size, candidate and round.")] = 0.02,
    minutes: Annotated[float, typer.Option(min=0.0, help="Begin nothing more after this time.")] = 4.5,
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="Profile to write; default: this machine's.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Measure and print, but write nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measures backends and algorithms and writes the rules of the fastest as this machine's profile.

    The baseline is what the rules choose without a profile; a candidate gets a rule only where it is at
    least 5 % faster. The profile replaces an older one. When the time is over, rounds are left out,
    then candidates.
    """
    layout.program("isthmus_bench")  # first, as in `demo`
    names = [find_collective(name).name for name in collectives.split(",")]
    candidate_names = [name for name in candidates.split(",") if name] or available_candidates(ranks)
    target = Path(profile) if profile else default_profile()
    size_list = parse_sizes(sizes)
    end_time = time.monotonic() + 60 * minutes
    records_by_candidate: dict[str, dict[str, list[Record]]] = {}
    for index, name in enumerate(names):
        now = time.monotonic()
        deadline = now + max(0.0, end_time - now) / (len(names) - index)  # each gets its share of what is left
        records_by_candidate[name] = _measure(name, candidate_names, ranks, size_list, rounds, min_time, deadline)
    rules = [rule for name in names for rule in rules_of(name, records_by_candidate[name], ranks)]
    text = profile_text(rules, shlex.join(["isthmus", *sys.argv[1:]]))
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
    out.print(text, markup=False)
    note(f"nothing was written (--dry-run); it would be {target}" if dry_run else f"wrote {target}")


def default_profile() -> Path:
    """Where selection reads this machine's profile. Raises CommandError when there is no such place."""
    configured = os.environ.get("ISTHMUS_PROFILE", "")
    if configured and configured != "none":
        return Path(configured)
    with Communicator.create_all(1)[0] as communicator:
        path = communicator.info().get("profile_path", "")
    if not path:
        raise CommandError("there is no user configuration folder; give --profile FILE and set ISTHMUS_PROFILE")
    return Path(path)


def available_candidates(ranks: int) -> list[str]:
    """Every backend[:algorithm] that a job of that many ranks on this machine has."""
    candidates = []
    for backend in job_query.query_job(ranks, {"info": {}}, {"ISTHMUS_PROFILE": "none"})["backends"]:
        # What no rule names is not created; the measurement names it.
        if backend["available"] or backend["reason"].startswith("no rule names it"):
            candidates += [f"{backend['name']}:{name}" for name in backend["algorithms"]] or [backend["name"]]
    if not candidates:
        raise CommandError(f"a job of {ranks} ranks has no backend here; isthmus info says why", NOT_AVAILABLE)
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
    """Records by candidate; "" is the baseline, what the rules choose without a profile."""
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
    for candidate, reason in outcome.skipped.items():
        note(f"{name}: {candidate} was left out: {reason}")
    wrong = [record for record in outcome.records if record.wrong]
    if wrong:
        raise CommandError(f"{wrong[0].provider} gave wrong results for {name} at {wrong[0].bytes} bytes")
    by_candidate: dict[str, list[Record]] = {}
    for record in outcome.records:
        by_candidate.setdefault("" if record.provider == "rules" else record.provider, []).append(record)
    return by_candidate


def rules_of(name: str, records_by_candidate: dict[str, list[Record]], ranks: int) -> list[dict[str, Any]]:
    """Rules for the sizes where a candidate beats the baseline; neighbouring sizes share one rule.

    A range reaches from its first measured size to the next measured size of another winner, so sizes
    between two measured ones go with the smaller. The last range is open, the first starts at 0.
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
    """The candidate that is clearly faster than the baseline at that size, or ""."""
    best, fastest = "", baseline / _MIN_SPEEDUP
    for candidate, records in records_by_candidate.items():
        for record in records:
            if candidate and record.bytes == size and record.time_us.median < fastest:
                best, fastest = candidate, record.time_us.median
    return best


def profile_text(rules: list[dict[str, Any]], command: str) -> str:
    """The profile as TOML, in the grammar of docs/selection.md."""
    lines = [f"# Measured by `{command}` on {utc_now().isoformat()}, {os.cpu_count()} cores."]
    if not rules:
        lines.append("# No candidate was faster than the built-in rules, so there are no rules here.")
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
        table.add_column(f"{candidate or 'rules'}\nmedian us", justify="right")
    table.add_column("fastest")
    for size in sorted({record.bytes for record in records_by_candidate[""]}):
        times = {
            candidate: record.time_us.median
            for candidate, records in records_by_candidate.items()
            for record in records
            if record.bytes == size
        }
        cells = [format_us(times[candidate]) if candidate in times else "" for candidate in records_by_candidate]
        table.add_row(format_size(size), *cells, min(times, key=times.get) or "rules")
    return table
