"""The part of FusionPass that replaces products with the collectives before or after them."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..table import PRODUCT_MAX_ROWS
from ._graph_matching import DTYPES, arguments_of, call, erase, is_group_of_isthmus, value_of

_aten, _functional = torch.ops.aten, torch.ops._c10d_functional
_VIEWS = (_aten.view.default, _aten.reshape.default)


def replace_products(graph: Graph) -> int:
    """Inserts the operators of products. Returns their number."""
    positions = {node: position for position, node in enumerate(graph.nodes)}
    count = 0
    for node in list(graph.nodes):
        if node.target == _aten.mm.default:
            count += _replace_gather(graph, node, positions)
        elif node.target == _functional.reduce_scatter_tensor.default:
            count += _replace_scatter(graph, node)
        elif node.target == _functional.all_reduce.default:
            count += _replace_allreduce(graph, node)
    return count


class _Blocks(NamedTuple):
    """A tensor of several ranks' blocks, which are concatenated in its first dimension."""

    node: Node
    moved: int  # number of blocks that the graph moves between the first two dimensions; 1: none
    is_exclusive: bool  # nothing else uses the nodes that move them


def _skip_views(node: Any) -> tuple[Any, bool]:
    is_exclusive = True
    while arguments_of(node, *_VIEWS):
        is_exclusive &= len(node.users) == 1
        node = node.args[0]
    return node, is_exclusive


def _match_blocks(node: Any, dimension: int) -> _Blocks:
    """Skips views and, if there is one, the split and the concatenation in `dimension` that move the blocks."""
    source, is_exclusive = _skip_views(node)
    unmoved = _Blocks(source, 1, is_exclusive)
    arguments = arguments_of(source, _aten.cat.default)
    if not arguments or [*arguments[1:], 0][0] != dimension:
        return unmoved
    parts = arguments[0]
    items = [arguments_of(part, operator.getitem) for part in parts]
    if not all(item and item[1] == index for index, item in enumerate(items)):
        return unmoved
    split = items[0][0]
    size = arguments_of(split, _aten.split.Tensor)
    if not size or any(item[0] is not split for item in items):
        return unmoved
    whole, axis = size[0], [*size[2:], 0][0]
    if axis != 1 - dimension or size[1] * len(parts) != value_of(whole).shape[axis]:
        return unmoved
    is_exclusive &= len(source.users) == 1 and len(split.users) == len(parts)
    return _Blocks(whole, len(parts), is_exclusive and all(len(part.users) == 1 for part in parts))


def _match_weight(node: Any) -> tuple[Node, bool]:
    """Returns the matrix whose transposes the graph uses, and whether the operator needs its transpose."""
    is_transposed = True  # the weight of the operators is [n, k], and the right factor of a product [k, n]
    while (arguments := arguments_of(node, _aten.permute.default)) and list(arguments[1]) == [1, 0]:
        node, is_transposed = arguments[0], not is_transposed
    return node, is_transposed


def _is_supported(*nodes: Any) -> bool:
    """Returns whether the shapes are constant, because each new shape would create a plan."""
    values = [value_of(node) for node in nodes]
    return all(
        value is not None and value.dtype in DTYPES and all(isinstance(size, int) for size in value.shape)
        for value in values
    )


def _weight_for(graph: Graph, weight: Node, is_transposed: bool) -> Node:
    return call(graph, _aten.permute.default, weight, [1, 0]) if is_transposed else weight


def _swap_leading(graph: Graph, node: Node, shape: list[int]) -> Node:
    """Returns a tensor, seen with this shape, with exchanged first two dimensions."""
    if 1 in shape[:2]:
        return node
    split = call(graph, _aten.reshape.default, node, shape)
    return call(graph, _aten.permute.default, split, [1, 0, *range(2, len(shape))])


def _replace_gather(graph: Graph, product: Node, positions: dict[Node, int]) -> bool:
    left, right = product.args
    blocks = _match_blocks(left, 1)
    wait = blocks.node
    gather = (arguments_of(wait, _functional.wait_tensor.default) or (None,))[0]
    arguments = arguments_of(gather, _functional.all_gather_into_tensor.default)
    if not arguments or not _is_supported(product, left, right, wait, arguments[0]):
        return False
    own, size, group_name = arguments
    shape, (inner, columns) = value_of(own).shape, value_of(right).shape
    weight, is_transposed = _match_weight(right)
    if (
        len(shape) < 2
        or shape[-1] != inner
        or blocks.moved not in (1, size)
        or len(gather.users) != 1
        or positions.get(weight, len(positions)) > positions.get(wait, 0)
        or not is_group_of_isthmus(group_name, value_of(own).device)
    ):
        return False
    is_only_user = blocks.is_exclusive and len(wait.users) == 1
    with graph.inserting_before(wait):
        results = call(
            graph,
            torch.ops.isthmus.allgather_matmul.default,
            *(own, _weight_for(graph, weight, is_transposed), group_name),
            return_gathered=not is_only_user,
        )
        output, gathered = (call(graph, operator.getitem, results, index) for index in range(2))
        if blocks.moved > 1:
            output = _swap_leading(graph, output, [size, shape[0], -1, columns])
        output = call(graph, _aten.reshape.default, output, list(value_of(product).shape))
    product.replace_all_uses_with(output)
    erase(graph, product)
    if is_only_user:
        graph.erase_node(gathered)
    else:
        wait.replace_all_uses_with(gathered)
        erase(graph, wait)
    return True


def _wait_of(collective: Node) -> Node | None:
    """Returns the wait for a collective without keyword arguments, if it is the only user."""
    waits = [user for user in collective.users if arguments_of(user, _functional.wait_tensor.default)]
    return waits[0] if len(waits) == len(collective.users) == 1 and not collective.kwargs else None


def _replace_scatter(graph: Graph, scatter: Node) -> bool:
    wait = _wait_of(scatter)
    if wait is None:
        return False
    source, operation, size, group_name = scatter.args
    blocks = _match_blocks(source, 0)
    product, is_exclusive = _skip_views(blocks.node)
    factors = arguments_of(product, _aten.mm.default)
    if not factors or not _is_supported(product, *factors, source):
        return False
    shape = list(value_of(source).shape)
    if (
        operation != "sum"
        or len(shape) < 2
        or shape[-1] != value_of(product).shape[1]
        or blocks.moved not in (1, size)
        or not (is_exclusive and blocks.is_exclusive and len(product.users) == len(blocks.node.users) == 1)
        or not is_group_of_isthmus(group_name, value_of(source).device)
    ):
        return False
    weight, is_transposed = _match_weight(factors[1])
    rows, inner = factors[0], value_of(factors[0]).shape[1]
    with graph.inserting_before(scatter):
        if blocks.moved > 1:
            rows = _swap_leading(graph, rows, [shape[0] // size, size, -1, inner])
        rows = call(graph, _aten.reshape.default, rows, [*shape[:-1], inner])
        result = call(
            graph,
            torch.ops.isthmus.matmul_reduce_scatter.default,
            *(rows, _weight_for(graph, weight, is_transposed), group_name),
        )
    wait.replace_all_uses_with(result)
    erase(graph, wait)
    return True


def _replace_allreduce(graph: Graph, reduce: Node) -> bool:
    """Replaces products of few rows, for which devices have one kernel, with weights that it reads directly."""
    wait = _wait_of(reduce)
    if wait is None:
        return False
    source, operation, group_name = reduce.args
    product, is_exclusive = _skip_views(source)
    factors = arguments_of(product, _aten.mm.default)
    if not factors or not _is_supported(product, *factors):
        return False
    weight, is_transposed = _match_weight(factors[1])
    if (
        operation != "sum"
        or is_transposed
        or value_of(product).shape[0] > PRODUCT_MAX_ROWS
        or not (is_exclusive and len(product.users) == 1)
        or not is_group_of_isthmus(group_name, value_of(product).device)
    ):
        return False
    with graph.inserting_before(reduce):
        result = call(graph, torch.ops.isthmus.matmul_allreduce.default, factors[0], weight, group_name)
        result = call(graph, _aten.reshape.default, result, list(value_of(source).shape))
    wait.replace_all_uses_with(result)
    erase(graph, wait)
    return True
