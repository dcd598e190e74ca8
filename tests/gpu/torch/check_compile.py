#!/usr/bin/env python3
"""Compares torch.compile on Isthmus and on PyTorch's NCCL backend: check_compile.py OUT.json [RANKS] [DEVICE].

Each case of tests/python/torch/compiled.py runs twice under torchrun, unmodified and with -m isthmus.torch. A
case compiles to one graph and checks its results. On two ranks, where the order of a sum does not matter, the
results must be bit-identical. Isthmus must not add copies or kernels to an iteration. Optional cases that fail
with NCCL are listed as not supported by PyTorch. With the device cpu, gloo takes the place of NCCL.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import sharing
import torch
from children import NO_END, run_with_children

PROGRAM = Path(__file__).resolve().parents[2] / "python/torch/compiled.py"
LIMIT_S = 160
# Not every version of PyTorch and not every machine supports these.
OPTIONAL = ("gathered_columns", "allreduce_gradient", "fsdp2", "async_tensor_parallel", "cuda_graphs")
CASES = (
    "functional_collectives",
    "coalesced_collectives",
    "calls_in_place",
    "functional_gradients",
    "tensor_parallel",
    "sequence_parallel",
    *OPTIONAL,
)
ON_DEVICES = ("async_tensor_parallel", "cuda_graphs")
COMPARED = ("copies", "kernels")
TOLERANCE = 1e-5  # on more than two ranks, relative to the largest value

Results = dict[str, list[dict[str, Any]]]  # of each rank by case


def run_cases(names: list[str], ranks: int, device: str, before: list[str], folder: Path) -> Results:
    """Runs the cases in one job and, after a case that fails, the rest in another one."""
    folder.mkdir()
    each, shared = sharing.under_torchrun(ranks) if device == "cuda" else (["--no-python"], {})
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    # Shared hosts forbid multicast.
    no_multicast = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}
    variables = shared | no_multicast | {"DEVICE": device, "OMP_NUM_THREADS": "1"}
    results: Results = {}
    while missing := [name for name in names if name not in results]:
        for path in folder.glob("*.json"):
            path.unlink()
        command = [*launcher, *each, sys.executable, *before, str(PROGRAM), str(folder), *missing]
        code, output = run_with_children(command, variables, LIMIT_S)
        written = [folder / f"{rank}.json" for rank in range(ranks)]
        of_ranks = [json.loads(path.read_text()) if path.exists() else {} for path in written]
        for name in missing:
            if not all(name in of_rank and not of_rank[name]["problem"] for of_rank in of_ranks):
                problems = [of_rank[name]["problem"] for of_rank in of_ranks if name in of_rank]
                why = f"did not end within {LIMIT_S} s" if code == NO_END else f"ended with {code}"
                text = next((each for each in problems if each), f"the job {why}: {output[-3000:]}")
                results[name] = [{"problem": text}] * ranks
                print(f"{folder.name}: {name} failed: {text[-1500:]}", flush=True)
                break
            results[name] = [of_rank[name] for of_rank in of_ranks]
            print(f"{folder.name}: {name} took {of_ranks[0][name]['seconds']} s", flush=True)
    return results


def compare_tensors(name: str, ranks: int, ours: Path, theirs: Path) -> str:
    for rank in range(ranks):
        pairs = zip(*(torch.load(each / f"{name}-{rank}.pt") for each in (ours, theirs)), strict=True)
        for index, (mine, other) in enumerate(pairs):
            difference = (mine - other).abs().max().item()
            if ranks == 2:
                is_equal = torch.equal(
                    mine.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)
                )
            else:
                is_equal = difference <= TOLERANCE * other.abs().max().item()
            if not is_equal:
                return f"rank {rank}, tensor {index}: the results differ by up to {difference}"
    return ""


def compare_counts(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    if not ours["paths"] or any(" torch:" in path for path in ours["paths"]):
        return f"not all collectives used Isthmus: {ours['paths']}"
    for kind in COMPARED:
        mine, other = ours["per_iteration"][kind], theirs["per_iteration"][kind]
        if mine > other:
            return f"{mine:g} {kind} per iteration, {other:g} without Isthmus"
    return "" if ours["fused"] == theirs["fused"] else f"operations {ours['fused']}, not {theirs['fused']}"


def main() -> None:
    ranks = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    device = sys.argv[3] if len(sys.argv) > 3 else "cuda"
    names = [name for name in CASES if device == "cuda" or name not in ON_DEVICES]
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        folders = Path(folder, "isthmus"), Path(folder, "torch")
        theirs = run_cases(names, ranks, device, [], folders[1])
        supported = [name for name in names if not theirs[name][0]["problem"] or name not in OPTIONAL]
        ours = run_cases(supported, ranks, device, ["-m", "isthmus.torch"], folders[0])
        for name in names:
            result: dict[str, Any] = {"case": name, "problem": "", "torch": theirs[name][0]}
            if name not in ours:
                result["not supported by PyTorch"] = result["torch"]["problem"]
            else:
                result["isthmus"] = ours[name][0]
                result["problem"] = (
                    theirs[name][0]["problem"]
                    or ours[name][0]["problem"]
                    or compare_tensors(name, ranks, *folders)
                    or next(filter(None, map(compare_counts, ours[name], theirs[name])), "")
                )
            results.append(result)
    Path(sys.argv[1]).write_text(json.dumps(results, indent=1) + "\n")
    print_table(results)
    if any(result["problem"] for result in results):
        raise SystemExit(1)


def print_table(results: list[dict[str, Any]]) -> None:
    """Prints the counts per iteration of rank 0 with Isthmus and without it."""
    for result in results:
        name = f"{result['case']:24}"
        counts = [result.get(way, {}).get("per_iteration", {}) for way in ("isthmus", "torch")]
        if reason := result.get("not supported by PyTorch"):
            print(f"{name}not supported by PyTorch: {reason.strip().splitlines()[-1][:200]}")
        elif all(counts):
            pairs = {kind: [each.get(kind, 0) for each in counts] for kind in sorted(counts[0] | counts[1])}
            text = ", ".join(f"{kind} {own:g} / {other:g}" for kind, (own, other) in pairs.items())
            print(f"{name}{text} (Isthmus / PyTorch) {' '.join(result['isthmus']['fused'])}")
        if result["problem"]:
            print(f"{name}FAILED: {result['problem'][-3000:]}")


if __name__ == "__main__":
    main()
