#!/usr/bin/env python3
"""Checks an unmodified llama.cpp with its SYCL backend on shares of the CPU that look like GPUs.

Compares the loss of a prompt and 32 greedy tokens on 1, 2 and 3 devices, summed by Isthmus with both wires and
by ggml itself. `make llama-sycl-check` runs it after scripts/setup_llama_sycl.

The first run compiles ggml's kernels for the CPU device and caches them in .peers/llama_sycl/programs; the
attention of single tokens takes 15 minutes on an idle core. The check covers function on DPC++'s OpenCL CPU
device, but not speed, Level Zero or peer access.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "llama"))
from check import BFLOAT16_NOISE, EXACT_NOISE  # noqa: E402

from isthmus import layout, machine, records  # noqa: E402

RUNTIME = ROOT / ".peers" / "llama_sycl"
LLAMA = RUNTIME / "llama"
LONGEST_S = 5400  # limit for one run of the probe; the first one compiles
PROMPT_BYTES = 160 * 384 * 4  # size of one sum of the prompt
OWN = {2: "ggml_own", 3: "ggml_butterfly"}  # ggml-sycl sums two devices; for more, ggml copies and adds


@dataclass(frozen=True)
class Case:
    """One run of the probe."""

    model: str  # f32 or q8_0
    devices: int
    provider: str  # isthmus, or ggml's own method
    wire: str = ""
    one_context: bool = False

    def __str__(self) -> str:
        context = ", one context" if self.one_context else ""
        wire = f" {self.wire}" if self.wire else ""
        return f"{self.model}, {self.devices} devices, {self.provider}{wire}{context}"


@dataclass(frozen=True)
class Answer:
    """Results of the probe and the statistics that Isthmus printed."""

    tokens: list[int]
    loss: float
    sums: int
    refused: int
    seconds: float


def cases(model: str) -> list[Case]:
    found = [Case(model, 1, "one_device")]
    for devices in (2, 3):
        found.append(Case(model, devices, OWN[devices]))
        found += [Case(model, devices, "isthmus", wire) for wire in ("exact", "bfloat16")]
    return [*found, Case(model, 2, "isthmus", "exact", one_context=True)]


def variables(case: Case) -> dict[str, str]:
    libraries = [str(LLAMA / "libmachine.so")]
    if case.provider == "isthmus":
        libraries.append(str(layout.library_folder() / "libisthmus_ggml.so"))
    found = {
        "LD_LIBRARY_PATH": str(RUNTIME / "lib"),
        "LD_PRELOAD": " ".join(libraries),
        "OCL_ICD_FILENAMES": str(RUNTIME / "lib" / "libintelocl.so"),
        "ONEAPI_DEVICE_SELECTOR": "opencl:cpu",
        "SYCL_PROGRAM_COMPILE_OPTIONS": "-cl-std=CL3.0",
        "MACHINE_DEVICES": str(case.devices),
        "MACHINE_PROGRAMS": str(RUNTIME / "programs"),
        "ISTHMUS_LOG": "debug",
        "ISTHMUS_CONFIG": "none",
        "ISTHMUS_PROFILE": "none",
        "ISTHMUS_GGML_WIRE": case.wire or "rule",
    }
    return found | ({"MACHINE_ONE_CONTEXT": "1"} if case.one_context else {})


def ask(case: Case, model: Path) -> Answer:
    start = time.monotonic()
    kind = "gpu" if case.devices == 1 else "cpu"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [str(LLAMA / "probe"), str(model), kind, str(case.devices)],
            env=os.environ | variables(case),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        while True:  # print progress, because the first runs compile for a long time
            try:
                output, _ = process.communicate(timeout=60)
                break
            except subprocess.TimeoutExpired:
                print(f"  {case}: {time.monotonic() - start:.0f} s (compiling?)", flush=True)
                if time.monotonic() - start > LONGEST_S:
                    process.kill()
        log.seek(0)
        text = log.read()
    if process.returncode != 0:
        raise RuntimeError(f"{case}: the probe ended with {process.returncode}: {text[-2000:]}")
    answer = json.loads(output.splitlines()[-1])
    count = re.search(r"(\d+) allreduces of \d+ elements, (\d+) refused", text)
    sums, refused = (int(count[1]), int(count[2])) if count else (0, 0)
    return Answer(answer["tokens"], answer["loss"], sums, refused, time.monotonic() - start)


def judge(case: Case, answer: Answer, reference: Answer) -> list[str]:
    """Returns the errors of a run with several devices. Runs without Isthmus are recorded but not checked."""
    if case.provider != "isthmus":
        return []
    wrong = []
    difference = abs(answer.loss - reference.loss) / reference.loss
    if answer.sums == 0 or answer.refused != 0:
        wrong.append(f"{case}: {answer.sums} sums by Isthmus, {answer.refused} refused")
    if difference > (EXACT_NOISE if case.wire == "exact" else BFLOAT16_NOISE):
        wrong.append(f"{case}: the losses are {difference:.1e} apart")
    if case.wire == "exact" and answer.tokens != reference.tokens:
        wrong.append(f"{case}: tokens {answer.tokens} instead of {reference.tokens}")
    if case.wire == "bfloat16" and answer.loss == reference.loss:
        wrong.append(f"{case}: nothing was rounded")
    return wrong


def record(case: Case, answer: Answer, reference: Answer) -> dict[str, object]:
    """The record of one probe run. Its time includes loading, on two cores, so it contains no bandwidth."""
    microseconds = answer.seconds * 1e6
    return {
        "collective": "allreduce",
        "dtype": "float32",
        "op": "sum",
        "bytes": PROMPT_BYTES,
        "ranks": case.devices,
        "provider": case.provider,
        "mode": case.wire or "own",
        "time_us": {"min": microseconds, "median": microseconds, "max": microseconds},
        "algbw_gbs": 0,
        "busbw_gbs": 0,
        "model": f"tiny, {case.model}, random weights",
        "one_context": case.one_context,
        "loss": answer.loss,
        "tokens": len(answer.tokens),
        "tokens_as_one_device": sum(a == b for a, b in zip(answer.tokens, reference.tokens, strict=True)),
        "sums": answer.sums,
        "refused": answer.refused,
    }


def write(path: Path, found: list[dict[str, object]]) -> None:
    versions = {
        "llama.cpp": "b11669 of cyllama-sycl 0.7.0",
        "sycl": "2025.3.3",
        "isthmus": machine.versions()["isthmus"],
    }
    new_records = [records.Record.model_validate(each) for each in found]
    metadata = {"commit": machine.commit(), "machine": machine.describe(), "versions": versions}
    path.parent.mkdir(parents=True, exist_ok=True)
    records.report_from(new_records, command="make llama-sycl-check", **metadata).save(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="output file for the record")
    arguments = parser.parse_args()
    wrong, found = [], []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("f32", "q8_0"):
            model = Path(folder) / f"{kind}.gguf"
            make = [sys.executable, str(HERE.parent / "llama" / "make_model.py"), str(model), "--type", kind]
            subprocess.run(make, check=True)
            reference = None
            for case in cases(kind):
                answer = ask(case, model)
                reference = reference or answer
                wrong += judge(case, answer, reference)
                found.append(record(case, answer, reference))
                same = found[-1]["tokens_as_one_device"]
                print(
                    f"{case}: loss {answer.loss:.6f}, {same} of {len(answer.tokens)} tokens as one device, "
                    f"{answer.sums} sums by Isthmus, {answer.refused} refused, {answer.seconds:.0f} s",
                    flush=True,
                )
    if arguments.out is not None:
        write(arguments.out, found)
    for line in wrong:
        print(f"WRONG {line}")
    print("llama-sycl-check: CPU devices in place of GPUs:", "FAILED" if wrong else "passed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
