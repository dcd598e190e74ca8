"""`isthmus trace merge`: a Perfetto timeline of all ranks of a job, and a summary of waits."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from ..sizes import format_us
from ..traces import merge as merge_traces
from ..traces import summarize, write_timeline
from . import options
from .console import BAD_ARGUMENT, CommandError, note, out, print_json
from .options import option


@click.group()
def trace() -> None:
    """Processes the traces of a job (ISTHMUS_TRACE=FOLDER)."""


@trace.command(short_help="Writes a timeline of all ranks, and prints which ranks waited.")
@click.argument("folder", type=Path)
@option("--out", "-o", "target", type=Path, metavar="FILE", default="trace.json", help="Timeline to write.")
@options.force
@options.json
def merge(folder: Path, target: Path, force: bool, as_json: bool) -> None:
    """Writes a timeline (for ui.perfetto.dev) from the traces of all ranks, and prints which ranks waited.

    FOLDER is the folder that ISTHMUS_TRACE was set to.

    Clocks are aligned, and the calls of a communicator are matched by number. Traces of a job that died can
    also be merged.
    """
    if target.exists() and not force:
        raise CommandError(f"{target} exists; pass --force to overwrite it", BAD_ARGUMENT)
    if not folder.is_dir():
        raise CommandError(
            f"{folder} is not a folder; pass the folder that ISTHMUS_TRACE was set to", BAD_ARGUMENT
        )
    merged = merge_traces(folder)
    # Write a temporary file first, so that the target is always complete.
    temporary = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_timeline(merged, temporary)
        temporary.replace(target)
    except OSError as failure:
        raise CommandError(f"cannot write {target}: {failure.strerror}", BAD_ARGUMENT) from None
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
    summary = summarize(merged)
    if as_json:
        print_json(summary)
        return
    _print(summary)
    out.print(f"{target}: open it at https://ui.perfetto.dev", soft_wrap=True)


def _print(summary: dict[str, Any]) -> None:
    for problem in summary["skipped_files"]:
        note(f"skipped {problem}")
    for machine in summary["machines"][1:]:
        note(
            f"clock of {machine['name']}: shifted by {format_us(machine['offset_us'])} us "
            f"(from {machine['alignment_source']}, uncertainty {format_us(machine['uncertainty_us'])} us)"
        )
    for communicator in summary["communicators"]:
        _print_communicator(communicator)


def _print_communicator(summary: dict[str, Any]) -> None:
    size, ranks = summary["size"], summary["ranks"]
    heading = f"communicator {summary['communicator'][:8]}, {size} rank{'s'[: size != 1]}: "
    out.print(f"{heading}{summary['matched']} calls matched", soft_wrap=True)
    for line in _notes_for(summary):
        out.print(f"  {line}", soft_wrap=True)
    if size == 1:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("rank", "calls", "last arrivals", "others waited (us)", "waited (us)"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for rank in ranks:
        waits = (format_us(rank[name]) for name in ("others_waited_us", "waited_us"))
        table.add_row(str(rank["rank"]), str(rank["calls"]), str(rank["last_arrivals"]), *waits, rank["state"])
    out.print(table)
    for call in summary["worst"]:
        out.print(
            f"  {call['call']}: rank {call['last']} arrived last, {format_us(call['delay_us'])} us after the "
            f"first; the other ranks waited {format_us(call['others_waited_us'])} us",
            soft_wrap=True,
        )
    out.print()


def _notes_for(summary: dict[str, Any]) -> list[str]:
    """Returns notes that are needed to interpret the numbers."""
    notes = []
    if summary["state"] != "ended":
        state_text = {
            "died": "the job died",
            "running": "the job is still running",
            "unknown": "the job did not finish normally, or is still running on another machine",
        }[summary["state"]]
        notes.append(f"{state_text}; at the end of the trace: {summary['sentence']}")
    for rank in summary["ranks"]:
        if rank["failure"]:
            notes.append(f"rank {rank['rank']} failed: {rank['failure']}")
        if rank["overwritten"]:
            notes.append(
                f"rank {rank['rank']}: the oldest {rank['overwritten']} of {rank['calls']} calls were "
                "overwritten; increase ISTHMUS_TRACE_CALLS"
            )
    if summary["absent"]:
        notes.append(f"no trace of rank {', '.join(map(str, summary['absent']))}")
    if summary["mismatched_calls"]:
        notes.append(f"{summary['mismatched_calls']} calls differ between ranks and were not matched")
    return notes
