"""isthmus tune: plan, budget, journal, profile, and the fingerprint of the machine."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import run_cli
from test_cli import in_checkout, run_json
from test_jobs import DEVICE_VARIABLES, STANDINS
from test_records import record

from isthmus import launch, layout, machine
from isthmus.cli import job_query, main, profile, tune_run
from isthmus.cli.bench_server import BenchServer
from isthmus.cli.console import CommandError
from isthmus.cli.profile import Setting
from isthmus.cli.tune import Request, print_regret
from isthmus.cli.tune_journal import Entry, Journal
from isthmus.cli.tune_plan import BASELINE, THRESHOLD, Batch, Choice, Plan, half_steps, run_plans
from isthmus.cli.tune_run import (
    TuningRun,
    find_candidates,
    find_settings,
    measure_all,
    split_by_placement,
)
from isthmus.records import Report, utc_now
from isthmus.table import whole_elements

GRID = [128, 1 << 10, 1 << 13, 1 << 16, 1 << 20, 1 << 24]
STEPS = half_steps(GRID[0], GRID[-1])

Cost = Callable[[str, int], float]


def linear_cost(name: str, size: int) -> float:
    """Latency and bandwidth of synthetic candidates. math.inf: not supported at that size."""
    latency, us_per_byte = {
        BASELINE: (8.0, 1 / 400),
        "quick": (1.0, 1 / 200),
        "even": (4.0, 1 / 1000),
        "wide": (60.0, 1 / 4000),
        "slow": (900.0, 1 / 10),
    }[name]
    return math.inf if name == "quick" and size > 1 << 20 else latency + size * us_per_byte


def make_plan(cost: Cost = linear_cost, rounds: int = 1, collective: str = "allreduce") -> Plan:
    return Plan(collective, ["quick", "even", "wide", "slow"], GRID, STEPS, rounds)


def times_of(batch: Batch, cost: Cost) -> dict[int, float]:
    times = {size: cost(batch.candidate, size) for size in batch.sizes}
    return {size: time for size, time in times.items() if time < math.inf}


def complete(plan: Plan, cost: Cost = linear_cost) -> list[Batch]:
    """Measures until the plan is complete. Returns the batches."""
    batches = []
    while batch := plan.next_batch():
        batches.append(batch)
        plan.add(batch, times_of(batch, cost))
        assert len(batches) < 1000, "the plan does not end"
    return batches


def use_at(choices: list[Choice], size: int) -> str:
    for choice in choices:
        if choice.first <= size and (choice.end is None or size < choice.end):
            return choice.candidate
    return BASELINE


def test_half_steps_are_at_most_a_factor_of_1_5_apart() -> None:
    assert half_steps(128, 1000) == [128, 192, 256, 384, 512, 768, 1000]
    assert all(upper / lower <= 1.5 for lower, upper in itertools.pairwise(STEPS))
    assert half_steps(0, 0) == [0]


def test_boundaries_are_next_to_true_crossovers() -> None:
    plan = make_plan()
    complete(plan)
    choices = plan.choices()
    assert [choice.candidate for choice in choices] == ["quick", "even", "wide"]
    assert (choices[0].first, choices[-1].end) == (0, None)
    for before, after in itertools.pairwise(choices):
        assert before.end == after.first
        lower = max(step for step in STEPS if step < after.first)
        # The true crossover, at which the earlier choice exceeds the threshold, is in the last half step.
        assert linear_cost(before.candidate, lower) <= THRESHOLD * linear_cost(after.candidate, lower)
        assert linear_cost(before.candidate, after.first) > THRESHOLD * linear_cost(
            after.candidate, after.first
        )


def test_every_step_is_within_threshold_of_fastest() -> None:
    plan = make_plan()
    complete(plan)
    for size in STEPS:
        fastest = min(linear_cost(name, size) for name in (BASELINE, "quick", "even", "wide", "slow"))
        assert linear_cost(use_at(plan.choices(), size), size) <= THRESHOLD * fastest


def test_bisection_measures_only_few_contenders() -> None:
    plan = make_plan()
    batches = complete(plan)
    assert {size for batch in batches if batch.candidate == "slow" for size in batch.sizes} == set(GRID)


def test_interval_is_halved_in_each_step() -> None:
    steps = half_steps(1 << 10, 1 << 24)
    plan = Plan("allreduce", ["even", "wide"], [steps[0], steps[-1]], steps, 1)
    between = {size for batch in complete(plan) for size in batch.sizes} - {steps[0], steps[-1]}
    assert len(steps) == 29 and 0 < len(between) <= math.ceil(math.log2(28))


def test_equal_candidates_get_no_rule() -> None:
    plan = make_plan()
    noise = itertools.cycle([1.0, 1.01, 0.99])
    batches = complete(plan, lambda name, size: (10 + size) * next(noise))
    assert plan.choices() == [] and {size for batch in batches for size in batch.sizes} == set(GRID)


def test_plan_uses_median_of_rounds() -> None:
    plan = make_plan(rounds=3)
    counts: dict[tuple[str, int], int] = {}

    def cost(name: str, size: int) -> float:
        counts[name, size] = counts.get((name, size), 0) + 1
        is_disturbed = (name, size) == ("even", 1 << 16) and counts[name, size] == 2
        return linear_cost(name, size) * (100 if is_disturbed else 1)

    complete(plan, cost)
    expected = make_plan()
    complete(expected)
    assert [choice.candidate for choice in plan.choices()] == [
        choice.candidate for choice in expected.choices()
    ]
    assert all(count == 3 for (name, _), count in counts.items() if name == BASELINE)


def test_size_without_contender_is_not_measured_twice() -> None:
    plan = make_plan()
    batches = complete(plan, lambda name, size: math.inf)
    assert plan.choices() == [] and len(batches) == 5 * len(GRID)


def test_candidates_of_one_size_are_measured_together() -> None:
    plan = make_plan(rounds=2)
    order = [(batch.sizes, batch.candidate) for batch in complete(plan)]
    candidates = [BASELINE, "quick", "even", "wide", "slow"]
    first_round = [((size,), name) for size in GRID for name in candidates]
    assert order[: len(first_round)] == first_round
    assert [name for _, name in order[len(first_round) :]][:2] == ["quick", BASELINE], "the order alternates"


def dense_plan(rounds: int = 1) -> Plan:
    names = ["quick", "even", "wide", "slow", "profile"]
    return Plan("allreduce", names, GRID[::2], GRID, rounds, is_dense=True, kept=["profile"])


def dense_batches(plan: Plan, rounds: int | None = None) -> list[Batch]:
    """Measures the plan. The baseline selects "even", and the profile selects "slow"."""
    batches = []
    while batch := plan.next_batch(rounds):
        batches.append(batch)
        path = {BASELINE: "even", "profile": "slow"}.get(batch.candidate, batch.candidate)
        times = times_of(batch, lambda name, size, path=path: linear_cost(path, size))
        plan.add(batch, times, dict.fromkeys(times, path))
    return batches


def test_dense_plan_measures_contenders_at_all_sizes() -> None:
    measured = {(batch.sizes[0], batch.candidate) for batch in dense_batches(dense_plan())}
    assert all({(size, BASELINE), (size, "profile")} <= measured for size in GRID)
    assert {name for size, name in measured if size == GRID[0]} == {BASELINE, "profile", "quick", "wide"}
    # "quick" takes more than twice the fastest time at both neighbors of this size.
    assert {name for size, name in measured if size == 1 << 16} == {BASELINE, "profile", "wide"}


def test_dense_plan_measures_each_path_once_per_round() -> None:
    plan = dense_plan(rounds=2)
    first = dense_batches(plan, 1)
    second = dense_batches(plan)
    assert {batch.candidate for batch in first + second} == {BASELINE, "profile", "quick", "wide"}
    assert {batch.sizes for batch in second} == {(size,) for size in GRID}
    assert plan.next_batch() is None and plan.omissions() == []


def test_choice_is_faster_in_most_rounds() -> None:
    plan = Plan("allreduce", ["steady", "lucky"], [128], [], 3)
    for times in ((10.0, 9.0, 11.0), (20.0, 18.0, 21.0), (30.0, 27.0, 3.0)):
        for candidate, time in zip((BASELINE, "steady", "lucky"), times, strict=True):
            plan.add(Batch("allreduce", candidate, (128,)), {128: time})
    assert plan.times(128)["lucky"] < plan.times(128)["steady"]
    assert plan.chosen() == {128: "steady"}


def test_choice_ends_before_unmeasured_sizes() -> None:
    plan = make_plan()
    for size in GRID[:3]:
        for name in (BASELINE, "quick", "even", "wide", "slow"):
            batch = Batch("allreduce", name, (size,))
            plan.add(batch, times_of(batch, linear_cost))
    assert plan.is_started() and plan.not_measured() == GRID[3:]
    assert plan.choices()[-1].end == GRID[3]


def plan_with_times(times: dict[str, list[list[float]]], sizes: tuple[int, ...]) -> Plan:
    """Returns a plan with the times of each candidate by round and size."""
    names = [name for name in times if name != BASELINE]
    plan = Plan("allreduce", names, sizes, [], len(times[BASELINE]))
    for name, rounds in times.items():
        for row in rounds:
            plan.add(Batch("allreduce", name, sizes), dict(zip(sizes, row, strict=True)))
    return plan


SIZES = (128, 256, 1024, 2048, 4096, 65536, 131072)


def test_choice_has_times_and_gain() -> None:
    times = {BASELINE: [[10.0] * 7], "quick": [[5, 5, 4, 4, 30, 30, 30]], "wide": [[7, 8, 9, 9, 9.9, 5, 2]]}
    first, last = plan_with_times(times, SIZES).choices()
    assert first == Choice("quick", 0, 4096, {128: (10, 5), 256: (10, 5), 1024: (10, 4), 2048: (10, 4)})
    assert last == Choice("wide", 65536, None, {65536: (10, 5), 131072: (10, 2)})
    assert (first.speedups, last.speedups) == ((2.0, 2.5), (2.0, 5.0))


def test_choice_needs_two_neighboring_sizes() -> None:
    for row in ([10, 10, 5, 10, 10, 10, 10], [10, 5, 10, 5, 10, 5, 10], [10, 10, 10, 10, 10, 10, 5]):
        assert plan_with_times({BASELINE: [[10] * 7], "quick": [row]}, SIZES).choices() == []
    assert plan_with_times({BASELINE: [[10]], "quick": [[5]]}, (128,)).choices()[0].end is None


def test_choice_wins_in_nearly_all_rounds() -> None:
    def candidates(*rounds: list[float]) -> list[str]:
        plan = plan_with_times({BASELINE: [[10, 10]] * 3, "quick": list(rounds)}, (128, 1024))
        return [choice.candidate for choice in plan.choices()]

    assert candidates([9, 9], [9, 30], [9, 9]) == ["quick"], "one of six measurements is disturbed"
    assert candidates([9, 9], [9, 9.9], [9.9, 9]) == [], "the gain is below the spread of the rounds"


def test_rules_without_mpi_precede_those_with_mpi() -> None:
    times = {
        BASELINE: [[10.0] * 7],
        "mpi": [[3, 3, 3, 3, 10, 10, 10]],
        "shm:packet": [[5, 5, 20, 20, 20, 5, 5]],
    }
    plan = plan_with_times(times, SIZES)
    assert [(choice.candidate, choice.first, choice.end) for choice in plan.choices()] == [
        ("shm:packet", 0, 1024),
        ("shm:packet", 65536, None),
        ("mpi", 0, 4096),
    ]
    assert plan.chosen()[128] == "mpi"


def test_program_without_mpi_uses_next_rule(tmp_path: Path) -> None:
    times = {BASELINE: [[10.0] * 7], "mpi": [[3.0] * 7], "shm:packet": [[5.0] * 7]}
    path = tmp_path / "profile.toml"
    new = profile.make_section(HOST_2, plan_with_times(times, SIZES), utc_now())
    path.write_text(profile.profile_text([new], profile.machine_conditions(profile.core_info()), []))
    arguments = ("explain", "allreduce", "--bytes", "512", "-n", "2", "--json")
    assert profile_use(run_json(*arguments, ISTHMUS_PROFILE=str(path))) == "shm:packet"
    assert run_json(*arguments, "--mpi", ISTHMUS_PROFILE=str(path))["backend"] == "mpi"


class Clock:
    """A clock that advances with each measurement."""

    def __init__(self, seconds_per_batch: float) -> None:
        self.now, self.seconds_per_batch = 0.0, seconds_per_batch

    def __call__(self) -> float:
        return self.now


def run_with_budget(plans: list[Plan], budget_s: float, seconds_per_batch: float) -> dict[str, int]:
    """Returns the number of batches per collective."""
    clock, counts = Clock(seconds_per_batch), dict.fromkeys((plan.collective for plan in plans), 0)

    def measure(batch: Batch) -> tuple[dict[int, float], dict[int, str]]:
        assert clock.now < budget_s, "no measurement starts after the limit"
        clock.now += seconds_per_batch
        counts[batch.collective] += 1
        return times_of(batch, linear_cost), {}

    run_plans(plans, measure, budget_s, clock)
    return counts


def test_budget_is_shared_and_omissions_are_listed() -> None:
    plans = [make_plan(rounds=3, collective=name) for name in ("allreduce", "broadcast", "reduce")]
    counts = run_with_budget(plans, 12.0, 1.0)
    assert counts == {"allreduce": 4, "broadcast": 4, "reduce": 4}
    assert plans[0].omissions() == ["not measured: 128, 1K, 8K, 64K, 1M, 16M"]
    assert plans[0].choices() == [], "a single measurement gives no rule"


def test_unused_time_goes_to_other_collectives() -> None:
    short = Plan("barrier", [], [0], [0], 1)
    long_plan = make_plan(rounds=3)
    counts = run_with_budget([long_plan, short], 20.0, 1.0)
    assert counts == {"barrier": 1, "allreduce": 19}
    assert short.omissions() == []


def test_omissions_name_rounds_and_crossovers() -> None:
    plan = make_plan(rounds=2)
    run_with_budget([plan], 30.0, 1.0)
    assert plan.omissions()[0] == "fewer than 2 rounds"
    assert "no measurement between 128 (quick) and 1K (even)" in plan.omissions()
    complete(plan)
    assert plan.omissions() == []


HOST_2 = Setting("host", 2)
CONDITIONS = {"cpu": "Some CPU", "cores": "4", "version": "1.0"}
NAMES = ["quick", "even", "wide", "slow"]


def make_run(folder: Path, stop_after: int | None = None, **changes: str) -> tuple[TuningRun, list[Batch]]:
    """Returns a run with synthetic measurements that is interrupted after some of them."""
    measured: list[Batch] = []

    def measure(batch: Batch, point_done: Callable[[], None]) -> Entry:
        if len(measured) == stop_after:
            raise KeyboardInterrupt
        measured.append(batch)
        point_done()
        times = times_of(batch, linear_cost)
        return Entry(
            batch,
            [
                record(time, size=size, provider=name, backend=name)
                for size, time in times.items()
                for name in [batch.candidate or "rules"]
            ],
        )

    journal = Journal(folder / "profile.toml.journal", CONDITIONS | changes, NAMES)
    run = TuningRun(HOST_2, [make_plan(rounds=2)], journal, lambda: nullcontext(measure), clock=lambda: 0.0)
    run.replay()
    return run, measured


@pytest.mark.parametrize("stop_after", [0, 1, 7, 14])
def test_interrupted_run_continues(tmp_path: Path, stop_after: int, capsys: pytest.CaptureFixture[str]) -> None:
    reference, all_batches = make_run(tmp_path / "reference")
    reference.measure(60)
    assert reference.finish() == {} and not reference.journal.path.exists()

    interrupted, first = make_run(tmp_path, stop_after)
    with pytest.raises(KeyboardInterrupt):
        interrupted.measure(60)
    with interrupted.journal.path.open("ab") as file:
        file.write(b'{"batch": {"coll')  # a line that a kill cut off
    capsys.readouterr()
    continued, second = make_run(tmp_path)
    assert ("continuing an earlier run" in capsys.readouterr().err) == (stop_after > 0)
    continued.measure(60)
    assert first + second == all_batches
    assert continued.plans[0].choices() == reference.plans[0].choices()
    assert continued.merged_records("allreduce") == reference.merged_records("allreduce")
    assert continued.finish() == {} and not continued.journal.path.exists()


def test_expired_run_keeps_its_journal(tmp_path: Path) -> None:
    run, measured = make_run(tmp_path)
    run.measure(0)
    assert not measured and run.finish() == {"allreduce": ["not measured: 128, 1K, 8K, 64K, 1M, 16M"]}
    assert run.journal.path.exists()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cpu": "Other CPU"}, r"CPU Some CPU \(now Other CPU\)"),
        ({"cores": "2"}, r"cores 4 \(now 2\)"),
        ({"version": "1.1"}, r"Isthmus 1.0 \(now 1.1\)"),
        ({"cores": "8", "version": "1.1"}, r"Isthmus 1.0 \(now 1.1\); cores 4 \(now 8\)"),
    ],
)
def test_journal_of_other_conditions_is_not_used(
    tmp_path: Path, changes: dict[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted, _ = make_run(tmp_path, 3)
    with pytest.raises(KeyboardInterrupt):
        interrupted.measure(60)
    capsys.readouterr()
    run, _ = make_run(tmp_path, **changes)
    assert not run.entries
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(f"are discarded: {reason}", text), text


def test_journal_of_other_candidates_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    entry = Entry(Batch("allreduce", "a", (8,)), [record(1.0, size=8)])
    journal = Journal(path, CONDITIONS, ["a", "b"])
    assert journal.load() == ([], "")
    journal.append(entry)
    assert Journal(path, CONDITIONS, ["a", "b"]).load() == ([entry], "")
    with path.open("ab") as file:
        file.write(b'{"batch"')  # a line that a kill cut off
    journal.load()
    journal.append(entry)
    assert journal.load() == ([entry, entry], "")
    for damaged in (b"no json\n", b"[]\n", b'{"conditions": {}}\n'):
        path.write_bytes(damaged)
        assert journal.load() == ([], "it is damaged")
    assert Journal(path, CONDITIONS, ["a"]).load() == ([], "candidates a, b (now a)")


def info_with(profile_path: Path) -> dict:
    return run_json("info", "--json", ISTHMUS_PROFILE=str(profile_path))


def tuned_plan(collective: str, candidate: str, speedup: float = 2.0) -> Plan:
    """Returns a complete plan whose candidate is faster than the baseline below 1 KiB."""
    sizes = (128, 256, 1024)
    plan = Plan(collective, [candidate], sizes, [], 1)
    plan.add(Batch(collective, BASELINE, sizes), dict.fromkeys(sizes, 10.0), dict.fromkeys(sizes, "shm"))
    plan.add(Batch(collective, candidate, sizes), {128: 10.0 / speedup, 256: 10.0 / speedup, 1024: 20.0})
    return plan


def section(setting: Setting, collective: str, candidate: str = "mpi") -> profile.Section:
    return profile.make_section(setting, tuned_plan(collective, candidate), utc_now())


def write_profile(path: Path, *settings: Setting, **changes: str) -> Path:
    conditions = profile.machine_conditions(profile.core_info()) | changes
    sections = [section(setting, "allreduce") for setting in settings or [HOST_2]]
    path.write_text(profile.profile_text(sections, conditions, ["Measured."]))
    return path


def test_fitting_profile_has_no_mismatch(tmp_path: Path) -> None:
    info = info_with(write_profile(tmp_path / "profile.toml"))
    assert info["profile_mismatch"] == ""
    assert info["core"]["profile"]["file"] == str(tmp_path / "profile.toml")
    text = (tmp_path / "profile.toml").read_text()
    assert "# 2.00 times as fast as the built-in rules, which select shm" in text
    assert "# bytes, us of the built-in rules/of this rule: 128 10.00/5.00, 256 10.00/5.00\n" in text


def test_commands_name_mismatch_and_remedy(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "profile.toml", cpu='Other "CPU" \\ 1\u2028', cores="512")
    variables = {"ISTHMUS_PROFILE": str(path)}
    expected = [
        f'The profile {path} was measured under other conditions: CPU Other "CPU" \\ 1\\u2028 (now ',
        f"; cores 512 (now {info_with(path)['core']['machine']['cores']})",
        "Run isthmus tune",
        "ISTHMUS_PROFILE=none",
    ]
    commands = {
        ("info",): 0,
        ("explain", "allreduce", "--ranks", "2"): 0,
        ("doctor", "--only", "configuration"): 1,
    }
    for command, code in commands.items():
        completed = run_cli(*command, **variables, COLUMNS="2000")
        assert completed.returncode == code, completed.stderr
        for part in expected:
            assert part in completed.stdout, completed.stdout


def test_profile_without_conditions_has_no_mismatch(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    path.write_text("timeout_s = 10\n")
    info = info_with(path)
    assert info["profile_mismatch"] == "" and info["core"]["profile"] == {"file": str(path), "measured": {}}


def test_gpu_links_of_matrix() -> None:
    matrix = (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tCPU Affinity\tNUMA Affinity\x1b[0m\n"
        "GPU0\t X \tNV18\tSYS\t0-47\t0\nGPU1\tNV18\t X \tSYS\t0-47\t0\nGPU2\tSYS\tSYS\t X \t48-95\t1\n"
        "\nLegend:\n\n  X    = Self\n"
    )
    assert machine.links_of_matrix(matrix) == ["NV18", "SYS"]
    assert machine.links_of_matrix("no devices were found") == []
    assert machine.numa_nodes() >= 1


@in_checkout
def test_command_writes_profile_that_selection_reads(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    reply = run_json(
        *("tune", "--collectives", "allreduce", "--ranks", "2", "--sizes", "1K,64K", "--rounds", "1"),
        *("--min-time", "0.001", "--candidates", "shm,shm:packet,mpi", "--profile", str(path), "--json"),
    )
    assert reply["profile"] == str(path) and reply["omissions"] == {}
    measured = {(each["provider"], each["bytes"]) for each in reply["records"]}
    assert {(name, size) for name in ("rules", "shm", "mpi") for size in (1024, 65536)} <= measured
    assert ("shm:packet", 1024) in measured and ("shm:packet", 65536) not in measured, "not supported"
    assert list(tmp_path.iterdir()) == [path]
    arguments = ("explain", "allreduce", "--bytes", "512", "-n", "2", "--mpi", "--json")
    explained = run_json(*arguments, ISTHMUS_PROFILE=str(path))
    assert explained["profile_mismatch"] == ""
    expected = next((rule["use"] for rule in reply["rules"] if rule["bytes"].startswith("0..")), None)
    assert expected in (None, explained["backend"], profile_use(explained))


def test_only_adaptive_candidates_follow_the_placement() -> None:
    adapting, fixed = split_by_placement(
        ["shm", "shm:packet", "shm:one_shot", "shm:one_shot_streamed", "shm:one_shot_adaptive", "ucx:two_shot"]
    )
    assert adapting == ["shm", "shm:packet", "shm:one_shot_adaptive", "ucx:two_shot"]
    assert fixed == ["shm:one_shot", "shm:one_shot_streamed"]


@in_checkout
@pytest.mark.parametrize("regret_file", ["", "regret.json"])
@pytest.mark.parametrize("virtual", [False, True])
def test_virtual_machine_omits_fixed_stores(
    virtual: bool, regret_file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("isthmus.machine.is_virtual", lambda: virtual)
    request = Request(["broadcast"], [HOST_2], [1024], [], 1, 0.001, Path("profile.toml"), regret_file)
    candidates = request.make_runs(profile.core_info())[0].journal.candidates
    assert "shm:one_shot_adaptive" in candidates and ("shm:one_shot" in candidates) is not virtual
    assert ("the hypervisor moves the cores" in capsys.readouterr().err) is virtual


@in_checkout
def test_candidates_are_available_backends() -> None:
    backends = [backend["name"] for backend in profile.core_info()["backends"]]
    with BenchServer(HOST_2) as server:
        candidates = find_candidates(server, backends, [])
        assert find_candidates(server, backends, ["mpi", "nccl"]) == ["mpi"]
        with pytest.raises(
            CommandError, match=r"--candidates 'shm:pocket' is unknown.*did you mean \"shm:packet\""
        ):
            find_candidates(server, backends, ["shm:pocket"])
    assert {"shm", "shm:packet", "mpi"} <= set(candidates)
    assert not any(name.startswith("hierarchical") for name in candidates), "all ranks are on one node"
    assert not any(name.endswith("_bf16") for name in candidates), "they change results"
    # No default rule names ucx for one node.
    described = job_query.query_job(2, {"info": {}}, {"ISTHMUS_RULE": "use=ucx"})["backends"]
    has_ucx = any(backend["name"] == "ucx" and backend["state"] == "available" for backend in described)
    assert any(name.startswith("ucx") for name in candidates) == has_ucx


def test_sizes_are_those_of_whole_elements() -> None:
    assert whole_elements("allreduce", 1000, "float32", 3) == 1000
    assert whole_elements("alltoall", 1000, "float32", 3) == 996
    assert whole_elements("alltoall", 8, "float32", 3) == 12
    assert whole_elements("barrier", 1000, "float32", 3) == 0


def profile_use(explained: dict) -> str:
    return f"{explained['backend']}:{explained.get('algorithm')}"


@in_checkout
def test_command_without_time_writes_no_rules(tmp_path: Path) -> None:
    path = tmp_path / "profile.toml"
    arguments = ("tune", "--collectives", "barrier", "-n", "2", "--candidates", "shm", "--rounds", "1")
    completed = run_cli(*arguments, "--minutes", "0", "--profile", str(path))
    assert completed.returncode == 0, completed.stderr
    assert "host, 2 ranks, barrier: skipped because the time limit expired: not measured: 0" in completed.stderr
    assert "no rules" in path.read_text()
    journal = Path(f"{path}.host2.journal")
    assert json.loads(journal.read_text().splitlines()[0])["candidates"] == ["shm"]
    completed = run_cli(*arguments, "--profile", str(path), "--min-time", "0.001")
    assert completed.returncode == 0 and not journal.exists(), completed.stderr


def test_candidates_with_same_path_share_samples() -> None:
    plan = Plan("allreduce", ["fast", "named"], [128], [], 2)
    for candidate, time, path in ((BASELINE, 10.0, "a"), ("named", 8.0, "a"), ("fast", 5.0, "b")):
        for _ in range(2):
            plan.add(Batch("allreduce", candidate, (128,)), {128: time}, {128: path})
    assert plan.times(128) == {BASELINE: 9.0, "named": 9.0, "fast": 5.0}
    assert plan.choices() == [Choice("fast", 0, None, {128: (9.0, 5.0)}, ("a",))]


def test_run_replaces_only_its_sections(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "profile.toml", HOST_2, Setting("host", 16), Setting("cuda", 2))
    conditions = profile.machine_conditions(profile.core_info())
    sections, obstacle = profile.read_sections(path.read_text(), conditions)
    assert obstacle == "" and [each.setting for each in sections] == [HOST_2, ("host", 16), ("cuda", 2)]
    new = [section(Setting("host", 8), "allreduce"), section(HOST_2, "broadcast")]
    text = profile.profile_text([*sections, *new], conditions, [])
    assert 'host_ranks = "2,8,16"' in text and 'cuda_ranks = "2"' in text
    path.write_text(text)
    assert [rule["rule"] for rule in info_with(path)["core"]["rules"] if "profile" in rule["source"]] == [
        f"collective={name} platform={platform} ranks={ranks} nodes=1 bytes=0..1K use=mpi"
        for platform, ranks, name in (
            ("host", 2, "allreduce"),
            ("host", 2, "broadcast"),
            ("host", 8, "allreduce"),
            ("host", 16, "allreduce"),
            ("cuda", 2, "allreduce"),
        )
    ]
    assert profile.read_sections(text, conditions | {"cores": "77"})[0] == []


def test_explain_names_line_and_unmeasured_ranks(tmp_path: Path) -> None:
    path = write_profile(tmp_path / "profile.toml", HOST_2, Setting("host", 4))

    def use(*arguments: str) -> str:
        reply = run_json("explain", "allreduce", "--json", *arguments, ISTHMUS_PROFILE=str(path))
        return reply["profile_use"]

    line = 1 + path.read_text().splitlines().index("[[rule]]")
    assert use("-n", "2", "--mpi", "--bytes", "512") == (
        f"The rule was measured with host, 2 ranks and float32: profile {path}:{line}."
    )
    rule = "collective=allreduce platform=host ranks=2 nodes=1 bytes=0..1K use=mpi"
    assert use("-n", "2", "--bytes", "512").startswith(
        f'The rule "{rule}" (profile {path}:{line}) is not followed: backend mpi '
    )
    assert "measured with host, 2 ranks, and none of its rules applies" in use("-n", "2", "--bytes", "64K")
    assert "was not measured with host, 3 ranks (only with 2, 4 ranks)" in use("-n", "3", "--bytes", "512")
    assert "Run isthmus tune --platform host --ranks 3 to add rules." in use("-n", "3", "--bytes", "512")
    doctor = run_cli("doctor", "--only", "configuration", ISTHMUS_PROFILE=str(path), COLUMNS="2000")
    assert f"{path} (host 2, 4 ranks)" in doctor.stdout


def test_settings_are_host_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    monkeypatch.setattr("isthmus.cli.gpus.devices", lambda: (["cuda:0", "cuda:1"], ""))
    assert find_settings("", "") == [("host", 2), ("host", 4), ("host", 8), ("host", 12), ("cuda", 2)]
    assert find_settings("", "2,8") == [("host", 2), ("host", 8), ("cuda", 2)]
    assert find_settings("cuda", "") == [("cuda", 2)]
    with pytest.raises(CommandError, match="--ranks 4: there are 2 cuda devices"):
        find_settings("cuda", "4")
    with pytest.raises(CommandError, match="--platform hip: the devices are cuda"):
        find_settings("hip", "")
    with pytest.raises(CommandError, match="did you mean"):
        find_settings("cud", "")
    with pytest.raises(CommandError, match="not a list of numbers"):
        find_settings("host", "2,1")
    monkeypatch.setattr("isthmus.cli.gpus.devices", lambda: ([], "cuda: no driver"))
    assert find_settings("", "4") == [("host", 4)]
    with pytest.raises(CommandError, match="--platform cuda: cuda: no driver"):
        find_settings("cuda", "")


def test_time_is_shared_by_settings(tmp_path: Path) -> None:
    clock = Clock(1.0)
    measured: list[Setting] = []

    def make(setting: Setting) -> TuningRun:
        def measure(batch: Batch, point_done: Callable[[], None]) -> Entry:
            clock.now += 1.0
            measured.append(setting)
            return Entry(batch, [record(1.0, size=size) for size in batch.sizes])

        journal = Journal(tmp_path / str(setting), CONDITIONS, NAMES)
        return TuningRun(setting, [make_plan(rounds=3)], journal, lambda: nullcontext(measure), clock)

    runs = [make(HOST_2), make(Setting("cuda", 2))]
    measure_all(runs, 10.0, clock)
    assert [measured.count(run.setting) for run in runs] == [5, 5]
    assert not any(run.is_complete() for run in runs)
    measured.clear()
    measure_all(runs, 1000.0, clock)
    assert all(run.is_complete() for run in runs)
    changes = sum(before != after for before, after in itertools.pairwise(measured))
    assert changes == 5, "each of the three rounds measures both settings"


def run_with_baseline(folder: Path, *rounds: float) -> TuningRun:
    """Returns a run whose baseline has these times at all sizes of the grid."""
    run, _ = make_run(folder)
    for time in rounds:
        run.plans[0].add(Batch("allreduce", BASELINE, tuple(GRID)), dict.fromkeys(GRID, time))
    return run


def test_change_of_speed_between_rounds_is_reported(tmp_path: Path) -> None:
    assert tune_run.drift_reason([run_with_baseline(tmp_path, 0.2, 0.21, 0.25)]) == ""
    assert tune_run.drift_reason([run_with_baseline(tmp_path, 0.2)]) == ""
    reason = tune_run.drift_reason([run_with_baseline(tmp_path, 0.2, 0.6)])
    assert "differ by more than 1.5x between rounds at 6 of 6 points (host, 2 ranks, allreduce" in reason
    assert "0.20 to 0.60 us" in reason


def test_progress_names_each_collective(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = make_run(tmp_path)
    run.measure(60, 1)
    assert capsys.readouterr().err == "host, 2 ranks, round 1, allreduce: 0 measurements so far\n"


def test_interruption_counts_measurements_of_journal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, _ = make_run(tmp_path)
    append = run.journal.append

    def append_and_interrupt(entry: Entry) -> None:
        append(entry)
        raise KeyboardInterrupt

    run.journal.append = append_and_interrupt
    with pytest.raises(KeyboardInterrupt):
        run.measure(60)
    make_run(tmp_path)
    text = capsys.readouterr().err
    assert (
        "interrupted after 1 measurements" in text and "continuing an earlier run with 1 measurements" in text
    )


def test_path_record_merges_candidates(tmp_path: Path) -> None:
    """The path "even" is measured as the baseline, as the profile and by its name."""
    times = {"rules": [1.0, 9.0], "profile": [2.0], "even": [3.0, 4.0], "wide": [7.0]}
    run, _ = make_run(tmp_path)
    run.entries = [
        Entry(
            Batch("allreduce", name, (128,)),
            [
                record(time, size=128, provider=name, backend=path, reason="x", round_medians_us=[time])
                for path in ["wide" if name == "wide" else "even"]
            ],
        )
        for name, each in times.items()
        for time in each
    ]
    even, wide = run.path_records()
    assert (even.provider, even.backend, even.time_us.median) == ("isthmus", "even", 4.25)
    assert even.model_extra["round_medians_us"] == [2.0, 6.5], "one time per round"
    assert even.model_extra["selected_by"] == ["profile", "rules"] and not even.reason
    assert wide.time_us.median == 7.0 and "selected_by" not in wide.model_extra


def test_regret_prints_points_of_the_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, _ = make_run(tmp_path)
    times = {"rules": ("even", 4.0), "profile": ("slow", 6.0), "wide": ("wide", 3.0)}
    run.entries = [
        Entry(
            Batch("allreduce", name, (128,)),
            [record(time, size=128, provider=name, backend=path, round_medians_us=[time])],
        )
        for name, (path, time) in times.items()
    ]
    print_regret([run])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    heading = "Points at which the profile is slower than the"
    start = lines.index(f"{heading} fastest path: 1".split())
    point = ["host,", "2", "ranks,", "allreduce", "128", "slow", "6.00"]
    assert lines[start + 2] == [*point, "wide", "3.00", "2.00"]
    start = lines.index(f"{heading} built-in rules: 1".split())
    assert lines[start + 2] == [*point, "even", "4.00", "1.50"]


def test_buffers_of_allgather_are_limited() -> None:
    def sizes(name: str, ranks: int) -> list[int]:
        return tune_run.make_plan(name, [], [128, 1 << 22, 1 << 24], [], ranks, 1).not_measured()

    assert sizes("allreduce", 16) == [128, 1 << 22, 1 << 24]
    assert sizes("allgather", 16) == [128, 1 << 22] and sizes("allgather", 64) == [128]


@in_checkout
@pytest.mark.skipif(not (STANDINS / "libstandin_nccl.so").is_file(), reason="requires the stand-ins")
def test_devices_are_tuned_into_profile_of_host(tmp_path: Path) -> None:
    path, records = tmp_path / "profile.toml", tmp_path / "regret.json"
    variables = {key: value for key, value in DEVICE_VARIABLES.items() if key.endswith("_LIBRARY")}
    arguments = ("--collectives", "allgather", "-n", "2", "--rounds", "1", "--min-time", "0.001")
    arguments += ("--profile", str(path), "--json")
    run_json("tune", *arguments, "--platform", "host", "--sizes", "1K", "--candidates", "shm", **variables)
    grid = ("--sizes", "1K,64K", "--candidates", "nccl,copy_engine")
    reply = run_json("tune", *arguments, "--platform", "cuda", *grid, **variables)
    assert {(each["provider"], each["mode"]) for each in reply["records"]} == {
        (name, "stream") for name in ("rules", "nccl", "copy_engine")
    }
    assert all(each["wrong"] == 0 for each in reply["records"])
    assert all(rule["platform"] == ["cuda"] for rule in reply["rules"])
    text = path.read_text()
    assert 'host_ranks = "2"' in text and 'cuda_ranks = "2"' in text
    assert "# ==== host, 2 ranks, allgather" in text and "# ==== cuda, 2 ranks, allgather" in text
    reply = run_json("tune", *arguments, "--platform", "cuda", *grid, "--regret", str(records), **variables)
    assert reply["profile"] is None and path.read_text() == text
    report = Report.load(records)
    selected = {
        (each.mode, name) for each in report.records for name in each.model_extra.get("selected_by", ())
    }
    assert selected == {(mode, name) for mode in ("stream", "graph") for name in ("rules", "profile")}
    points = [(each.bytes, each.backend, each.mode) for each in report.records]
    assert len(points) == len(set(points)), "one record for each path and point"
    assert {backend.partition(":")[0] for _, backend, _ in points} == {"nccl", "copy_engine"}


@in_checkout
def test_ranks_are_forked_without_mpich(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(family: str) -> launch.Launcher:
        raise layout.MissingError(f"{family} is not installed")

    monkeypatch.setattr(launch, "launcher", missing)
    with BenchServer(HOST_2) as server:
        assert server.missing_mpi == "mpich is not installed"
        assert "mpi" not in find_candidates(server, ["shm", "mpi"], [])


@in_checkout
def test_failure_of_measurement_program_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with BenchServer(Setting("cuda", 2)) as server, pytest.raises(CommandError) as failure:
        server.info("")
    assert "the measurement program failed with exit code" in str(failure.value)


def test_regret_requires_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["tune", "--regret", "r.json", "--profile", str(tmp_path / "absent.toml")])
    assert code != 0 and "absent.toml does not exist; run isthmus tune first" in capsys.readouterr().err
