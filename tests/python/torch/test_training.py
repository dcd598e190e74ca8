"""DDP, FSDP2, tensor parallelism and DeepSpeed's ZeRO reach the losses of gloo on Isthmus' paths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trainers
from rank_processes import BACKEND, RankProcesses
from trainers import Trained

STEPS = 8


def check(
    isthmus_results: list[Trained], gloo: list[Trained], expected: set[str], tolerance: float = 2e-5
) -> None:
    """Checks that losses decrease and agree on each rank up to rounding, and that no collective fell back."""
    for rank, (ours, reference) in enumerate(zip(isthmus_results, gloo, strict=True)):
        assert ours.losses == pytest.approx(reference.losses, rel=tolerance), f"rank {rank}"
        assert ours.losses[-1] < ours.losses[0]
        assert {collective for collective, _ in ours.paths} >= expected
        assert all(path.startswith("shm") for _, path in ours.paths), ours.paths
        assert not reference.paths


def both(
    ranks: RankProcesses, work: Callable[..., Trained], *arguments: object
) -> tuple[list[Trained], list[Trained]]:
    return ranks.run(work, "cpu", STEPS, *arguments), ranks.run(work, "cpu", STEPS, *arguments, backend="gloo")


def test_ddp(ranks: RankProcesses) -> None:
    check(*both(ranks, trainers.ddp), expected={"allreduce", "broadcast", "allgather"})


def test_ddp_with_communication_hook(ranks: RankProcesses) -> None:
    check(*both(ranks, trainers.ddp_compressed), expected={"allreduce"}, tolerance=3e-3)


def test_plain_backend_name(ranks: RankProcesses) -> None:
    check(
        ranks.run(trainers.ddp, "cpu", STEPS, backend="isthmus"),
        ranks.run(trainers.ddp, "cpu", STEPS, backend=BACKEND.replace("isthmus", "gloo")),
        expected={"allreduce"},
    )


def test_fsdp2(ranks: RankProcesses) -> None:
    check(*both(ranks, trainers.fsdp2), expected={"allgather", "reduce_scatter"})


def test_fsdp2_in_bfloat16(ranks: RankProcesses) -> None:
    check(*both(ranks, trainers.fsdp2, True), expected={"allgather", "reduce_scatter"}, tolerance=2e-2)


def test_fsdp2_in_the_symmetric_heap(ranks: RankProcesses) -> None:
    # The only allreduces are the agreements on blocks.
    expected = {"allgather", "reduce_scatter", "allreduce"}
    check(*both(ranks, trainers.fsdp2, False, True), expected=expected)


def test_fsdp2_with_custom_collectives(ranks: RankProcesses) -> None:
    isthmus_results = ranks.run(trainers.fsdp2, "cpu", STEPS, False, False, True)
    gloo = ranks.run(trainers.fsdp2, "cpu", STEPS, backend="gloo")
    check(isthmus_results, gloo, expected={"allgather", "reduce_scatter", "allreduce"})


def test_tensor_parallelism(ranks: RankProcesses) -> None:
    check(*both(ranks, trainers.tensor_parallel), expected={"allreduce"})


ZERO = {
    "stage 1": {"stage": 1},
    "stage 2": {"stage": 2},
    "stage 3": {"stage": 3},
    # without prefetch, every parameter is gathered on demand
    "stage 3, sequential": {"stage": 3, "stage3_prefetch_bucket_size": 0, "stage3_max_live_parameters": 0},
    # pairs keep complete weights, so half of the gathers run in groups of two
    "stage 3, secondary groups": {"stage": 3, "zero_hpz_partition_size": 2, "half": True},
}


def zero(device: str, steps: int, backend: str, options: dict[str, object]) -> Trained:
    return trainers.deepspeed_zero(device, steps, backend, **options)


@pytest.mark.parametrize("options", ZERO.values(), ids=ZERO)
def test_zero(fresh_ranks: Callable[..., RankProcesses], options: dict[str, object]) -> None:
    isthmus_results = fresh_ranks().run(zero, "cpu", STEPS, "isthmus", options, backend=None)
    gloo = fresh_ranks().run(zero, "cpu", STEPS, "gloo", options, backend=None)
    expected = {"allgather"} if options["stage"] == 3 else {"allreduce"}
    check(isthmus_results, gloo, expected, tolerance=2e-2 if options.get("half") else 2e-5)
