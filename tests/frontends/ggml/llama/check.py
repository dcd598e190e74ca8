#!/usr/bin/env python3
"""Compares the results of an unmodified llama.cpp on one device and on several, which sum through
libisthmus_ggml.so. The greedy tokens must be equal with the exact wire, the perplexity equal within noise with
the bfloat16 wire. tests/frontends/ggml/test_llama.py runs it on shares of the CPU, scripts/gpu_check on GPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from libraries import search_path

# Allowed relative differences of the prompt's mean negative log-likelihood. With several devices, the
# order of additions differs.
EXACT_NOISE = 1e-4
BFLOAT16_NOISE = 5e-3


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    loss: float
    sums: int  # computed by Isthmus
    refused: int
    stderr: str


@dataclass(frozen=True)
class Setting:
    """A llama.cpp build and what it runs on."""

    probe: Path
    model: Path
    kind: str  # cpu or gpu
    library: Path  # libisthmus_ggml.so

    def ask(self, devices: int, wire: str = "") -> Answer:
        """Runs the probe once. Preloads Isthmus if a wire is given."""
        extra = {"ISTHMUS_LOG": "debug", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
        extra |= {"LD_PRELOAD": str(self.library), "ISTHMUS_GGML_WIRE": wire} if wire else {}
        completed = subprocess.run(
            [str(self.probe), str(self.model), self.kind, str(devices)],
            env=os.environ | search_path(self.probe.parent) | extra,
            capture_output=True,
            text=True,
            timeout=220,
            check=False,
        )
        if completed.returncode != 0:
            raise RuntimeError(f"the probe failed on {devices} devices: {completed.stderr[-2000:]}")
        answer = json.loads(completed.stdout.splitlines()[-1])
        count = re.search(r"(\d+) allreduces of \d+ elements, (\d+) refused", completed.stderr)
        sums, refused = (int(count[1]), int(count[2])) if count else (0, 0)
        return Answer(answer["tokens"], answer["loss"], sums, refused, completed.stderr)


def compare(setting: Setting, counts: list[int]) -> list[str]:
    """Prints one line per run. Returns the errors found."""
    wrong = []
    single_answer = setting.ask(1)
    print(f"1 device: loss {single_answer.loss:.6f}, tokens {single_answer.tokens[:8]}...")
    for devices in counts:
        for wire, noise in (("exact", EXACT_NOISE), ("bfloat16", BFLOAT16_NOISE)):
            answer = setting.ask(devices, wire)
            difference = abs(answer.loss - single_answer.loss) / single_answer.loss
            same = answer.tokens == single_answer.tokens
            name = f"{devices} devices, {wire} wire"
            print(
                f"{name}: loss {answer.loss:.6f} ({difference:.1e} apart), "
                f"tokens {'equal' if same else 'different'}, {answer.sums} sums by Isthmus"
            )
            if answer.sums == 0 or answer.refused != 0:
                wrong.append(
                    f"{name}: {answer.sums} sums by Isthmus, {answer.refused} refused: {answer.stderr[-500:]}"
                )
            if difference > noise:
                wrong.append(f"{name}: the losses are {difference:.1e} apart, more than {noise}")
            if wire == "exact" and not same:
                wrong.append(f"{name}: tokens {answer.tokens} instead of {single_answer.tokens}")
            if wire == "bfloat16" and answer.loss == single_answer.loss:
                wrong.append(f"{name}: nothing was rounded")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="compare llama.cpp on one device and on several")
    parser.add_argument("probe", type=Path, help="the probe, in the same folder as llama.cpp's libraries")
    parser.add_argument("library", type=Path, help="libisthmus_ggml.so")
    parser.add_argument("--kind", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--devices", default="2,3", help="device counts to compare with a single device")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny.gguf"
        make = [sys.executable, str(Path(__file__).with_name("make_model.py")), str(model)]
        subprocess.run(make, check=True)
        setting = Setting(arguments.probe, model, arguments.kind, arguments.library)
        wrong = compare(setting, [int(count) for count in arguments.devices.split(",")])
    for line in wrong:
        print(f"WRONG {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
