"""The members of an elastic job, in torchrun's store.

Each process that runs the script has an identity: at first its rank, a replacement the next free number. Lists
of identities only grow, so that every process can append to them without a lock.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

IDENTITY = "ISTHMUS_TORCH_ELASTIC"  # the identity of a child
_WAITING, _JOINED, _GONE = "waiting", "joined", "gone"
_DONE = "done"
_GENERATION = "group_"  # followed by a number and a slash: the keys of a group


class Plan(NamedTuple):
    """A group that is about to be created."""

    generation: int  # unique, also if the group is never created
    members: tuple[int, ...]  # in the order of the ranks


class Membership:
    """A connection to the store. Thread-safe: no call waits for a key."""

    def __init__(self, store: dist.Store) -> None:
        restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self.store = dist.PrefixStore(f"isthmus_elastic_{restart}", store)
        self.initial_size = int(os.environ["WORLD_SIZE"])
        for name in (_WAITING, _JOINED, _GONE):
            self.store.append(name, " ")  # reading a missing key would wait

    @staticmethod
    def connect() -> Membership:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return Membership(dist.TCPStore(address, port, is_master=False, timeout=timedelta(seconds=60)))

    # ---- identities ----

    def next_identity(self) -> int:
        return self.initial_size - 1 + self.store.add("replacements", 1)

    def waiting_and_gone(self) -> tuple[set[int], set[int]]:
        waiting, gone = self.store.multi_get([_WAITING, _GONE])
        return _identities(waiting), _identities(gone)

    def joined(self) -> set[int]:
        """Processes that had the state of the job at some time."""
        return _identities(self.store.get(_JOINED))

    def add_waiting(self, identity: int) -> None:
        self.store.append(_WAITING, f"{identity} ")

    def add_joined(self, identity: int) -> None:
        self.store.append(_JOINED, f"{identity} ")

    def add_gone(self, identities: Iterable[int]) -> None:
        """Records processes that have ended or that the others have excluded."""
        if text := "".join(f"{identity} " for identity in identities):
            self.store.append(_GONE, text)

    # ---- plans ----

    def initial_plan(self) -> Plan:
        return Plan(0, tuple(range(self.initial_size)))

    def next_plan(self, members: tuple[int, ...]) -> Plan:
        """Adds all processes that wait, and gives them the plan."""
        waiting, gone = self.waiting_and_gone()
        newcomers = sorted(waiting - gone - set(members))
        plan = Plan(self.store.add("generations", 1), (*members, *newcomers))
        for identity in newcomers:
            self.store.set(_plan_key(identity), json.dumps(plan))
        return plan

    def plan_for(self, identity: int) -> Plan | None:
        """Returns the latest plan that contains a process that waits."""
        key = _plan_key(identity)
        if not self.store.check([key]):
            return None
        generation, members = json.loads(self.store.get(key))
        return Plan(generation, tuple(members))

    def store_for(self, plan: Plan) -> dist.Store:
        return dist.PrefixStore(f"{_GENERATION}{plan.generation}", self.store)

    def forget_before(self, generation: int) -> None:
        """Removes the keys of earlier groups. No member may use them after this."""
        if not hasattr(self.store, "list_keys"):  # since PyTorch 2.10
            return
        for key in self.store.list_keys():
            number = key.removeprefix(_GENERATION).partition("/")[0]
            if key.startswith(_GENERATION) and int(number) < generation:
                self.store.delete_key(key)

    # ---- the end ----

    def set_done(self) -> None:
        self.store.set(_DONE, "1")

    def is_done(self) -> bool:
        return bool(self.store.check([_DONE]))


def _identities(text: bytes) -> set[int]:
    return {int(word) for word in text.split()}


def _plan_key(identity: int) -> str:
    return f"plan_{identity}"
