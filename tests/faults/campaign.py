#!/usr/bin/env python3
"""The fault campaign: each trial injects one fault into one rank, then checks what all ranks reported.

    tests/faults/campaign.py --trials 1000 --seed 1 [--out RECORD.json] [--only FRONT_END/BACKEND/FAULT]

Trials are random but determined by the seed; --only (part of such a name) restricts them. Exits with 1 if any
rank hung, was late, named the wrong rank, or computed a wrong result. Afterwards, one elastic job under
torchrun loses a rank in each round (elastic_job.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import elastic_job
import front_ends
from decision import HARMLESS, Outcome, events_of, first, judge

TIMEOUT_S = 3.0
HUNG_S = 25.0  # limit for all errors after the fault
FAULT_DEADLINE_S = 60.0  # limit for the fault to occur
ELASTIC_RANKS = 8
ELASTIC_JOINING_SHARE = 0.1  # in these rounds, the replacement is also killed while it joins
MAX_TRIES = 3  # a trial is repeated if the machine was too busy to judge it
LETHAL = ["kill", "exit", "stop_long", "stop_short"]
LIMITS = ["enomem", "emfile"]

# Front end, backend, faults, weight. Trials that cost a second of CPU time have lower weights.
PLAN: list[tuple[str, str, list[str], int]] = [
    ("c", "shm", [*LETHAL, *LIMITS, "cut", "drop", "full_shm", "full_disk"], 48),
    ("c", "faulty", ["plugin_fails", "plugin_throws", "plugin_throws_int"], 12),
    ("c", "nccl", LETHAL, 10),
    ("c", "copy_engine", LETHAL, 8),
    ("mpi", "mpi", ["kill", "exit", "stop_long", "stop_short"], 6),
    ("mpi", "shm", ["kill", "exit", "stop_long", "stop_short", "emfile"], 6),
    ("python", "shm", [*LETHAL, "emfile", "raise"], 18),
    ("torch", "shm", [*LETHAL, "raise"], 10),
    ("sycl", "shm", LETHAL, 6),
]


def choose(generator: random.Random, only: str) -> dict[str, Any]:
    """Chooses the next trial."""
    while True:
        front_end, backend, faults, _ = generator.choices(PLAN, weights=[entry[3] for entry in PLAN])[0]
        fault = generator.choice(faults)
        ranks = generator.choice([2, 3, 3, 4])
        is_at_creation = (
            fault in ("kill", "exit", "stop_long") and front_end == "c" and generator.random() < 0.15
        )
        spec = {
            "front_end": front_end,
            "backend": backend,
            "fault": fault,
            "ranks": ranks,
            "faulty_rank": generator.randrange(ranks),
            "at": 0 if is_at_creation else generator.randrange(1, 60),
            "delay_us": generator.choice([0, 0, 100, 1000, 10_000]),
            "stop_s": generator.uniform(0.1, 0.8),
            "seed": generator.randrange(1 << 30),
            "timeout_s": TIMEOUT_S,
        }
        if fault in (*LIMITS, "cut", "drop", "raise"):
            spec["delay_us"] = 0
        # Not rank 0, because its process holds the store: the other ranks would be cut off instead.
        if fault in ("cut", "drop"):
            spec["faulty_rank"] = generator.randrange(1, ranks)
        # A fault that must be noticed gets calls until it is; a harmless one only a few calls after it.
        spec["calls"] = spec["at"] + (60 if fault in HARMLESS else 100_000)
        if only in f"{front_end}/{backend}/{fault}":
            return spec


def obstacle(spec: dict[str, Any]) -> str:
    """Returns the reason why this machine cannot run the trial, or ""."""
    if spec["front_end"] == "mpi" and not (front_ends.BUILD / "bin" / "fault_worker_mpi").exists():
        return "built without MPI"
    if spec["front_end"] == "sycl" and not (front_ends.BUILD / "bin" / "fault_worker_sycl").exists():
        return "built without SYCL"
    if spec["fault"] in front_ends.FULL and not can_mount():
        return f"needs root to mount a small {front_ends.FULL[spec['fault']]}"
    if spec["fault"] == "drop" and not front_ends.can_separate():
        return "needs root and ip to create network namespaces"
    if spec["front_end"] == "torch" and not front_ends.has_torch():
        return "no PyTorch, or isthmus.torch is not built"
    return ""


def can_mount() -> bool:
    script = ["unshare", "-m", str(Path(__file__).parent / "with_full"), "/dev/shm", "true"]
    return os.geteuid() == 0 and subprocess.run(script, capture_output=True, check=False).returncode == 0


class LoadMonitor:
    """Detects an overloaded machine by scheduling delays of this process; ranks may be delayed as much."""

    LIMIT_S = 0.25

    def __init__(self) -> None:
        self._last = time.monotonic()
        self._late: list[float] = []  # times of excessive delays

    def sample(self) -> None:
        """Call this from a loop that sleeps for 10 ms."""
        now = time.monotonic()
        if now - self._last > self.LIMIT_S:
            self._late.append(now)
        self._last = now

    def was_late_since(self, begin: float) -> bool:
        return bool(self._late) and self._late[-1] >= begin


@dataclass
class Trial:
    """A running trial."""

    spec: dict[str, Any]
    tries: int = 1
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="isthmus-fault-")))
    begin: float = field(default_factory=time.monotonic)
    settled: float = 0
    hung: bool = False

    def __post_init__(self) -> None:
        self.processes = front_ends.start(self.spec, self.folder)

    def events(self) -> list[list[dict[str, Any]]]:
        return [events_of(self.folder, rank) for rank in range(self.spec["ranks"])]

    def step(self) -> bool:
        """Polls the trial; returns True when it is over."""
        now = time.monotonic()
        if not self.settled:
            events = self.events()
            fault = first(events[self.spec["faulty_rank"]], "fault")
            if fault and self.spec["fault"] == "stop_short" and now - fault["time"] > self.spec["stop_s"]:
                self._resume(fault["pid"])
            if self._have_all_finished(events) or all(process.ended() for process in self.processes):
                self._settle(fault, now)
            elif now - (fault["time"] if fault else self.begin + FAULT_DEADLINE_S) > HUNG_S:
                self.hung = True
                self._settle(fault, now)
            return False
        if all(process.ended() for process in self.processes):
            return True
        if now - self.settled > (5 if self.hung else 15):
            self.hung = True
            self._kill()
        return False

    def _have_all_finished(self, events: list[list[dict[str, Any]]]) -> bool:
        """Returns True if every rank except a lost one has reported an error or finished."""
        is_lost = self.spec["fault"] not in HARMLESS
        return all(
            first(seen, "failed")
            or first(seen, "done")
            or (is_lost and rank == self.spec["faulty_rank"])
            or (seen and not is_alive(seen[0]["pid"]))
            for rank, seen in enumerate(events)
        )

    def _settle(self, fault: dict[str, Any] | None, now: float) -> None:
        if fault:
            self._resume(fault["pid"])  # a stopped rank must not write into memory of ranks that aborted
            time.sleep(0.05)
        (self.folder / "settled").touch()
        self.settled = now

    def _resume(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)

    def _kill(self) -> None:
        for event in (event for seen in self.events() for event in seen[:1]):
            try:
                os.kill(event["pid"], signal.SIGKILL)
            except ProcessLookupError:
                continue
        for process in self.processes:
            process.kill()

    def close(self) -> Outcome:
        for process in self.processes:
            process.close()
        front_ends.clean(self.spec, self.folder)
        path = self.folder / "output"
        outcome = judge(self.spec, self.events(), path.read_text(errors="replace") if path.exists() else "")
        if self.hung and not outcome.counts["hung"]:
            outcome.add("hung", "at the end")
        if not outcome.problems:
            shutil.rmtree(self.folder)
        return outcome


def run_trials(
    trials: int, seed: int, only: str, jobs: int, limit_s: float
) -> Iterator[tuple[dict[str, Any], Outcome]]:
    """Runs several trials at a time and yields each when it is over."""
    generator = random.Random(seed)
    running: list[Trial] = []
    started, end = 0, time.monotonic() + limit_s
    skipped: Counter[str] = Counter()
    load_monitor = LoadMonitor()
    while running or (started < trials and time.monotonic() < end):
        while sum(map(cost, running)) < jobs and started < trials and time.monotonic() < end:
            spec = choose(generator, only)
            started += 1
            if reason := obstacle(spec):
                skipped[f"{spec['front_end']}/{spec['fault']}: {reason}"] += 1
            else:
                running.append(Trial(spec))
        for trial in running[:]:
            if trial.step():
                running.remove(trial)
                outcome = trial.close()
                if outcome.problems and load_monitor.was_late_since(trial.begin):
                    outcome = Outcome(Counter(disturbed=1))
                    if trial.tries < MAX_TRIES:
                        running.append(Trial(trial.spec, trial.tries + 1))
                        continue
                yield trial.spec | {"folder": str(trial.folder)}, outcome
        time.sleep(0.01)
        load_monitor.sample()
    for reason, count in skipped.items():
        print(f"skipped {count} x {reason}")


def cost(trial: Trial) -> int:
    """Relative CPU cost: most ranks wait, but streams of the stand-ins are polling threads."""
    if trial.spec["backend"] in front_ends.DEVICE_BACKENDS:
        return 4
    return 2 if trial.spec["front_end"] in ("mpi", "sycl") else 1


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def find_leftovers(files_before: set[str]) -> list[str]:
    """Leftover files, for information only: another program may have created them."""
    return sorted(name for name in set(os.listdir("/dev/shm")) - files_before if "isthmus" in name)


def summarize(results: list[tuple[dict[str, Any], Outcome]]) -> list[dict[str, Any]]:
    """One row for each front end, backend and fault."""
    groups: dict[tuple[str, str, str], list[Outcome]] = {}
    for spec, outcome in results:
        groups.setdefault((spec["front_end"], spec["backend"], spec["fault"]), []).append(outcome)
    rows = []
    for (front_end, backend, fault), outcomes in sorted(groups.items()):
        counts: Counter[str] = Counter()
        for outcome in outcomes:
            counts.update(outcome.counts)
        seconds = [value for outcome in outcomes for value in outcome.seconds]
        rows.append(
            {"front_end": front_end, "backend": backend, "fault": fault, "trials": len(outcomes)}
            | {"right": counts.pop("right", 0), "problems": dict(counts)}
            | {"seconds": [min(seconds), statistics.median(seconds), max(seconds)] if seconds else [0, 0, 0]}
        )
    return rows


def run_elastic(rounds: int, seed: int) -> list[dict[str, Any]]:
    """Kills a rank of an elastic job in each round. Returns one row per measured time."""
    row = {"front_end": "elastic", "backend": "shm", "ranks": ELASTIC_RANKS, "trials": rounds}
    try:
        result = elastic_job.run(ELASTIC_RANKS, rounds, seed, joining_share=ELASTIC_JOINING_SHARE)
    except (elastic_job.JobError, subprocess.TimeoutExpired) as failure:
        print(f"elastic/shm/kill: {failure}", flush=True)
        return [row | {"fault": "kill", "right": 0, "problems": {"failed": 1}, "seconds": [0, 0, 0]}]
    rows = []
    for name, count in (("next_step", rounds * (ELASTIC_RANKS - 1)), ("full_size", rounds)):
        times = result["times"][name]
        seconds = [times["min"], times["median"], times["max"]]
        own = {"fault": f"kill_{name}", "right": count, "problems": {}, "seconds": seconds}
        fields = {"p99_us": times["p99"] * 1e6, "load": result["times"]["load"]["median"]}
        rows.append(row | own | {"fields": fields})
    rows[0]["fields"] |= result["growth"]
    return rows


def print_table(rows: list[dict[str, Any]]) -> None:
    print(f"{'front end/backend/fault':34}{'trials':>7}{'right':>7}  s (median, max)  problems")
    for row in rows:
        name = f"{row['front_end']}/{row['backend']}/{row['fault']}"
        problems = ", ".join(f"{count} {problem}" for problem, count in sorted(row["problems"].items()))
        _, median, maximum = row["seconds"]
        print(f"{name:34}{row['trials']:7}{row['right']:7}  {median:6.2f} {maximum:6.2f}    {problems}")


def save(path: Path, rows: list[dict[str, Any]], command: str) -> None:
    """Writes records (isthmus.records): for each row the time until the faulty rank was named."""
    from isthmus import machine, records

    entries = [
        records.Record(
            collective=f"fault_{row['fault']}",
            dtype="int32",
            bytes=0,
            ranks=row.get("ranks", 4),
            provider="isthmus",
            backend=row["backend"],
            mode=row["front_end"],
            time_us=records.TimeUs(
                **dict(zip(("min", "median", "max"), [s * 1e6 for s in row["seconds"]], strict=True))
            ),
            algbw_gbs=0,
            busbw_gbs=0,
            trials=row["trials"],
            right=row["right"],
            **row["problems"],
            **row.get("fields", {}),
        )
        for row in rows
    ]
    provenance = {"commit": machine.commit(), "machine": machine.describe(), "versions": machine.versions()}
    records.report_from(entries, command=command, **provenance).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="part of FRONT_END/BACKEND/FAULT")
    parser.add_argument(
        "--jobs", type=int, default=3 * (os.cpu_count() or 2), help="concurrent trials; most ranks wait"
    )
    parser.add_argument(
        "--limit", type=float, default=1e9, metavar="S", help="start no trial after this many seconds"
    )
    parser.add_argument("--out", type=Path, help="record file to write")
    parser.add_argument("--rounds", type=int, help="rounds of the elastic job (default: a tenth of the trials)")
    options = parser.parse_args()
    files_before, begin = set(os.listdir("/dev/shm")), time.monotonic()
    front_ends.prepare()
    results = []
    has_trials = any(options.only in f"{entry[0]}/{entry[1]}/{fault}" for entry in PLAN for fault in entry[2])
    trials = options.trials if has_trials else 0
    for spec, outcome in run_trials(trials, options.seed, options.only, options.jobs, options.limit):
        results.append((spec, outcome))
        for problem in outcome.problems:
            print(
                f"{spec['front_end']}/{spec['backend']}/{spec['fault']} {spec['folder']}: {problem}", flush=True
            )
    rows = summarize(results)
    failed = sum(1 for _, outcome in results if outcome.problems)
    for name in find_leftovers(files_before):
        print(f"leftover file: /dev/shm/{name}")
    rounds = options.trials // 10 if options.rounds is None else options.rounds
    if rounds > 0 and options.only in "elastic/shm/kill" and front_ends.has_torch():
        rows += run_elastic(rounds, options.seed)
        failed += bool(rows[-1]["problems"])
    print_table(rows)
    if disturbed := sum(outcome.counts["disturbed"] for _, outcome in results):
        print(f"{disturbed} trials could not be judged because the machine was too busy")
    print(
        f"{len(results)} trials, seed {options.seed}, {failed} with problems, {time.monotonic() - begin:.0f} s"
    )
    if options.out:
        save(options.out, rows, " ".join(["tests/faults/campaign.py", *sys.argv[1:]]))
    return 1 if failed or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
