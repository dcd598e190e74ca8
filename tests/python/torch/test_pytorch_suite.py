"""PyTorch's own tests of torch.distributed from the installed wheel, with four ranks on this backend.

PyTorch runs them only for known backends, so these tests call the undecorated functions. All tests without
GPUs run; EXCLUDED lists the exceptions with the reasons.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from rank_processes import RankProcesses

NAME = "isthmus"
OPERATIONS = ("sum", "product", "min", "max")
GROUPS = ("", "group_", "full_group_")


def _families() -> list[str]:
    """Returns the tests that exist for each reduction, group or profiler."""
    names = [
        f"{call}_{group}{op}"
        for call in ("reduce", "all_reduce", "all_reduce_coalesced")
        for group in GROUPS
        for op in OPERATIONS
    ]
    names += [
        f"{call}{group}"
        for call in ("broadcast", "gather", "scatter", "all_gather", "all_to_all", "barrier")
        for group in ("", "_group", "_full_group")
    ]
    names += [
        f"all_to_all_single_{split}_split{group}"
        for split in ("equal", "unequal")
        for group in ("", "_complex", "_group", "_full_group")
    ]
    names += [
        f"{call}{watched}"
        for call in ("send_recv", "send_recv_with_tag", "isend")
        for watched in ("", "_autograd_profiler", "_torch_profiler")
    ]
    return names


CHOSEN = [
    *_families(),
    # groups
    "Backend_enum_class",
    "destroy_full_group",
    "destroy_group",
    "dump_DDP_relevant_env_vars",
    "get_backend",
    "get_rank",
    "get_rank_size_full_group",
    "get_rank_size_group",
    "new_subgroups_by_enumeration_input_rank_exceeds_world_size",
    "new_subgroups_by_enumeration_negative_input_rank",
    "new_subgroups_group_size_exceeds_world_size",
    "new_subgroups_overlap_not_allowed",
    "new_subgroups_with_group_param",
    "new_subgroups_world_size_not_divisible_by_group_size",
    # messages
    "batch_isend_irecv_gloo",
    "batch_isend_irecv_gloo_tags",
    "batch_isend_irecv_op_list_err",
    "irecv",
    # collectives
    "all_gather_coalesced_complex",
    "all_gather_coalesced_full_group",
    "all_gather_coalesced_group",
    "all_gather_coalesced_simple",
    "all_gather_coalesced_with_empty",
    "all_gather_complex",
    "all_reduce_coalesced_max_complex_unsupported",
    "all_reduce_complex_unsupported_ops",
    "all_reduce_sum_async",
    "all_reduce_sum_complex",
    "all_to_all_complex",
    "gather_checks",
    "reduce_sum_twice",
    "scatter_checks",
    "scatter_complex",
    "sparse_all_reduce_sum",
    # objects
    "all_gather_object_default_pg",
    "all_gather_object_subgroup",
    "broadcast_object_list",
    "gather_object",
    "gather_object_subgroup",
    "scatter_object_list",
    # timeouts
    "barrier_timeout_arg",
    "barrier_timeout_full_group",
    "barrier_timeout_global",
    # DistributedDataParallel
    "DistributedDataParallelCPU",
    "DistributedDataParallelCPU_grad_is_view",
    "DistributedDataParallel_requires_grad",
    "ddp_create_graph",
    "grads_same_across_ranks_with_no_sync",
    "static_graph_api_cpu",
]

ANY_SOURCE = "receiving from any source is not supported, as with NCCL (test_messages.py)"
MONITORED = (
    "torch.distributed.monitored_barrier supports only gloo; test_failures.py tests that of isthmus.torch"
)
EXCLUDED = {
    "SyncBatchNorm_process_group": "needs torchvision",
    "barrier_timeout_group": "barrier_timeout_full_group tests the same and waits 1 s instead of 5 s",
    "ddp_logging_data_cpu": 'DDP logs "custom" for every backend that is not part of PyTorch',
    "monitored_barrier_failure_order": MONITORED,
    "monitored_barrier_gloo": MONITORED,
    "monitored_barrier_gloo_rank_0_timeout": MONITORED,
    "monitored_barrier_gloo_subgroup": MONITORED,
    "monitored_barrier_wait_all_ranks": MONITORED,
    "new_subgroups": "requires CUDA if PyTorch has it; new_subgroups_with_group_param does not",
    "send_recv_any_source": ANY_SOURCE,
    "send_recv_any_source_autograd_profiler": ANY_SOURCE,
    "send_recv_any_source_torch_profiler": ANY_SOURCE,
}


def _suite() -> Any:
    """Returns PyTorch's test module, configured for this backend."""
    os.environ["BACKEND"] = NAME  # read at import
    from torch.testing._internal.distributed import distributed_test as module

    # Also checks what a profiler shows of the calls.
    for supported in (module.PROFILING_SUPPORTED_BACKENDS, module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        if NAME not in supported:
            supported.append(NAME)
    return module


def run_pytorch_test(name: str) -> None:
    """Runs one test on this rank."""
    from torch.testing._internal.common_utils import TestCase

    module = _suite()
    # PyTorch's own limit, because more than a hundred tests on a shared machine see long pauses.
    dist.group.WORLD.set_timeout(timedelta(seconds=60))
    store = os.environ["TEST_STORE"]
    module.INIT_METHOD = f"{store}-again"  # for tests that create the default group again
    folder = Path(f"{store.removeprefix('file://')}-files")
    for part in ("barrier", "test_dir"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    os.environ["TEMP_DIR"] = str(folder)

    class Suite(module.DistributedTest._DistTestBase, TestCase):
        world_size = int(os.environ["WORLD_SIZE"])

        def _barrier(self, *arguments: Any, **options: Any) -> None:
            if dist.is_initialized():
                dist.barrier()
            else:  # polls files ten times a second
                super()._barrier(*arguments, **options)

    test = Suite(f"test_{name}")
    test.rank = int(os.environ["RANK"])
    test.setUp()
    try:
        inspect.unwrap(getattr(Suite, f"test_{name}"))(test)
    finally:
        test.doCleanups()
        test.tearDown()
        dist.set_debug_level_from_env()  # some tests raise it


@pytest.mark.parametrize("name", CHOSEN)
def test_pytorch_suite(ranks: RankProcesses, name: str) -> None:
    ranks.run(run_pytorch_test, name, backend=NAME)


def host_tests() -> list[str]:
    """Returns the tests that neither require nor mention GPUs."""
    base = _suite().DistributedTest._DistTestBase
    names = []
    for name in dir(base):
        if not name.startswith("test_"):
            continue
        function = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(getattr(base, name))))).body[0]
        gates = " ".join(ast.unparse(gate) for gate in function.decorator_list)
        body = " ".join(ast.unparse(line) for line in function.body).lower()
        if not re.search(r"skip_if\w*_gpu", gates) and not re.search("cuda|gpu|nccl", body):
            names.append(name.removeprefix("test_"))
    return names


def test_all_host_tests_are_listed(ranks: RankProcesses) -> None:
    """A host test added by a new PyTorch must be in CHOSEN or EXCLUDED."""
    available = set(ranks.run(host_tests, backend=None)[0])
    known = {*CHOSEN, *EXCLUDED}
    assert sorted(available - known) == [], "neither chosen nor excluded"
    assert not set(CHOSEN) & set(EXCLUDED)
