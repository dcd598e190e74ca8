"""A pass for torch.compile that replaces operations of tensor-parallel layers by operators of isthmus.torch."""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..table import RMSNORM_MAX_HIDDEN
from ._compile import require_torch
from ._graph_matching import DTYPES, arguments_of, call, erase, is_group_of_isthmus, value_of
from ._product_fusion import replace_products

_aten, _prims = torch.ops.aten, torch.ops.prims
_log = logging.getLogger(__name__)
_OLDEST = (2, 11)  # the tests fail with PyTorch 2.6; versions between were not tried


class FusionPass:
    """Replaces operations of tensor-parallel layers in compiled models by the operators of isthmus.torch.

    >>> fusion = FusionPass()
    >>> model = torch.nn.Identity()  # a model that was made tensor-parallel with parallelize_module
    >>> model = torch.compile(model, options={"post_grad_custom_pre_pass": fusion})

    The pass replaces four sequences over groups of Isthmus with at least two ranks. Everything else stays
    unchanged.

    - allreduce, residual addition and RMSNorm: torch.ops.isthmus.allreduce_rmsnorm, for inference
    - all-gather and product: torch.ops.isthmus.allgather_matmul
    - product and reduce-scatter: torch.ops.isthmus.matmul_reduce_scatter
    - product of at most 16 rows and allreduce: torch.ops.isthmus.matmul_allreduce

    `replacements` counts the replacements in all graphs. The logger isthmus.torch._fusion logs the number for
    each graph at the level INFO. Inductor does not cache graphs that were compiled with the pass.

    Some models, such as those of transformers, round the normalized value to the type of the model before they
    multiply it by the weight. The operator keeps this rounding, as the model without torch.compile. With its
    default settings, Inductor leaves it out in the kernels that it generates.
    """

    def __init__(self) -> None:
        require_torch(_OLDEST, "FusionPass", "pass", "compile the model without this pass")
        self.replacements = 0

    def __call__(self, graph: Graph) -> None:
        norms, products = _replace_norms(graph), replace_products(graph)
        self.replacements += norms + products
        _log.info(
            "replaced %d norms and %d products; %d allreduces are left", norms, products, _count_sums(graph)
        )


def _replace_norms(graph: Graph) -> int:
    positions = {node: position for position, node in enumerate(graph.nodes)}
    replaced = 0
    for node in list(graph.nodes):
        norm = _match_norm(node)
        total = norm and _match_sum(norm.total)
        if norm and total and positions.get(norm.weight, len(positions)) < positions.get(norm.total, 0):
            _replace(graph, norm, total)
            replaced += 1
    return replaced


class _Norm(NamedTuple):
    """An RMSNorm of `total`, the residual sum."""

    output: Node
    total: Node
    weight: Node
    eps: float
    round_before_weight: bool


class _Sum(NamedTuple):
    """An allreduce with a residual addition. `views` change the shape of the allreduce, in order."""

    input: Node
    views: list[Node]
    residual: Node
    group_name: str


def _operands(node: Any, *targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yields the operands of a commutative operator in both orders."""
    arguments = arguments_of(node, *targets)
    if arguments:
        yield arguments
        yield arguments[::-1]


def _without_cast(node: Any) -> Any:
    arguments = arguments_of(node, _prims.convert_element_type.default)
    return arguments[0] if arguments else node


def _match_norm(output: Node) -> _Norm | None:
    result = value_of(output)
    if result is None or result.dtype not in DTYPES:
        return None
    for scaled, weight in _operands(_without_cast(output), _aten.mul.Tensor):
        for rows, factor in _operands(_without_cast(scaled), _aten.mul.Tensor):
            eps, before = _match_factor(factor, rows), value_of(scaled)
            if eps is None or before is None or before.dtype not in (torch.float32, result.dtype):
                continue
            is_rounded = before.dtype != torch.float32
            norm = _Norm(output, _without_cast(rows), _without_cast(weight), eps, is_rounded)
            if _has_supported_types(norm, value_of(rows)):
                return norm
    return None


def _match_factor(factor: Any, rows: Any) -> float | None:
    """Returns eps if factor = rsqrt(mean of rows^2 over the last dimension + eps)."""
    for shifted in arguments_of(factor, _aten.rsqrt.default) or ():
        for mean, eps in _operands(shifted, _aten.add.Tensor, _aten.add.Scalar):
            square, dimensions, is_kept = [*(arguments_of(mean, _aten.mean.dim) or ()), None, None, None][:3]
            is_last = dimensions == [-1] or dimensions == [value_of(factor).dim() - 1]
            is_square = arguments_of(square, _aten.pow.Tensor_Scalar) == (rows, 2)
            is_square |= arguments_of(square, _aten.mul.Tensor) == (rows, rows)
            if is_square and is_last and is_kept and isinstance(eps, int | float):
                return float(eps)
    return None


def _has_supported_types(norm: _Norm, rows: torch.Tensor | None) -> bool:
    output, total, weight = (value_of(node) for node in (norm.output, norm.total, norm.weight))
    if output is None or total is None or weight is None or rows is None or total.dim() == 0:
        return False
    hidden = total.shape[-1]
    return (
        isinstance(hidden, int)
        and 1 <= hidden <= RMSNORM_MAX_HIDDEN
        and rows.dtype == torch.float32
        and output.shape == total.shape
        and weight.shape == (hidden,)
        and output.dtype == total.dtype == weight.dtype
        and output.device == weight.device
    )


def _match_sum(total: Node) -> _Sum | None:
    for node, residual in _operands(total, _aten.add.Tensor):
        views: list[Node] = []
        while arguments_of(node, _aten.view.default, _aten.reshape.default) and len(node.users) == 1:
            views.insert(0, node)
            node = node.args[0]
        waited = arguments_of(node, torch.ops._c10d_functional.wait_tensor.default)
        reduced = waited and arguments_of(waited[0], torch.ops._c10d_functional.all_reduce.default)
        if not reduced or len(node.users) != 1 or len(waited[0].users) != 1:
            continue
        source, operation, group_name = reduced
        own, other, result = (value_of(each) for each in (views[-1] if views else node, residual, total))
        if (
            own is not None
            and other is not None
            and result is not None
            and own.shape == other.shape == result.shape
            and own.dtype == other.dtype
            and operation == "sum"
            and is_group_of_isthmus(group_name, own.device)
        ):
            return _Sum(source, views, residual, group_name)
    return None


def _replace(graph: Graph, norm: _Norm, total: _Sum) -> None:
    with graph.inserting_before(norm.total):
        source = total.input
        for view in total.views:
            source = call(graph, view.target, source, *view.args[1:])
        results = call(
            graph,
            torch.ops.isthmus.allreduce_rmsnorm.default,
            *(source, total.residual, norm.weight, norm.eps, total.group_name),
            round_before_weight=norm.round_before_weight,
        )
        normalized, residual = (call(graph, operator.getitem, results, index) for index in range(2))
    norm.output.replace_all_uses_with(normalized)
    norm.total.replace_all_uses_with(residual)
    erase(graph, norm.total)
    erase(graph, norm.output)


def _count_sums(graph: Graph) -> int:
    return len(graph.find_nodes(op="call_function", target=torch.ops._c10d_functional.all_reduce.default))
