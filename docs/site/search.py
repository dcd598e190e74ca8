"""Sphinx extension: synonyms for the search.

The search of Sphinx has no synonyms, but entries of the index have the highest score. This extension adds an
entry for each name that other libraries use for a collective, and for each word of TOPICS.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError

ROOT = Path(__file__).resolve().parents[2]

# The words of the names of collectives, if they are not separated by underscores.
WORDS = {
    "allreduce": "all reduce",
    "allgather": "all gather",
    "allgatherv": "all gather v",
    "alltoall": "all to all",
    "alltoallv": "all to all v",
    "gatherv": "gather v",
    "scatterv": "scatter v",
    "reduce_scatterv": "reduce scatter v",
}
# Names that do not follow from the words.
OTHER_NAMES = {
    "broadcast": ["bcast", "MPI_Bcast", "MPI_Ibcast", "ncclBcast"],
    "reduce_scatter": ["MPI_Reduce_scatter_block", "reduce_scatter_tensor"],
    "reduce_scatterv": ["MPI_Reduce_scatter"],
    "allgather": ["all_gather_into_tensor"],
    "alltoall": ["all_to_all_single"],
    "send": ["isend", "MPI_Isend", "point-to-point", "p2p message"],
    "recv": ["irecv", "receive", "MPI_Irecv", "point-to-point"],
}

# Page -> words that users search for.
TOPICS = {
    "guide/diagnosis": "debug, debugging, profiler, profiling, tracing, timeline, Nsight, Perfetto, flight "
    "recorder",
    "guide/failures": "fault tolerance, ULFM, elastic, resilience, recovery, MPIX_Comm_shrink, "
    "ncclCommShrink, ncclCommAbort, MPI_Abort, node failure, crash, timeout",
    "guide/fused": "GEMM, matmul, matrix multiplication, overlap, computation and communication",
    "guide/known_limits": "limitations, not supported, unsupported, bugs, known issues, restrictions",
    "guide/llama_cpp": "ggml, LLM, inference, token generation",
    "guide/memory": "allocator, allocation, pinned memory, registered memory, window, ncclMemAlloc, "
    "ncclCommWindowRegister, UMF, IPC",
    "guide/migration": "porting, port, convert, hipify",
    "guide/mpi_programs": "MPI shim, PMPI, MPICH, Open MPI, Intel MPI, mpiexec, mpirun, LD_PRELOAD, LAMMPS",
    "guide/nccl_programs": "RCCL, ncclCommInitRank, ncclGetUniqueId, LD_PRELOAD, nccl-tests, JAX",
    "guide/pytorch": "torch.distributed, DDP, FSDP, FSDP2, DeepSpeed, ZeRO, accelerate, process group, gloo",
    "guide/troubleshooting": "FAQ, error, errors, help, problems, hang, deadlock, segfault",
    "guide/python": "NumPy, DLPack, CuPy, mpi4py, unique id",
    "internals/hierarchical": "multi-node, multinode, multiple nodes, several nodes, inter-node, cluster",
    "internals/ucx": "multi-node, multinode, multiple nodes, cluster, InfiniBand, RDMA, RoCE, TCP, network, "
    "Ethernet",
    "internals/shm": "shared memory, intra-node, process_vm_readv, single node",
    "internals/p2p": "NVLink, peer access, GPUDirect, CUDA IPC, one-shot, two-shot",
    "internals/nccl": "RCCL, oneCCL, vendor libraries",
    "reference/cli": "command line, isthmus run, launcher, mpiexec, torchrun",
    "reference/configuration": "settings, options, tuning, NCCL_ALGO, NCCL_PROTO, TOML, environment variables",
    "reference/performance": "benchmarks, speed, speedup, latency, bandwidth, comparison",
    "reference/security": "authentication, encryption, firewall, port, password",
    "reference/support": "GPU, GPUs, NVIDIA, AMD, Intel, CUDA, ROCm, HIP, hardware, platforms, requirements, "
    "compatibility, aarch64, ARM, multi-node",
    "start/backend": "plug-in, plugin, extension, custom backend, network plug-in",
    "start/concepts": "introduction, overview, getting started, process group, communicator, MPI_Comm, "
    "ncclComm_t",
    "start/install": "pip, wheel, CMake, build, compile, setup, quick start, getting started, dependencies, "
    "pkg-config, container",
}


def collective_names() -> Iterator[tuple[str, list[str]]]:
    """Yields each collective of the collective table and the names that users search for."""
    table = (ROOT / "include" / "isthmus" / "collectives.def").read_text()
    for name in re.findall(r"^ISTHMUS_COLLECTIVE\((\w+),", table, re.M):
        words = WORDS.get(name, name.replace("_", " ")).split()
        joined = [separator.join(words) for separator in ("", " ", "-", "_")]
        camel = "".join(word.capitalize() for word in words)
        libraries = [f"nccl{camel}", f"rccl{camel}", f"MPI_{name.capitalize()}", f"isthmus_{name}"]
        yield name, list(dict.fromkeys([name, *joined, *libraries, *OTHER_NAMES.get(name, [])]))


def signatures(document: nodes.document) -> Iterator[tuple[str, str]]:
    """Yields the anchor of each documented function, and its unqualified name."""
    for signature in document.findall(addnodes.desc_signature):
        name = next(signature.findall(addnodes.desc_name), None)
        if name is not None and signature["ids"]:
            yield signature["ids"][0], name.astext()


def add_entries(app, document: nodes.document) -> None:
    page = app.env.docname
    entries = [(word.strip(), "") for word in TOPICS.get(page, "").split(",") if word.strip()]
    if page.startswith("reference/") and page.endswith("_api"):
        anchors = {}
        for anchor, name in signatures(document):
            anchors.setdefault(name.removeprefix("isthmus_"), anchor)
        for name, synonyms in collective_names():
            entries += [(synonym, anchors[name]) for synonym in synonyms if name in anchors]
    index = addnodes.index(entries=[("single", word, anchor, "main", None) for word, anchor in entries])
    document.insert(0, index)


def check_pages(app, env) -> None:
    unknown = sorted(set(TOPICS) - set(env.found_docs))
    if unknown:
        raise ExtensionError(f"docs/site/search.py: TOPICS has no page {', '.join(unknown)}")


def setup(app) -> dict[str, bool]:
    app.connect("doctree-read", add_entries)
    app.connect("env-updated", check_pages)
    return {"parallel_read_safe": True}
