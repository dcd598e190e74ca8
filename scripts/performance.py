#!/usr/bin/env python3
"""Writes docs/reference/performance.md and docs/images/allreduce.svg from bench/results.

`--check` fails if they do not match the records.

A row compares Isthmus with the best peer at the points that one record file has for both, as ratios of medians.
Above 1, Isthmus is faster. ROWS defines the comparisons. Every number comes from the records.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from generated import ROOT, newest, write_or_check

PAGE = ROOT / "docs/reference/performance.md"
PICTURE = ROOT / "docs/images/allreduce.svg"

Record = dict[str, Any]
# The fields that identify a point. Only some topics have the last ones.
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
    """`record`: machine and topic. `own`, `peers`: required values of fields of their records."""

    label: str
    record: str
    own: dict[str, Any]
    peer_label: str
    peers: tuple[dict[str, Any], ...]


def providers(*names: str, **fields: Any) -> tuple[dict[str, Any], ...]:
    return tuple({"provider": name} | fields for name in names)


USM = {"provider": "isthmus", "mode": "sycl_usm"}
LISTING1 = providers("listing1", mode="sycl_buffer")
GRAPH = {"provider": "isthmus", "mode": "graph"}
GGML = providers("ggml_nccl", "ggml_internal", "ggml_butterfly", mode="llama_bench")
ENGINES = {"provider": "isthmus_copy_engine_symmetric"}


def application(name: str) -> Row:
    return Row(
        f"{name}, USM",
        "cpu2-applications",
        USM | {"collective": name},
        "Listing 1",
        providers("listing1", collective=name),
    )


def fused(gpus: str, product: str, mode: str = "stream") -> Row:
    """`gpus`: for example 2 H200."""
    is_gather = product.startswith("AllGather")
    collective = "allgather_gemm" if is_gather else "gemm_reduce_scatter"
    own = {"provider": "isthmus", "view": "fused", "collective": collective, "mode": mode}
    if is_gather:
        peers = "faster of PyTorch's all-gather + matmul and `fused_all_gather_matmul`"
    else:
        peers = "faster of PyTorch's matmul + reduce-scatter and `fused_matmul_reduce_scatter`"
    label = f"{product}, {gpus}{', in graphs' if mode == 'graph' else ''}"
    peer = providers("torch_sequential", "torch_async_tp", mode=mode)
    count, kind = gpus.lower().split()
    return Row(label, f"{kind}x{count}-fused", own, peers, peer)


def allreduce(gpus: int) -> Row:
    peers = providers("nccl", "nccl_symmetric", "torch_one_shot", "torch_two_shot", mode="graph")
    peer_label = "NCCL with and without symmetric memory" + (", PyTorch" if gpus == 2 else "")
    return Row(f"allreduce with `p2p`, {gpus} H200", f"h200x{gpus}-p2p", GRAPH, peer_label, peers)


def kernels(label: str, collective: str, peer_label: str, *peers: str, **fields: Any) -> Row:
    """Compares with kernels of other libraries in graphs."""
    own = {"provider": "isthmus", "collective": collective, "mode": "graph"} | fields
    peer = providers(*peers, "trtllm", "trtllm_custom", collective=collective, mode="graph")
    return Row(label, "h200x2-p2p_peers", own, peer_label, peer)


ROWS: dict[str, tuple[str, list[Row]]] = {
    "SYCL programs": (
        "See [SYCL](../guide/sycl.md) and [applications](../internals/benchmarks.md#applications). Listing 1 "
        "of the SuCL paper is plain MPI through a `host_accessor`.",
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
    "MPI programs, unmodified": (
        "See [MPI programs](../guide/mpi_programs.md).",
        [
            Row(
                f"collectives, {library}",
                "cpu2-mpi_preload_pairs",
                {"provider": f"{provider}+shim"},
                f"{library} alone",
                providers(provider),
            )
            for library, provider in (("MPICH", "mpich"), ("Open MPI", "openmpi"))
        ]
        + [
            Row(
                "LAMMPS and HPCC",
                "cpu2-mpi_preload_programs",
                {"provider": "openmpi+shim"},
                "Open MPI alone",
                providers("openmpi"),
            )
        ],
    ),
    "NCCL programs, unmodified": (
        "See [NCCL programs](../guide/nccl_programs.md). All rows use two GPUs. The H100 records were measured "
        "before [calls that pass through](../internals/design/nccl_pass_through.md) became cheaper.",
        [
            *(
                Row(
                    f"PyTorch decode steps, {description}",
                    "h200x2-torch_decode",
                    {"provider": "nccl_preload", "mode": mode},
                    "NCCL alone",
                    providers("nccl", mode=mode),
                )
                for description, mode in (("CUDA graphs", "graph"), ("without graphs", "eager"))
            ),
            *(
                Row(
                    f"nccl-tests, {description}",
                    f"h100x2-nccl_tests_{name}",
                    {"provider": "nccl_preload", "place": "out_of_place", "mode": mode},
                    "NCCL alone",
                    providers("nccl", place="out_of_place", mode=mode),
                )
                for name, description, mode in (
                    ("2323", "NCCL 2.32.3", "stream"),
                    ("2323", "NCCL 2.32.3, CUDA graphs", "graph"),
                    ("graph", "NCCL 2.28.9, CUDA graphs", "graph"),
                )
            ),
            Row(
                "llama.cpp with NCCL",
                "h100x2-llama",
                {"provider": "ggml_nccl_preload"},
                "NCCL alone",
                providers("ggml_nccl", mode="llama_bench"),
            ),
        ],
    ),
    "C and Python programs on CPUs": (
        "See [shared memory](../internals/shm.md).",
        [
            Row(
                f"{subject}, 2 ranks",
                "cpu2-host",
                {"provider": "isthmus", "mode": mode},
                "best of three MPIs",
                providers("mpich", "openmpi", "impi"),
            )
            for subject, mode in (
                ("all collectives", "host"),
                ("allreduce in the symmetric heap", "shared_heap"),
            )
        ]
        + [
            Row(
                f"{subject}, {ranks} ranks on {cores} cores",
                topic,
                {"provider": "isthmus", "mode": "host", "ranks": ranks},
                "best of three MPIs",
                providers("mpich", "openmpi", "impi"),
            )
            for ranks, cores, subject, topic in (
                (8, 16, "eight collectives", "cpu16-host_sweep"),
                *((ranks, 32, "twelve collectives", "cpu32-host") for ranks in (4, 8, 16, 32)),
                (64, 16, "allreduce, alltoall and broadcast", "cpu16-host_threads"),
            )
        ]
        + [
            Row(
                "allreduce of 1 and 4 MiB in the symmetric heap, 2 to 16 ranks on 32 cores",
                "cpu32-host",
                {"provider": "isthmus", "mode": "shared_heap"},
                "Intel MPI",
                providers("impi next to heap"),
            )
        ],
    ),
    "PyTorch": (
        "See [PyTorch](../guide/pytorch.md) and [copy engines](../internals/copy_engine.md).",
        [
            Row(
                f"all_reduce of CPU tensors, {ranks} ranks on {cores} cores",
                topic,
                {"provider": "isthmus", "collective": "allreduce", "ranks": ranks},
                "gloo",
                providers("gloo"),
            )
            for ranks, cores, topic in (
                (2, 2, "cpu2-torch_allreduce"),
                *((ranks, 32, "cpu32-torch") for ranks in (2, 4, 8, 16)),
            )
        ]
        + [
            Row(
                f"{name} steps on CPUs, 2 to 16 ranks",
                "cpu32-torch",
                {"provider": "isthmus", "collective": f"{name.lower()}_step"},
                "gloo",
                providers("gloo"),
            )
            for name in ("DDP", "FSDP2")
        ]
        + [
            Row(
                f"{name} steps, 2 H200",
                "h200x2-training_steps",
                {"provider": "isthmus", "mode": mode},
                "NCCL",
                providers("nccl", mode=mode),
            )
            for name, mode in (("DDP", "ddp"), ("FSDP2", "fsdp2"), ("ZeRO-3", "zero3"))
        ]
        + [
            Row(
                "FSDP2 steps with copy engines, 2 H200",
                "h200x2-training_steps",
                ENGINES | {"mode": "fsdp2"},
                "NCCL",
                providers("nccl", mode="fsdp2"),
            ),
            *(
                Row(
                    f"{name} steps in place{more}, 2 H200",
                    "h200x2-training_steps",
                    {"provider": f"isthmus{provider}_in_place", "mode": mode},
                    "NCCL",
                    providers("nccl", mode=mode),
                )
                for name, mode, more, provider in (
                    ("FSDP2", "fsdp2", "", ""),
                    ("FSDP2", "fsdp2", ", copy engines", "_copy_engine"),
                    ("ZeRO-3", "zero3", ", copy engines", "_copy_engine"),
                )
            ),
            Row(
                "asynchronous calls of two ranks, host time, 2 H200",
                "h200x2-training_steps",
                {"provider": "isthmus", "mode": "torch_async_host"},
                "NCCL",
                providers("nccl", mode="torch_async_host"),
            ),
            Row(
                "decode steps of Llama 3 8B, compiled, CUDA graphs, 2 H200",
                "h200x2-torch_decode",
                {"provider": "isthmus"},
                "NCCL",
                providers("nccl"),
            ),
            *(
                Row(
                    f"decode steps with the preloaded library{more}, 2 H100",
                    "h100x2-torch_decode",
                    {"provider": "nccl_preload", "mode": mode},
                    "NCCL",
                    providers("nccl", mode=mode),
                )
                for mode, more in (("graph", ", CUDA graphs"), ("eager", ""))
            ),
        ],
    ),
    "llama.cpp on several GPUs": (
        "See [llama.cpp](../guide/llama_cpp.md).",
        [
            Row(
                f"7B-shaped model, {gpus} {kind.upper()}",
                f"{kind}x{gpus}-llama",
                {"provider": "isthmus", "mode": "llama_bench"},
                "best method of ggml",
                GGML,
            )
            for kind, gpus in (("h100", 2), ("h200", 2), ("h200", 4))
        ],
    ),
    "Collectives and fused operators on GPUs": (
        "See [peer-memory kernels](../internals/p2p.md), [vendor libraries](../internals/nccl.md) and "
        "[fused operators](../guide/fused.md).",
        [
            allreduce(2),
            allreduce(4),
            kernels(
                "allreduce with `p2p`, 2 H200, against kernels",
                "allreduce",
                "fastest kernel of FlashInfer (TensorRT-LLM's and vLLM's)",
                "vllm",
            ),
            kernels(
                "allreduce, residual addition and RMSNorm, 2 H200",
                "allreduce_rmsnorm",
                "fastest fused kernel of FlashInfer (TensorRT-LLM's)",
                backend="p2p",
            ),
            Row(
                "every collective with `p2p`, 2 H200, NCCL 2.32.3",
                "h200x2-p2p_peers",
                GRAPH | {"test": "every collective"},
                "fastest of NCCL's ways",
                providers("nccl", "nccl_symmetric", "nccl_copy_engine", mode="graph"),
            ),
            Row(
                "all collectives with `nccl`, 4 H200",
                "h200x4-nccl",
                GRAPH,
                "NCCL alone",
                providers("nccl", mode="graph"),
            ),
            fused("2 H200", "AllGather + GEMM"),
            fused("2 H200", "AllGather + GEMM", "graph"),
            fused("4 H100", "AllGather + GEMM"),
            fused("2 H200", "GEMM + ReduceScatter"),
            fused("4 H100", "GEMM + ReduceScatter"),
        ],
    ),
}

HEAD = """# Performance

This page summarizes the performance of each kind of program. `scripts/performance.py` generates it from the
[records](../../bench/results). The linked pages describe the measurements and the targets that were missed.

A ratio is the median time of the peer divided by the median time of Isthmus at one point (collective, datatype,
size, shape). Above 1, Isthmus is faster. If there are several peers, the fastest one counts. "Points" is the
number of points that a row summarizes, and "slower" is the number of points with a ratio below 1. `make bench`
measures your machine.
"""


def matches(record: Record, fields: dict[str, Any]) -> bool:
    return all(record.get(name) == value for name, value in fields.items())


def point_of(record: Record) -> str:
    return json.dumps([record.get(name) for name in POINT])


def cost(record: Record) -> float:
    """The median time; for llama-bench the inverse of the tokens per second, a median over rounds."""
    if "tokens_per_s" in record and record.get("mode") == "llama_bench":
        return 1 / record["tokens_per_s"]
    return record["time_us"]["median"]


def ratios(row: Row) -> list[float]:
    records: list[Record] = json.loads(newest(row.record).read_text())["records"]
    own = {}
    for record in records:
        if matches(record, row.own):
            if point_of(record) in own:
                sys.exit(
                    f"scripts/performance.py: {row.record}, {row.label}: duplicate point {point_of(record)}"
                )
            own[point_of(record)] = cost(record)
    best: dict[str, float] = {}
    for record in records:
        point = point_of(record)
        if point in own and any(matches(record, peer) for peer in row.peers):
            best[point] = min(cost(record), best.get(point, float("inf")))
    values = [best[point] / own[point] for point in own if point in best and own[point] > 0]
    if not values:
        sys.exit(f"scripts/performance.py: {row.record}, {row.label}: no point that both measured")
    return values


def line(row: Row) -> str:
    values = ratios(row)
    spread = f"{min(values):.2f} | {max(values):.2f}" if len(values) > 1 else " | "
    slower = sum(ratio < 1 for ratio in values)
    machine = row.record.split("-")[0]
    link = f"[{machine}](../../bench/results/{newest(row.record).name})"
    median = f"**{statistics.median(values):.2f}**"
    return f"| {row.label} | {row.peer_label} | {median} | {spread} | {len(values)} | {slower} | {link} |"


def page() -> str:
    parts = [HEAD]
    for heading, (introduction, rows) in ROWS.items():
        head = "| | compared with | median | minimum | maximum | points | slower | record |"
        table = [head, "|---|---|---|---|---|---|---|---|", *map(line, rows)]
        parts.append(f"## {heading}\n\n{introduction}\n\n" + "\n".join(table) + "\n")
    return "\n".join(parts)


def load_module(name: str) -> ModuleType:
    """Loads a module of the package that needs neither the package nor a build."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "python" / "isthmus" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def picture() -> str:
    """The picture of the index page: the time of an allreduce in a SYCL program over its size."""
    records: list[Record] = json.loads(newest("cpu4-run").read_text())["records"]
    svg = load_module("cli/svg")
    lines = [
        svg.Series(
            label,
            color,
            [
                (record["bytes"], record["time_us"]["median"])
                for record in records
                if record["collective"] == "allreduce" and matches(record, fields)
            ],
            is_dashed=fields["provider"] != "isthmus",
        )
        for label, color, fields in (
            ("Isthmus, SYCL USM", "#D55E00", USM),
            ("MPI, host_accessor", "#0072B2", LISTING1[0]),
            ("MPICH, host memory", "#56B4E9", {"provider": "mpich"}),
        )
    ]
    title = "allreduce of float32, 4 ranks on 4 CPU cores: time (lower is better)"
    return svg.line_chart(title, "us", lines, load_module("sizes").format_size, alone=True) + "\n"


def main() -> int:
    count = sum(len(rows) for _, rows in ROWS.values())
    return write_or_check({PAGE: page(), PICTURE: picture()}, f"performance: {count} rows match the records")


if __name__ == "__main__":
    sys.exit(main())
