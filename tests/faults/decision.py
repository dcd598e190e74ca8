"""What the ranks of a trial saw, and whether it was right."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Faults after which every call goes on and is right.
HARMLESS = {"none", "stop_short", "full_shm", "full_disk"}
# Faults after which every other rank has to name the one that they befell.
GRACE_S = 3.0

# The stand-in's copy engines are threads of their process, which stop and go on with it, in the middle of a
# copy. And a stream that waits is released in one way only: it makes its copies, also into the buffers of a
# rank that was stopped (docs/faults.md).
UNAVOIDABLE = {("copy_engine", "stop_long"): {"foreign_write", "spoilt", "overwritten"}}

# The most certain first: the state of a rank's process, whom a wait was for, who was missing, who failed.
STATES = [r"(\d+) \(its process (?:is stopped|has ended)\)", r"process of rank (\d+) is stopped"]
STATES += [r"for rank (\d+) in [\w ]+; its process"]
STATES += [r"rank (\d+) \(pid \d+\) (?:is stopped|has ended)"]  # the flight recorders' sentence
CAUSES = [
    r"rank (\d+) ended",
    r"more than [\d.]+ s for rank (\d+)",
    r"waited for rank (\d+) past the timeout",
    r"rank (\d+) failed or vanished",
    r"failed on rank (\d+)",
    r"waited [\d.]+ s to (?:send to|receive from) rank (\d+)",
    r"of rank (\d+) failed, because that rank exited",
    r"no signal from rank\(s\) (\d+)",
    r"rank (\d+) did not",
    r"rank (\d+) makes another call",
    r"connection of rank (\d+) was",
]
# Without any of these: what the flight recorders saw.
SEEN = [r"rank (\d+) \(pid \d+\) (?:has not entered|came last)"]
# Ranks that have not met know no number of the process that holds the store: it is rank 0's.
NO_STORE = r"connection to the store was lost|the store at [\d.]+ port \d+"
MISSING = r"(?:missing:|nothing came from rank) ([\d, ]+)"
REPORTERS = [r"rank (\d+) failed:", r"on rank (\d+)\)?:"]


def attributed_ranks(message: str) -> set[int]:
    """The ranks that the message holds responsible."""
    for patterns in (STATES, CAUSES):
        found = {int(rank) for pattern in patterns for rank in re.findall(pattern, message)}
        if found:
            return found
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
    """Of one trial. `problems` is empty where everything was as it has to be."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)  # from the fault to each survivor's error

    def add(self, problem: str, detail: str) -> None:
        self.counts[problem] += 1
        self.problems.append(f"{problem}: {detail}")


def events_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """What the rank wrote; a line that it died in is left out."""
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
    """`said` went to standard error: there MPI's ranks name whom they waited for before they are ended."""
    outcome = Outcome()
    fault = first(events[spec["faulty_rank"]], "fault")
    if fault:  # what a rank saw that went on when others had ended the job is no answer to who was to blame
        own = f"[isthmus {fault['pid']}]"
        output = "".join(line for line in output.splitlines(keepends=True) if own not in line)
    for rank, seen in enumerate(events):
        for event in seen:
            problem = "spoilt" if event.get("result") == "spoilt" else event["event"]
            if problem in ("wrong_result", "overwritten", "foreign_write", "stuck_stream", "spoilt"):
                if problem in UNAVOIDABLE.get((spec["backend"], spec["fault"]), set()):
                    outcome.counts[f"known_{problem}"] += 1
                else:
                    outcome.add(problem, f"rank {rank}")
            if "descriptors" in event and rank != 0 and (rank != spec["faulty_rank"] or spec["fault"] != "emfile"):
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
        # One that was the first to know ends an MPI job before the others can speak.
        logged = [line for line in output.splitlines() if f"rank {rank} " in line and attributed_ranks(line)]
        if not logged and "MPI_Abort" in output:
            logged = [line for line in output.splitlines() if attributed_ranks(line)]
        # Before anything of Isthmus could speak. MPICH takes a peer's memory that is gone for fatal.
        for ender, words in (
            ("the launcher", "YOUR APPLICATION TERMINATED"),
            ("the launcher", "process manager error"),  # Hydra's own end, on a connection that a dead rank left
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
    if (
        rank == spec["faulty_rank"]
    ):  # after a stop: it learns that the others gave up; of itself it need not say more
        return
    names = attributed_ranks(failure["message"])
    # As numbers, too, where the front end has them. Who has not met the others knows an address at most.
    ranks = failure.get("ranks", [spec["faulty_rank"]])
    must_know = spec["fault"] == "kill" and failure["in"] != "create"
    if (ranks or must_know) and ranks != [spec["faulty_rank"]]:
        outcome.add("wrong", f"rank {rank} in {failure['in']}: ranks {ranks}: {failure['message']}")
    elif names == {spec["faulty_rank"]}:
        outcome.counts["right"] += 1
    else:
        problem = "vague" if spec["faulty_rank"] in names else "wrong" if names else "unnamed"
        outcome.add(problem, f"rank {rank} in {failure['in']}: {failure['message']}")
