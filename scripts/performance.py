#!/usr/bin/env python3
"""Writes docs/performance.md from bench/results; `--check` fails where the page is not what they say.

A row compares our times with the best peer's at the points that both measured in one file: ratios of medians,
above 1 we are faster. What a row compares stands in ROWS; every figure comes out of the records.
"""

from __future__ import annotations

import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "performance.md"

Record = dict[str, Any]
# What makes a point; only some topics have the last fields.
POINT = (
    "collective",
    "dtype",
    "op",
    "bytes",
    "ranks",
    "m",
    "k",
    "n",
    "size",
    "exchange",
    "potential",
    "test",
    "model",
)


@dataclass(frozen=True)
class Row:
    """`record`: machine and topic; `own`, `peers`: values that fields of their records must have."""

    label: str
    record: str
    own: dict[str, Any]
    over: str
    peers: tuple[dict[str, Any], ...]


def providers(*names: str, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"provider": name} | fields for name in names)


USM = {"provider": "isthmus", "mode": "sycl_usm"}
LISTING1 = providers("listing1", mode="sycl_buffer")
GRAPH = {"provider": "isthmus", "mode": "graph"}
GGML = providers("ggml_nccl", "ggml_internal", "ggml_butterfly", mode="llama_bench")
TORCH_FUSED = providers("torch_sequential", "torch_async_tp")
ENGINES = {"provider": "isthmus_copy_engine_symmetric"}


def application(name: str) -> Row:
    return Row(
        f"{name}, USM",
        "cpu2-applications",
        USM | {"collective": name},
        "Listing 1",
        providers("listing1", collective=name),
    )


def fused(gpus: int, what: str, topic: str) -> Row:
    own = {"provider": "isthmus", "view": "fused"}
    return Row(f"{what}, {gpus} H200", f"h200x{gpus}-{topic}", own, "torch's better way", TORCH_FUSED)


def allreduce(gpus: int) -> Row:
    peers = providers("nccl", "nccl_symmetric", "torch_one_shot", "torch_two_shot", mode="graph")
    over = "NCCL, its symmetric memory" + (", PyTorch's" if gpus == 2 else "")
    return Row(f"allreduce by peer memory, {gpus} H200", f"h200x{gpus}-p2p", GRAPH, over, peers)


ROWS: dict[str, tuple[str, list[Row]]] = {
    "A SYCL program": (
        "[SYCL](sycl.md), [applications](applications.md); Listing 1 is plain MPI through a `host_accessor`",
        [
            Row("all collectives on USM, 4 ranks", "cpu4-run", USM, "Listing 1", LISTING1),
            Row("all collectives on USM, 2 ranks", "cpu2-run", USM, "Listing 1", LISTING1),
            Row(
                "all collectives on buffers, 2 ranks",
                "cpu2-run",
                {"provider": "isthmus", "mode": "sycl_buffer"},
                "Listing 1",
                LISTING1,
            ),
            *(application(name) for name in ("transpose", "halo", "comd")),
        ],
    ),
    "An MPI program, unchanged": (
        "[MPI programs](mpi_preload.md)",
        [
            Row(
                f"collectives, {library}",
                "cpu2-mpi_preload_pairs",
                {"provider": f"{provider}+shim"},
                "without",
                providers(provider),
            )
            for library, provider in (("MPICH", "mpich"), ("Open MPI", "openmpi"))
        ]
        + [
            Row(
                "LAMMPS and HPCC, Open MPI",
                "cpu2-mpi_preload_programs",
                {"provider": "openmpi+shim"},
                "without",
                providers("openmpi"),
            )
        ],
    ),
    "An NCCL program, unchanged": (
        "[NCCL programs](nccl_preload.md), on two GPUs; H100: before "
        "[passed calls](notes/2026-11-25-passed_calls.md) cost less",
        [
            *(
                Row(
                    f"decode, {words}",
                    "h200x2-torch_decode",
                    {"provider": "nccl_preload", "mode": mode},
                    "without",
                    providers("nccl", mode=mode),
                )
                for words, mode in (("graphs", "graph"), ("call by call", "eager"))
            ),
            Row(
                "nccl-tests",
                "h100x2-nccl_tests",
                {"provider": "nccl_preload", "place": "out_of_place"},
                "without",
                providers("nccl", place="out_of_place"),
            ),
            *(
                Row(
                    f"nccl-tests, {what}",
                    f"h100x2-nccl_tests_{name}",
                    {"provider": "nccl_preload", "place": "out_of_place", "mode": mode},
                    "without",
                    providers("nccl", place="out_of_place", mode=mode),
                )
                for name, what, mode in (
                    ("graph", "graphs", "graph"),
                    ("2323", "NCCL 2.32.3", "stream"),
                )
            ),
            Row(
                "llama.cpp over ggml's NCCL",
                "h100x2-llama",
                {"provider": "ggml_nccl_preload"},
                "without",
                providers("ggml_nccl", mode="llama_bench"),
            ),
        ],
    ),
    "A C or Python program on CPUs": (
        "[the host backend](host_backend.md)",
        [
            Row(
                f"{what}, 2 ranks",
                "cpu2-host",
                {"provider": "isthmus", "mode": mode},
                "the best of three MPIs",
                providers("mpich", "openmpi", "impi"),
            )
            for what, mode in (("all collectives", "host"), ("allreduce in the symmetric heap", "shared_heap"))
        ]
        + [
            Row(
                f"{what}, {ranks} ranks",
                f"cpu16-{topic}",
                {"provider": "isthmus", "mode": "host", "ranks": ranks},
                "the best of three MPIs",
                providers("mpich", "openmpi", "impi"),
            )
            for ranks, what, topic in (
                (16, "allreduce, alltoall", "host_threads"),
                (16, "three others", "host_sweep"),
                (64, "on 16 cores", "host_crowded"),
            )
        ],
    ),
    "A PyTorch trainer": (
        "[PyTorch](torch.md), [on CPUs](torch_cpu.md), [copy engines](copy_engine.md)",
        [
            Row(
                f"all_reduce of CPU tensors{links}",
                topic,
                {"provider": "isthmus"},
                "gloo",
                providers("gloo"),
            )
            for links, topic in (
                ("", "cpu2-torch_allreduce"),
                (", 2 ranks, 16 cores", "cpu16-torch_allreduce_2"),
                (", 16 ranks", "cpu16-torch_allreduce_16"),
            )
        ]
        + [
            Row(
                "DDP's and FSDP2's steps, 8 ranks",
                "cpu16-torch_steps_8",
                {"provider": "isthmus"},
                "gloo",
                providers("gloo"),
            )
        ]
        + [
            Row(
                f"FSDP2 step by copy engines, {what}",
                record,
                ENGINES,
                "NCCL through Isthmus",
                providers("isthmus"),
            )
            for what, record in (
                ("GPT-175B's layers, 2 H200", "h200x2-fsdp2_175b"),
                ("GPT-7B's layers, 2 H200", "h200x2-fsdp2_7b"),
                ("GPT-7B's layers, 4 H200", "h200x4-fsdp2"),
            )
        ],
    ),
    "llama.cpp on several GPUs": (
        "[llama.cpp](llama_cpp.md)",
        [
            Row(
                f"7B shape, {gpus} {kind.upper()}",
                f"{kind}x{gpus}-llama",
                {"provider": "isthmus", "mode": "llama_bench"},
                "ggml's best",
                GGML,
            )
            for kind, gpus in (("h100", 2), ("h200", 2), ("h200", 4))
        ],
    ),
    "Collectives and products on GPUs": (
        "[peer memory](p2p.md), [vendor backends](vendor_backends.md), [fused products](fused.md)",
        [
            allreduce(2),
            allreduce(4),
            Row(
                "all collectives over NCCL, 2 H200",
                "h200x2-nccl",
                GRAPH,
                "NCCL",
                providers("nccl", mode="graph"),
            ),
            Row(
                "all collectives over NCCL, 4 H200",
                "h200x4-nccl",
                GRAPH,
                "NCCL",
                providers("nccl", mode="graph"),
            ),
            fused(2, "AllGather + GEMM", "fused"),
            fused(4, "AllGather + GEMM", "fused"),
            fused(4, "AllGather + GEMM, small", "fused_small"),
            fused(2, "GEMM + reduce_scatter", "fused_scatter"),
            fused(4, "GEMM + reduce_scatter", "fused_scatter"),
        ],
    ),
}

HEAD = """# Performance

What each kind of user gains, out of the [records](../bench/results): `scripts/performance.py` writes this
page. More, with missed aims: the pages linked.

A ratio is the peer's median time over ours at one point (collective, datatype, size, shape): above 1 Isthmus is
faster. Of several peers the fastest counts. *Slower*: points below 1. `make bench` measures yours.
"""


def newest(record: str) -> Path:
    found = sorted(RESULTS.glob(f"*-{record}.json"))
    if not found:
        sys.exit(f"scripts/performance.py: bench/results has no record of {record}")
    return found[-1]


def fits(record: Record, fields: dict[str, Any]) -> bool:
    return all(record.get(name) == value for name, value in fields.items())


def point_of(record: Record) -> str:
    return json.dumps([record.get(name) for name in POINT])


def cost(record: Record) -> float:
    """Of llama-bench the tokens count, which it reports as the median over rounds."""
    if "tokens_per_s" in record and record.get("mode") == "llama_bench":
        return 1 / record["tokens_per_s"]
    return record["time_us"]["median"]


def ratios(row: Row) -> list[float]:
    records: list[Record] = json.loads(newest(row.record).read_text())["records"]
    own = {}
    for record in records:
        if fits(record, row.own):
            if point_of(record) in own:
                sys.exit(f"scripts/performance.py: {row.record}, {row.label}: twice {point_of(record)}")
            own[point_of(record)] = cost(record)
    best: dict[str, float] = {}
    for record in records:
        point = point_of(record)
        if point in own and any(fits(record, peer) for peer in row.peers):
            best[point] = min(cost(record), best.get(point, float("inf")))
    found = [best[point] / own[point] for point in own if point in best and own[point] > 0]
    if not found:
        sys.exit(f"scripts/performance.py: {row.record}, {row.label}: no point that both measured")
    return found


def line(row: Row) -> str:
    found = ratios(row)
    spread = f"{min(found):.2f} … {max(found):.2f}" if len(found) > 1 else ""
    slower = sum(ratio < 1 for ratio in found)
    machine = row.record.split("-")[0]
    link = f"[{machine}](../bench/results/{newest(row.record).name})"
    median = f"**{statistics.median(found):.2f}**"
    return f"| {row.label} | {row.over} | {median} | {spread} | {slower}/{len(found)} | {link} |"


def page() -> str:
    parts = [HEAD]
    for user, (links, rows) in ROWS.items():
        table = ["| | over | median | range | slower | record |", "|---|---|---|---|---|---|", *map(line, rows)]
        parts.append(f"## {user}\n\n{links}.\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def main() -> int:
    text = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text)
        return 0
    if not PAGE.is_file() or PAGE.read_text() != text:
        print("docs/performance.md is not what the records say: run scripts/performance.py")
        return 1
    print(f"performance: {sum(len(rows) for _, rows in ROWS.values())} rows are what the records say")
    return 0


if __name__ == "__main__":
    sys.exit(main())
