#!/usr/bin/env python3
"""llama.cpp, split by tensor over all GPUs: speed and perplexity with Isthmus and with the paths of ggml.

Runs an unmodified llama.cpp (llama-bench, llama-perplexity) on a model of 7B shape with random weights. The
variants are interleaved: Isthmus preloaded, then the NCCL path of ggml (also with the preloaded library for
NCCL), its internal path and its copy-and-add path ("butterfly"). Writes records in the format of
docs/internals/benchmarks.md: `time_us` is a whole test, `tokens_per_s` the median over the repetitions of all
rounds. Needs the packages gguf and numpy (tests/frontends/ggml/llama/make_model.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/frontends/ggml/llama"), str(ROOT / "bench/python")]
from libraries import search_path  # noqa: E402
from measured import time_us, write_records  # noqa: E402

REPORT = {"ISTHMUS_NCCL_REPORT": "1"}
WIDTH = 4096  # of the residual stream, which every allreduce sums
PROMPT, GENERATED = 512, 128
# Bandwidths are not applicable to a whole model.
COMMON = {"algbw_gbs": 0, "busbw_gbs": 0, "model": "llama 7B shape, q8_0, random weights"}
PERPLEXITY = re.compile(r"PPL = ([\d.]+) \+/- ([\d.]+)")


@dataclass(frozen=True)
class Variant:
    """A variant of allreduce: the provider in the records, and the environment that selects it."""

    provider: str
    environment: dict[str, str]


@dataclass
class Series:
    """Samples of one test with one variant, over all rounds."""

    seconds: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)


def variants(library: Path, nccl_preload: Path | None) -> list[Variant]:
    nccl = {"GGML_CUDA_ALLREDUCE": "nccl"}
    return [
        Variant("isthmus", {"LD_PRELOAD": str(library)}),
        Variant("ggml_nccl", nccl),
        *(
            [Variant("ggml_nccl_preload", nccl | {"LD_PRELOAD": str(nccl_preload)} | REPORT)]
            if nccl_preload
            else []
        ),
        Variant("ggml_internal", {"GGML_CUDA_ALLREDUCE": "internal"}),
        Variant("ggml_butterfly", {"GGML_CUDA_ALLREDUCE": "none"}),
    ]


def run(program: Path, arguments: list[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    settings = os.environ | search_path(program.parent) | {"ISTHMUS_LOG": "info"} | environment
    completed = subprocess.run(
        [str(program), *arguments], env=settings, capture_output=True, text=True, timeout=120, check=False
    )
    if completed.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {completed.stderr[-2000:]}")
    used = re.search(r"Isthmus sums over|ncclAllReduce +p2p", completed.stderr) is not None
    if used != ("LD_PRELOAD" in environment) and "tensor" in arguments:
        raise RuntimeError(
            f"{program.name}: Isthmus was unexpectedly {'used' if used else 'not used'}: "
            f"{completed.stderr[-2000:]}"
        )
    return completed


def measure(llama: Path, model: Path, variant: Variant, repetitions: int) -> dict[str, Series]:
    arguments = ["-m", str(model), "-sm", "tensor", "-fa", "on", "-ngl", "99", "-o", "json"]
    arguments += ["-p", str(PROMPT), "-n", str(GENERATED), "-r", str(repetitions)]
    result = {}
    for test in json.loads(run(llama / "llama-bench", arguments, variant.environment).stdout):
        name = f"pp{test['n_prompt']}" if test["n_prompt"] else f"tg{test['n_gen']}"
        result[name] = Series([ns / 1e9 for ns in test["samples_ns"]], test["samples_ts"])
    return result


def record(variant: Variant, test: str, series: Series, gpus: int) -> dict:
    tokens = PROMPT if test.startswith("pp") else 1
    return {
        "collective": "allreduce",
        "dtype": "float32",
        "op": "sum",
        "bytes": tokens * WIDTH * 4,
        "ranks": gpus,
        "provider": variant.provider,
        "mode": "llama_bench",
        "time_us": time_us(1e6 * seconds for seconds in series.seconds),
        **COMMON,
        "test": test,
        "tokens_per_s": round(statistics.median(series.tokens_per_s), 1),
        "samples": len(series.seconds),
    }


def write_text(path: Path) -> None:
    """Writes a fixed text of artificial sentences."""
    words = ("isthmus", "narrow", "water", "bridge", "shore", "current", "grain", "timber", "salt", "letters")
    state, lines = 1, []
    for _ in range(80):
        sentence = []
        for _ in range(9):
            state = (state * 1103515245 + 12345) % 2**31
            sentence.append(words[state // 65536 % len(words)])
        lines.append(" ".join(sentence).capitalize() + ".")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def perplexity(llama: Path, model: Path, text: Path, split: str, environment: dict[str, str]) -> dict:
    arguments = ["-m", str(model), "-f", str(text), "-sm", split, "-fa", "on", "-ngl", "99", "-c", "512"]
    start = time.monotonic()
    completed = run(llama / "llama-perplexity", [*arguments, "--chunks", "6"], environment)
    us = 1e6 * (time.monotonic() - start)
    match = PERPLEXITY.search(completed.stdout + completed.stderr)
    if match is None:
        raise RuntimeError(
            f"llama-perplexity printed no perplexity: {completed.stdout[-500:]} {completed.stderr[-500:]}"
        )
    return {
        "time_us": time_us([us]),
        "perplexity": float(match[1]),
        "perplexity_error": float(match[2]),
    }


def compare_perplexity(llama: Path, model: Path, library: Path, gpus: int) -> list[dict]:
    """Records of one device, then of several with each wire format. Raises if a wire exceeds the noise."""
    text = model.with_suffix(".txt")
    write_text(text)
    preload = {"LD_PRELOAD": str(library)}
    runs = [("one_device", "exact", 1, perplexity(llama, model, text, "none", {}))]
    for mode, wire in (("exact", "exact"), ("bf16_wire", "bfloat16")):
        measured = perplexity(llama, model, text, "tensor", preload | {"ISTHMUS_GGML_WIRE": wire})
        runs.append(("isthmus", mode, gpus, measured))
    reference = runs[0][3]
    records = []
    for provider, mode, ranks, measured in runs:
        value, noise = measured["perplexity"], reference["perplexity_error"]
        print(f"perplexity, {provider}, {mode}: {value:.2f} +/- {measured['perplexity_error']:.2f}")
        if abs(value - reference["perplexity"]) > noise:
            raise RuntimeError(
                f"{mode}: perplexity {value} is outside of {reference['perplexity']} +/- {noise}"
            )
        records.append(
            {"collective": "allreduce", "dtype": "float32", "op": "sum", "bytes": PROMPT * WIDTH * 4}
            | {"ranks": ranks, "provider": provider, "mode": mode, "test": "perplexity"}
            | COMMON
            | measured
        )
    return records


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--llama", type=Path, required=True, help="folder of the programs and libraries of llama.cpp"
    )
    parser.add_argument("--library", type=Path, required=True, help="libisthmus_ggml.so")
    parser.add_argument("--gpus", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=Path("/dev/shm/isthmus-7b.gguf"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument(
        "--nccl-preload", type=Path, help="libisthmus_nccl_preload.so, to measure the NCCL path of ggml with it"
    )
    arguments = parser.parse_args()
    make = [sys.executable, str(ROOT / "tests/frontends/ggml/llama/make_model.py"), str(arguments.model)]
    subprocess.run([*make, "--shape", "7b", "--type", "q8_0"], check=True)
    try:
        records = compare_perplexity(arguments.llama, arguments.model, arguments.library, arguments.gpus)
        all_variants = variants(arguments.library, arguments.nccl_preload)
        series: dict[tuple[str, str], Series] = {}
        for turn in range(arguments.rounds):  # every round has another order
            for variant in all_variants[turn % len(all_variants) :] + all_variants[: turn % len(all_variants)]:
                measured = measure(arguments.llama, arguments.model, variant, arguments.repetitions)
                for test, samples in measured.items():
                    entry = series.setdefault((test, variant.provider), Series())
                    entry.seconds += samples.seconds
                    entry.tokens_per_s += samples.tokens_per_s
    finally:
        arguments.model.unlink(missing_ok=True)
    for (test, provider), samples in series.items():
        variant = next(variant for variant in all_variants if variant.provider == provider)
        records.append(record(variant, test, samples, arguments.gpus))
        print(f"{test:6} {provider:16} {records[-1]['tokens_per_s']:9.1f} tokens/s of {len(samples.seconds)}")
    write_records(arguments.out, records, {"llama.cpp": "of llama-cpp-python 0.3.36"})
    return 0


if __name__ == "__main__":
    sys.exit(main())
