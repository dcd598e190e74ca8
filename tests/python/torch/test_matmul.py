"""torch.ops.isthmus.matmul_allreduce on CPU tensors, compared with linear and all_reduce."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses
from test_values import assert_same

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
SHAPES = [((1, 1), 1), ((3, 40), 16), ((2, 3, 65), 33), ((0, 8), 4)]


def inputs_of(dtype: torch.dtype, shape: tuple[int, ...], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the weight of this rank. Every rank has another part of the inner dimension."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    inner = shape[-1] + dist.get_rank()
    return (
        torch.randn((*shape[:-1], inner), generator=generator).to(dtype),
        torch.randn((columns, inner), generator=generator).to(dtype),
    )


def separate_operators(own: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    product = torch.mm(own.flatten(0, -2), weight.t()).view(*own.shape[:-1], len(weight))
    dist.all_reduce(product)
    return product


def check_bits() -> None:
    name = dist.group.WORLD.group_name
    for dtype in DTYPES:
        for shape, columns in SHAPES:
            own, weight = inputs_of(dtype, shape, columns)
            result = torch.ops.isthmus.matmul_allreduce(own, weight, name)
            assert_same(result, separate_operators(own, weight))
            exact = own.double() @ weight.double().t()
            dist.all_reduce(exact)
            torch.testing.assert_close(result.double(), exact, rtol=0.02, atol=0.1)


def test_results_have_the_bits_of_separate_operators(ranks: RankProcesses) -> None:
    ranks.run(check_bits)


def other_layouts() -> None:
    name = dist.group.WORLD.group_name
    own, weight = inputs_of(torch.bfloat16, (6, 40), 24)
    expected = separate_operators(own, weight)
    wide = torch.cat([weight, weight], 1)[:, : weight.shape[1]]
    for each in (weight.t().contiguous().t(), wide):
        assert_same(torch.ops.isthmus.matmul_allreduce(own.t().contiguous().t(), each, name), expected)


def test_tensors_may_have_any_strides(ranks: RankProcesses) -> None:
    ranks.run(other_layouts)


def bad_arguments() -> None:
    own, weight = inputs_of(torch.float16, (2, 64), 8)
    name, call = dist.group.WORLD.group_name, torch.ops.isthmus.matmul_allreduce
    with pytest.raises(ValueError, match=r"input has the shape .* and the type torch\.float64"):
        call(own.double(), weight.double(), name)
    with pytest.raises(ValueError, match="at least two dimensions"):
        call(own[0], weight, name)
    with pytest.raises(ValueError, match=r"weight has the shape .*input requires \[n, "):
        call(own, weight[:, 1:], name)
    with pytest.raises(ValueError, match="no_grad"):
        call(own, weight.requires_grad_(), name)


def test_bad_arguments_are_rejected(ranks: RankProcesses) -> None:
    ranks.run(bad_arguments)


def foreign_group() -> None:
    own, weight = inputs_of(torch.float16, (2, 64), 8)
    with pytest.raises(ValueError, match="has no isthmus backend for cpu"):
        torch.ops.isthmus.matmul_allreduce(own, weight, dist.group.WORLD.group_name)
    dist.barrier()  # gloo fails on a rank that connects after another one has left


def test_other_backends_are_rejected(ranks: RankProcesses) -> None:
    ranks.run(foreign_group, backend="gloo")


def compiled_layer() -> None:
    name = dist.group.WORLD.group_name

    def layer(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.ops.isthmus.matmul_allreduce(x * 2, weight, name) + 1

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (4, 7):
        own, weight = inputs_of(torch.bfloat16, (tokens, 64), 16)
        with torch.no_grad():
            assert_same(compiled(own, weight), layer(own, weight))


def test_compiled_layer_is_one_graph(ranks: RankProcesses) -> None:
    ranks.run(compiled_layer)


def operator_check() -> None:
    for dtype in DTYPES:
        torch.library.opcheck(
            torch.ops.isthmus.matmul_allreduce.default,
            (*inputs_of(dtype, (3, 32), 8), dist.group.WORLD.group_name),
            test_utils=("test_schema", "test_faketensor", "test_aot_dispatch_dynamic"),
        )


def test_fake_kernel_agrees_with_the_operator(ranks: RankProcesses) -> None:
    ranks.run(operator_check)
