"""`isthmus run --ggml` from the command line."""

from __future__ import annotations

import subprocess
import sys


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "isthmus", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_preloads_the_library_and_sets_the_wire(monkeypatch) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    completed = run("--ggml", "--wire", "exact", "env")
    assert completed.returncode == 0, completed.stderr
    variables = dict(line.split("=", 1) for line in completed.stdout.splitlines() if "=" in line)
    assert variables["LD_PRELOAD"].endswith("/libisthmus_ggml.so")
    assert variables["ISTHMUS_GGML_WIRE"] == "exact"
    assert completed.stderr == "", "a program that does not use ggml must not notice"


def test_invalid_arguments_are_refused() -> None:
    several = run("--ggml", "-n", "2", "env")
    assert several.returncode == 2
    assert "one process" in several.stderr
    wire = run("--ggml", "--wire", "half", "env")
    assert wire.returncode == 2
    assert "rule, exact, bfloat16" in wire.stderr
