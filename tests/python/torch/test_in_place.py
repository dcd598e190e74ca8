"""gather_in_place: FSDP2 trains to the same bits, without copies of the parameters."""

from __future__ import annotations

from typing import Any

import gathered_layers
import pytest
import torch
import torch.distributed as dist
import trainers
from rank_processes import BACKEND, RankError, RankProcesses
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from isthmus.torch import gather_in_place
from isthmus.torch._compile import torch_version

pytestmark = pytest.mark.skipif(torch_version() < (2, 11), reason="gather_in_place requires PyTorch 2.11")
STEPS = 5
ALL = {"minimum_bytes": 1}


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "options",
    [ALL, {"minimum_bytes": 4096}, {"minimum_bytes": 1 << 30}, ALL | {"symmetric": True}],
    ids=["all", "large", "none", "symmetric"],
)
def test_training_has_the_same_bits(ranks: RankProcesses, options: dict[str, Any], half: bool) -> None:
    expected = ranks.run(trainers.fsdp2, "cpu", STEPS, half)
    trained = ranks.run(trainers.fsdp2, "cpu", STEPS, half, False, False, options)
    assert [each.losses for each in trained] == [each.losses for each in expected]


@pytest.mark.parametrize("reshard", [False, 2], ids=["kept", "resharded to 2"])
def test_resharding_after_the_forward_pass(ranks: RankProcesses, reshard: bool | int) -> None:
    expected = ranks.run(trainers.fsdp2, "cpu", STEPS, False, False, False, None, reshard)
    trained = ranks.run(trainers.fsdp2, "cpu", STEPS, False, False, False, ALL, reshard)
    assert [each.losses for each in trained] == [each.losses for each in expected]


def test_every_backend(ranks: RankProcesses) -> None:
    expected = ranks.run(trainers.fsdp2, "cpu", STEPS, backend="gloo")
    trained = ranks.run(trainers.fsdp2, "cpu", STEPS, False, False, False, ALL, backend="gloo")
    assert [each.losses for each in trained] == [each.losses for each in expected]


@pytest.mark.parametrize("way", gathered_layers.WAYS)
def test_layers_compute_with_their_parameters(ranks: RankProcesses, way: str) -> None:
    assert min(ranks.run(gathered_layers.check_way, way, 16, "cpu")) > 0


class CountOperators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        self.names.append(str(function.overloadpacket))
        return function(*arguments, **(named or {}))


def sharded_layers(options: dict[str, Any] | None, **more: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Linear(12, 12) for _ in range(4)))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model:
        fully_shard(layer, mesh=mesh, **more)
    fully_shard(model, mesh=mesh)
    if options is not None:
        gather_in_place(model, **options)
    return model


def gradients_with(options: dict[str, Any] | None, way: str) -> list[torch.Tensor]:
    from torch.distributed.tensor import Shard
    from torch.utils.checkpoint import checkpoint

    columns = {"shard_placement_fn": lambda each: Shard(each.dim() - 1)}
    layers = sharded_layers(options, **(columns if way == "columns" else {}))
    x = torch.randn(3, 12, generator=torch.Generator().manual_seed(dist.get_rank()), requires_grad=True)
    for _ in range(2):  # the second time, slots are used again
        y = x
        for layer, after in zip(layers, [*layers[1:], None], strict=True):
            if way == "asynchronous" and after is not None:
                after.unshard(async_op=True)
            y = checkpoint(layer, y, use_reentrant=False) if way == "checkpoints" else layer(y)
        y.square().sum().backward()
    return [each.grad.full_tensor() for each in layers.parameters()] + [x.grad]


@pytest.mark.parametrize("way", ["columns", "asynchronous", "checkpoints"])
def test_gradients_have_the_same_bits(ranks: RankProcesses, way: str) -> None:
    expected = ranks.run(gradients_with, None, way)
    for ours, reference in zip(ranks.run(gradients_with, ALL, way), expected, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, reference, strict=True))


def copies_of_a_step(options: dict[str, Any] | None) -> int:
    model = sharded_layers(options)
    with CountOperators() as counter:
        model(torch.randn(3, 12)).sum().backward()
    return counter.names.count("fsdp.split_with_sizes_copy")


def test_no_parameter_is_copied(ranks: RankProcesses) -> None:
    assert min(ranks.run(copies_of_a_step, None)) > 0
    assert ranks.run(copies_of_a_step, ALL) == [0] * ranks.size


def copies_with_kept_memory() -> int:
    model = sharded_layers(ALL)
    for layer in model:
        for each in layer._get_fsdp_state()._fsdp_param_group.fsdp_params:
            each.keep_unsharded_storage = True  # as set_keep_unsharded_storage of PyTorch 2.15
    with CountOperators() as counter:
        model(torch.randn(3, 12))
    return counter.names.count("fsdp.split_with_sizes_copy")


def test_kept_memory_is_not_replaced(ranks: RankProcesses) -> None:
    assert min(ranks.run(copies_with_kept_memory)) > 0


def slots_of_training() -> tuple[set[int], int]:
    """The distinct addresses of the weights, and the bytes of the freed weights."""
    model = sharded_layers(ALL)
    addresses: set[int] = set()
    for layer in model:
        layer.register_forward_pre_hook(lambda layer, _: addresses.add(layer.weight.data_ptr()))
    for _ in range(3):
        model(torch.randn(3, 12)).sum().backward()
    parameters = [each for layer in model for each in layer._get_fsdp_state()._fsdp_param_group.fsdp_params]
    return addresses, sum(each._unsharded_param.untyped_storage().nbytes() for each in parameters)


def test_layers_take_turns_in_two_slots(ranks: RankProcesses) -> None:
    for addresses, bytes_left in ranks.run(slots_of_training):
        assert len(addresses) == 2
        assert bytes_left == 0


def gather_from_heap_of_gloo() -> None:
    sharded_layers(ALL | {"symmetric": True})(torch.randn(3, 12))


def test_heap_needs_isthmus(ranks: RankProcesses) -> None:
    with pytest.raises(RankError, match="symmetric is True, but the backend gloo has no symmetric heap"):
        ranks.run(gather_from_heap_of_gloo, backend=BACKEND.replace("isthmus", "gloo"))


def test_arguments() -> None:
    with pytest.raises(ValueError, match="no module of FSDP2"):
        gather_in_place(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="minimum_bytes is 0; pass at least 1 byte"):
        gather_in_place(nn.Linear(2, 2), minimum_bytes=0)
