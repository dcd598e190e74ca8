"""Kills random ranks of one long elastic job under torchrun and measures how fast it continues.

    tests/faults/elastic_job.py --ranks 8 --rounds 50 [--jobs 4] [--seed 1] [--keep] [--out ROUNDS.json]

A round kills a random rank at a random moment and waits until all ranks, including the replacement, have
completed a step. Ranks check every gradient. At the end, a single process repeats all steps and compares the
parameters.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
LIMIT_S = 60.0  # of a round
SLOW_S = 1.0  # a round that takes longer is printed
QUIET = {
    "ISTHMUS_CONFIG": "none",
    "ISTHMUS_PROFILE": "none",
    "OMP_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    # PyTorch's store looks up the name of each client and blocks all others meanwhile.
    "RES_OPTIONS": "timeout:1 attempts:1",
}

# The caches of malloc fill over hundreds of rounds, which looks like a leak of 1 to 2 KiB per round.
WITHOUT_MALLOC_CACHES = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


class JobError(Exception):
    """The job has failed."""


@dataclass
class Usage:
    """Resources of a process."""

    memory_kib: int
    descriptors: int
    threads: int

    @staticmethod
    def of(pid: int) -> Usage:
        status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return Usage(
            int(status["RssAnon"].split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status["Threads"])
        )

    def __sub__(self, other: Usage) -> Usage:
        return Usage(
            self.memory_kib - other.memory_kib,
            self.descriptors - other.descriptors,
            self.threads - other.threads,
        )


@dataclass
class Round:
    """One killed rank. Times are seconds after the kill."""

    rank: int
    next_steps: list[float] = field(default_factory=list)  # of each survivor, without the lost rank
    replacement_start: float = 0.0  # the replacement runs its script
    full_size: float = 0.0  # all ranks have completed a step in the group of the old size
    load: float = 0.0
    join_delay: float | None = None  # the first replacement is also killed, this long after its start
    age: int = 0  # rounds that the killed process survived, after its first one
    growth: Usage | None = None  # of the killed process meanwhile


class Job:
    """A torchrun job of elastic_rank.py, as seen from its events."""

    def __init__(
        self, ranks: int, timeout_s: float = 60.0, device: str = "cpu", is_memory_exact: bool = False
    ) -> None:
        self.ranks = ranks
        self._folder = tempfile.TemporaryDirectory(prefix="isthmus-elastic-")
        folder = Path(self._folder.name)
        self._events = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._events.bind(str(folder / "events"))
        self._stop, self._output = folder / "stop", folder / "output"
        variables = {"ELASTIC_EVENTS": str(folder / "events"), "ELASTIC_STOP": str(self._stop)}
        variables |= {"ELASTIC_TIMEOUT_S": str(timeout_s), "ELASTIC_DEVICE": device}
        variables |= WITHOUT_MALLOC_CACHES if is_memory_exact else {}
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        with open(self._output, "wb") as output:
            self.process = subprocess.Popen(
                [*launcher, "-m", "isthmus.torch", "--elastic", str(FOLDER / "elastic_rank.py")],
                env=os.environ | QUIET | variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.entries: dict[int, int] = {}  # step and the number of ranks from then on
        self._rounds = 0
        self._usage: dict[int, tuple[int, Usage]] = {}  # after the first round that a process survived
        self.members: dict[int, int] = {}  # pid and rank of the members of the latest full group
        self.results: list[tuple[int, list[float]]] = []  # steps and parameters of each rank

    def next_event(self, deadline: float) -> dict[str, Any]:
        while True:
            self._events.settimeout(max(0.01, min(1.0, deadline - time.monotonic())))
            try:
                event = json.loads(self._events.recv(1 << 16))
            except TimeoutError:
                if self.process.poll() is not None:
                    raise JobError(f"the job has ended with code {self.process.returncode}") from None
                if time.monotonic() > deadline:
                    raise JobError("a round has taken too long") from None
                continue
            if event["event"] == "enter":
                # A group may be lost before its first step. The next one then begins with the same step.
                self.entries[event["step"]] = event["size"]
            elif event["event"] == "end":
                self.results.append((event["steps"], event["parameters"]))
            return dict(event)

    def wait_for_full_size(self, kill: Round | None = None, begin: float = 0.0, victim: int = 0) -> None:
        """Waits until all ranks have completed a step in a group of the full size."""
        deadline = time.monotonic() + LIMIT_S
        survivors = set(self.members) - {victim}
        members: dict[int, int] = {}
        killed_replacement = 0
        while len(members) < self.ranks:
            event = self.next_event(deadline)
            pid, after = event["pid"], event["time"] - begin
            if kill is not None and event["event"] == "start" and not kill.replacement_start:
                kill.replacement_start = after
                if kill.join_delay is not None:
                    time.sleep(kill.join_delay)
                    os.kill(pid, signal.SIGKILL)
                    killed_replacement = pid
            if event["event"] != "step" or event["time"] < begin or pid == killed_replacement:
                continue
            if pid in survivors and kill is not None:
                survivors.remove(pid)
                kill.next_steps.append(after)
            if event["size"] == self.ranks:
                members[pid] = event["rank"]
                if kill is not None:
                    kill.full_size = after
            else:
                members.clear()
        if kill is not None and survivors:
            raise JobError(f"processes {survivors} have made no step")
        self._rounds += 1
        for pid in members:
            if pid in self.members and pid not in self._usage:
                self._usage[pid] = (self._rounds, Usage.of(pid))
        self.members = members

    def kill(self, generator: random.Random, kept: int = 0, join_delay: float | None = None) -> Round:
        """Kills a random rank and waits for its replacement.

        With `join_delay`, also kills the first replacement, that many seconds after its start.
        """
        victim = generator.choice(sorted(set(self.members) - {kept}))
        result = Round(self.members[victim], load=os.getloadavg()[0], join_delay=join_delay)
        if victim in self._usage:
            round_number, usage = self._usage[victim]
            result.age, result.growth = self._rounds - round_number, Usage.of(victim) - usage
        begin = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        self.wait_for_full_size(result, begin, victim)
        return result

    def finish(self) -> None:
        """Ends the job and compares its parameters with those of a single process that repeats all steps."""
        import elastic_oracle

        self._stop.touch()
        deadline = time.monotonic() + LIMIT_S
        while len(self.results) < self.ranks:
            self.next_event(deadline)
        if (code := self.process.wait(LIMIT_S)) != 0:
            raise JobError(f"the job has ended with code {code}")
        if any(result != self.results[0] for result in self.results):
            raise JobError(f"the ranks end with different parameters: {self.results}")
        steps, parameters = self.results[0]
        expected = elastic_oracle.replay(sorted(self.entries.items()), steps)
        if any(abs(own - right) > 1e-4 for own, right in zip(parameters, expected, strict=True)):
            raise JobError(f"parameters after {steps} steps: {parameters}, expected {expected}")

    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)  # torchrun ends its processes
        self.process.wait()
        self._events.close()
        self._folder.cleanup()


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def summary(rounds: list[Round]) -> dict[str, Any]:
    """Seconds from the kill to each survivor's next step, the start of the replacement and the full size.

    Rounds in which the replacement was also killed are left out, unless there are no others.
    """
    rounds = [each for each in rounds if each.join_delay is None] or rounds
    times = {
        "next_step": [value for each in rounds for value in each.next_steps],
        "replacement_start": [each.replacement_start for each in rounds],
        "full_size": [each.full_size for each in rounds],
        "load": [each.load for each in rounds],
    }
    return {
        name: {
            "min": min(values),
            "median": statistics.median(values),
            "p99": percentile(values, 0.99),
            "max": max(values),
        }
        for name, values in times.items()
    }


def growth(rounds: list[Round]) -> dict[str, float]:
    """The sum of the growth of all killed processes, per round that they had survived."""
    gained = [each for each in rounds if each.growth is not None]
    ages = sum(each.age for each in gained) or 1
    result = {"survived_rounds": ages, "longest_life_rounds": max((each.age for each in gained), default=0)}
    for name in ("memory_kib", "descriptors", "threads"):
        result[f"{name}_per_round"] = sum(getattr(each.growth, name) for each in gained) / ages
    return result


def descriptor_kinds(pid: int) -> dict[str, int]:
    """Counts the descriptors of a process by their targets, without numbers."""
    kinds: Counter[str] = Counter()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            kinds[re.sub(r"[0-9a-f]{8,}|\d+", "N", os.readlink(descriptor))] += 1
    return dict(kinds.most_common())


def shared_files() -> int:
    return sum(name.startswith("isthmus-") for name in os.listdir("/dev/shm"))


@dataclass
class Run:
    """Completed rounds of one or several jobs, and samples of their resources."""

    rounds: list[Round] = field(default_factory=list)
    usage: list[dict[str, Any]] = field(default_factory=list)


def run_job(
    ranks: int, rounds: int, seed: int, end: float, is_kept: bool, device: str, joining_share: float
) -> Run:
    generator = random.Random(seed)
    job = Job(ranks, device=device, is_memory_exact=is_kept)
    try:
        job.wait_for_full_size()
        kept = next(pid for pid, rank in job.members.items() if rank == ranks - 1)
        result = Run()
        for number in range(rounds + 1):
            if number % max(1, rounds // 10) == 0 or number == 5:
                entry = {"round": number, "shared_files": shared_files()}
                result.usage.append(
                    entry
                    | (vars(Usage.of(kept)) if is_kept else {})
                    | ({"kinds": descriptor_kinds(kept)} if is_kept else {})
                    | {"agent": vars(Usage.of(job.process.pid))}
                )
                times = [json.dumps(summary(result.rounds))] if result.rounds else []
                print(json.dumps(result.usage[-1]), *times, flush=True)
            if number == rounds or time.monotonic() > end:
                break
            time.sleep(generator.uniform(0, 0.5))
            is_joining_killed = generator.random() < joining_share
            delay = generator.uniform(0, 0.5) if is_joining_killed else None
            result.rounds.append(job.kill(generator, kept if is_kept else 0, delay))
            if max(result.rounds[-1].next_steps) > SLOW_S:
                print(f"slow round {number}: {result.rounds[-1]}", flush=True)
        job.finish()
        return result
    except BaseException:
        print(job.output()[-8000:], file=sys.stderr)
        raise
    finally:
        job.close()


def run(
    ranks: int,
    rounds: int,
    seed: int,
    is_kept: bool = False,
    device: str = "cpu",
    joining_share: float = 0.0,
    jobs: int = 1,
    limit_s: float = float("inf"),
) -> dict[str, Any]:
    """Distributes the rounds over jobs that run at the same time.

    With `is_kept`, one process of each job survives all of its rounds.
    """
    end = time.monotonic() + limit_s
    shares = [rounds // jobs + (number < rounds % jobs) for number in range(jobs)]
    with ThreadPoolExecutor(jobs) as pool:
        started = [
            pool.submit(run_job, ranks, share, seed + number, end, is_kept, device, joining_share)
            for number, share in enumerate(shares)
        ]
        runs = [each.result() for each in started]
    done = [each for result in runs for each in result.rounds]
    return {
        "ranks": ranks,
        "rounds": len(done),
        "jobs": jobs,
        "killed_replacements": sum(each.join_delay is not None for each in done),
        "times": summary(done),
        "growth": growth(done),
        "usage": [entry for result in runs for entry in result.usage],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--keep",
        action="store_true",
        help="never kill one rank, and track its resources, without caches of malloc",
    )
    parser.add_argument(
        "--joining", type=float, default=0.0, help="share of the rounds in which the replacement is also killed"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one GPU per rank")
    parser.add_argument(
        "--jobs",
        type=int,
        default=1,
        help="run this many jobs at the same time, each with a share of the rounds",
    )
    parser.add_argument(
        "--limit", type=float, default=float("inf"), help="start no round after this many seconds"
    )
    parser.add_argument("--out", type=Path, help="JSON file with the summary")
    options = parser.parse_args()
    result = run(
        options.ranks,
        options.rounds,
        options.seed,
        options.keep,
        options.device,
        options.joining,
        options.jobs,
        options.limit,
    )
    print(json.dumps({name: result[name] for name in ("times", "growth")}, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
