"""`isthmus tune`: measures candidates on this machine and writes a profile for the selection."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from .. import layout, machine
from ..records import Record, merge_rounds, utc_now
from ..sizes import format_size, format_us, parse_sizes
from ..table import COLLECTIVES, whole_elements
from ..table import collective as find_collective
from . import job_query, measure
from .console import (
    NOT_AVAILABLE,
    CommandError,
    command_line,
    note,
    out,
    print_json,
    print_warning,
    progress,
    write_output,
)
from .profile import core_info, default_profile, machine_conditions, profile_text, rules_of
from .tune_journal import Entry, Journal
from .tune_plan import BASELINE, Batch, Plan, half_steps, run_plans

_DTYPE = "float32"

# Name of the baseline in records and tables.
_BASELINE_NAME = "rules"


def tune(
    collectives: Annotated[str, typer.Option(help="List of collectives.")] = (
        ",".join(name for name, row in COLLECTIVES.items() if row.has_equal_count)
    ),
    ranks: Annotated[int, typer.Option("--ranks", "-n", min=2, help="Number of ranks.")] = 4,
    sizes: Annotated[
        str, typer.Option(help="Coarse grid: FIRST:LAST (doubling) or a list of sizes in bytes.")
    ] = "128,1K,8K,64K,512K,4M,16M",
    candidates: Annotated[
        str, typer.Option(help="List of BACKEND[:ALGORITHM]. Empty: all that are available.")
    ] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Number of measurements of each point.")] = 3,
    min_time: Annotated[
        float, typer.Option(min=0.0, help="Minimum seconds per size, candidate and round.")
    ] = 0.02,
    minutes: Annotated[float, typer.Option(min=0.0, help="Time limit. No measurement starts after it.")] = 4.5,
    profile: Annotated[
        str, typer.Option(metavar="FILE", help="Profile to write. Default: the profile of this machine.")
    ] = "",
    restart: Annotated[
        bool, typer.Option("--restart", help="Discard the measurements of an interrupted run.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Measure and print, but do not write the profile.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Measures backends and algorithms, and writes rules for the fastest to the profile of this machine.

    The baseline is the selection without a profile. A candidate gets a rule only if it is at least 5% faster.
    The sizes at which the fastest candidate changes are found by bisection between the sizes of the grid.

    An existing profile is replaced. Measurements are kept in FILE.journal until the plan is complete. If the
    command is interrupted or its time limit expires, run it again to continue.
    """
    layout.program("isthmus_bench")  # check this before MPI, as in `demo`
    names = [find_collective(name).name for name in collectives.split(",")]
    core = core_info()
    candidate_names = [name for name in candidates.split(",") if name] or available_candidates(core, ranks)
    target = Path(profile) if profile else default_profile(core)
    conditions = machine_conditions(core) | {"ranks": str(ranks), "memory": "host"}
    grid = parse_sizes(sizes)
    plans = [_plan(name, candidate_names, grid, ranks, rounds) for name in names]
    journal = Journal(
        Path(f"{target}.journal"),
        conditions | {"commit": machine.commit(), "min_time_s": str(min_time)},
        candidate_names,
    )
    if restart:
        journal.remove()
    run = TuningRun(plans, journal, _measurement(candidate_names, ranks, min_time))
    run.replay()
    with machine.OtherLoad() as load:
        run.measure(60 * minutes)
    warning = machine.unreliable_reason(ranks, load.cores)
    choices = {plan.collective: plan.choices() for plan in plans}
    rules = {name: rules_of(name, choices[name], ranks) for name in names}
    remarks = [f"Measured by `{command_line()}` on {utc_now().isoformat()}.", *([warning] if warning else [])]
    text = profile_text(rules, choices, conditions, remarks)
    if not dry_run:
        _replace(target, text)
    omissions = run.finish()
    if as_json:
        document = {
            "profile": None if dry_run else str(target),
            "candidates": candidate_names,
            "conditions": conditions,
            "rules": [rule for name in names for rule in rules[name]],
            "omissions": omissions,
            "records": [
                record.model_dump(mode="json", exclude_none=True)
                for name in names
                for record in run.merged_records(name)
            ],
        }
        print_json(document)
    else:
        for plan in plans:
            out.print(_table(plan))
            out.print()
        for line in text.split("\n"):
            out.print(line, soft_wrap=True)
        print_warning(warning)
    for plan in plans:
        if unsupported := plan.unsupported():
            note(f"{plan.collective}: not supported by {', '.join(unsupported)}")
    for name, parts in omissions.items():
        note(f"{name}: skipped because the time limit expired: {'; '.join(parts)}")
    if omissions:
        note(f"run the same command again to measure the rest; the measurements are in {journal.path}")
    note(f"--dry-run: {target} was not written" if dry_run else f"wrote {target}")


@dataclass
class TuningRun:
    """The execution of plans. Every finished batch is in the journal."""

    plans: list[Plan]
    journal: Journal
    measure_batch: Callable[[Batch, Callable[[], None]], Entry]
    clock: Callable[[], float] = time.monotonic
    entries: list[Entry] = field(default_factory=list)

    def replay(self) -> None:
        """Continues the run of the journal, if there is one."""
        entries, obstacle = self.journal.load()
        if obstacle:
            note(f"the measurements in {self.journal.path} are not used: {obstacle}")
        if entries:
            note(
                f"continuing an earlier run with {len(entries)} measurements from {self.journal.path} "
                "(--restart discards them)"
            )
        self.entries += entries
        plans = {plan.collective: plan for plan in self.plans}
        for entry in entries:
            if plan := plans.get(entry.batch.collective):
                plan.add(entry.batch, entry.times)

    def measure(self, limit_s: float) -> None:
        """Measures until the plans are complete or the time limit expires."""
        start = self.clock()
        with progress() as display:
            task = display.add_task("", total=math.ceil(limit_s))

            def advance() -> None:
                display.update(task, completed=min(int(self.clock() - start), math.ceil(limit_s)))

            def run(batch: Batch) -> dict[int, float]:
                name = batch.candidate or _BASELINE_NAME
                display.update(task, description=f"{batch.collective}: {name}; seconds")
                entry = self.measure_batch(batch, advance)
                self.journal.append(entry)
                self.entries.append(entry)
                return entry.times

            try:
                run_plans(self.plans, run, start + limit_s, self.clock)
            except KeyboardInterrupt:
                note(
                    f"interrupted after {len(self.entries)} measurements, which are in {self.journal.path}; "
                    "run the same command again to continue"
                )
                raise

    def finish(self) -> dict[str, list[str]]:
        """Returns what was not measured, by collective. If nothing is missing, deletes the journal."""
        omissions = {plan.collective: plan.omissions() for plan in self.plans if plan.next_batch()}
        if not omissions:
            self.journal.remove()
        return omissions

    def merged_records(self, collective: str) -> list[Record]:
        """Returns the records of a collective, merged over the rounds."""
        return merge_rounds(entry.records for entry in self.entries if entry.batch.collective == collective)


def available_candidates(core: dict[str, Any], ranks: int) -> list[str]:
    """Returns every available backend[:algorithm] of a job with `ranks` ranks on this machine."""
    # A communicator creates only backends that a rule names.
    rules = "; ".join(f"use={backend['name']}" for backend in core["backends"])
    job = job_query.query_job(ranks, {"info": {}}, {"ISTHMUS_PROFILE": "none", "ISTHMUS_RULE": rules})
    candidates = []
    for backend in job["backends"]:
        if backend["available"]:
            candidates += [f"{backend['name']}:{name}" for name in backend["algorithms"]] or [backend["name"]]
    if not candidates:
        raise CommandError(
            f"no backend is available for {ranks} ranks; run isthmus info for the reasons", NOT_AVAILABLE
        )
    return candidates


def _replace(target: Path, text: str) -> None:
    """Writes the profile. A program that starts at the same time reads either the old or the new one."""
    new_file = f"{target}.new"
    write_output(new_file, text)
    os.replace(new_file, target)


def _plan(name: str, candidates: list[str], grid: list[int], ranks: int, rounds: int) -> Plan:
    """Returns the plan of a collective. Sizes are those of whole elements, as in the records."""
    steps = half_steps(min(grid), max(grid))
    sizes, steps = ([whole_elements(name, size, _DTYPE, ranks) for size in each] for each in (grid, steps))
    return Plan(name, candidates, sizes, steps, rounds)


def _measurement(
    candidates: list[str], ranks: int, min_time: float
) -> Callable[[Batch, Callable[[], None]], Entry]:
    """Returns the function that measures a batch with the measurement program."""
    providers = {}
    for candidate in (BASELINE, *candidates):
        provider = measure.isthmus_provider(ranks, backend=candidate)
        name = candidate or _BASELINE_NAME
        providers[candidate] = measure.Provider(
            name, (*provider.command, "--provider", name), provider.variables | {"ISTHMUS_PROFILE": "none"}
        )

    def run(batch: Batch, point_done: Callable[[], None]) -> Entry:
        sweep = measure.Sweep(batch.collective, batch.sizes, dtype=_DTYPE, min_time_s=min_time)
        try:
            records = measure.run_provider(providers[batch.candidate], sweep, point_done).records
        except measure.UnsupportedError:
            return Entry(batch, [])
        wrong = [record for record in records if record.wrong]
        if wrong:
            raise CommandError(
                f"{wrong[0].provider} returned wrong results for {batch.collective} of {wrong[0].bytes} bytes"
            )
        return Entry(batch, records)

    return run


def _table(plan: Plan) -> Table:
    table = Table(title=plan.collective, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("bytes", f"{_BASELINE_NAME} us", "fastest us", "speedup"):
        table.add_column(heading, justify="right")
    table.add_column("fastest")
    table.add_column("choice")
    for size, choice in plan.chosen().items():
        times = plan.times(size)
        fastest = min(times, key=times.__getitem__)
        baseline = times.get(BASELINE, math.inf)
        table.add_row(
            format_size(size),
            format_us(baseline),
            format_us(times[fastest]),
            f"{baseline / times[fastest]:.2f}x",
            fastest or _BASELINE_NAME,
            choice or _BASELINE_NAME,
        )
    return table
