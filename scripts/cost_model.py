#!/usr/bin/env python3
"""Writes python/isthmus/model/machines.json and the tables of docs/internals/cost_model.md from bench/results.

`--check` fails if they do not match the records. Needs a build of the Python package.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import tomllib
from generated import RESULTS, ROOT, newest, write_or_check

from isthmus.model import accuracy, network, plans, regret
from isthmus.records import Record, Report
from isthmus.sizes import format_size, format_us, parse_size

PAGE = ROOT / "docs/internals/cost_model.md"
MACHINES = ROOT / "python/isthmus/model/machines.json"
DEFAULTS = ROOT / "src/selection/defaults.toml"

# The records of the built-in machines.
MACHINE_RECORDS = {
    "cuda": ("h200x2-p2p", "h200x4-p2p", "h200x2-copy_engine", "h200x4-nccl", "h200x2-memory"),
    "host": ("cpu16-host_sweep", "cpu16-host_threads"),
}
# Records of the same machine, and of which numbers of ranks one can be predicted from the others.
RANK_GROUPS = (("h200x2-p2p", "h200x4-p2p"), ("cpu16-host_sweep",), ("cpu16-host_threads",), ("cpu2-hosts",))
# SMPI of SimGrid 3.32 (Debian 12), with 10 Gbit/s and 5 us per link and two links between hosts: us by ranks
# and bytes. docs/internals/cost_model.md has the configuration.
SMPI_LINK = network.Network(bytes_per_us=1250, latency_us=10)
SMPI = {
    ("allreduce", "lr", network.ring_allreduce): {
        (4, 1024): 61.316, (4, 65536): 138.730, (4, 1048576): 1318.378, (4, 16777216): 20192.746,
        (8, 1024): 141.623, (8, 65536): 231.940, (8, 1048576): 1608.196, (8, 16777216): 23628.292,
    },
    ("allreduce", "rdb", network.recursive_doubling_allreduce): {
        (4, 1024): 21.674, (4, 65536): 124.893, (4, 1048576): 1697.757, (4, 16777216): 26863.581,
        (8, 1024): 32.506, (8, 65536): 187.335, (8, 1048576): 2546.631, (8, 16777216): 40295.367,
    },
    ("allgather", "ring", network.ring_allgather): {
        (4, 1024): 32.506, (4, 65536): 187.335, (4, 1048576): 2546.631,
        (8, 1024): 75.834, (8, 65536): 437.101, (8, 1048576): 5942.125,
    },
    ("alltoall", "pair", network.pairwise_alltoall): {
        (4, 1024): 30.663, (4, 65536): 69.370, (4, 1048576): 659.194, (4, 16777216): 10096.378,
        (8, 1024): 70.816, (8, 65536): 115.975, (8, 1048576): 804.103, (8, 16777216): 11814.151,
    },
}  # fmt: skip
ERROR_HEAD = "records | lines | held-back points | median error | 90th percentile | target met"
NVLINK_BUS_GBS = 18 * 20.6  # NCCL's bandwidth of an H200: 18 links (src/graph/topo.h)


def load(topics: Iterable[str]) -> list[Record]:
    return [record for topic in topics for record in Report.load(newest(topic)).records]


def link(*topics: str) -> str:
    return ", ".join(f"[{topic}](../../bench/results/{newest(topic).name})" for topic in topics)


def table(head: str, rows: Iterable[Iterable[Any]]) -> str:
    columns = head.split(" | ")
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def error_columns(predictions: list[accuracy.Prediction]) -> list[str]:
    summary = accuracy.summarize(predictions)
    return [percent(summary.median), percent(summary.p90)]


def error_row(name: str, predictions: list[accuracy.Prediction]) -> list[str]:
    summary = accuracy.summarize(predictions)
    is_met = summary.median <= 0.05 and summary.p90 <= 0.15
    counts = str(summary.lines), str(summary.points)
    return [name, *counts, *error_columns(predictions), "yes" if is_met else "no"]


def size_errors() -> str:
    topics = {re.sub(r"^\d{4}-\d\d-\d\d-", "", path.stem) for path in RESULTS.glob("*.json")}
    rows = []
    totals: tuple[list[accuracy.Prediction], list[accuracy.Prediction]] = ([], [])
    for topic in sorted(topics):
        records = load([topic])
        predicted, interpolated = accuracy.predict_sizes(records), accuracy.interpolate_sizes(records)
        if predicted:
            rows.append(error_row(link(topic), predicted) + error_columns(interpolated))
        totals[0].extend(predicted)
        totals[1].extend(interpolated)
    rows.append(error_row("all", totals[0]) + error_columns(totals[1]))
    return table(f"{ERROR_HEAD} | interpolation: median | 90th percentile", rows)


def rank_errors() -> str:
    rows = [error_row(link(*group), accuracy.predict_ranks(load(group))) for group in RANK_GROUPS]
    return table(ERROR_HEAD, rows)


def smpi_ratios() -> str:
    rows = []
    for (collective, algorithm, predict), measured in SMPI.items():
        ratios = [predict(SMPI_LINK, ranks, size).total / us for (ranks, size), us in measured.items()]
        spread = (f"{min(ratios):.3f}", f"{max(ratios):.3f}")
        rows.append([collective, f"`{algorithm}`", "4 and 8", str(len(ratios)), *spread])
    return table("collective | algorithm of SMPI | hosts | points | smallest ratio | largest ratio", rows)


def nccl_ratios() -> str:
    rows = []
    for topic in ("h200x2-p2p", "h200x4-p2p"):
        for record in load([topic]):
            if (
                record.provider == "nccl"
                and record.dtype == "float32"
                and record.bytes in (128, 1 << 20, 1 << 27)
            ):
                where = (1, record.ranks, record.bytes, NVLINK_BUS_GBS)
                us = record.time_us.median
                costs = [network.best_nccl(name, *where) for name in ("ring", "tree")]
                ring, tree = (intra.total + inter.total for intra, inter in costs)
                bandwidth = f"{record.busbw_gbs:.0f}" if record.bytes == 1 << 27 else ""
                size = format_size(record.bytes)
                rows.append(
                    [link(topic), size, format_us(us), bandwidth, f"{ring / us:.2f}", f"{tree / us:.2f}"]
                )
    return table("record | bytes | measured us | measured bus bandwidth, GB/s | ring ratio | tree ratio", rows)


def host_ratios() -> str:
    records = load(["cpu2-hosts"])
    machine = plans.fit_machine("cpu2", "host", ["cpu2-host"], load(["cpu2-host"]))
    ratios: dict[tuple[int, int, str, str], list[float]] = {}
    for record in records:
        if record.provider != "isthmus":
            continue
        hosts, gbits = record.model_extra["hosts"], record.model_extra["link_gbits"]
        link_model = network.Network(gbits * 1e3 / 8 * 0.95, latency_us=5, overhead_us=1)
        cluster = plans.Cluster(machine, hosts, record.ranks // hosts, link_model, "shm")
        name = "hierarchical" if record.backend in ("islands", "hierarchical") else "flat ucx"
        found, _ = plans.simulate(cluster, record.collective, record.bytes, [4 << 20])
        predicted = next(plan.time_us for plan in found if plan.name == name)
        key = (hosts, record.ranks // hosts, name, record.collective)
        ratios.setdefault(key, []).append(predicted / record.time_us.median)
    rows = [
        [f"{hosts} x {ranks}", name, collective, *(f"{ratio:.2f}" for ratio in values)]
        for (hosts, ranks, name, collective), values in sorted(ratios.items())
    ]
    return table("hosts x ranks | plan | collective | 1 MiB | 4 MiB | 16 MiB", rows)


def contains(rule: dict[str, Any], name: str, value: Any) -> bool:
    """True if a selector of a rule matches: a value, a list, or a range FIRST..LAST of sizes."""
    wanted = rule.get(name, value)
    if isinstance(wanted, str) and ".." in wanted:
        first, _, last = wanted.partition("..")
        return (not first or parse_size(first) <= value) and (not last or value <= parse_size(last))
    return value in wanted if isinstance(wanted, list) else wanted == value


def built_in_rule(call: regret.Call, platform: str, nodes: int) -> Callable[[int], str]:
    """The path that the built-in rules select without MPI and zero copy. Later rules are stronger."""
    document = tomllib.loads(DEFAULTS.read_text())

    def choose(size: int) -> str:
        query = {
            "collective": call.collective,
            "platform": platform,
            "datatype": call.dtype,
            "nodes": nodes,
            "ranks": call.ranks,
            "bytes": size,
        }
        uses = [
            rule["use"]
            for rule in document["rule"]
            if all(contains(rule, name, value) for name, value in query.items())
            and rule["use"] != "mpi"
            and not rule["use"].endswith("zero_copy")
            and rule.get("platform") != "mixed"
        ]
        backends = [document["platform"].get(platform, {}).get("backend"), *uses]
        return backends[-1].partition(":")[0]

    return choose


def regret_rows(topic: str, platform: str) -> list[list[str]]:
    by_strategy: dict[str, list[float]] = {"built-in rules": [], "64 KiB threshold": [], "model": []}
    for call, times in regret.competing_paths(load([topic])).items():
        nodes = int(match[1]) if (match := re.search(r"hosts=(\d+)", call.variant)) else 1
        rule = built_in_rule(call, platform, nodes)
        # Points whose built-in path the record has. The other columns use the same points.
        comparable = {size: paths for size, paths in times.items() if rule(size) in paths}
        if comparable:
            by_strategy["built-in rules"] += regret.regrets(comparable, rule)
            by_strategy["64 KiB threshold"] += regret.threshold_regrets(comparable)
            by_strategy["model"] += regret.model_regrets(call, comparable)
    rows = []
    for strategy, values in by_strategy.items():
        within = sum(value <= 1.03 for value in values)
        p90 = np.quantile(values, 0.9)
        rows.append(
            [
                link(topic),
                strategy,
                len(values),
                percent(within / len(values)),
                f"{p90:.2f}",
                f"{max(values):.2f}",
            ]
        )
    return rows


def regret_table() -> str:
    topics = {"h200x2-p2p": "cuda", "h200x4-p2p": "cuda", "h200x2-copy_engine": "cuda", "cpu2-hosts": "host"}
    rows = [row for topic, platform in topics.items() for row in regret_rows(topic, platform)]
    return table("record | rules | points | within 3% | 90th percentile | largest", rows)


def machines() -> str:
    documents = {}
    for platform, topics in MACHINE_RECORDS.items():
        facts = Report.load(newest(topics[0])).machine
        name = facts.gpus[0] if facts.gpus else f"{facts.cpu}, {facts.cores} cores"
        machine = plans.fit_machine(name, platform, [newest(topic).name for topic in topics], load(topics))
        documents[platform] = machine.to_json()
    rounded = json.loads(json.dumps(documents), parse_float=lambda text: float(f"{float(text):.6g}"))
    return json.dumps(rounded, indent=1) + "\n"


def page() -> str:
    text = PAGE.read_text()
    for make in (size_errors, rank_errors, smpi_ratios, nccl_ratios, host_ratios, regret_table):
        begin, end = f"<!-- begin {make.__name__} -->\n", f"<!-- end {make.__name__} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(text):
            sys.exit(f"scripts/cost_model.py: {PAGE.name} lacks the section {make.__name__}")
        text = pattern.sub(lambda _, make=make, begin=begin, end=end: f"{begin}\n{make()}\n\n{end}", text)
    return text


def main() -> int:
    return write_or_check(
        {MACHINES: machines(), PAGE: page()}, "cost model: the built-in curves and the tables match the records"
    )


if __name__ == "__main__":
    sys.exit(main())
