"""Isthmus as a backend of torch.distributed.

>>> import torch.distributed as dist
>>> import isthmus.torch                                        # registers the backend
>>> dist.init_process_group("cpu:isthmus,cuda:isthmus")         # doctest: +SKIP

`report()` shows which path each collective of this process used. See docs/guide/pytorch.md for details.
"""

import importlib.util

from ..layout import missing_torch

if importlib.util.find_spec("torch") is None:
    raise ModuleNotFoundError(f"isthmus.torch: {missing_torch()}", name="torch")

from . import elastic
from ._backend import monitored_barrier, register, reload_rules, shrink
from ._direct import all_reduce
from ._environment import apply_environment
from ._fusion import FusionPass
from ._in_place import gather_in_place
from ._replace import replace_backends
from ._report import Row, print_report, report, reset_report
from ._tree import tree_all_reduce

__all__ = [
    "FusionPass",
    "Row",
    "all_reduce",
    "elastic",
    "gather_in_place",
    "monitored_barrier",
    "print_report",
    "reload_rules",
    "replace_backends",
    "report",
    "reset_report",
    "shrink",
    "tree_all_reduce",
]

apply_environment()
register()
