"""Training that continues when a rank is killed and takes in a replacement.

>>> def train(job):                                   # called again whenever the members change
...     ddp = DistributedDataParallel(model)
...     for step in job.steps(1000):
...         optimizer.zero_grad()
...         loss(ddp, step).backward()
...         optimizer.step()
>>> elastic.run(train, model=model, optimizer=optimizer)    # doctest: +SKIP

Start the script with `torchrun ... -m isthmus.torch --elastic SCRIPT`. See docs/guide/failures.md for details.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from ._backend import all_backends, as_timedelta, create_backend, replace_default_group, shrink
from ._membership import IDENTITY, Membership, Plan

__all__ = ["Job", "run"]

_POLL_S = 0.02
_Result = TypeVar("_Result")


def run(train: Callable[[Job], _Result], *, timeout: timedelta | float | None = None, **state: Any) -> _Result:
    """Calls `train(job)` until it returns on all ranks, and returns its result.

    Creates the default process group, with the backend isthmus for CPU and CUDA tensors. When a rank is lost or
    a replacement joins, the group changes, all other groups are destroyed, and `train` is called again on all
    ranks. It must therefore create everything that depends on the group, for example DistributedDataParallel.
    The group is destroyed at the end.

    `state` contains objects that are equal on all ranks and have `state_dict` and `load_state_dict`. A new rank
    receives it from another rank. It contains at most one optimizer, whose `step()` ends a training step.
    Without `state`, `train` restores everything itself, for example with `job.use_checkpoints()`.

    `timeout` is that of the group, a timedelta or seconds (default: PyTorch's, 30 minutes). It limits each wait
    for a rank that does not respond.
    """
    if IDENTITY not in os.environ:
        raise RuntimeError(
            "isthmus.torch.elastic.run: this process has no supervisor; "
            "start the script with `torchrun ... -m isthmus.torch --elastic SCRIPT`"
        )
    if dist.is_initialized():
        raise RuntimeError(
            "isthmus.torch.elastic.run: there is a default process group already; remove init_process_group"
        )
    if timeout is None:
        timeout = dist.distributed_c10d.default_pg_timeout
    return Job(state, as_timedelta("elastic.run: timeout", timeout))._run(train)


class Job:
    """This rank's part of an elastic job."""

    step: int  # the next training step

    def __init__(self, state: dict[str, Any], timeout: timedelta) -> None:
        self._state, self._timeout = state, timeout
        optimizers = [each for each in state.values() if isinstance(each, torch.optim.Optimizer)]
        _check_state(state, optimizers)
        self._hooks = [
            hook
            for optimizer in optimizers
            for hook in (
                optimizer.register_step_pre_hook(self._before_optimizer_step),
                optimizer.register_step_post_hook(self._after_optimizer_step),
            )
        ]
        self._identity = int(os.environ[IDENTITY])
        self._membership = Membership.connect()
        self._members: tuple[int, ...] = ()
        self._generation = 0
        self._has_joined = False
        self._watch = _Watch(self._membership)
        self._is_in_step = False  # between the start of an iteration and the end of its training step
        self._must_grow = False
        self._failed_step = -1
        self._form_error = ""  # why the latest _form() has failed
        self._checkpoints: Any = None
        self._excepthook = sys.excepthook
        self.step = 0

    def steps(self, total: int) -> Iterator[int]:
        """Yields the numbers of the training steps that remain until `total`.

        If the state contains an optimizer, call its `step()` once per iteration. After it, do not change the
        state by collectives, because they are not repeated after a failure.
        """
        while self.step < total:
            self._is_in_step = True
            yield self.step
            if self._is_in_step:
                self._agree()
                self._end_step()
            if self._checkpoints is not None and self.step % self._checkpoints.every == 0:
                self._checkpoints.save(self.step)
            if self._must_grow:
                raise _MembersChangedError

    def use_checkpoints(
        self,
        folder: str | os.PathLike[str],
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        every: int = 10,
    ) -> None:
        """Loads the latest checkpoint in `folder`, and saves one after every `every` training steps.

        Call it in `train`, before `steps()`, for a model with sharded parameters. The job continues at the step
        of the checkpoint. Only the latest checkpoint is kept. It is removed when `train` has returned. If the
        whole job fails, the next one continues from it. All ranks must see the same folder: /dev/shm on one
        host, a shared file system on several.
        """
        from ._checkpoints import Checkpoints  # takes long to import

        self._checkpoints = Checkpoints(Path(folder), every, model, optimizer)
        self.step = self._checkpoints.restore()
        if dist.get_rank() == 0 and self.step > 0:
            message = f"isthmus: {dist.get_world_size()} ranks loaded the checkpoint of step {self.step}"
            print(message, file=sys.stderr, flush=True)

    # ---- training steps ----

    def _before_optimizer_step(self, optimizer: torch.optim.Optimizer, arguments: Any, named: Any) -> None:
        if len(arguments) > 1 or named.get("closure") is not None:
            raise TypeError("isthmus.torch.elastic: optimizer.step cannot be called with a closure")
        if not self._is_in_step:
            raise TypeError(
                "isthmus.torch.elastic: optimizer.step was called twice in an iteration, or outside of one; "
                "call it once in each iteration of job.steps()"
            )
        self._agree()

    def _after_optimizer_step(self, *_: Any) -> None:
        self._end_step()

    def _end_step(self) -> None:
        self.step += 1
        self._is_in_step = False

    def _agree(self) -> None:
        """Raises unless the calls of this rank have succeeded. All ranks then know whether a process waits."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()
            if any(backend.has_failed() for backend in all_backends()):
                raise dist.DistBackendError(f"isthmus: a call of step {self.step} failed")
        flag = torch.tensor([len(self._watch.candidates)])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        self._must_grow = bool(flag)

    # ---- members ----

    def _run(self, train: Callable[[Job], _Result]) -> _Result:
        with self._watch:
            self._join()
            while True:
                failure: RuntimeError | None = None
                self._checkpoints = None  # its model belongs to the old group
                try:
                    if self._must_grow:
                        self._grow()
                        self._synchronize()
                    result = train(self)
                    self._agree()
                    break
                except _MembersChangedError:
                    continue
                except RuntimeError as error:  # includes DistBackendError and errors of autograd's threads
                    if not _is_caused_by_group(error):
                        raise
                    traceback.clear_frames(error.__traceback__)  # releases the objects of train()
                    failure = error
                self._recover(failure)
            self._watch.stop()
        if self._checkpoints is not None:
            self._checkpoints.remove()
        for hook in self._hooks:
            hook.remove()
        dist.destroy_process_group()
        self._membership.set_done()
        return result

    def _join(self) -> None:
        """Becomes a member, with the state of the others."""
        if self._identity < self._membership.initial_size:
            plan = self._membership.initial_plan()
            if (backend := self._form(plan)) is None:
                raise RuntimeError(
                    f"isthmus.torch.elastic: the ranks could not form a group at the start: {self._form_error}"
                )
            self._adopt(plan, backend)
            self._synchronize()
            return
        self.step = -1
        self._membership.add_waiting(self._identity)
        latest = None
        while True:
            plan = self._membership.plan_for(self._identity)
            if plan is None or plan == latest:
                self._check_wait()
                time.sleep(_POLL_S)
                continue
            latest = plan
            if (backend := self._form(plan)) is None:
                continue
            self._adopt(plan, backend)
            try:
                self._synchronize()
                return
            except RuntimeError:  # the others continue without this process; wait for their next plan
                self._watch.stop()
                _abort_all()
                dist.destroy_process_group()

    def _check_wait(self) -> None:
        """Ends the wait of a replacement that is not needed or cannot join."""
        if self._membership.is_done():
            sys.exit(0)
        _, gone = self._membership.waiting_and_gone()
        self._leave_if_excluded(gone)
        if not self._membership.joined() - gone:
            raise RuntimeError("isthmus.torch.elastic: all ranks with the state of the job were lost")

    def _leave_if_excluded(self, gone: set[int]) -> None:
        """Ends a process without which the others have continued, for example because it was stopped."""
        if self._identity in gone:
            os.kill(os.getpid(), signal.SIGKILL)  # the supervisor starts a replacement

    def _form(self, plan: Plan) -> Any:
        """Returns a backend that connects the members of a plan, or None if one of them is lost."""
        rank, size = plan.members.index(self._identity), len(plan.members)
        store = self._membership.store_for(plan)
        backend = create_backend(store, rank, size, self._timeout, "elastic", has_nonblocking_store=True)
        self._watch.start(plan.members, backend.abort)
        try:
            backend.allreduce([torch.zeros(1)], dist.AllreduceOptions()).wait()
        except RuntimeError as error:
            self._form_error = str(error)
            self._watch.stop()
            backend.abort()
            backend.shutdown()
            return None
        self._watch.stop()
        return backend

    def _grow(self) -> None:
        """Takes in the processes that wait. If one of them is lost meanwhile, the old group continues."""
        self._must_grow = False
        box = [self._membership.next_plan(self._members)] if dist.get_rank() == 0 else [None]
        dist.broadcast_object_list(box, 0)
        plan = box[0]
        assert plan is not None
        if plan.members == self._members:
            return
        backend = self._form(plan)
        is_formed = torch.tensor([int(backend is not None)])
        dist.all_reduce(is_formed, dist.ReduceOp.MIN)
        if is_formed:
            self._adopt(plan, backend)
        elif backend is not None:
            backend.abort()
            backend.shutdown()

    def _adopt(self, plan: Plan, backend: Any) -> None:
        """Makes the backend that of the default group."""
        self._watch.stop()
        sys.excepthook = self._excepthook  # init_process_group wraps it
        replace_default_group(backend, self._membership.store_for(plan), self._timeout)
        self._members, self._generation = plan.members, plan.generation

    def _synchronize(self) -> None:
        """Gives all members the state of one that has completed the most steps."""
        own = torch.tensor([self.step, self._identity])
        rows = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, own)
        steps, members = zip(*(row.tolist() for row in rows), strict=True)
        latest = max(steps)
        if min(steps) < latest:
            _transfer(self._state, steps.index(latest), is_receiver=self.step < latest)
            self.step = latest
        if dist.get_rank() == 0:  # a process that was only late then knows that it was excluded
            self._membership.add_gone(set(self._members) - set(members))
            self._watch.obsolete = self._generation
        self._members = members
        if not self._has_joined:
            self._membership.add_joined(self._identity)
            self._has_joined = True
        self._watch.start(members, _abort_all)

    def _recover(self, failure: RuntimeError) -> None:
        """Continues with the survivors."""
        self._watch.stop()
        size = dist.get_world_size()
        times = [time.monotonic()]
        _abort_all()
        times.append(time.monotonic())
        try:
            shrink()
        except RuntimeError:
            self._leave_if_excluded(self._membership.waiting_and_gone()[1])
            raise
        times.append(time.monotonic())
        _, already_gone = self._membership.waiting_and_gone()  # before _synchronize() adds excluded processes
        is_smaller = dist.get_world_size() < size
        if not is_smaller and self.step == self._failed_step:
            raise failure  # a repetition has not helped
        self._failed_step = self.step
        lost = set(self._members)
        self._synchronize()
        lost -= set(self._members)
        times.append(time.monotonic())
        if dist.get_rank() == 0:
            abort, shrinking, state = (end - begin for begin, end in itertools.pairwise(times))
            # The supervisor of an ended process has printed why. The failure is then often only an abort.
            cause = "" if lost & already_gone else f" after: {failure}"
            left = dist.get_world_size()
            subject = "1 rank continues" if left == 1 else f"{left} ranks continue"
            print(
                f"isthmus: {subject} at step {self.step}{cause} "
                f"(abort {abort:.2f} s, shrink {shrinking:.2f} s, state {state:.2f} s)",
                file=sys.stderr,
                flush=True,
            )


class _MembersChangedError(Exception):
    """Leaves train() when the group is about to change."""


class _Watch:
    """Polls the store in a thread. Aborts the calls of this rank if a member is gone."""

    def __init__(self, membership: Membership) -> None:
        self.candidates: set[int] = set()  # processes that wait
        self.obsolete = 0  # the keys of groups before this generation are removed
        self._membership = membership
        self._lock = threading.Lock()
        self._members: frozenset[int] = frozenset()
        self._abort: Callable[[], None] = lambda: None
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="isthmus-elastic", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_closed.set()
        self._thread.join()

    def start(self, members: tuple[int, ...], abort: Callable[[], None]) -> None:
        """Calls `abort` once in the thread if one of the members is gone."""
        with self._lock:
            self._members, self._abort = frozenset(members), abort
            self.candidates = set()

    def stop(self) -> None:
        """After this, `abort` is not called."""
        self.start((), lambda: None)

    def _loop(self) -> None:
        removed = 0
        with contextlib.suppress(RuntimeError):  # torchrun, and its store, may end first
            while not self._is_closed.wait(_POLL_S):
                if self.obsolete > removed:
                    removed = self.obsolete
                    self._membership.forget_before(removed)
                waiting, gone = self._membership.waiting_and_gone()
                with self._lock:
                    self.candidates = waiting - gone - self._members if self._members else set()
                    if self._members & gone:
                        self._members = frozenset()
                        self._abort()


@dataclass
class _TensorLayout:
    """Describes a tensor of the state to a rank that receives it."""

    shape: torch.Size
    dtype: torch.dtype
    device: str


def _transfer(state: dict[str, Any], source: int, is_receiver: bool) -> None:
    """Sends the state of rank `source` to all ranks. Those that need it load it."""
    is_source = dist.get_rank() == source
    tensors: list[torch.Tensor] = []

    def describe(tensor: torch.Tensor) -> _TensorLayout:
        tensors.append(tensor.detach().contiguous())
        return _TensorLayout(tensor.shape, tensor.dtype, tensor.device.type)

    def receive(layout: _TensorLayout) -> torch.Tensor:
        tensor = next(own) if is_source else torch.empty(layout.shape, dtype=layout.dtype, device=layout.device)
        dist.broadcast(tensor, source)
        return tensor

    box: list[Any] = [None]
    if is_source:
        content = {name: each.state_dict() for name, each in state.items()}
        box = [pytree.tree_map_only(torch.Tensor, describe, content)]
    own = iter(tensors)
    dist.broadcast_object_list(box, source)
    content = pytree.tree_map_only(_TensorLayout, receive, box[0])
    if is_receiver:
        for name, each in state.items():
            each.load_state_dict(content[name])


def _check_state(state: dict[str, Any], optimizers: list[torch.optim.Optimizer]) -> None:
    from torch.distributed.tensor import DTensor  # takes long to import

    for name, each in state.items():
        if not hasattr(each, "state_dict") or not hasattr(each, "load_state_dict"):
            raise TypeError(
                f"isthmus.torch.elastic.run: {name} is of type {type(each).__name__}; "
                "it must have state_dict and load_state_dict"
            )
        if any(isinstance(leaf, DTensor) for leaf in pytree.tree_leaves(each.state_dict())):
            raise TypeError(
                f"isthmus.torch.elastic.run: {name} has sharded tensors, and a killed rank takes its shards "
                "with it; pass no state, and call job.use_checkpoints() in train() (docs/guide/failures.md)"
            )
    if len(optimizers) > 1:
        raise TypeError(
            f"isthmus.torch.elastic.run: the state contains {len(optimizers)} optimizers; pass at most one"
        )


def _is_caused_by_group(error: RuntimeError) -> bool:
    return isinstance(error, dist.DistError) or any(backend.has_failed() for backend in all_backends())


def _abort_all() -> None:
    for backend in all_backends():
        backend.abort()
