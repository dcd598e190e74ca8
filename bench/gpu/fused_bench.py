#!/usr/bin/env python3
"""Fused allgather + GEMM (or GEMM + reduce_scatter) on all GPUs of this machine, against two variants of torch.

    PYTHONPATH=<build>/python fused_bench.py [--kind KIND] [--ranks N] [--out FILE]
                                             [--trace FILE] [--plans FILE] [--shapes MxKxN,...]
                                             [--sweep 1,2,4] [--graphs] [--limit SECONDS]

The shapes include both sides of the point where copying and computing take equally long. Every element of every
shape is verified against float64 before and after timing, and again with random delays of the ranks. Exit code
1: an element is wrong, or a shape was left out for lack of time. 77: fewer than two GPUs.
"""

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
from measured import write_records

SEED = [(2048, 2048, 1024), (4096, 4096, 2048), (4096, 4096, 4096), (8192, 4096, 4096), (16384, 4096, 4096)]
BALANCE = [(8192, 8192, n) for n in (512, 2048, 8192, 1024, 4096, 16384)]
TRACED = (8192, 8192, 2048)  # copying and computing take about equally long


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=0, help="number of GPUs (0: all)")
    parser.add_argument("--kind", default="allgather_gemm", choices=["allgather_gemm", "gemm_reduce_scatter"])
    parser.add_argument("--out", default="", help="file for the records")
    parser.add_argument("--trace", default="", help=f"file for a Perfetto trace of one run of {TRACED}")
    parser.add_argument("--plans", default="", help="JSON file for all measurements and plans")
    parser.add_argument("--shapes", default="", help="MxKxN,... instead of the default list")
    parser.add_argument("--sweep", default="", help="additional chunk counts to measure")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--output", default="float16")
    parser.add_argument("--graphs", action="store_true", help="time launches of CUDA graphs")
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--limit", type=float, default=60, help="start no shape after this many seconds")
    return parser.parse_args()


def main() -> int:
    arguments = parse()
    import fused_products
    import torch
    from fused_products import figures

    ranks = arguments.ranks or torch.cuda.device_count()
    if min(ranks, torch.cuda.device_count()) < 2:
        print("SKIPPED: needs at least two GPUs")
        return 77
    shapes = [
        tuple(map(int, text.split("x"))) for text in arguments.shapes.split(",") if text
    ] or SEED + BALANCE
    job = fused_products.Job(
        shapes=shapes,
        kind=arguments.kind,
        platform="cuda",
        dtype=arguments.dtype,
        output=arguments.output,
        samples=arguments.samples,
        min_sample_us=1500,
        late_runs=2,
        traced=TRACED if arguments.trace else None,
        graphs=arguments.graphs,
        sweep=tuple(int(text) for text in arguments.sweep.split(",") if text),
        limit_s=arguments.limit,
    )
    result = fused_products.run(job, ranks, arguments.limit + 9, lambda line: print(line, flush=True))
    records = []
    for shape in result["shapes"]:
        records += figures.records(
            shape, ranks, arguments.dtype, arguments.output, "cuda", "graph" if arguments.graphs else "stream"
        )
    if arguments.out:
        write_records(arguments.out, records, result["versions"])
    for path, content in (
        (arguments.trace, {"traceEvents": next((s["trace"] for s in result["shapes"] if "trace" in s), [])}),
        (arguments.plans, result),
    ):
        if path:
            with open(path, "w", encoding="utf-8") as file:
                json.dump(content, file)
    wrong = sum(figures.wrong(shape) for shape in result["shapes"])
    print(
        f"{wrong} wrong elements, {len(result['shapes'])} of {len(shapes)} shapes {result['failed']}",
        flush=True,
    )
    return int(wrong > 0 or len(result["shapes"]) < len(shapes) or bool(result["failed"]))


if __name__ == "__main__":
    sys.exit(main())
