"""Isthmus as a backend of torch.distributed.

>>> import torch.distributed as dist
>>> import isthmus.torch                                        # registers the backend
>>> dist.init_process_group("cpu:isthmus,cuda:isthmus")         # doctest: +SKIP

`report()` says which path every collective of this process really took. docs/torch.md has the rest.
"""

from ._backend import monitored_barrier, register, reload_rules
from ._knobs import apply_knobs
from ._report import Row, report, reset_report

__all__ = ["Row", "monitored_barrier", "reload_rules", "report", "reset_report"]

apply_knobs()
register()
