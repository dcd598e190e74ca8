"""Replaces gloo and nccl with Isthmus in unmodified programs.

PyTorch creates every process group (the default group, new groups, device meshes, groups of DeepSpeed and
accelerate) with one function, `_new_process_group_helper`. replace_backends() wraps this function and
`split_group`, which creates groups with ncclCommSplit. docs/guide/pytorch.md describes the effects on programs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import multiprocessing.util
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import current_process
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ._backend import NAME, is_isthmus
from ._coalescing import replace_everywhere
from ._report import print_report

# Device types and backends that Isthmus replaces.
REPLACED_BACKENDS = {("cpu", "gloo"), ("cuda", "nccl")}
_HELPER, _SPLIT = "_new_process_group_helper", "split_group"
_CHILD_KEY = "isthmus.torch"

_logged: set[str] = set()
_settings: dict[str, bool] = {}
_reporting: set[int] = set()  # ids of processes that will print a report
# Number of splits of a group. All ranks of a group split it in the same order.
_split_counts: WeakKeyDictionary[dist.ProcessGroup, int] = WeakKeyDictionary()


def replace_backends(report: bool = False) -> None:
    """Uses Isthmus instead of gloo (CPU tensors) and nccl (CUDA tensors) in all new process groups.

    Applies to this process and to processes that it starts with multiprocessing. Call it before the first
    group is created. If `report` is true, rank 0 prints isthmus.torch.report() to standard error when its
    process exits; later calls only change `report`. Raises ImportError if this version of PyTorch creates
    groups in an unsupported way. Not thread-safe.
    """
    is_first_call = not _settings
    _settings["report"] = report
    # Pickled with every Process object, so spawned children activate the replacement. Forked
    # children inherit it.
    current_process()._config[_CHILD_KEY] = _ReplaceInChild(report)
    if not is_first_call:
        return
    original = getattr(c10d, _HELPER, None)
    if original is None or "backend" not in inspect.signature(original).parameters:
        _settings.clear()
        raise ImportError(
            f"replace_backends: PyTorch {torch.__version__} creates process groups in an unsupported way; "
            'name the backend instead: init_process_group("cpu:isthmus,cuda:isthmus")'
        )
    setattr(c10d, _HELPER, _wrapped_helper(original))
    if (split := getattr(c10d, _SPLIT, None)) is not None:
        replace_everywhere(_SPLIT, split, _wrapped_split(split))


class _ReplaceInChild:
    """Activates the replacement when it is unpickled."""

    def __init__(self, report: bool) -> None:
        self._report = report

    def __reduce__(self) -> tuple[Any, ...]:
        return replace_backends_in_child, (self._report,)


def replace_backends_in_child(report: bool) -> _ReplaceInChild:
    """Called in a spawned process before its own function."""
    replace_backends(report)
    return _ReplaceInChild(report)


# ---- choice of the backends -------------------------------------------------------------------------------


def replacement_map(backend: str) -> dict[str, str] | None:
    """Returns the backend of each device type, or None if the group is not changed. Logs the reason once."""
    requested = backend.lower()
    if requested not in ("undefined", "gloo", "nccl") and ":" not in requested:
        if requested not in (NAME, "fake"):
            _log_once(f"the backend {requested!r} is not replaced; only gloo and nccl are")
        return None
    by_device = c10d.BackendConfig(c10d.Backend(requested)).get_device_backend_map()
    other_plugins = {name for name in by_device.values() if name.upper() in c10d.Backend._plugins} - {NAME}
    if other_plugins:  # PyTorch supports one custom backend per group
        _log_once(
            f"groups with {', '.join(sorted(other_plugins))} ({requested}) are not changed; "
            "PyTorch supports one custom backend per group"
        )
        return None
    replacements = {device: _replacement(device, name) for device, name in by_device.items()}
    replacements = {device: name for device, name in replacements.items() if name is not None}
    return replacements if NAME in replacements.values() and NAME not in by_device.values() else None


def _replacement(device: str, name: str) -> str | None:
    if (device, name) in REPLACED_BACKENDS:
        return NAME
    if name in ("mpi", "ucc"):
        _log_once(f"the backend {name!r} for {device} is not replaced; only gloo and nccl are")
    # A plain "gloo" also serves CUDA tensors. Programs use it if NCCL is not available (ranks that share a
    # device), so it is kept, except with a PyTorch without CUDA.
    is_unusable = name == "gloo" and device == "cuda" and not torch.backends.cuda.is_built()
    return None if is_unusable else str(name)


def _log_once(line: str) -> None:
    if line not in _logged and os.environ.get("RANK", "0") == "0":
        print(f"isthmus: {line}", file=sys.stderr, flush=True)
    _logged.add(line)


# ---- wrappers of PyTorch's functions ----------------------------------------------------------------------


def _wrapped_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named)
        requested = str(call.arguments["backend"])
        backends = replacement_map(requested)
        if backends is None:
            return original(*arguments, **named)
        _forget_options(call)
        call.arguments["backend"] = c10d.Backend(",".join(":".join(pair) for pair in backends.items()))
        group, store = original(*call.args, **call.kwargs)
        if isinstance(group, dist.ProcessGroup) and group in c10d._world.pg_map:
            _restore_requested_names(group, requested, backends)
            _schedule_report(group)
        return group, store

    return helper


def _forget_options(call: inspect.BoundArguments) -> None:
    for name in ("backend_options", "pg_options"):  # depends on the version of PyTorch
        if call.arguments.get(name) is not None:
            _log_once(
                f"{name} of type {type(call.arguments[name]).__name__} are ignored; Isthmus does not use them"
            )
            call.arguments[name] = None


def _restore_requested_names(group: dist.ProcessGroup, requested: str, backends: dict[str, str]) -> None:
    """Keeps the requested names in get_backend() and in the group, because programs may compare them."""
    config = c10d.BackendConfig(c10d.Backend(requested))
    names = config.get_device_backend_map()
    c10d._world.pg_map[group] = (c10d.Backend(requested), c10d._world.pg_map[group][1])
    c10d._world.pg_backend_config[group] = str(config)
    other_backends = {name for name in backends.values() if name != NAME}
    for device, name in backends.items():
        backend_type = c10d.Backend.backend_type_map[names[device]]
        if (
            name == NAME and names[device] not in other_backends
        ):  # otherwise the type belongs to the other backend
            target = torch.device(device)
            group._register_backend(target, backend_type, group._get_backend(target))
    default = "nccl" if "nccl" in names.values() else next(iter(names.values()))
    group._set_default_backend(c10d.Backend.backend_type_map[default])


def _wrapped_split(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def split_group(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named).arguments
        parent = call.get("parent_pg") or dist.group.WORLD
        if parent is None or not is_isthmus(parent):
            return original(*arguments, **named)
        if not (rank_lists := call.get("split_ranks")):
            raise ValueError("split_ranks cannot be None or empty")
        split_number = _split_counts[parent] = _split_counts.get(parent, 0) + 1
        own_ranks = next((sorted(ranks) for ranks in rank_lists if dist.get_rank(parent) in ranks), None)
        if own_ranks is None:
            return None
        with _group_name(f"{parent.group_name}_split_{split_number}_{own_ranks[0]}"):
            return dist.new_group(
                [dist.get_global_rank(parent, rank) for rank in own_ranks],
                call.get("timeout"),
                call.get("backend") or dist.get_backend(parent),
                use_local_synchronization=True,
                group_desc=call.get("group_desc"),
            )

    return split_group


@contextlib.contextmanager
def _group_name(name: str) -> Iterator[None]:
    """Names the groups that are created meanwhile.

    PyTorch's own name contains the number of groups of this rank, which can differ between ranks of a group.
    """
    original = c10d._process_group_name
    c10d._process_group_name = lambda *_, **__: name
    try:
        yield
    finally:
        c10d._process_group_name = original


# ---- the report -------------------------------------------------------------------------------------------


def _schedule_report(group: dist.ProcessGroup) -> None:
    """Schedules the report on rank 0 of the default group, which may be in a child process."""
    if not _settings["report"] or os.getpid() in _reporting:
        return
    if dist.group.WORLD is None and group.rank() == 0:  # the default group is set after its creation
        _reporting.add(os.getpid())
        multiprocessing.util.Finalize(None, print_report, exitpriority=0)
