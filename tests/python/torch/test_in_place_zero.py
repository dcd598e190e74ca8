"""gather_in_place with an engine of DeepSpeed: training has the same bits, and parameters are not copied."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import trainers
from rank_processes import RankError, RankProcesses

from isthmus.torch import _in_place_zero, gather_in_place
from isthmus.torch._compile import torch_version

pytestmark = pytest.mark.skipif(torch_version() < (2, 11), reason="gather_in_place requires PyTorch 2.11")
STEPS = 5
ALL = {"minimum_bytes": 1}
SEVERAL = {"stage3_prefetch_bucket_size": 10**6}  # parameters in a call


def train(backend: str, options: dict[str, Any] | None, zero: dict[str, Any]) -> tuple[list[float], int]:
    """Returns the losses and the number of gathers in place."""
    gathers = 0
    original = _in_place_zero._Gather

    class Gather(original):
        def __init__(self, *arguments: Any) -> None:
            nonlocal gathers
            gathers += 1
            super().__init__(*arguments)

    def prepare(engine: Any) -> None:
        if options is None:
            return
        shards = [each.ds_tensor.clone() for each in engine.module.parameters()]
        gather_in_place(engine, **options)
        moved = [each.ds_tensor for each in engine.module.parameters()]
        assert all(torch.equal(a, b) for a, b in zip(shards, moved, strict=True))

    _in_place_zero._Gather = Gather
    return trainers.deepspeed_zero("cpu", STEPS, backend, prepare, stage=3, **zero).losses, gathers


@pytest.mark.parametrize("backend", ["isthmus", "gloo"])
@pytest.mark.parametrize(
    ("options", "zero"),
    [
        (ALL, {}),
        (ALL, SEVERAL),
        (ALL | {"symmetric": True}, SEVERAL | {"half": True}),
        (ALL | {"symmetric": True}, SEVERAL),
        ({"minimum_bytes": 1000}, SEVERAL | {"half": True}),
        ({"minimum_bytes": 1 << 30}, SEVERAL),
        (ALL, {"zero_hpz_partition_size": 2, "half": True}),
    ],
    ids=["all", "several", "symmetric", "symmetric float32", "large", "none", "secondary groups"],
)
def test_training_has_the_same_bits(
    fresh_ranks: Callable[..., RankProcesses], backend: str, options: dict[str, Any], zero: dict[str, Any]
) -> None:
    if backend == "gloo" and "symmetric" in options:
        pytest.skip("gloo has no symmetric heap")
    expected = fresh_ranks().run(train, backend, None, zero, backend=None)
    trained = fresh_ranks().run(train, backend, options, zero, backend=None)
    assert [losses for losses, _ in trained] == [losses for losses, _ in expected]
    assert all((gathers > 0) == (options["minimum_bytes"] < 1 << 30) for _, gathers in trained)


def error_of(backend: str, options: dict[str, Any], zero: dict[str, Any]) -> str:
    def prepare(engine: Any) -> None:
        with pytest.raises(ValueError) as caught:
            gather_in_place(engine, **options)
        raise caught.value

    trainers.deepspeed_zero("cpu", 1, backend, prepare, **zero)
    return ""


def test_unsuitable_engines(fresh_ranks: Callable[..., RankProcesses]) -> None:
    for backend, options, zero, message in (
        ("isthmus", ALL, {"stage": 2}, "does not shard parameters; set the stage of zero_optimization to 3"),
        ("gloo", ALL | {"symmetric": True}, {"stage": 3}, "the backend gloo has no symmetric heap"),
    ):
        with pytest.raises(RankError, match=message):
            fresh_ranks().run(error_of, backend, options, zero, backend=None)
