#!/usr/bin/env python3
"""Writes python/isthmus/model/machines.json and the tables of docs/internals/cost_model.md from bench/results.

`--check` fails if they do not match the records. Needs a build of the Python package.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import tomllib
from generated import RESULTS, ROOT, newest, write_or_check

from isthmus.cli import svg
from isthmus.model import accuracy, network, plans, regret
from isthmus.records import Record, Report
from isthmus.sizes import format_size, format_us, parse_size

PAGE = ROOT / "docs/internals/cost_model.md"
MACHINES = ROOT / "python/isthmus/model/machines.json"
DEFAULTS = ROOT / "src/selection/defaults.toml"
PLOTS = ROOT / "docs/images"
PROFILE, RULES, THRESHOLD = "profile of `isthmus tune`", "built-in rules", "64 KiB threshold"
COLORS = {THRESHOLD: "#56B4E9", RULES: "#0072B2", PROFILE: "#D55E00"}  # in the order of drawing

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
# Records that compare backends, with their platform, in addition to those of `isthmus tune --regret`.
COMPETING = {"h200x2-p2p": "cuda", "h200x4-p2p": "cuda", "h200x2-copy_engine": "cuda", "cpu2-hosts": "host"}
# A built-in rule contradicts a record if its path takes more than this multiple of the time of the best path,
# and if every round agrees that the best path is faster.
CONTRADICTION = 1.25


class Limit(NamedTuple):
    """A larger limit for a part of a record, and the reason."""

    regret: float
    reason: str


# By topic, platform, number of ranks and collective.
_NEEDS_HEAP = "copy_engine:push is faster, but needs the symmetric heap, and a rule must request it"
_UNTESTED = "p2p is faster, but from 1 MiB on it was not tested with ranks in threads or next to products"
_MIXED = "packets are faster at 64 and 512 bytes, and in cpu32-host"
_FEW_CALLS = "few calls per size, and shm:one_shot_adaptive timed both kinds of stores in them"
EXCEPTIONS = {
    ("cpu2-tune", "host", 2, "broadcast"): Limit(1.65, _FEW_CALLS),
    ("cpu2-tune", "host", 2, "scatter"): Limit(1.3, _FEW_CALLS),
    ("cpu2-tune", "host", 2, "alltoall"): Limit(1.3, _FEW_CALLS),
    ("cpu16-tune", "host", 16, "alltoall"): Limit(1.35, _MIXED),
    ("h200x2-tune", "cuda", 2, "allgather"): Limit(1.75, _UNTESTED),
    ("h200x2-tune", "cuda", 2, "alltoall"): Limit(1.95, _UNTESTED),
    ("h200x2-tune", "cuda", 2, "broadcast"): Limit(1.65, _UNTESTED),
    ("h200x2-tune", "cuda", 2, "reduce_scatter"): Limit(1.65, _UNTESTED),
    ("h200x2-tune", "cuda", 2, "allreduce"): Limit(1.35, "noise: for 8 bytes, p2p selects p2p:one_shot"),
    ("h200x2-copy_engine", "cuda", 2, "allgather"): Limit(1.5, _NEEDS_HEAP),
    ("h200x2-copy_engine", "cuda", 2, "alltoall"): Limit(1.3, _NEEDS_HEAP),
}
ERROR_HEAD = "records | lines | held-back points | median error | 90th percentile | target met"
NVLINK_BUS_GBS = 18 * 20.6  # NCCL's bandwidth of an H200: 18 links (src/graph/topo.h)


def load(topics: Iterable[str]) -> list[Record]:
    return [record for topic in topics for record in Report.load(newest(topic)).records]


def tuned_topics() -> list[str]:
    """Records of `isthmus tune --regret`."""
    return [topic for topic in record_topics() if re.search(r"-tune(_|$)", topic)]


def record_topics() -> list[str]:
    return sorted({re.sub(r"^\d{4}-\d\d-\d\d-", "", path.stem) for path in RESULTS.glob("*.json")})


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
    rows = []
    totals: tuple[list[accuracy.Prediction], list[accuracy.Prediction]] = ([], [])
    for topic in record_topics():
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
    """True if a selector of a rule matches: a value, a list, or a range. Ranges of bytes exclude their end."""
    wanted = rule.get(name, value)
    if isinstance(wanted, str) and ".." in wanted:
        first, _, last = wanted.partition("..")
        end = parse_size(last) - (1 if name == "bytes" else 0) if last else value
        return (not first or parse_size(first) <= value) and value <= end
    return value in wanted if isinstance(wanted, list) else wanted == value


@functools.cache
def default_rules() -> list[dict[str, Any]]:
    """The built-in rules for private buffers without MPI, weakest first."""
    document = tomllib.loads(DEFAULTS.read_text())
    platforms = [{"platform": name, "use": each["backend"]} for name, each in document["platform"].items()]
    return platforms + [
        rule
        for rule in document["rule"]
        if rule["use"] != "mpi"
        and not rule["use"].endswith("zero_copy")
        and rule.get("memory") != "symmetric"
        and rule.get("platform") != "mixed"
    ]


def built_in_rule(call: regret.Call, platform: str, nodes: int) -> Callable[[int], dict[str, Any]]:
    """The built-in rule for private buffers."""

    def choose(size: int) -> dict[str, Any]:
        query = {
            "collective": call.collective,
            "platform": platform,
            "datatype": call.dtype,
            "op": "sum",
            "nodes": nodes,
            "ranks": call.ranks,
            "bytes": size,
        }
        matches = [
            rule
            for rule in default_rules()
            if all(contains(rule, name, value) for name, value in query.items())
        ]
        return matches[-1]

    return choose


def platform_of(call: regret.Call) -> str:
    """The platform of a call in a record of `isthmus tune`."""
    return "host" if call.mode == "host" else "cuda"


class RulePoint(NamedTuple):
    """A point of a record at which a built-in rule applies, and the regret of its path."""

    rule: dict[str, Any]
    topic: str
    call: regret.Call
    bytes: int
    path: str
    best: str
    regret: float
    has_overlap: bool = False  # the slowest round of the best path took as long as the fastest round of `path`


def rule_points() -> Iterator[RulePoint]:
    """All points of the records whose paths include that of the built-in rule."""
    for topic, platform in COMPETING.items():
        for call, times in regret.competing_paths(load([topic]), keep_algorithms=True).items():
            yield from points_of_call(topic, call, platform, times)
    for topic in tuned_topics():
        records = load([topic])
        rounds = round_times(records)
        for call, selected in regret.selections(records).items():
            for point in points_of_call(topic, call, platform_of(call), selected.times, selected.rules):
                own, best = (rounds[point.call, point.bytes, path] for path in (point.path, point.best))
                yield point._replace(has_overlap=max(best) >= min(own))


def round_times(records: Iterable[Record]) -> dict[tuple[regret.Call, int, str], list[float]]:
    """The medians of the rounds by call, size and path."""
    return {
        (regret.call_of(record), record.bytes, record.backend): (record.model_extra or {}).get(
            "round_medians_us", [record.time_us.median]
        )
        for record in records
    }


def points_of_call(
    topic: str,
    call: regret.Call,
    platform: str,
    times: regret.Times,
    selected: Mapping[int, str] = MappingProxyType({}),
) -> Iterator[RulePoint]:
    """`selected`: the paths of the built-in rules. Without them, a rule selects the only path that fits."""
    rule_of = built_in_rule(call, platform, node_count(call))
    for size, paths in times.items():
        rule = rule_of(size)
        candidates = [path for path in paths if rule["use"] in (path, path.partition(":")[0])]
        path = selected.get(size) or (rule["use"] if rule["use"] in paths else None)
        if path is None and len(candidates) == 1:
            path = candidates[0]
        if path in candidates:
            best = min(paths, key=paths.__getitem__)
            yield RulePoint(rule, topic, call, size, path, best, paths[path] / paths[best])


def node_count(call: regret.Call) -> int:
    match = re.search(r"hosts=(\d+)", call.variant)
    return int(match[1]) if match else 1


def rule_text(rule: dict[str, Any]) -> str:
    """A rule in the grammar of ISTHMUS_RULE."""
    values = {key: ",".join(value) if isinstance(value, list) else value for key, value in rule.items()}
    return " ".join(f"{key}={value}" for key, value in values.items())


def rule_sources() -> str:
    """The table of built-in rules with the records that support them."""
    points: dict[int, list[RulePoint]] = {}
    for point in rule_points():
        points.setdefault(default_rules().index(point.rule), []).append(point)
    rows = []
    for index, rule in enumerate(default_rules()):
        found = points.get(index, [])
        ratios = [point.regret for point in found]
        topics = list(dict.fromkeys(point.topic for point in found))
        figures = (
            [percent(sum(ratio <= 1.03 for ratio in ratios) / len(ratios)), f"{max(ratios):.2f}"]
            if ratios
            else ["", ""]
        )
        rows.append([f"`{rule_text(rule)}`", ", ".join(map(link, topics)), len(found) or "", *figures])
    return table("rule | record | points | within 3% | largest regret", rows)


def contradictions() -> list[str]:
    """The points at which the path of a built-in rule is slower than the limit allows."""
    lines = []
    for point in rule_points():
        place = (point.topic, platform_of(point.call), point.call.ranks, point.call.collective)
        limit = EXCEPTIONS.get(place, Limit(CONTRADICTION, "")).regret
        if point.regret > limit and not point.has_overlap:
            lines.append(
                f"{point.topic}: {point.call.collective} of {format_size(point.bytes)}, "
                f"{point.call.ranks} ranks: {point.path} takes {point.regret:.2f} times as long as "
                f"{point.best} ({rule_text(point.rule)})"
            )
    return lines


Regrets = dict[str, list[tuple[int, float]]]  # by strategy: bytes and regret of all points


def tuned_regrets() -> dict[tuple[str, str, str, int], Regrets]:
    """Regrets of the records of `isthmus tune`, by topic, platform, mode and number of ranks."""
    groups: dict[tuple[str, str, str, int], Regrets] = {}
    for topic in tuned_topics():
        for call, selected in regret.selections(load([topic])).items():
            group = groups.setdefault((topic, platform_of(call), call.mode, call.ranks), defaultdict(list))
            group[PROFILE] += regret.selected_regrets(selected.times, selected.profile).items()
            group[RULES] += regret.selected_regrets(selected.times, selected.rules).items()
            group[THRESHOLD] += regret.threshold_regrets(selected.times, regret.MISSING_REGRET).items()
    return groups


def compared_regrets(topic: str, platform: str) -> Regrets:
    """Regrets of a record in COMPETING, at the points that contain the path of the built-in rule."""
    groups: Regrets = defaultdict(list)
    for call, times in regret.competing_paths(load([topic])).items():
        rule = built_in_rule(call, platform, node_count(call))

        def backend(size: int, rule: Callable[[int], dict[str, Any]] = rule) -> str:
            return rule(size)["use"].partition(":")[0]

        comparable = {size: paths for size, paths in times.items() if backend(size) in paths}
        if comparable:
            groups[RULES] += regret.regrets(comparable, backend).items()
            groups[THRESHOLD] += regret.threshold_regrets(comparable).items()
            groups["model"] += regret.model_regrets(call, comparable).items()
    return groups


def regret_rows(topic: str, where: str, groups: Regrets) -> Iterator[list[Any]]:
    for strategy, points in groups.items():
        values = [value for _, value in points]
        share = percent(sum(value <= 1.03 for value in values) / len(values))
        yield [
            link(topic),
            where,
            strategy,
            len(values),
            share,
            f"{np.quantile(values, 0.9):.2f}",
            f"{max(values):.2f}",
        ]


def regret_table() -> str:
    rows = [
        row
        for (topic, platform, mode, ranks), groups in tuned_regrets().items()
        for row in regret_rows(
            topic, f"{platform}, {ranks} ranks" + (f", {mode}" if platform == "cuda" else ""), groups
        )
    ]
    for topic, platform in COMPETING.items():
        rows += regret_rows(topic, platform, compared_regrets(topic, platform))
    images = [f"![Slowdown on {name}](../images/{file.name})" for name, file in plot_files().items()]
    text = table("record | ranks | rules | points | within 3% | 90th percentile | largest", rows)
    return "\n\n".join([text, *images])


def plot_files() -> dict[str, Path]:
    """The plots of regret, by platform."""
    platforms = dict.fromkeys(platform for _, platform, *_ in tuned_regrets())
    return {platform: PLOTS / f"regret_{platform}.svg" for platform in platforms}


def regret_plots() -> dict[Path, str]:
    """The slowdown of all points of the records of `isthmus tune`, over bytes."""
    plots = {}
    for platform, file in plot_files().items():
        series = [
            svg.Series(
                strategy.replace("`", ""),
                color,
                [
                    (size, max(100 * (value - 1), 0.1))
                    for (_, each, *_), groups in tuned_regrets().items()
                    if each == platform
                    for size, value in groups[strategy]
                ],
                has_points=True,
            )
            for strategy, color in COLORS.items()
        ]
        title = f"{platform}: slowdown against the fastest path in percent, at least 0.1 (lower is better)"
        plots[file] = svg.line_chart(title, "%", series, format_size, alone=True) + "\n"
    return plots


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
    for make in (size_errors, rank_errors, smpi_ratios, nccl_ratios, host_ratios, regret_table, rule_sources):
        begin, end = f"<!-- begin {make.__name__} -->\n", f"<!-- end {make.__name__} -->"
        pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.S)
        if not pattern.search(text):
            sys.exit(f"scripts/cost_model.py: {PAGE.name} lacks the section {make.__name__}")
        text = pattern.sub(lambda _, make=make, begin=begin, end=end: f"{begin}\n{make()}\n\n{end}", text)
    return text


def main() -> int:
    texts = {MACHINES: machines(), PAGE: page()} | regret_plots()
    code = write_or_check(texts, "cost model: the built-in curves and the tables match the records")
    for line in contradictions():
        print(f"src/selection/defaults.toml contradicts a record: {line}")
        code = 1
    return code


if __name__ == "__main__":
    sys.exit(main())
