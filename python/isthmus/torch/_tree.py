"""A sum over ranks whose bits do not depend on the number of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.distributed as dist

# From this size on, each rank adds one slice, which transfers less than gathering all partial sums.
_SLICED_BYTES = 64 * 1024


def tree_all_reduce(leaves: torch.Tensor, group: dist.ProcessGroup | None = None) -> torch.Tensor:
    """Returns the sum of the leaves of all ranks. Its bits do not depend on the number of ranks.

    The first dimension of `leaves` counts the leaves of this rank. It is the same on all ranks. The leaves of
    all ranks, in rank order, are the leaves of one binary tree: its first level adds leaves 0 and 1, 2 and 3,
    and so on. The next levels add these sums in the same way. A node without a neighbor moves up unchanged.
    Sums have the type float32 (float64 for float64), and the result is rounded once to the type of the leaves.

    Collective. Works with every backend of torch.distributed. Has no gradient.
    """
    if not leaves.is_floating_point() or leaves.dim() == 0 or leaves.shape[0] == 0:
        raise ValueError(
            "isthmus.torch.tree_all_reduce: "
            f"leaves has the shape {list(leaves.shape)} and the type {leaves.dtype}; "
            "it must be a tensor of floating-point numbers whose first dimension counts at least one leaf"
        )
    if leaves.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            "isthmus.torch.tree_all_reduce: leaves requires a gradient, and the sum has none; "
            "call it under torch.no_grad() or with leaves.detach()"
        )
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    if rank < 0:
        raise ValueError("isthmus.torch.tree_all_reduce: this rank is not in the group")
    shape, dtype = leaves.shape[1:], leaves.dtype
    sum_dtype = torch.promote_types(dtype, torch.float32)
    rows = leaves.reshape(len(leaves), -1).to(sum_dtype)
    own = _add_siblings(_Node(0, rank * len(rows) + index, row) for index, row in enumerate(rows))
    if ranks == 1:
        return _root(own).to(dtype).reshape(shape)
    # The ranks can have different numbers of partial sums, for example with three leaves each.
    places = [_partial_sums(each * len(rows), len(rows)) for each in range(ranks)]
    partials = rows.new_zeros(max(map(len, places)), rows.shape[1])
    partials[: len(own)] = torch.stack([node.value for node in own])
    if partials.nbytes < _SLICED_BYTES:
        gathered = rows.new_empty(ranks * len(partials), rows.shape[1])
        dist.all_gather_into_tensor(gathered, partials, group)
        return _combine(places, gathered.unflatten(0, (ranks, -1))).to(dtype).reshape(shape)
    padding = -rows.shape[1] % ranks
    padded = torch.nn.functional.pad(partials, (0, padding))
    slices = padded.unflatten(1, (ranks, -1)).transpose(0, 1).contiguous()
    received = torch.empty_like(slices)
    dist.all_to_all_single(received, slices, group=group)
    own_slice = _combine(places, received).to(dtype)
    result = own_slice.new_empty(ranks * len(own_slice))
    dist.all_gather_into_tensor(result, own_slice, group)
    return result[: rows.shape[1]].reshape(shape)


class _Node(NamedTuple):
    """A node of the tree: the sum of the leaves [index << level, (index + 1) << level)."""

    level: int
    index: int
    value: torch.Tensor


def _add_siblings(nodes: Iterator[_Node]) -> list[_Node]:
    """Adds all siblings among consecutive nodes. The remaining nodes lack a sibling."""
    remaining: list[_Node] = []
    for node in nodes:
        while remaining and remaining[-1].level == node.level and node.index % 2 == 1:
            node = _Node(node.level + 1, node.index // 2, remaining.pop().value + node.value)
        remaining.append(node)
    return remaining


def _root(nodes: list[_Node]) -> torch.Tensor:
    """Returns the sum of all leaves from the nodes that _add_siblings() has returned for all leaves."""
    total = nodes[-1].value
    for node in reversed(nodes[:-1]):
        total = node.value + total
    return total


def _partial_sums(first: int, count: int) -> list[tuple[int, int]]:
    """Returns level and index of the nodes that remain if the leaves [first, first + count) are added."""
    places, end = [], first + count
    while first < end:
        level = (end - first).bit_length() - 1
        if first > 0:
            level = min(level, (first & -first).bit_length() - 1)
        places.append((level, first >> level))
        first += 1 << level
    return places


def _combine(places: list[list[tuple[int, int]]], partials: torch.Tensor) -> torch.Tensor:
    """Returns the root from the partial sums of all ranks, which are in the first two dimensions."""
    return _root(
        _add_siblings(
            _Node(level, index, partials[rank, row])
            for rank, own in enumerate(places)
            for row, (level, index) in enumerate(own)
        )
    )
