"""Replaces gloo and nccl with Isthmus in unmodified programs.

PyTorch creates every process group (the default group, new groups, device meshes, groups of DeepSpeed and
accelerate) with one function, `_new_process_group_helper`. replace_backends() wraps this function. It also
replaces `all_reduce` by the function of isthmus.torch, which costs less on the host.
docs/guide/pytorch.md describes the effects on programs.
"""

from __future__ import annotations

import functools
import inspect
import multiprocessing.util
import os
import sys
from collections.abc import Callable
from multiprocessing.process import current_process, parent_process
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d as c10d

from . import _direct
from ._backend import NAME, is_isthmus
from ._coalescing import replace_everywhere
from ._membership import IDENTITY
from ._report import print_report

# Names of PyTorch's NCCL backends. The last three exist since PyTorch 2.14.
NCCL_NAMES = ("nccl", "nccl2", "nccl-lazy", "nccl-legacy")
# Device types and backends that Isthmus replaces.
REPLACED_BACKENDS = {("cpu", "gloo"), *(("cuda", name) for name in NCCL_NAMES)}
_HELPER = "_new_process_group_helper"
_CHILD_KEY = "isthmus.torch"

_logged: dict[str, None] = {}  # in the order of their first appearance
_settings: dict[str, bool] = {}
_requested_names: WeakKeyDictionary[dist.ProcessGroup, str] = WeakKeyDictionary()  # of the default backends

# Ids of processes. A forked child inherits these sets.
_reporting: set[int] = set()  # will print a report
_replaced: set[int] = set()  # have created a group with Isthmus
_default_ranks: set[tuple[int, int]] = set()  # process and its rank in a default group


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
    _replace_all_reduce()
    dist.ProcessGroup.name = _wrapped_name(dist.ProcessGroup.name)
    if parent_process() is None:
        _schedule_report()


def _replace_all_reduce() -> None:
    original = dist.all_reduce
    _direct._torch_all_reduce = original  # it may have been wrapped since the import
    replace_everywhere("all_reduce", original, _direct.all_reduce)
    # torch.compile translates the functions in this table. If it were imported later, it would contain only the
    # new function.
    translations = getattr(functional, "traceable_collective_remaps", {})
    if original in translations:
        translations[_direct.all_reduce] = translations[original]


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
    if ":" not in requested and requested not in ("undefined", "gloo", *NCCL_NAMES):
        if requested not in (NAME, "fake"):
            _log_once(f"the backend {requested!r} is not replaced; only gloo and nccl are")
        return None
    by_device = c10d.BackendConfig(c10d.Backend(requested)).get_device_backend_map()
    replacements = {device: _replacement(device, name) for device, name in by_device.items()}
    replacements = {device: name for device, name in replacements.items() if name is not None}
    if NAME in by_device.values() or NAME not in replacements.values():
        return None
    # PyTorch registers one backend of the type CUSTOM per group. Since PyTorch 2.14, its own backends are
    # also registered as plug-ins, but with types of their own.
    types = c10d.Backend.backend_type_map
    custom = dist.ProcessGroup.BackendType.CUSTOM
    others = {name for name in replacements.values() if name != NAME and types.get(name, custom) == custom}
    if others:
        _log_once(
            f"groups with {', '.join(sorted(others))} ({requested}) are not changed; "
            "PyTorch supports one custom backend per group"
        )
        return None
    return replacements


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
    _logged[line] = None


# ---- wrappers of PyTorch's functions ----------------------------------------------------------------------


def _wrapped_helper(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def helper(*arguments: Any, **named: Any) -> Any:
        call = signature.bind(*arguments, **named)
        requested = str(call.arguments["backend"])
        if not call.arguments.get("global_ranks_in_group"):  # PyTorch passes no ranks for the default group
            _default_ranks.add((os.getpid(), call.arguments["group_rank"]))
            _schedule_report()
        backends = replacement_map(requested)
        if backends is None:
            return original(*arguments, **named)
        if call.arguments.get("enable_reconfigure"):  # PyTorch reconfigures only groups with one backend
            backends = {device: name for device, name in backends.items() if name == NAME}
        _forget_options(call)
        call.arguments["backend"] = c10d.Backend(",".join(":".join(pair) for pair in backends.items()))
        group, store = original(*call.args, **call.kwargs)
        if isinstance(group, dist.ProcessGroup) and group in c10d._world.pg_map:
            if not is_isthmus(group):
                raise RuntimeError(
                    f"replace_backends: PyTorch {torch.__version__} did not create the backend {NAME!r} that "
                    f'replaces {requested!r}; name it instead: init_process_group("cpu:isthmus,cuda:isthmus")'
                )
            _replaced.add(os.getpid())
            _restore_requested_names(group, requested, backends)
        return group, store

    return helper


def _default_name(names: dict[str, str]) -> str:
    """Returns the backend that PyTorch makes the default of a group with these backends."""
    nccl_names = [name for name in names.values() if name in NCCL_NAMES]
    return next(iter([*nccl_names, *names.values()]))


def _forget_options(call: inspect.BoundArguments) -> None:
    for name in ("backend_options", "pg_options"):  # depends on the version of PyTorch
        if call.arguments.get(name) is not None:
            _log_once(
                f"{name} of type {type(call.arguments[name]).__name__} are ignored; Isthmus does not use them"
            )
            call.arguments[name] = None


def _restore_requested_names(group: dist.ProcessGroup, requested: str, backends: dict[str, str]) -> None:
    """Keeps the requested names in get_backend() and in the group, because programs may compare them.

    Isthmus keeps the type CUSTOM. PyTorch casts a backend of the type GLOO to ProcessGroupGloo, for example in
    DistributedDataParallel.
    """
    config = c10d.BackendConfig(c10d.Backend(requested))
    names = config.get_device_backend_map()
    c10d._world.pg_map[group] = (c10d.Backend(requested), c10d._world.pg_map[group][1])
    c10d._world.pg_backend_config[group] = str(config)
    default = _default_name(names)
    _requested_names[group] = default
    is_kept = default in backends.values()
    group._set_default_backend(c10d.Backend.backend_type_map[default if is_kept else NAME])


def _wrapped_name(original: Callable[[dist.ProcessGroup], str]) -> Callable[[dist.ProcessGroup], str]:
    @functools.wraps(original)
    def name(self: dist.ProcessGroup) -> str:
        return _requested_names.get(self) or original(self)

    return name


# ---- the report -------------------------------------------------------------------------------------------


def _schedule_report() -> None:
    """Schedules the report of this process, which may be a child of the process that runs the script."""
    if _settings.get("report") and os.getpid() not in _reporting:
        _reporting.add(os.getpid())
        multiprocessing.util.Finalize(None, _print_own_report, exitpriority=0)


def _print_own_report() -> None:
    """Prints the report on rank 0 of the default group, or of the launcher if there was no group."""
    ranks = {rank for process, rank in _default_ranks if process == os.getpid()}
    if 0 not in (ranks or {int(os.environ.get("RANK", "0"))}):
        return
    print_report()
    if os.getpid() not in _replaced and IDENTITY not in os.environ:  # elastic.run creates its group itself
        reasons = (
            "; ".join(_logged)
            or "no group requested gloo or nccl (groups that name isthmus need no replacement)"
            if ranks
            else "this process created none"
        )
        print(f"isthmus: no process group was replaced: {reasons}", file=sys.stderr, flush=True)
