"""Events of the ranks of a trial, and the decision whether they were right."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Faults that must not affect any call.
HARMLESS = {"none", "stop_short", "full_shm", "full_disk"}
# Time after the timeout within which every other rank must name the faulty rank.
GRACE_S = 3.0

# Copy engines of the stand-in are threads of their process, which stop and continue with it in the middle
# of a copy. A waiting stream can only be released by letting it make its copies, also into buffers of a
# stopped rank (docs/internals/testing.md).
UNAVOIDABLE = {("copy_engine", "stop_long"): {"foreign_write", "corrupted", "overwritten"}}

# Patterns in order of certainty: process state of a rank, the rank that a wait was for, missing
# ranks, failed ranks.
STATES = [r"(\d+) \(its process (?:is stopped|has exited)\)", r"process of rank (\d+) is stopped"]
STATES += [r"for rank (\d+) in [\w ]+; its process"]
STATES += [r"rank (\d+) \(pid \d+\) (?:is stopped|has exited)"]  # from the flight recorders
CAUSES = [
    r"rank (\d+) (?:ended|exited)",
    r"more than [\d.]+ s for rank (\d+)",
    r"timed out after [\d.]+ s waiting for rank (\d+)",
    r"rank (\d+) failed \(reported by",
    r"waited for rank (\d+) past the timeout",
    r"rank (\d+) failed or (?:exited|vanished)",
    r"failed on rank (\d+)",
    r"waited [\d.]+ s to (?:send to|receive from) rank (\d+)",
    r"of rank (\d+) failed, because that rank (?:ended|exited)",
    r"no signal from rank\(s\) (\d+)",
    r"rank (\d+) did not",
    r"rank (\d+) made a different call",
    r"connection of rank (\d+) was",
]
# If none of these match: what the flight recorders saw.
SEEN = [r"rank (\d+) \(pid \d+\) (?:has not entered|arrived last)"]
# Ranks that have not connected do not know the rank of the process with the store; it is rank 0.
NO_STORE = r"connection to the store was lost|the store at [\d.]+ port \d+"
MISSING = r"(?:missing:|no message from rank) ([\d, ]+)"
REPORTERS = [r"rank (\d+) failed:", r"on rank (\d+)\)?:"]


def attributed_ranks(message: str) -> set[int]:
    """The ranks to which the message attributes the failure."""
    for patterns in (STATES, CAUSES):
        named_ranks = {int(rank) for pattern in patterns for rank in re.findall(pattern, message)}
        if named_ranks:
            return named_ranks
    if listed := re.search(MISSING, message):
        return {int(rank) for rank in re.findall(r"\d+", listed[1])}
    if seen := {int(rank) for pattern in SEEN for rank in re.findall(pattern, message)}:
        return seen
    for pattern in REPORTERS:
        if reporters := re.findall(pattern, message):
            return {int(reporters[-1])}
    return {0} if re.search(NO_STORE, message) else set()


@dataclass
class Outcome:
    """The outcome of one trial. `problems` is empty if everything was right."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # from the fault to the error of each survivor

    def add(self, problem: str, detail: str) -> None:
        self.counts[problem] += 1
        self.problems.append(f"{problem}: {detail}")


def events_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """The events of a rank, without a line that was cut off by its death."""
    events = []
    path = folder / f"rank.{rank}"
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events


def first(events: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((event for event in events if event["event"] == name), None)


def judge(spec: dict[str, Any], events: list[list[dict[str, Any]]], output: str) -> Outcome:
    """Checks a trial. In `output`, its standard error, MPI ranks name the awaited rank before they end."""
    outcome = Outcome()
    fault = first(events[spec["faulty_rank"]], "fault")
    if fault:  # ignore the output of the faulty rank itself, which may continue after the others ended the job
        own = f"[isthmus {fault['pid']}]"
        output = "".join(line for line in output.splitlines(keepends=True) if own not in line)
    for rank, seen in enumerate(events):
        for event in seen:
            problem = "corrupted" if event.get("result") == "corrupted" else event["event"]
            if problem in ("wrong_result", "overwritten", "foreign_write", "stuck_stream", "corrupted"):
                if problem in UNAVOIDABLE.get((spec["backend"], spec["fault"]), set()):
                    outcome.counts[f"known_{problem}"] += 1
                else:
                    outcome.add(problem, f"rank {rank}")
            if (
                "descriptors" in event
                and rank != 0
                and (rank != spec["faulty_rank"] or spec["fault"] != "emfile")
            ):
                after, before = event["descriptors"], event["descriptors_before"]
                if after > before:
                    outcome.add("descriptors", f"rank {rank}: {before} to {after}")
    for rank, seen in enumerate(events):
        if spec["fault"] in HARMLESS:
            _judge_harmless(outcome, rank, seen)
        elif rank != spec["faulty_rank"] or first(seen, "failed"):
            _judge_survivor(outcome, spec, rank, seen, fault, output)
    return outcome


def _judge_harmless(outcome: Outcome, rank: int, seen: list[dict[str, Any]]) -> None:
    failure = first(seen, "failed")
    if first(seen, "done"):
        outcome.counts["right"] += 1
    elif failure:
        outcome.add("wrong", f"rank {rank} failed without need in {failure['in']}: {failure['message']}")
    else:
        outcome.add("hung", f"rank {rank}")


def _judge_survivor(
    outcome: Outcome,
    spec: dict[str, Any],
    rank: int,
    seen: list[dict[str, Any]],
    fault: dict[str, Any] | None,
    output: str,
) -> None:
    failure = first(seen, "failed")
    if failure is None:
        # The first rank that notices ends an MPI job before the others can report.
        logged = [line for line in output.splitlines() if f"rank {rank} " in line and attributed_ranks(line)]
        if not logged and "MPI_Abort" in output:
            logged = [line for line in output.splitlines() if attributed_ranks(line)]
        # MPI may end the job before Isthmus can report. MPICH treats lost memory of a peer as fatal.
        for ender, words in (
            ("the launcher", "YOUR APPLICATION TERMINATED"),
            ("the launcher", "process manager error"),  # Hydra ends on a broken connection of a dead rank
            ("MPI", "Fatal error in internal_"),
        ):
            if not logged and words in output:
                outcome.counts[f"ended by {ender}"] += 1
                return
        if not logged:
            outcome.add("unnoticed" if first(seen, "done") else "hung", f"rank {rank}")
            return
        failure = {"message": logged[-1], "time": 0, "in": "the log"}
    elif fault:
        outcome.seconds.append(max(0.0, failure["time"] - fault["time"]))
        if rank != spec["faulty_rank"] and failure["time"] - fault["time"] > spec["timeout_s"] + GRACE_S:
            outcome.add("late", f"rank {rank}: {failure['time'] - fault['time']:.1f} s")
    # A stopped rank learns that the others aborted; it need not name itself.
    if rank == spec["faulty_rank"]:
        return
    names = attributed_ranks(failure["message"])
    # Front ends that report rank numbers must report the right ones. A rank that has not connected knows at
    # most an address.
    ranks = failure.get("ranks", [spec["faulty_rank"]])
    must_know = spec["fault"] == "kill" and failure["in"] != "create"
    if (ranks or must_know) and ranks != [spec["faulty_rank"]]:
        outcome.add("wrong", f"rank {rank} in {failure['in']}: ranks {ranks}: {failure['message']}")
    elif names == {spec["faulty_rank"]}:
        outcome.counts["right"] += 1
    else:
        problem = "vague" if spec["faulty_rank"] in names else "wrong" if names else "unnamed"
        outcome.add(problem, f"rank {rank} in {failure['in']}: {failure['message']}")
