"""isthmus.torch.tree_all_reduce: sums that have the same bits for any number of ranks."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_processes import RankProcesses

import isthmus
import isthmus.torch

# 12 leaves can be divided among 1 to 4 ranks, also into parts that are not subtrees. The second size is summed
# in slices.
LEAVES, SIZES = 12, (33, 70001)


def leaves_of(dtype: torch.dtype, size: int) -> torch.Tensor:
    """All leaves, with exponents so different that each order of additions gives other bits."""
    generator = torch.Generator().manual_seed(size)
    scale = torch.randint(-6, 7, (LEAVES, size), generator=generator, dtype=torch.float64)
    return (torch.randn(LEAVES, size, generator=generator, dtype=torch.float64) * 2.0**scale).to(dtype)


def tree_sum(leaves: torch.Tensor) -> torch.Tensor:
    """The levels of the tree in NumPy."""
    wide = np.float64 if leaves.dtype == torch.float64 else np.float32
    level = list(leaves.to(torch.float64).numpy().astype(wide))
    while len(level) > 1:
        level = [sum(level[first + 1 : first + 2], level[first]) for first in range(0, len(level), 2)]
    return torch.from_numpy(level[0]).to(leaves.dtype)


def share_of(leaves: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    return leaves.chunk(dist.get_world_size(group))[dist.get_rank(group)]


def sums_for_all_numbers_of_ranks() -> int:
    checked = 0
    for ranks in range(1, dist.get_world_size() + 1):
        group = dist.new_group(list(range(ranks)))
        if dist.get_rank() >= ranks:
            continue
        for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
            for size in SIZES:
                leaves = leaves_of(dtype, size)
                result = isthmus.torch.tree_all_reduce(share_of(leaves, group), group)
                assert result.dtype == dtype
                assert torch.equal(result, tree_sum(leaves)), (ranks, dtype, size)
                checked += 1
    return checked


@pytest.mark.parametrize("backend", ["cpu:isthmus", "gloo"])
def test_bits_do_not_depend_on_the_number_of_ranks(ranks: RankProcesses, backend: str) -> None:
    cases = 4 * len(SIZES)
    assert ranks.run(sums_for_all_numbers_of_ranks, backend=backend) == [4 * cases, 3 * cases, 2 * cases, cases]


def sums_of_both_forms() -> int:
    """The NumPy form, on one rank, adds the leaves of all ranks."""
    (alone,) = isthmus.Communicator.create_all(1)
    dtypes = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    for dtype in dtypes:
        leaves = leaves_of(dtype, SIZES[1])
        name = str(dtype).removeprefix("torch.")
        expected = alone.tree_allreduce(leaves, torch.empty_like(leaves[0]), dtype=name)
        assert torch.equal(isthmus.torch.tree_all_reduce(share_of(leaves, None)), expected), dtype
    alone.close()
    return len(dtypes)


def test_numpy_form_has_the_same_bits(ranks: RankProcesses) -> None:
    assert set(ranks.run(sums_of_both_forms)) == {4}


def test_other_orders_give_other_bits() -> None:
    leaves = leaves_of(torch.float32, SIZES[0])
    in_order = leaves[0]
    for leaf in leaves[1:]:
        in_order = in_order + leaf
    assert not torch.equal(in_order, tree_sum(leaves))


def row_parallel_logits() -> list[torch.Tensor]:
    """A row-parallel layer whose weight is cut into 8 slices, on 1, 2 and 4 ranks."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(5, 64, generator=generator).bfloat16()
    weight = torch.randn(40, 64, generator=generator).bfloat16()
    logits = []
    for ranks in (1, 2, 4):
        group = dist.new_group(list(range(ranks)))
        if dist.get_rank() >= ranks:
            continue
        slices = [x @ w.T for x, w in zip(inputs.chunk(8, 1), weight.chunk(8, 1), strict=True)]
        logits.append(isthmus.torch.tree_all_reduce(share_of(torch.stack(slices), group), group))
    return logits


def test_tensor_parallel_layer_has_equal_logits(ranks: RankProcesses) -> None:
    logits = [each for own in ranks.run(row_parallel_logits) for each in own]
    assert len(logits) == 1 + 2 + 4
    assert logits[0].shape == (5, 40)
    assert all(torch.equal(each, logits[0]) for each in logits)


def bad_arguments() -> None:
    with pytest.raises(ValueError, match=r"shape \[\].*first dimension counts at least one leaf"):
        isthmus.torch.tree_all_reduce(torch.tensor(1.0))
    with pytest.raises(ValueError, match=r"torch\.int32.*floating-point"):
        isthmus.torch.tree_all_reduce(torch.ones(2, 3, dtype=torch.int32))
    with pytest.raises(ValueError, match="no_grad"):
        isthmus.torch.tree_all_reduce(torch.ones(2, 3, requires_grad=True))
    with torch.no_grad():
        total = isthmus.torch.tree_all_reduce(torch.ones(2, 3, requires_grad=True))
    assert torch.equal(total, torch.full((3,), 2.0 * dist.get_world_size()))
    empty = isthmus.torch.tree_all_reduce(torch.ones(2, 0))
    assert empty.shape == (0,)


def test_bad_arguments_are_refused(ranks: RankProcesses) -> None:
    ranks.run(bad_arguments)


def compiled_sums() -> None:
    leaves = leaves_of(torch.float32, SIZES[0])
    function = torch.compile(isthmus.torch.tree_all_reduce, backend="eager", fullgraph=True)
    assert torch.equal(function(share_of(leaves, None)), tree_sum(leaves))


def test_compiled_call_has_the_same_bits(ranks: RankProcesses) -> None:
    ranks.run(compiled_sums)
