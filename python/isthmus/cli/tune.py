"""`isthmus tune`: measures candidates on this machine and writes a profile for the selection."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from .. import layout, machine
from ..model import regret
from ..records import utc_now
from ..sizes import format_size, format_us, parse_sizes
from ..table import COLLECTIVES
from ..table import collective as find_collective
from . import options
from .bench_server import BenchServer
from .console import (
    NOT_AVAILABLE,
    CommandError,
    command_line,
    note,
    out,
    print_json,
    print_warning,
    write_output,
)
from .measure import Outcome, report_of
from .options import COUNT, Number, flag, option
from .profile import (
    Setting,
    core_info,
    default_profile,
    machine_conditions,
    make_section,
    profile_text,
    read_sections,
    rules_of,
)
from .tune_journal import Journal
from .tune_plan import BASELINE, THRESHOLD, Plan, half_steps
from .tune_run import (
    BASELINE_NAME,
    PROFILE_NAME,
    TuningRun,
    drift_reason,
    find_candidates,
    find_settings,
    make_plan,
    measure_all,
    measurement,
    split_by_placement,
)

_COLLECTIVES = [name for name, row in COLLECTIVES.items() if row.has_equal_count]
_GRID = "128,1K,8K,64K,512K,4M,16M"
_DENSE_SIZES = "8:64M"
_MAX_LOSSES = 10  # printed points of each kind with --regret


@click.command()
@option("--collectives", default="", help=f"List of collectives. Default: {', '.join(_COLLECTIVES)}.")
@option("--ranks", "-n", default="", help="List of numbers of ranks. Empty: 2, 4, ... to all cores or GPUs.")
@option("--platform", default="", help="List of host, cuda, hip. Empty: the host, and GPUs if there are any.")
@option(
    "--sizes",
    default="",
    help="Coarse grid: FIRST:LAST (doubling) or a list of sizes in bytes. "
    f"Default: {_GRID}; with --regret: {_DENSE_SIZES}.",
)
@option(
    "--candidates",
    default="",
    help="List of BACKEND[:ALGORITHM]. Empty: all that are available; on a virtual machine, without those that "
    "have an _adaptive variant.",
)
@option("--rounds", type=COUNT, default=3, help="Number of measurements of each point.")
@option("--min-time", type=Number(0), default=0.02, help="Minimum seconds per size, candidate and round.")
@option("--minutes", type=Number(0), default=4.5, help="Time limit. No measurement starts after it.")
@option("--profile", metavar="FILE", default="", help="Profile to write. Default: the profile of this machine.")
@option(
    "--regret",
    "regret_file",
    metavar="FILE",
    default="",
    help="Write no profile. Measure it and the candidates at many sizes; write the records.",
)
@flag("--restart", help="Discard the measurements of an interrupted run.")
@flag("--dry-run", help="Measure and print, but do not write the profile.")
@options.json
def tune(
    collectives: str,
    ranks: str,
    platform: str,
    sizes: str,
    candidates: str,
    rounds: int,
    min_time: float,
    minutes: float,
    profile: str,
    regret_file: str,
    restart: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Measures backends and algorithms, and writes the rules of this machine's profile (in a checkout).

    Requires a checkout after make build, because packages do not contain the measurement program.

    The baseline is the selection without a profile. A candidate gets a rule only if it is at least 3% faster
    at two neighboring sizes, in nearly all rounds.
    The sizes at which the fastest candidate changes are found by bisection between the sizes of the grid.

    On GPUs, each rank has its own GPU, and times are those of calls that are issued on a stream, not of graphs.

    A run replaces the rules for the platforms, numbers of ranks and collectives that it measures. Measurements
    are kept in FILE.*.journal until the plan is complete. If the command is interrupted or its time limit
    expires, run it again to continue.
    """
    start = time.monotonic()
    layout.program("isthmus_bench")  # check this before MPI, as in `demo`
    core = core_info()
    target = Path(profile) if profile else default_profile(core)
    if regret_file and not target.is_file():
        raise CommandError(f"--regret requires a profile, and {target} does not exist; run isthmus tune first")
    request = Request(
        [find_collective(name).name for name in collectives.split(",")] if collectives else _COLLECTIVES,
        find_settings(platform, ranks),
        parse_sizes(sizes or (_DENSE_SIZES if regret_file else _GRID)),
        [name for name in candidates.split(",") if name],
        rounds,
        min_time,
        target,
        regret_file,
    )
    runs = request.make_runs(core)
    for run in runs:
        if restart:
            run.journal.remove()
        run.replay()
    with machine.OtherLoad() as load:
        measure_all(runs, 60 * minutes - (time.monotonic() - start))
    host_ranks = [run.setting.ranks for run in runs if run.setting.platform == "host"]
    reasons = (machine.unreliable_reason(max(host_ranks, default=1), load.cores), drift_reason(runs))
    warnings = list(filter(None, reasons))
    text = profile_of(runs, target, machine_conditions(core), warnings)
    if regret_file:
        write_regret(runs, regret_file, load.cores)
    elif not dry_run:
        _replace(target, text)
    omissions = {run.name: missing for run in runs if (missing := run.finish())}
    if as_json:
        written = None if dry_run or regret_file else str(target)
        print_json(document_of(runs, written, machine_conditions(core)) | {"omissions": omissions})
    else:
        if regret_file:
            print_regret(runs)
        else:
            _print(runs, text.split("\n"))
        for warning in warnings:
            print_warning(warning)
    for run in runs:
        for plan in run.plans:
            if unsupported := plan.unsupported():
                note(f"{run.name}, {plan.collective}: not supported by {', '.join(unsupported)}")
    for setting, missing in omissions.items():
        for name, parts in missing.items():
            note(f"{setting}, {name}: skipped because the time limit expired: {'; '.join(parts)}")
    if omissions:
        journals = ", ".join(str(run.journal.path) for run in runs if run.name in omissions)
        note(f"run the same command again to measure the rest; the measurements are in {journals}")
    if regret_file:
        note(f"wrote {regret_file}")
    else:
        note(f"--dry-run: {target} was not written" if dry_run else f"wrote {target}")


@dataclass(frozen=True)
class Request:
    """What to measure.

    With `regret_file`, also the profile `target`. Every third size is then measured with all candidates, and
    the other sizes with those that are not far from the fastest. CUDA devices are also measured in graphs.
    """

    collectives: list[str]
    settings: list[Setting]
    grid: list[int]
    candidates: list[str]
    rounds: int
    min_time: float
    target: Path
    regret_file: str

    def make_runs(self, core: dict[str, Any]) -> list[TuningRun]:
        """Returns a run for each setting that has candidates. Raises CommandError if there is none."""
        conditions = machine_conditions(core) | {"commit": machine.commit(), "min_time_s": str(self.min_time)}
        backends = [backend["name"] for backend in core["backends"]]
        runs = []
        for setting in self.settings:
            with BenchServer(setting) as server:
                candidates = find_candidates(server, backends, self.candidates)
            if not self.candidates and machine.is_virtual():
                candidates, omitted = split_by_placement(candidates)
                if omitted:
                    note(
                        f"{setting}: without {', '.join(omitted)}, which do not adapt if the hypervisor moves "
                        "the cores; --candidates includes them"
                    )
            if server.missing_mpi:
                note(f"{setting}: mpi is not a candidate: {server.missing_mpi}")
            if not candidates:
                note(f"{setting}: skipped, because no candidate is available")
                continue
            has_graphs = self.regret_file and setting.platform == "cuda"
            runs += [
                self._make_run(setting, candidates, conditions, in_graph)
                for in_graph in ((False, True) if has_graphs else (False,))
            ]
        if not runs:
            raise CommandError("no candidate is available; run isthmus info for the reasons", NOT_AVAILABLE)
        return runs

    def _make_run(
        self, setting: Setting, candidates: list[str], conditions: dict[str, str], in_graph: bool
    ) -> TuningRun:
        is_regret = bool(self.regret_file)
        grid, steps, kept = self.grid, half_steps(min(self.grid), max(self.grid)), []
        if is_regret:
            # The curves of the cost model need the backends of devices, also where they are slow.
            backends = [name for name in candidates if ":" not in name and setting.platform != "host"]
            grid, steps, kept = self.grid[::3], self.grid, [PROFILE_NAME, *backends]
            candidates = [PROFILE_NAME, *candidates]
        plans = [
            make_plan(name, candidates, grid, steps, setting.ranks, self.rounds, is_dense=is_regret, kept=kept)
            for name in self.collectives
        ]
        name = f"{setting.platform}{setting.ranks}{'graph' if in_graph else ''}"
        journal = Journal(Path(f"{self.regret_file or self.target}.{name}.journal"), conditions, candidates)
        measure = partial(
            measurement,
            setting,
            self.min_time,
            str(self.target),
            set(),
            is_regret=is_regret,
            in_graph=in_graph,
        )
        return TuningRun(setting, plans, journal, measure, in_graph=in_graph)


def profile_of(runs: list[TuningRun], target: Path, conditions: dict[str, str], warnings: list[str]) -> str:
    """Returns the text of the profile: the sections of the runs, and other sections of the existing profile."""
    now = utc_now()
    sections = {
        (run.setting, plan.collective): make_section(run.setting, plan, now)
        for run in runs
        for plan in run.plans
        if plan.is_started()
    }
    existing, obstacle = read_sections(target.read_text(), conditions) if target.is_file() else ([], "")
    if obstacle:
        note(
            f"the rules of {target} are not kept, because they were measured under other conditions: {obstacle}"
        )
    kept = {(section.setting, section.collective): section for section in existing}
    remarks = [f"Measured by `{command_line()}` on {now.isoformat()}.", *warnings]
    return profile_text((kept | sections).values(), conditions, remarks)


def write_regret(runs: list[TuningRun], file: str, other_cores: float) -> None:
    """Writes the records of all runs."""
    records = [record for run in runs for record in run.path_records()]
    write_output(file, report_of(Outcome(records, {}, {}, other_cores), command_line()).to_compact_json())


def document_of(runs: list[TuningRun], profile: str | None, conditions: dict[str, str]) -> dict[str, Any]:
    """Returns the JSON document of the command, without the omissions."""
    return {
        "profile": profile,
        "candidates": {str(run.setting): run.journal.candidates for run in runs},
        "conditions": conditions,
        "rules": [
            rule
            for run in runs
            for plan in run.plans
            for rule in rules_of(run.setting, plan.collective, plan.choices())
        ],
        "records": [
            record.model_dump(mode="json", exclude_none=True)
            for run in runs
            for plan in run.plans
            for record in run.merged_records(plan.collective)
        ],
    }


def _replace(target: Path, text: str) -> None:
    """Writes the profile. A program that starts at the same time reads either the old or the new one."""
    new_file = f"{target}.new"
    write_output(new_file, text)
    os.replace(new_file, target)


def _print(runs: list[TuningRun], profile_lines: list[str]) -> None:
    for run in runs:
        for plan in run.plans:
            out.print(_table(f"{run.name}, {plan.collective}", plan))
            out.print()
    for line in profile_lines:
        out.print(line, soft_wrap=True)


def print_regret(runs: list[TuningRun]) -> None:
    """Prints the regret of the profile and of the built-in rules, and the points at which the profile loses."""
    summary = Table("setting", "rules", "points", "within 3%", "largest regret", box=None, pad_edge=False)
    worst: list[regret.Loss] = []
    slower: list[regret.Loss] = []
    for run in runs:
        selections = regret.selections(run.path_records())
        for name, choose in (("profile", lambda call: call.profile), ("built-in", lambda call: call.rules)):
            values = [
                value
                for call in selections.values()
                for value in regret.selected_regrets(call.times, choose(call)).values()
            ]
            if values:
                share = sum(value <= THRESHOLD for value in values) / len(values)
                summary.add_row(run.name, name, str(len(values)), f"{share:.1%}", f"{max(values):.2f}")
        for call, selected in selections.items():
            fastest = {size: min(paths, key=paths.__getitem__) for size, paths in selected.times.items()}
            name = f"{run.name}, {call.collective}"
            worst += regret.losses(name, selected, fastest)
            slower += regret.losses(name, selected, selected.rules)
    out.print(summary)
    _print_losses("Points at which the profile is slower than the fastest path", worst)
    _print_losses("Points at which the profile is slower than the built-in rules", slower)


def _print_losses(title: str, losses: list[regret.Loss]) -> None:
    """Prints the largest losses above the threshold."""
    losses = sorted((loss for loss in losses if loss.ratio > THRESHOLD), key=lambda loss: -loss.ratio)
    shown = losses[:_MAX_LOSSES]
    if not losses:
        return
    table = Table(
        title=f"{title}: {len(losses)}"
        + (f", of which {len(shown)} are shown" if len(losses) > len(shown) else ""),
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for heading in ("setting, collective", "bytes", "profile", "us", "faster", "us", "ratio"):
        table.add_column(heading, justify="right" if heading in ("bytes", "us", "ratio") else "left")
    for loss in shown:
        table.add_row(
            loss.name,
            format_size(loss.size),
            loss.selected,
            format_us(loss.us),
            loss.faster,
            format_us(loss.faster_us),
            f"{loss.ratio:.2f}",
        )
    out.print()
    out.print(table)


def _table(title: str, plan: Plan) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("bytes", f"{BASELINE_NAME} us", "fastest us", "speedup"):
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
            fastest or BASELINE_NAME,
            choice or BASELINE_NAME,
        )
    return table
