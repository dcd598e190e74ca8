"""Functions for passes that search and change the graphs of torch.compile."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed import distributed_c10d as c10d
from torch.fx import Graph, Node

from ..table import RMSNORM_DATATYPES
from ._backend import backend_for

DTYPES = tuple(getattr(torch, name) for name in RMSNORM_DATATYPES)


def arguments_of(node: Any, *targets: Any) -> tuple[Any, ...] | None:
    """Returns the arguments of a call of one of these operators without keyword arguments."""
    is_call = isinstance(node, Node) and node.target in targets and not node.kwargs
    return node.args if is_call else None


def value_of(node: Any) -> torch.Tensor | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value if isinstance(value, torch.Tensor) else None


def is_group_of_isthmus(group_name: Any, device: torch.device) -> bool:
    try:
        group = c10d._resolve_process_group(group_name)
    except (RuntimeError, TypeError, ValueError):
        return False
    return group.size() > 1 and backend_for(group, device) is not None


def call(graph: Graph, target: Any, *arguments: Any, **named: Any) -> Node:
    """Adds a call with its fake result, which later passes read."""
    node = graph.call_function(target, arguments, named)
    values = torch.fx.node.map_arg(arguments, lambda each: each.meta["val"])
    with torch._guards.detect_fake_mode(), torch.no_grad():
        node.meta["val"] = target(*values, **named)
    return node


def erase(graph: Graph, node: Node) -> None:
    """Erases a call without users, then its inputs. Dead-code elimination keeps collectives."""
    if node.op == "call_function" and not node.users and not node._erased:
        inputs = node.all_input_nodes
        graph.erase_node(node)
        for each in inputs:
            erase(graph, each)
