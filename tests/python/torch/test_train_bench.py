"""bench/gpu/torch_train.py on the CPU: every framework with gloo and Isthmus, and asynchronous calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from rank_processes import RankProcesses

PROGRAM = Path(__file__).resolve().parents[3] / "bench/gpu/torch_train.py"


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), "--device", "cpu", "--ranks", "2", *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ISTHMUS_CONFIG": "none", "ISTHMUS_PROFILE": "none"}
    return subprocess.run(command, capture_output=True, text=True, timeout=170, check=False, env=environment)


def test_training_is_compared_with_gloo(tmp_path: Path) -> None:
    cases = "ddp:gpt-tiny:2:2x16,fsdp2:gpt-tiny:3:2x16:2,zero3:gpt-tiny:2:2x16"
    arguments = ["--cases", cases, "--turns", "2", "--steps", "2", "--loss-steps", "8", "--calls", "4096"]
    arguments += ["--variants", "native,off,on,symmetric,native_in_place,symmetric_in_place,native_alone"]
    completed = run_program(*arguments, "--out", str(tmp_path / "train.json"))
    assert completed.returncode == 0, completed.stdout + completed.stderr
    records = json.loads((tmp_path / "train.json").read_text())["records"]
    steps = {(each["collective"], each["provider"]): each for each in records if "model" in each}
    engines, heap = "isthmus_copy_engine", "isthmus_copy_engine_symmetric"
    both = {engines, "gloo_in_place", "gloo_alone"}
    providers = {"ddp": set(), "zero3": both, "fsdp2": both | {heap, f"{heap}_in_place"}}
    expected = {
        (f"{framework}_step", provider)
        for framework, more in providers.items()
        for provider in {"gloo", "isthmus"} | more
    }
    assert set(steps) == expected
    for (_, provider), each in steps.items():
        is_bound = provider == "gloo_alone"  # it trains for more steps, so its losses differ
        assert each["left_out"] == (["allgather", "reduce_scatter"] if is_bound else []), each
        assert each["wrong"] == (None if is_bound else 0), each
        assert is_bound or each["turn_losses_differ"] == [0, 0], each
        assert each["samples"] == 4 and len(each["turn_step_ms"]) == 2
        assert each["backend"].startswith("torch:gloo" if provider.startswith("gloo") else "shm"), each
    calls = [each for each in records if each["mode"] == "torch_async_host"]
    assert len(calls) == 12 and not any(each["wrong"] for each in calls)


def test_expired_limit_leaves_out_cases(tmp_path: Path) -> None:
    arguments = ["--cases", "ddp:gpt-tiny:2:2x16", "--limit", "0", "--loss-steps", "0"]
    completed = run_program(*arguments, "--out", str(tmp_path / "train.json"))
    assert completed.returncode == 0 and "no time for ddp gpt-tiny" in completed.stdout, completed.stderr


def test_invalid_arguments_are_rejected() -> None:
    for arguments, message in (
        (["--cases", "ddp:gpt-tiny"], "use FRAMEWORK:MODEL:LAYERS:BATCHxLENGTH"),
        (["--cases", "ddp:gpt-tiny:2:2x16:2"], "only fsdp2 has a number of layers"),
        (["--cases", "zero9:gpt-tiny:2:2x16"], "unknown framework zero9; use ddp"),
        (["--variants", "of"], "--variants of: unknown variant; use native"),
        (["--cases", "ddp:gpt-tiny:2:2x16", "--variants", "on"], "none changes ddp"),
    ):
        completed = run_program("--out", "unused.json", *arguments)
        assert completed.returncode == 2 and message in completed.stderr, completed.stderr


def calls_without_gathers() -> tuple[list[int], float, float, bool]:
    """Returns the calls that were left out, what the calls have written, and whether the others are right."""
    import torch
    import torch.distributed as dist

    sys.path.insert(0, str(PROGRAM.parent))
    from torch_bounds import LARGE_BYTES, without

    size = dist.get_world_size()
    large = torch.full((LARGE_BYTES // 4,), dist.get_rank() + 1.0)
    gathered, small = torch.zeros(large.numel() * size), torch.zeros(size)
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
    with without(frozenset({"allgather"})) as calls:
        gather(gathered, large)
        is_filled = bool((gathered == large[0]).all())
        gather(gathered.zero_(), large)
        gather(small, torch.ones(1))
    written = gathered.sum().item()
    gather(gathered, large)
    expected = torch.arange(1.0, size + 1).repeat_interleave(large.numel())
    return calls, written, small.sum().item() / size, is_filled and torch.equal(gathered, expected)


def test_bounds_leave_out_large_calls(ranks: RankProcesses) -> None:
    assert ranks.run(calls_without_gathers) == [([ranks.size << 20] * 2, 0.0, 1.0, True)] * ranks.size
