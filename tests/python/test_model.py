"""The cost model: fits of synthetic data with known parameters, formulas, plans, and the published figures."""

from __future__ import annotations

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from isthmus.model import accuracy, network, plans, regret
from isthmus.model.curves import Curve, Point, Terms, fit_curve, wire_share
from isthmus.model.lines import lines_of
from isthmus.model.network import Cost, Network
from isthmus.records import Record

ROOT = Path(__file__).resolve().parents[2]
SIZES = [1 << shift for shift in range(7, 28)]
in_checkout = pytest.mark.skipif(not (ROOT / "bench/results").is_dir(), reason="needs bench/results")


def record(size: int, us: float, **fields: Any) -> Record:
    values = {"collective": "allreduce", "dtype": "float32", "op": "sum", "ranks": 2, "provider": "isthmus"}
    times = {"min": us, "median": us, "max": us}
    return Record(**(values | fields), bytes=size, time_us=times, algbw_gbs=0.0, busbw_gbs=0.0)


def points(sizes: list[int], ranks: int, latency: float, per_byte: float) -> list[Point]:
    return [Point(size, ranks, latency + per_byte * size) for size in sizes]


# Bytes that each rank must send to 7 others for a size of 8 bytes.
@pytest.mark.parametrize(
    ("collective", "bytes_sent"),
    [
        ("allreduce", 14),
        ("allgather", 56),
        ("reduce_scatter", 7),
        ("alltoall", 7),
        ("broadcast", 8),
        ("reduce", 8),
        ("gather", 7),
        ("scatter", 7),
        ("allgatherv", 7),
        ("alltoallv", 7),
        ("copy", 8),
    ],
)
def test_wire_share(collective: str, bytes_sent: int) -> None:
    assert wire_share(collective, 8) * 8 == pytest.approx(bytes_sent)


def test_fit_recovers_latency_and_bandwidth() -> None:
    curve = fit_curve("broadcast", points(SIZES, 2, latency=4.0, per_byte=3e-5))
    (segment,) = curve.segments
    assert (segment.first, segment.last) == (SIZES[0], SIZES[-1])
    assert segment.terms.latency == pytest.approx(4.0)
    assert segment.terms.inverse_bandwidth == pytest.approx(3e-5)
    assert curve.time_us(3 << 30, 2) == pytest.approx(4.0 + 3e-5 * (3 << 30))


def test_fit_finds_protocol_change() -> None:
    small, large = SIZES[:9], SIZES[9:]
    curve = fit_curve("broadcast", points(small, 2, 2.0, 4e-4) + points(large, 2, 20.0, 2e-5))
    assert [(each.first, each.last) for each in curve.segments] == [
        (small[0], small[-1]),
        (large[0], large[-1]),
    ]
    assert [each.terms.latency for each in curve.segments] == pytest.approx([2.0, 20.0])
    between = curve.time_us((small[-1] * large[0]) ** 0.5, 2)
    ends = curve.time_us(small[-1], 2), curve.time_us(large[0], 2)
    assert between == pytest.approx((ends[0] * ends[1]) ** 0.5)


def test_fit_separates_gap_and_contention_of_ranks() -> None:
    terms = Terms(latency=3.0, gap=0.5, inverse_bandwidth=2e-5, contention=1e-5)

    def measured_us(size: int, ranks: int) -> float:
        traffic = size * 2 * (ranks - 1) / ranks
        return 3.0 + 0.5 * (ranks - 1) + traffic * (2e-5 + 1e-5 * ranks)

    measured = [Point(size, ranks, measured_us(size, ranks)) for ranks in (2, 4, 8) for size in SIZES]
    curve = fit_curve("allreduce", measured)
    (segment,) = curve.segments
    assert [*vars(segment.terms).values()] == pytest.approx([*vars(terms).values()], rel=1e-6)
    assert curve.time_us(1 << 20, 16) == pytest.approx(measured_us(1 << 20, 16))


def test_fit_with_one_rank_count_has_no_rank_terms() -> None:
    curve = fit_curve("allreduce", points(SIZES, 4, 3.0, 1e-5))
    assert {(each.terms.gap, each.terms.contention) for each in curve.segments} == {(0.0, 0.0)}


def test_fit_of_noisy_points_predicts_within_noise() -> None:
    generator = random.Random(7)
    noisy = [Point(size, 2, (5.0 + 1e-4 * size) * generator.uniform(0.98, 1.02)) for size in SIZES]
    curve = fit_curve("broadcast", noisy)
    assert len(curve.segments) == 1
    for size in SIZES:
        assert curve.time_us(size, 2) == pytest.approx(5.0 + 1e-4 * size, rel=0.02)


def test_fit_terms_are_not_negative() -> None:
    measured = [Point(size, 2, 0.01 * size**1.3) for size in SIZES]  # a line would need a negative latency
    for segment in fit_curve("broadcast", measured).segments:
        assert min(vars(segment.terms).values()) >= 0


@pytest.mark.parametrize("measured", [[], [Point(8, 2, 0.0)], [Point(0, 2, 1.0)]])
def test_fit_rejects_invalid_points(measured: list[Point]) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        fit_curve("allreduce", measured)


def test_curve_passes_through_measured_points() -> None:
    measured = [Point(size, 2, 3.0 + 0.01 * size**0.8) for size in SIZES]
    curve = fit_curve("broadcast", measured)
    for point in measured:
        assert curve.time_us(point.bytes, 2) == pytest.approx(point.us)
    middle = (SIZES[4] * SIZES[5]) ** 0.5
    assert curve.time_us(middle, 2) == pytest.approx(3.0 + 0.01 * middle**0.8, rel=0.05)


def test_other_rank_counts_have_no_correction() -> None:
    smooth = points(SIZES, 2, 4.0, 3e-5) + points(SIZES, 4, 4.0, 3e-5)
    wave = [point._replace(us=point.us * (1.1 if index % 2 else 0.9)) for index, point in enumerate(smooth)]
    curve = fit_curve("broadcast", wave)
    assert curve.time_us(SIZES[3], 2) == pytest.approx(wave[3].us)
    ratios = [curve.time_us(size, 3) / (4.0 + 3e-5 * size) for size in SIZES]
    assert all(0.95 < ratio < 1.05 for ratio in ratios), ratios


def test_curve_survives_json() -> None:
    curve = fit_curve("broadcast", points(SIZES[:8], 2, 2.0, 4e-4) + points(SIZES[8:], 2, 20.0, 2e-5))
    assert Curve.from_json(curve.to_json()) == curve


def test_held_back_sizes_are_every_third() -> None:
    measured = points([8, 16, 32, 64, 128, 256, 512], 2, 1.0, 1e-4)
    assert accuracy.held_back_sizes(measured) == {16, 128}


def test_prediction_ignores_held_back_points() -> None:
    def predictions(held_back_us: float) -> list[float]:
        records = [record(size, 2.0 + 1e-4 * size) for size in SIZES[::3] + SIZES[2::3]]
        records += [record(size, held_back_us) for size in SIZES[1::3]]
        return [each.predicted_us for each in accuracy.predict_sizes(records)]

    assert predictions(1.0) == predictions(1e6) == pytest.approx([2.0 + 1e-4 * size for size in SIZES[1::3]])


def test_interpolation_connects_nearest_sizes() -> None:
    times = {8: 1.0, 16: 99.0, 32: 4.0, 64: 8.0, 128: 99.0}  # 16 and 128 are held back
    predictions = accuracy.interpolate_sizes([record(size, us) for size, us in times.items()])
    assert [each.predicted_us for each in predictions] == pytest.approx([2.0, 16.0])


def test_rank_prediction_leaves_out_whole_rank_counts() -> None:
    records = [
        record(size, 1.0 + 1e-4 * size, ranks=ranks, collective="broadcast")
        for ranks in (2, 4)
        for size in SIZES
    ]
    predictions = accuracy.predict_ranks(records)
    assert len(predictions) == len(records)
    assert accuracy.summarize(predictions).p90 < 1e-6


def test_lines_separate_competing_backends() -> None:
    records = [record(size, 1.0, backend=backend) for size in SIZES for backend in ("nccl", "host:one_shot")]
    records += [record(8, 1.0, model="llama"), record(8, 1.0, collective="comd"), record(8, 1.0, ranks=1)]
    assert {line.backend for line in lines_of(records)} == {"nccl", "shm:one_shot"}


def test_ucx_formulas_match_definitions() -> None:
    """4 nodes with 2 ranks. A rank sends one of 8 blocks to each of the 6 ranks of other nodes."""
    link = Network(bytes_per_us=1.0, latency_us=0.0)
    assert network.direct_blocks(link, 4, 2, 800).transfer == 2 * 6 * 100
    assert (
        network.ucx_gather(link, 4, 2, 100).transfer == 7 * 100
    )  # each link of the ring carries all but one block
    assert network.ucx_allreduce(link, 4, 2, 800).transfer == 2 * 6 * 100 + 7 * 100


def test_nccl_formulas_match_published_constants() -> None:
    ring, _ = network.nccl("ring", "LL", 1, 4, 0, 370.0)
    assert ring.latency == pytest.approx(6.6 + 6 * 0.6)
    intra, inter = network.nccl("tree", "LL", 1024, 8, 0, 370.0)
    assert (intra.latency, inter.latency) == pytest.approx((6.8 + 2 * 7 * 0.6, 2 * 10 * 5.0))
    _, transfer = network.nccl("ring", "Simple", 4, 8, 1 << 30, 300.0)
    assert transfer.transfer == pytest.approx(2 * 31 / 32 * (1 << 30) / 300e3)


# One time unit per stage. Chunk 1 is gathered while chunk 0 is exchanged, and so on.
@pytest.mark.parametrize(
    ("gather", "exchange", "scatter", "total"),
    [
        ([1.0], [5.0], [2.0], 8.0),
        ([1.0, 1.0], [5.0, 5.0], [2.0, 2.0], 13.0),  # the exchanges dominate: 1 + 5 + 5 + 2
        ([5.0, 5.0], [1.0, 1.0], [2.0, 2.0], 14.0),  # the intra-node thread dominates: 5 + 5 + 2 + 2
        ([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [4.0, 4.0, 4.0], 16.0),  # 1, 1, wait 1, 4, 1, 4, 4
    ],
)
def test_pipeline_time(gather: list[float], exchange: list[float], scatter: list[float], total: float) -> None:
    assert plans.pipeline_us(gather, exchange, scatter) == total


def machine(platform: str = "host") -> plans.Machine:
    """1 us and 1 GB/s per phase, so that times can be computed by hand."""
    names = ("allreduce", "allgather", "reduce_scatter", "alltoall", "broadcast", "reduce")
    backend = "shm" if platform == "host" else "nccl"
    curves = {(backend, name): fit_curve(name, points(SIZES, 2, 1.0, 1e-3)) for name in names}
    return plans.Machine("test", platform, ("test.json",), curves)


def test_hierarchical_plan_follows_backend() -> None:
    """2 nodes x 2 ranks, allreduce of 4 MiB: four chunks of 1 MiB, each in three phases."""
    link = Network(bytes_per_us=1000.0, latency_us=10.0)
    cluster = plans.Cluster(machine(), 2, 2, link, "shm")
    found, reasons = plans.simulate(cluster, "allreduce", 4 << 20, [4 << 20])
    plan = next(plan for plan in found if plan.name == "hierarchical")
    chunk = 1 << 20
    gather = 1.0 + chunk * 1e-3  # reduce_scatter of the chunk
    scatter = 1.0 + chunk / 2 * 1e-3  # allgather of half a chunk per rank
    # Each of two leaders sends half of its shard, then half of the result. They share the link of the node.
    exchange = 20.0 + 2 * (chunk / 2 / 2 + chunk / 2 / 2) / 1000.0
    assert reasons == []
    assert plan.parts["inter-node latency"] == pytest.approx(4 * 20.0)
    assert plan.parts["inter-node bandwidth"] == pytest.approx(4 * (exchange - 20.0))
    assert plan.parts["intra-node latency"] == pytest.approx(4 * 2.0)
    assert plan.time_us == pytest.approx(plans.pipeline_us([gather] * 4, [exchange] * 4, [scatter] * 4))
    assert plan.chunk_bytes == 4 << 20


def test_plans_without_curves_give_reason() -> None:
    empty = plans.Machine("test", "host", (), {})
    found, reasons = plans.simulate(plans.Cluster(empty, 2, 2, Network(1.0, 1.0), "shm"), "allreduce", 1024)
    assert [plan.name for plan in found] == ["flat ucx"]
    assert reasons == ["the records of test have no reduce_scatter of shm"]


def test_mpi_small_allreduce_has_fewer_steps() -> None:
    link = Network(bytes_per_us=1000.0, latency_us=10.0)
    assert network.mpi_allreduce(link, 16, 8).latency == 4 * 10.0
    assert network.mpi_allreduce(link, 16, 1 << 26) == Cost(
        80.0, pytest.approx(2 * 15 / 16 * (1 << 26) / 1000.0)
    )


def test_regret_of_rules() -> None:
    records = [
        record(size, us, backend=backend)
        for size in SIZES
        for backend, us in (("p2p:one_shot", 1.0 + 1e-3 * size), ("nccl", 10.0 + 1e-4 * size))
    ]
    ((call, times),) = regret.competing_paths(records).items()
    assert set(times[128]) == {"p2p", "nccl"}
    always_nccl = regret.regrets(times, lambda size: "nccl")
    assert max(always_nccl.values()) == pytest.approx((10.0 + 0.0128) / 1.128)
    assert max(regret.model_regrets(call, times).values()) == 1.0
    # The paths cross at 10 KiB, so a threshold at 64 KiB selects the slower one at 16 and 32 KiB.
    wrong = (1.0 + 1e-3 * 32768) / (10.0 + 1e-4 * 32768)
    assert max(regret.threshold_regrets(times).values()) == pytest.approx(wrong)
    del times[1024]["p2p"]
    assert regret.threshold_regrets(times, missing=2.0)[1024] == 2.0


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    spec = importlib.util.spec_from_file_location("cost_model", ROOT / "scripts/cost_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@in_checkout
def test_formulas_match_smpi(script: ModuleType) -> None:
    for (_, _, predict), measured in script.SMPI.items():
        for (ranks, size), us in measured.items():
            assert predict(script.SMPI_LINK, ranks, size).total == pytest.approx(us, rel=0.005)


@in_checkout
def test_built_in_rule_matches_selector(script: ModuleType) -> None:
    """scripts/cost_model.py reads the rules on its own, because the selector needs GPUs."""
    call = regret.Call("allreduce", "float32", "sum", "graph", 4, "")
    cuda = script.built_in_rule(call, "cuda", 1)
    sizes = (1024, (64 << 20) - 1, 64 << 20)
    assert [cuda(size)["use"] for size in sizes] == ["p2p:one_shot", "p2p:two_shot", "nccl"]
    assert script.built_in_rule(call, "host", 4)(1 << 20)["use"] == "hierarchical"


@in_checkout
def test_rule_that_contradicts_its_record_is_found(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    assert script.contradictions() == []
    slow_rule = {"collective": "allreduce", "platform": "cuda", "bytes": "..1K", "use": "nccl"}
    rules = [*script.default_rules(), slow_rule]
    monkeypatch.setattr(script, "default_rules", lambda: rules)
    found = script.contradictions()
    pattern = r"h200x4-p2p: allreduce of \d+, 4 ranks: nccl takes [\d.]+ times as long as p2p:one_shot"
    assert found and any(re.match(pattern, line) for line in found), found


def tuned_records(profile_path: str) -> list[Record]:
    """Two paths that cross between 64 and 128 KiB, as in a record of `isthmus tune --regret`."""
    selected_by = {"a": ["rules"], "b": []}
    selected_by[profile_path] = [*selected_by[profile_path], "profile"]
    return [
        record(size, us, backend=path, round_medians_us=[us] * 3, selected_by=selected_by[path])
        for size in SIZES
        for path, us in (("a", 1.0 + size / 1e4), ("b", 10.0 + size / 1e5))
    ]


def test_regret_of_tuned_profile() -> None:
    ((_, selected),) = regret.selections(tuned_records("b")).items()
    assert selected.rules[128] == "a" and selected.profile[128] == "b"
    best = {size: min(paths.values()) for size, paths in selected.times.items()}
    for chosen, path in ((selected.rules, "a"), (selected.profile, "b")):
        assert regret.selected_regrets(selected.times, chosen) == pytest.approx(
            {size: paths[path] / best[size] for size, paths in selected.times.items()}
        )


@in_checkout
def test_published_figures_match_records() -> None:
    completed = subprocess.run(
        [sys.executable, ROOT / "scripts/cost_model.py", "--check"], capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
