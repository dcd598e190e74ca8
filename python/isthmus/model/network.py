"""Formulas for collectives over a network: latency and transfer time of one call.

Sizes are in bytes as in records: allgather counts the bytes of one rank. Times are in microseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class Cost(NamedTuple):
    """Time of one phase in microseconds."""

    latency: float = 0.0
    transfer: float = 0.0

    @property
    def total(self) -> float:
        return self.latency + self.transfer

    def plus(self, other: Cost) -> Cost:
        return Cost(self.latency + other.latency, self.transfer + other.transfer)


@dataclass(frozen=True)
class Network:
    """Links between nodes. `bytes_per_us` is the bandwidth of one node in each direction."""

    bytes_per_us: float
    latency_us: float
    overhead_us: float = 0.0  # to post one message

    def send(self, steps: float, node_bytes: float) -> Cost:
        """Sequential steps in which a node sends `node_bytes` in total."""
        return Cost(steps * self.latency_us, node_bytes / self.bytes_per_us)

    def post(self, messages: float, node_bytes: float) -> Cost:
        """One step in which a rank posts several messages at once."""
        return Cost(self.latency_us + messages * self.overhead_us, node_bytes / self.bytes_per_us)


def log2_steps(ranks: int) -> int:
    """Steps of a binary tree over `ranks` ranks."""
    return math.ceil(math.log2(ranks))


# One rank per node.


def ring_allreduce(network: Network, ranks: int, size: float) -> Cost:
    """Reduce-scatter and allgather around a ring."""
    return network.send(2 * (ranks - 1), 2 * (ranks - 1) / ranks * size)


def ring_allgather(network: Network, ranks: int, size: float) -> Cost:
    """Each rank passes on the block that it received last."""
    return network.send(ranks - 1, (ranks - 1) * size)


def recursive_doubling_allreduce(network: Network, ranks: int, size: float) -> Cost:
    """Ranks exchange the whole message with partners at distances 1, 2, 4, ..."""
    return network.send(log2_steps(ranks), log2_steps(ranks) * size)


def rabenseifner_allreduce(network: Network, ranks: int, size: float) -> Cost:
    """Recursive halving, then recursive doubling."""
    return network.send(2 * log2_steps(ranks), 2 * (ranks - 1) / ranks * size)


def pairwise_alltoall(network: Network, ranks: int, size: float) -> Cost:
    """In step k, each rank sends one block to rank r+k and waits for the block from rank r-k."""
    return network.send(ranks - 1, (ranks - 1) / ranks * size)


# Several ranks per node: backend `ucx` on all ranks (docs/internals/ucx.md#algorithms). Traffic within a node
# is free.

_RING_BYTES = 512 << 10


def direct_blocks(network: Network, nodes: int, ranks_per_node: int, size: float) -> Cost:
    """Each rank sends a different block to each other rank. `size`: all blocks of one rank."""
    ranks = nodes * ranks_per_node
    return network.post(ranks - 1, ranks_per_node * (ranks - ranks_per_node) / ranks * size)


def ucx_gather(network: Network, nodes: int, ranks_per_node: int, block: float) -> Cost:
    """All ranks get the blocks of all ranks. Rings are ordered by node."""
    ranks = nodes * ranks_per_node
    is_ring = ranks_per_node > 1 or block * ranks >= _RING_BYTES
    return (network.send if is_ring else network.post)(ranks - 1, (ranks - 1) * block)


def ucx_allreduce(network: Network, nodes: int, ranks_per_node: int, size: float) -> Cost:
    """Each rank combines the unreduced contributions to its slice, and sends the result to all ranks."""
    gather = ucx_gather(network, nodes, ranks_per_node, size / (nodes * ranks_per_node))
    return direct_blocks(network, nodes, ranks_per_node, size).plus(gather)


def mpi_allreduce(network: Network, ranks: int, size: float) -> Cost:
    """The faster of the two algorithms that MPI libraries use on one rank per node."""
    choices = (recursive_doubling_allreduce, rabenseifner_allreduce)
    return min((choice(network, ranks, size) for choice in choices), key=lambda cost: cost.total)


# NCCL's own model: ncclTopoTuneModel in NVIDIA/nccl, src/graph/tuning.cc (5067397, June 2026), with the
# constants for Hopper GPUs, NVLink and Intel CPUs. Latencies are in microseconds. Bandwidths are in GB/s, that
# is 10^3 bytes per microsecond. Tables list the protocols in the order of NCCL_PROTOCOLS.

NCCL_PROTOCOLS = ("LL", "LL128", "Simple")
_BASE_LATENCY = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
_NVLINK_LATENCY = {"tree": (0.6, 1.25, 4.0), "ring": (0.6, 1.9, 3.4)}
_NET_LATENCY = {"tree": (5.0, 8.5, 14.0), "ring": (2.7, 4.0, 14.0)}
_NET_OVERHEAD = (1.0, 1.0, 3.0)
_LL_MAX_GBS = {1: 141.0, 2: 39.0, 3: 20.4}  # by number of nodes; 3 or more


def nccl(
    algorithm: str, protocol: str, nodes: int, ranks_per_node: int, size: float, bus_gbs: float, rounds: int = 2
) -> tuple[Cost, Cost]:
    """Predicts a collective of NCCL with bus bandwidth `bus_gbs`: costs within and between nodes.

    The transfer time is part of the second cost. Limits of single channels are omitted. `algorithm` is ring, or
    tree for allreduce. `rounds` is 2 for allreduce. It is 1 for a ring that passes the data around once; `size`
    is then the data of all ranks.
    """
    index = NCCL_PROTOCOLS.index(protocol)
    ranks = nodes * ranks_per_node
    base, intra, inter = (table[algorithm][index] for table in (_BASE_LATENCY, _NVLINK_LATENCY, _NET_LATENCY))
    if ranks_per_node == 1:
        inter = _NET_LATENCY["tree"][index]
    is_ring = algorithm == "ring"
    if is_ring:
        bus_gbs *= (0.5, 0.92, 1.0)[index]
    else:
        bus_gbs *= 0.92 * (1 / 3.8, 7 / 9 if nodes == 1 else 120 / 128, 1.0)[index]
    if protocol == "LL":
        bus_gbs = min(_LL_MAX_GBS[min(nodes, 3)], bus_gbs)
    if not is_ring:
        inter_us = 2 * math.floor(math.log2(nodes)) * inter
        return Cost(base + 2 * (ranks_per_node - 1) * intra), Cost(inter_us, 2 * size / (bus_gbs * 1e3))
    steps, inter_steps = rounds * (ranks - 1), rounds * (nodes - 1)
    if nodes > 1:
        intra = max(intra, _NET_OVERHEAD[index])
    intra_cost = Cost(base + (steps - inter_steps) * intra)
    return intra_cost, Cost(inter_steps * inter, size * steps / ranks / (bus_gbs * 1e3))


def best_nccl(
    algorithm: str, nodes: int, ranks_per_node: int, size: float, bus_gbs: float, rounds: int = 2
) -> tuple[Cost, Cost]:
    """The costs with the fastest protocol."""
    costs = (
        nccl(algorithm, protocol, nodes, ranks_per_node, size, bus_gbs, rounds) for protocol in NCCL_PROTOCOLS
    )
    return min(costs, key=lambda pair: pair[0].total + pair[1].total)
