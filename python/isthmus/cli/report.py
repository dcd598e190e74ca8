"""`isthmus report`: writes a self-contained page from files of records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from ..records import Report
from . import options
from .console import BAD_ARGUMENT, CommandError, command_line, counted, note, out, progress
from .options import option
from .page import Source, page


@click.command()
@click.argument("sources", metavar="SOURCE...", type=Path, nargs=-1, required=True)
@option("--out", "-o", "target", type=Path, metavar="FILE", default="report.html", help="HTML file to write.")
@options.force
def report(sources: tuple[Path, ...], target: Path, force: bool) -> None:
    """Writes a self-contained HTML page from the records of benchmarks.

    Each SOURCE is a file of records, or a folder with such files.

    The page contains plots and tables of each collective, speedups over the best peer, selected paths with
    their reasons, regret, machine, versions and command lines. Unreadable files are listed on the page.
    """
    if target.exists() and not force:
        raise CommandError(f"{target} exists; pass --force to overwrite it", BAD_ARGUMENT)
    loaded, unreadable = _read(sources)
    if not loaded:
        reasons = "; ".join(unreadable.values()) or "no file ends in .json"
        names = ", ".join(str(source) for source in sources)
        raise CommandError(
            f"{names}: no records ({reasons}); run isthmus bench --json FILE to write records", BAD_ARGUMENT
        )
    for reason in unreadable.values():
        note(f"skipped {reason}")
    with progress() as display:
        shown = display.track(loaded, description="plotting")
        text = page(shown, unreadable, command_line())
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    except OSError as failure:
        raise CommandError(f"cannot write {target}: {failure.strerror}", BAD_ARGUMENT) from None
    record_count = sum(len(source.report.records) for source in loaded)
    suffix = f", {len(unreadable)} skipped" if unreadable else ""
    out.print(
        f"{target}: {counted(record_count, 'record')} from {counted(len(loaded), 'file')}{suffix}",
        soft_wrap=True,
    )


def _read(sources: Iterable[Path]) -> tuple[list[Source], dict[str, str]]:
    """Returns the readable files, and the reason for each unreadable file."""
    loaded, unreadable = [], {}
    for file in _files(sources):
        try:
            file_report = Report.load(file)
        except ValueError as failure:
            unreadable[str(file)] = str(failure)
        except OSError as failure:
            unreadable[str(file)] = f"{file}: {failure.strerror}"
        else:
            if file_report.records:
                loaded.append(Source(file.name.removesuffix(".json"), file_report))
            else:
                unreadable[str(file)] = f"{file}: no records"
    return loaded, unreadable


def _files(sources: Iterable[Path]) -> list[Path]:
    files = []
    for source in sources:
        if not source.exists():
            raise CommandError(f"{source} does not exist; pass files of records, or folders", BAD_ARGUMENT)
        files += sorted(source.glob("*.json")) if source.is_dir() else [source]
    return files
