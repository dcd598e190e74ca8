"""The operators of _matmul.py on CPU tensors, compared with separate operators and with one rank."""

from __future__ import annotations

import itertools
from typing import Any

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
    with pytest.raises(ValueError, match=r"input has the shape .* and the type Double"):
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


BLOCKS = [((1, 1), 1), ((3, 40), 16), ((2, 3, 65), 33), ((0, 8), 4)]


def block_of(dtype: torch.dtype, shape: tuple[int, ...], columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The input and the weight of this rank, of equal shapes on all ranks."""
    generator = torch.Generator().manual_seed(dist.get_rank() + 5)
    return (
        torch.randn(shape, generator=generator).to(dtype),
        torch.randn((columns, shape[-1]), generator=generator).to(dtype),
    )


def gather(own: torch.Tensor) -> torch.Tensor:
    blocks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(blocks, own.contiguous())
    return torch.cat(blocks)


def check_blocks() -> None:
    name, rank, size = dist.group.WORLD.group_name, dist.get_rank(), dist.get_world_size()
    for dtype, (shape, columns) in itertools.product(DTYPES, BLOCKS):
        own, weight = block_of(dtype, shape, columns)
        gathered = gather(own)
        output, returned = torch.ops.isthmus.allgather_matmul(own, weight, name, return_gathered=True)
        assert_same(returned, gathered)
        assert_same(output.flatten(0, -2), torch.mm(gathered.flatten(0, -2), weight.t()))
        without, empty = torch.ops.isthmus.allgather_matmul(own, weight, name)
        assert empty.numel() == 0
        assert_same(without, output)

        parts, weight = block_of(dtype, (size * shape[0], *shape[1:]), columns)
        exact = parts.double() @ weight.double().t()
        dist.all_reduce(exact)
        block = torch.ops.isthmus.matmul_reduce_scatter(parts, weight, name)
        torch.testing.assert_close(block.double(), exact.chunk(size)[rank], rtol=0.02, atol=0.2)


def test_blocks_are_gathered_and_scattered(ranks: RankProcesses) -> None:
    ranks.run(check_blocks)


def check_gradients() -> None:
    """A layer of both operators against the same layer on one rank with all weights and float64."""
    name, rank, size = dist.group.WORLD.group_name, dist.get_rank(), dist.get_world_size()
    own, up = block_of(torch.float32, (3, 2, 24), 10)
    down = block_of(torch.float32, (1, 10), 7)[1]
    leaves = [each.clone().requires_grad_() for each in (own, up, down)]
    hidden, gathered = torch.ops.isthmus.allgather_matmul(*leaves[:2], name, return_gathered=True)
    result = torch.ops.isthmus.matmul_reduce_scatter(hidden.relu(), leaves[2], name)
    factor = torch.randn(result.shape, generator=torch.Generator().manual_seed(rank))
    ((result * factor).sum() + (rank + 1) * gathered.square().sum()).backward()

    inputs = gather(own).double().requires_grad_()
    ups, downs = (gather(each).double().requires_grad_() for each in (up, down))
    parts = zip(ups.chunk(size), downs.chunk(size), strict=True)
    whole = sum((inputs @ first.t()).relu() @ second.t() for first, second in parts)
    total = (whole * gather(factor)).sum() + sum(range(1, size + 1)) * inputs.square().sum()
    total.backward()
    torch.testing.assert_close(result.double(), whole.chunk(size)[rank], rtol=1e-4, atol=1e-4)
    for leaf, reference in zip(leaves, (inputs, ups, downs), strict=True):
        expected = reference.grad.chunk(size)[rank]
        torch.testing.assert_close(leaf.grad.double(), expected, rtol=1e-4, atol=1e-4)


def test_gradients_are_those_of_one_rank(ranks: RankProcesses) -> None:
    ranks.run(check_gradients)


def partial_gradients() -> None:
    """Each tensor alone requires a gradient."""
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    own, up = block_of(torch.float32, (size, 24), 10)
    for operator in (torch.ops.isthmus.allgather_matmul, torch.ops.isthmus.matmul_reduce_scatter):
        whole = [each.clone().requires_grad_() for each in (own, up)]

        def run(*tensors: torch.Tensor, operator: Any = operator) -> torch.Tensor:
            result = operator(*tensors, name)
            output = result[0] if isinstance(result, tuple) else result
            output.square().sum().backward()
            return output

        expected = run(*whole)
        for index in range(2):
            tensors = [own, up]
            tensors[index] = tensors[index].clone().requires_grad_()
            assert_same(run(*tensors).detach(), expected.detach())
            torch.testing.assert_close(tensors[index].grad, whole[index].grad)


def test_tensors_without_gradients_cost_nothing(ranks: RankProcesses) -> None:
    ranks.run(partial_gradients)


def wrong_blocks() -> None:
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    if size > 1:
        with pytest.raises(ValueError, match=f"must be a multiple of the {size} ranks of the group; pad it"):
            torch.ops.isthmus.matmul_reduce_scatter(torch.ones(size + 1, 4), torch.ones(2, 4), name)
    for operator in (torch.ops.isthmus.allgather_matmul, torch.ops.isthmus.matmul_reduce_scatter):
        with pytest.raises(ValueError, match=r"weight has the shape \[2, 5\].*input requires \[n, 4\]"):
            operator(torch.ones(size, 4), torch.ones(2, 5), name)
        with pytest.raises(ValueError, match="must be float16, bfloat16 or float32"):
            operator(torch.ones(size, 4, dtype=torch.int32), torch.ones(2, 4, dtype=torch.int32), name)


def test_wrong_blocks_are_rejected(ranks: RankProcesses) -> None:
    ranks.run(wrong_blocks)


def compiled_training() -> None:
    name = dist.group.WORLD.group_name

    def layer(own: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
        hidden, _ = torch.ops.isthmus.allgather_matmul(own, up, name)
        return torch.ops.isthmus.matmul_reduce_scatter(hidden.relu(), down, name)

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    tensors = [*block_of(torch.bfloat16, (4, 32), 16), block_of(torch.bfloat16, (1, 16), 8)[1]]
    results = []
    for function in (layer, compiled):
        leaves = [each.clone().requires_grad_() for each in tensors]
        output = function(*leaves)
        output.float().square().sum().backward()
        results.append([output.detach(), *(leaf.grad for leaf in leaves)])
    for eager, traced in zip(*results, strict=True):
        assert_same(traced, eager)


def test_training_step_is_one_graph(ranks: RankProcesses) -> None:
    ranks.run(compiled_training)


def block_operator_check() -> None:
    name, size = dist.group.WORLD.group_name, dist.get_world_size()
    for operator in (torch.ops.isthmus.allgather_matmul, torch.ops.isthmus.matmul_reduce_scatter):
        tensors = [each.requires_grad_() for each in block_of(torch.float32, (2 * size, 32), 8)]
        torch.library.opcheck(operator.default, (*tensors, name))


def test_fake_kernels_and_gradients_of_blocks_agree(ranks: RankProcesses) -> None:
    ranks.run(block_operator_check)
