#!/usr/bin/env python3
"""Compares what an unmodified llama.cpp computes on one device with what it computes on several, which sum
through libisthmus_ggml.so: the same greedy tokens on the exact wire, the same perplexity within noise on the
bfloat16 wire. Run by tests/frontends/ggml/test_llama.py on shares of the CPU, by scripts/gpu_check on GPUs.
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

# Relative differences of the prompt's mean negative log-likelihood. Several devices add in another order.
EXACT_NOISE = 1e-4
BFLOAT16_NOISE = 5e-3


@dataclass(frozen=True)
class Answer:
    tokens: list[int]
    loss: float
    sums: int  # that went through Isthmus
    refused: int
    said: str


@dataclass(frozen=True)
class Setting:
    """Which llama.cpp, on what."""

    probe: Path
    model: Path
    kind: str  # cpu or gpu
    library: Path  # libisthmus_ggml.so

    def ask(self, devices: int, wire: str = "") -> Answer:
        """One run of the probe; with a wire, Isthmus is preloaded."""
        extra = {"ISTHMUS_LOG": "debug", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
        extra |= {"LD_PRELOAD": str(self.library), "ISTHMUS_GGML_WIRE": wire} if wire else {}
        done = subprocess.run(
            [str(self.probe), str(self.model), self.kind, str(devices)],
            env=os.environ | search_path(self.probe.parent) | extra,
            capture_output=True,
            text=True,
            timeout=220,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"the probe failed on {devices} devices: {done.stderr[-2000:]}")
        answer = json.loads(done.stdout.splitlines()[-1])
        count = re.search(r"(\d+) allreduces of \d+ elements, (\d+) refused", done.stderr)
        sums, refused = (int(count[1]), int(count[2])) if count else (0, 0)
        return Answer(answer["tokens"], answer["loss"], sums, refused, done.stderr)


def compare(setting: Setting, counts: list[int]) -> list[str]:
    """Prints a line for each run; returns what is wrong."""
    wrong = []
    one = setting.ask(1)
    print(f"1 device: loss {one.loss:.6f}, tokens {one.tokens[:8]}...")
    for devices in counts:
        for wire, noise in (("exact", EXACT_NOISE), ("bfloat16", BFLOAT16_NOISE)):
            many = setting.ask(devices, wire)
            apart = abs(many.loss - one.loss) / one.loss
            same = many.tokens == one.tokens
            name = f"{devices} devices, {wire} wire"
            print(
                f"{name}: loss {many.loss:.6f} ({apart:.1e} apart), "
                f"tokens {'the same' if same else 'others'}, {many.sums} sums by Isthmus"
            )
            if many.sums == 0 or many.refused != 0:
                wrong.append(f"{name}: {many.sums} sums by Isthmus, {many.refused} refused: {many.said[-500:]}")
            if apart > noise:
                wrong.append(f"{name}: the losses are {apart:.1e} apart, more than {noise}")
            if wire == "exact" and not same:
                wrong.append(f"{name}: tokens {many.tokens} instead of {one.tokens}")
            if wire == "bfloat16" and many.loss == one.loss:
                wrong.append(f"{name}: nothing was rounded")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description="llama.cpp on one device and on several, summed by Isthmus")
    parser.add_argument("probe", type=Path, help="the built probe, beside llama.cpp's libraries")
    parser.add_argument("library", type=Path, help="libisthmus_ggml.so")
    parser.add_argument("--kind", choices=("cpu", "gpu"), default="cpu")
    parser.add_argument("--devices", default="2,3", help="numbers of devices to compare with one")
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
