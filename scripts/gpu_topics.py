"""The table of scripts/gpu_check: one entry of TOPICS for each topic (docs/internals/benchmarks.md).

Each command is one string that is split like shell words; no shell runs it. Placeholders:
  {bin}      folder of the built programs           {lib}         folder of the built libraries
  {python}   the interpreter that runs gpu_check    {pythonpath}  folder of the built Python package
  {ranks}    number of GPUs, or of ranks that share one
  {out}      folder for results                     {scripts}     this folder
  {mpiexec}  the launcher, with its options         {carry}       what was carried to this machine
  {llama}    folder in which llama.cpp is built     {sycl}        folder of the unpacked SYCL runtime
  {each}     scripts/each_rank for {ranks} ranks
  {architectures}  architectures of the GPUs, in the notation of CMake
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Step:
    """One command and its time limit.

    The step is skipped, with the reason, if the machine has fewer than `gpus` GPUs or lacks one of `needs`
    (keys of PROBES in gpu_check). With `share`, two ranks share the GPU of a machine that has only one; such
    runs check results and give no valid times. Exit code 77 means that the program found no suitable device.
    `records` is the record file that the command writes, `env` holds additional environment variables.
    """

    name: str
    command: str
    limit_s: int
    gpus: int = 1
    share: bool = False
    needs: tuple[str, ...] = ()
    records: str = ""
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Topic:
    """Related steps, the CMake targets that they need, and the CMake options that define those targets.

    `needs` applies to every step and to the build.
    """

    name: str
    targets: tuple[str, ...]
    steps: tuple[Step, ...]
    options: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


# Names the adapter that PyPI lacks; the runtime loads no other adapter.
SYCL_RUNTIME = {"UR_ADAPTERS_FORCE_LOAD": "{sycl}/lib/libur_adapter_cuda.so.0"}

# For ranks that share a GPU, in addition to NCCL_HOSTID, which each_rank and tests/gpu/torch/sharing.py set.
# NCCL rejects ranks on one device unless they appear to be on different hosts.
SHARED_GPU = {
    "NCCL_NET": "Socket",
    "NCCL_SOCKET_IFNAME": "lo",
    "ISTHMUS_OPTION": ";".join(f"backend.{name}.share_device=true" for name in ("nccl", "p2p", "copy_engine")),
}

# libucx-cu13 of PyPI, whose UCX supports CUDA memory.
CARRIED_UCX = {"ISTHMUS_UCX_LIBRARY": "{carry}/ucx/libucx/lib/libucp.so.0"}
# The Python package with its dependencies that GPU machines lack.
TUNE = {"PYTHONPATH": "{pythonpath}:{carry}/python:{carry}/pydantic", "COLUMNS": "160"}
REGRET_COLLECTIVES = "allreduce,allgather,reduce_scatter,alltoall,broadcast"
# Half steps between powers of two show where NCCL changes its protocol. Below 128 bytes, they are not aligned.
REGRET_SIZES = "8,16,32,64," + ",".join(f"{1 << k},{3 << k - 1}" for k in range(7, 26)) + ",64M"
NODES_BENCH = "{bin}/hierarchical_bench --platforms cuda,cuda --ordinals 0,1 --nodes a,b --sizes 4K,64K,1M,16M"


def fused_bench(name: str, file: str, options: str, limit_s: int) -> Step:
    """Measures fused products against two variants of torch, into {out}/<file>.json."""
    return Step(
        name,
        f"{{python}} bench/gpu/fused_bench.py --out {{out}}/{file}.json {options}",
        limit_s,
        gpus=2,
        needs=("torch",),
        records=f"{{out}}/{file}.json",
        env={"PYTHONPATH": "{pythonpath}"},
    )


TOPICS = (
    Topic(
        "collectives",
        ("gpu_collectives_test",),
        (
            Step("collectives, ranks in threads", "{bin}/gpu_collectives_test", 150, gpus=2),
            Step("collectives, one rank", "{bin}/gpu_collectives_test --ranks 1", 60),
            Step(
                "collectives, ranks in processes",
                "{each} {bin}/gpu_collectives_test",
                150,
                gpus=2,
                share=True,
            ),
        ),
    ),
    Topic(
        "hierarchical",
        ("gpu_hierarchical_test", "hierarchical_bench"),
        (
            Step(
                "CUDA and host ranks in one communicator, one CUDA rank per node",
                "{bin}/gpu_hierarchical_test",
                60,
                env={"TEST_PLATFORMS": "cuda host cuda host"},
            ),
            Step(
                "devices of a node reduce among themselves (two share the GPU)",
                "{bin}/gpu_hierarchical_test",
                60,
                env=SHARED_GPU
                | {
                    "TEST_PLATFORMS": "cuda host cuda host",
                    "TEST_SHARE_DEVICE": "1",
                    "ISTHMUS_OPTION": SHARED_GPU["ISTHMUS_OPTION"] + ";backend.hierarchical.intra_node=nccl",
                },
            ),
            Step(
                "allreduce of CUDA and host ranks compared with its slowest step",
                "{bin}/hierarchical_bench --platforms cuda,cuda,host,host --sizes 1M,16M,64M"
                " --out {out}/hierarchical.json",
                60,
                records="{out}/hierarchical.json",
            ),
            Step(
                "one GPU rank per node",
                "{bin}/hierarchical_bench --platforms cuda,cuda --nodes a,b --sizes 1M,16M"
                " --out {out}/nodes.json",
                60,
                records="{out}/nodes.json",
                env={"ISTHMUS_BACKEND": "hierarchical"},
            ),
            Step(
                "one GPU rank per node, device memory over UCX",
                "{bin}/gpu_hierarchical_test --gtest_filter=ucx_devices.*",
                60,
                needs=("ucx",),
                env=CARRIED_UCX | {"TEST_UCX_DEVICES": "1"},
            ),
            Step(
                "alltoall of device memory over UCX, one GPU per node",
                f"{NODES_BENCH} --collective alltoall --out {{out}}/nodes_ucx.json",
                60,
                gpus=2,
                needs=("ucx",),
                records="{out}/nodes_ucx.json",
                env=CARRIED_UCX | {"ISTHMUS_BACKEND": "ucx"},
            ),
            Step(
                "the same alltoall with host staging",
                f"{NODES_BENCH} --collective alltoall --out {{out}}/nodes_staged.json",
                60,
                gpus=2,
                needs=("ucx",),
                records="{out}/nodes_staged.json",
                env=CARRIED_UCX | {"ISTHMUS_BACKEND": "hierarchical"},
            ),
        ),
    ),
    Topic(
        "asynchrony",
        ("gpu_asynchrony_test",),
        (Step("asynchrony, graphs, abort", "{bin}/gpu_asynchrony_test", 90),),
    ),
    Topic(
        "memory",
        ("gpu_memory_test", "memory_provider_test", "gpu_bench", "allocation_bench"),
        (
            Step("symmetric heap and copies, ranks in threads", "{bin}/gpu_memory_test", 40),
            Step(
                "symmetric heap, ranks in processes",
                "{each} {bin}/gpu_memory_test",
                40,
                gpus=2,
                share=True,
            ),
            Step(
                "providers of a CUDA device",
                "{bin}/memory_provider_test --gtest_filter=*cuda_memory*",
                40,
                needs=("umf",),
                env={"ISTHMUS_UMF_LIBRARY": "{carry}/lib/libumf.so.1"},
            ),
            Step(
                "host cost of device memory; copies against raw copies",
                "{bin}/gpu_bench memory --out {out}/memory.json",
                40,
                records="{out}/memory.json",
                env={"ISTHMUS_UMF_LIBRARY": "{carry}/lib/libumf.so.1"},
            ),
            Step(
                "the pool against the driver",
                "{bin}/allocation_bench --largest 4M,16M --out {out}/allocation.json",
                40,
                needs=("umf",),
                records="{out}/allocation.json",
                env={"ISTHMUS_UMF_LIBRARY": "{carry}/lib/libumf.so.1"},
            ),
            Step(
                "the pool against the driver, with 1 GiB kept",
                "{bin}/allocation_bench --largest 16M --out {out}/allocation_1g.json",
                40,
                needs=("umf",),
                records="{out}/allocation_1g.json",
                env={
                    "ISTHMUS_UMF_LIBRARY": "{carry}/lib/libumf.so.1",
                    "ISTHMUS_CONFIG": "bench/gpu/pool_keep_1g.toml",
                },
            ),
        ),
    ),
    Topic(
        "mpi",
        ("gpu_mpi_test",),
        (Step("MPI on device buffers and NCCL", "{mpiexec} -n {ranks} {bin}/gpu_mpi_test", 90, gpus=2),),
        needs=("mpi",),
    ),
    Topic(
        "threshold",
        ("gpu_bench",),
        (
            Step(
                "the threshold between MPI and NCCL",
                "{mpiexec} -n {ranks} {bin}/gpu_bench threshold --out {out}/threshold.json"
                " --profile {out}/profile.toml",
                120,
                gpus=2,
                records="{out}/threshold.json",
            ),
        ),
        needs=("mpi",),
    ),
    Topic(
        "patterns",
        ("patterns",),
        (
            Step(
                "application exchange patterns against NCCL and MPI",
                "{mpiexec} -n {ranks} {bin}/patterns --platform cuda --sizes 64:4M:4"
                " --json {out}/patterns.json",
                180,
                gpus=2,
                records="{out}/patterns.json",
            ),
            Step(
                "the same with two ranks on one GPU: results only",
                "{mpiexec} -n 2 {bin}/patterns --platform cuda --share-device --sizes 64,16K,1M --samples 3"
                " --calls 5 --json {out}/patterns_shared.json",
                90,
                records="{out}/patterns_shared.json",
            ),
        ),
        needs=("mpi",),
    ),
    Topic(
        "p2p",
        ("gpu_tensor_parallel_test", "gpu_bench"),
        (
            Step("tensor parallelism for every number of GPUs", "{bin}/gpu_tensor_parallel_test", 120, gpus=2),
            Step(
                "peer-memory allreduce against NCCL",
                "{bin}/gpu_bench p2p --out {out}/p2p.json",
                40,
                gpus=2,
                records="{out}/p2p.json",
            ),
        ),
        options=("-DISTHMUS_P2P=ON",),
    ),
    Topic(
        "fused_norm",
        ("gpu_rmsnorm_test", "gpu_bench"),
        (
            Step(
                "allreduce + RMSNorm: bits of the host version, graphs, failures; ranks in threads",
                "{bin}/gpu_rmsnorm_test",
                120,
                gpus=2,
            ),
            *(
                Step(
                    f"allreduce + RMSNorm, only {algorithm}",
                    "{bin}/gpu_rmsnorm_test --gtest_filter=-failures.*",
                    90,
                    gpus=2,
                    env={"ISTHMUS_RULE": f"collective=allreduce platform=cuda use=p2p:{algorithm}"},
                )
                for algorithm in ("one_shot", "two_shot")
            ),
            Step(
                "allreduce + RMSNorm, ranks in processes",
                "{each} {bin}/gpu_rmsnorm_test",
                120,
                gpus=2,
                share=True,
            ),
            Step(
                "allreduce + RMSNorm against separate calls of Isthmus and NCCL, in graphs",
                "{bin}/gpu_bench fused_norm --out {out}/fused_norm.json",
                60,
                gpus=2,
                records="{out}/fused_norm.json",
            ),
        ),
        options=("-DISTHMUS_P2P=ON",),
    ),
    Topic(
        "p2p_collectives",
        ("p2p_device_test", "gpu_collectives_test", "gpu_asynchrony_test", "gpu_bench"),
        (
            Step("conformance cases, ranks in threads", "{bin}/p2p_device_test --ranks {ranks}", 40, gpus=2),
            Step(
                "conformance cases as chunks, ranks in processes",
                "{bin}/p2p_device_test --world processes --ranks {ranks} --seed 2",
                40,
                gpus=2,
                share=True,
                env={"ISTHMUS_OPTION": "backend.p2p.packet_bytes=2000"},
            ),
            # Several processes on each device: results only.
            *(
                Step(
                    f"conformance cases, {ranks} ranks in processes",
                    f"{{bin}}/p2p_device_test --world processes --ranks {ranks} --thinning {thinning}"
                    f" --samples {samples} --batches 1",
                    60,
                    env={"ISTHMUS_OPTION": "backend.p2p.packet_bytes=30000"},
                )
                for ranks, thinning, samples in ((4, 24, 20), (5, 36, 12), (8, 60, 10))
            ),
            Step(
                "every collective, datatype and operation on p2p, ranks in threads",
                "{bin}/gpu_collectives_test --gtest_filter=-selection.*:misuse.*",
                60,
                gpus=2,
                env={"ISTHMUS_BACKEND": "p2p"},
            ),
            Step(
                "asynchrony, graphs and abort on p2p",
                "{bin}/gpu_asynchrony_test",
                40,
                gpus=2,
                env={"ISTHMUS_BACKEND": "p2p"},
            ),
            Step(
                "every collective on p2p against NCCL, call by call and in graphs",
                "{bin}/gpu_bench collectives --limit 75 --out {out}/p2p_collectives.json",
                100,
                gpus=2,
                records="{out}/p2p_collectives.json",
            ),
            # NCCL 2.28 hangs in its broadcast of 4 MiB between symmetric windows (docs/internals/p2p.md).
            Step(
                "large collectives on p2p against NCCL without windows",
                "{bin}/gpu_bench collectives --providers nccl,isthmus --out {out}/p2p_collectives_large.json"
                " --sizes 2097152 4194304 8388608 16777216",
                60,
                gpus=2,
                records="{out}/p2p_collectives_large.json",
            ),
        ),
        options=("-DISTHMUS_P2P=ON",),
    ),
    Topic(
        "copy_engine",
        ("copy_engine_device_test", "gpu_bench"),
        (
            Step("copy engines, ranks in threads", "{bin}/copy_engine_device_test", 40, gpus=2),
            Step(
                "copy engines, ranks in processes",
                "{bin}/copy_engine_device_test --world processes --ranks {ranks}",
                120,
                gpus=2,
                share=True,
            ),
            Step(
                "copy engines against NCCL",
                "{bin}/gpu_bench copy_engine --out {out}/copy_engine.json",
                40,
                gpus=2,
                records="{out}/copy_engine.json",
            ),
            Step(
                "matrix products concurrent with copy engines and NCCL",
                "{bin}/gpu_bench copy_engine --with-products 12 --out {out}/copy_engine_beside.json",
                40,
                gpus=2,
                records="{out}/copy_engine_beside.json",
            ),
            Step(
                "PyTorch's low-contention all-gather",
                "{python} bench/gpu/torch_low_contention.py --out {out}/torch_low_contention.json",
                40,
                gpus=2,
                needs=("torch",),
                records="{out}/torch_low_contention.json",
            ),
        ),
    ),
    Topic(
        "nccl",
        ("gpu_bench",),
        (
            Step(
                "Isthmus over NCCL against NCCL",
                "{bin}/gpu_bench nccl --out {out}/nccl.json",
                180,
                gpus=2,
                records="{out}/nccl.json",
            ),
        ),
    ),
    Topic(
        "ggml",
        ("isthmus_ggml", "isthmus_nccl_preload", "isthmus_nccl_engine"),
        (
            Step(
                "build of llama.cpp for CUDA",
                "{python} tests/frontends/ggml/llama/build_llama.py cuda {carry}/llama/source.tar.gz {llama}"
                " {architectures}",
                400,
                gpus=2,
            ),
            Step(
                "llama.cpp, one GPU and several: the same tokens",
                "{python} tests/frontends/ggml/llama/check.py {llama}/build/bin/probe {lib}/libisthmus_ggml.so"
                " --kind gpu --devices {ranks}",
                90,
                gpus=2,
                env={"PYTHONPATH": "{carry}/llama/site"},
            ),
            Step(
                "llama-bench and perplexity against the paths of ggml",
                "{python} bench/gpu/llama_bench.py --llama {llama}/build/bin --library {lib}/libisthmus_ggml.so"
                " --nccl-preload {lib}/libisthmus_nccl_preload.so --gpus {ranks} --out {out}/llama.json",
                300,
                gpus=2,
                records="{out}/llama.json",
                env={"PYTHONPATH": "{carry}/llama/site"},
            ),
        ),
        options=("-DISTHMUS_P2P=ON",),
        needs=("nccl_header", "llama"),
    ),
    Topic(
        "fused",
        ("gpu_fused_test", "isthmus_python"),
        (
            Step("fused products against float64, ranks in threads", "{bin}/gpu_fused_test", 30, gpus=2),
            fused_bench(
                "allgather + GEMM against the two variants of torch",
                "fused",
                "--trace {out}/fused-trace.json --plans {out}/fused-plans.json --limit 55",
                80,
            ),
            fused_bench("the same in graphs", "fused_graph", "--graphs --limit 55", 80),
            fused_bench(
                "GEMM + reduce_scatter against the two variants of torch",
                "fused_scatter",
                "--kind gemm_reduce_scatter"
                " --shapes 2048x4096x4096,4096x4096x4096,8192x4096x4096,8192x8192x8192 --limit 24",
                40,
            ),
            Step(
                "fused products, ranks in processes",
                "{each} {bin}/gpu_fused_test",
                30,
                gpus=2,
                share=True,
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON",),
        needs=("python_module",),
    ),
    Topic(
        "matmul_allreduce",
        ("gpu_matmul_test", "gpu_fused_test", "isthmus_python", "isthmus_torch"),
        (
            Step("allreduces of products, ranks in threads", "{bin}/gpu_matmul_test", 60, gpus=2),
            Step("their plans", "{bin}/gpu_fused_test --gtest_filter=fused_allreduce.*", 30, gpus=2),
            Step(
                "allreduces of products, ranks in processes",
                "{each} {bin}/gpu_matmul_test",
                60,
                gpus=2,
                share=True,
            ),
            Step(
                "row-parallel layers against separate calls of Isthmus and NCCL, in graphs",
                "{python} bench/gpu/torch_matmul.py --out {out}/torch_matmul.json",
                90,
                gpus=2,
                needs=("torch",),
                records="{out}/torch_matmul.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "sequence-parallel layers against separate calls of Isthmus and NCCL, and PyTorch's operators",
                "{python} bench/gpu/torch_sequence_parallel.py --out {out}/torch_sequence_parallel.json",
                120,
                gpus=2,
                needs=("torch",),
                records="{out}/torch_sequence_parallel.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON", "-DISTHMUS_P2P=ON"),
        needs=("python_module", "nccl_header"),
    ),
    Topic(
        "torch",
        ("isthmus_python", "isthmus_torch", "isthmus_nccl_preload", "isthmus_nccl_engine"),
        (
            Step(
                "torch.distributed against the NCCL backend of PyTorch",
                "{python} tests/gpu/torch/check_backend.py {out}/torch-backend.json {ranks}",
                90,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            # Two ranks have only one order of additions. Four ranks share the GPUs of a machine that has fewer.
            *(
                Step(
                    f"deterministic sums, {ranks} ranks: any slice of a call has the same bits",
                    "{python} tests/gpu/torch/check_same_bits.py {out}/torch-same-bits.json " + str(ranks),
                    90,
                    share=True,
                    env={"PYTHONPATH": "{pythonpath}"},
                )
                for ranks in (2, 4)
            ),
            Step(
                "FSDP2 computes with the gathered parameters",
                "{python} tests/gpu/torch/check_in_place.py {out}/torch-in-place.json {ranks}",
                60,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "all-gathers by the copy engines run no kernel",
                "{python} tests/gpu/torch/check_copy_engine.py {out}/torch-copy-engine.json {ranks}",
                40,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "a killed rank ends the waits of its peers",
                "{python} tests/gpu/torch/check_death.py {out}/torch-death.json {ranks}",
                120,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "isthmus doctor names the faulty rank",
                "{python} tests/gpu/torch/check_doctor.py {out}/torch-doctor.json",
                300,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "killed ranks of an elastic job are replaced",
                "{python} tests/faults/elastic_job.py --ranks {ranks} --rounds 20 --device cuda "
                "--out {out}/torch-elastic.json",
                240,
                gpus=2,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "captured graphs after the loss of a rank",
                "{python} tests/gpu/torch/check_shrink_graphs.py {out}/torch-shrink-graphs.json {ranks}",
                140,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "a training run loses a rank and continues",
                "{python} tests/gpu/torch/check_shrink.py {out}/torch-shrink.json {ranks}",
                120,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "torch.compile against the NCCL backend of PyTorch",
                "{python} tests/gpu/torch/check_compile.py {out}/torch-compile.json {ranks}",
                340,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "allreduce of PyTorch's symmetric memory against NCCL and Isthmus",
                "{python} bench/gpu/torch_symm_mem.py --out {out}/torch_symm_mem.json",
                60,
                gpus=2,
                records="{out}/torch_symm_mem.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "host time of allreduces that are issued one by one",
                "{python} bench/gpu/torch_eager.py --out {out}/torch_eager.json",
                60,
                gpus=2,
                records="{out}/torch_eager.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "decode steps of Llama, with and without fused allreduce and RMSNorm",
                "{python} bench/gpu/torch_llama.py --out {out}/torch_llama.json",
                300,
                gpus=2,
                records="{out}/torch_llama.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "unchanged scripts against the NCCL backend of PyTorch",
                "{python} tests/gpu/torch/check_unchanged.py {out}/torch-unchanged.json {ranks}",
                200,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "messages on NCCL, with the preloaded library, and on Isthmus",
                "{python} tests/gpu/torch/check_messages.py {out}/torch-messages.json"
                " {lib}/libisthmus_nccl_preload.so",
                120,
                gpus=2,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "unchanged scripts under the preloaded library for NCCL",
                "{python} tests/gpu/torch/check_nccl_preload.py {out}/torch-nccl-preload.json "
                "{lib}/libisthmus_nccl_preload.so {ranks}",
                240,
                gpus=2,
                share=True,
                env={"PYTHONPATH": "{pythonpath}"},
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON", "-DISTHMUS_P2P=ON"),
        needs=("torch", "python_module"),
    ),
    Topic(
        "nccl_preload",
        ("isthmus_nccl_preload", "isthmus_nccl_engine"),
        (
            Step(
                "decode steps of stock PyTorch, with and without the preloaded library",
                "{python} bench/gpu/torch_decode.py {lib}/libisthmus_nccl_preload.so"
                " --out {out}/torch_decode.json",
                240,
                gpus=2,
                records="{out}/torch_decode.json",
            ),
            Step(
                "host time of allreduces of stock PyTorch under the preloaded library",
                "{python} bench/gpu/torch_eager.py --native nccl_preload --out {out}/torch_eager_preload.json",
                60,
                gpus=2,
                records="{out}/torch_eager_preload.json",
                env={"LD_PRELOAD": "{lib}/libisthmus_nccl_preload.so"},
            ),
            Step(
                "tests of PyTorch under the preloaded library",
                "{python} tests/gpu/torch/check_own_tests.py {out}/torch_own_tests.json"
                " {lib}/libisthmus_nccl_preload.so 200",
                320,
                gpus=2,
                needs=("expecttest",),
                env={"PYTHONPATH": "{carry}/python"},
            ),
        ),
        options=("-DISTHMUS_P2P=ON",),
        needs=("torch",),
    ),
    Topic(
        "tune",
        ("isthmus_bench", "isthmus_python"),
        (
            Step(
                "isthmus tune, one rank per GPU",
                "{python} -m isthmus tune --platform cuda --minutes 0.4 --profile {out}/profile.toml"
                f" --collectives {REGRET_COLLECTIVES} --min-time 0.01",
                60,
                gpus=2,
                env=TUNE,
            ),
            Step(
                "isthmus tune, ranks on the host, into the same profile",
                "{python} -m isthmus tune --platform host -n 2,8,16 --minutes 1.0 --profile {out}/profile.toml"
                f" --collectives {REGRET_COLLECTIVES} --min-time 0.005",
                100,
                env=TUNE,
            ),
            *(
                Step(
                    f"regret of the profile and of the built-in rules, {words}",
                    "{python} -m isthmus tune --platform " + f"{options} --minutes {minutes}"
                    " --profile {out}/profile.toml --min-time 0.003"
                    f" --collectives {REGRET_COLLECTIVES} --regret {{out}}/tune_{name}.json",
                    90,
                    gpus=gpus,
                    records=f"{{out}}/tune_{name}.json",
                    env=TUNE,
                )
                for words, options, minutes, name, gpus in (
                    ("one rank per GPU", f"cuda --sizes {REGRET_SIZES}", 1.15, "cuda", 2),
                    ("2 ranks on the host", "host -n 2", 0.4, "host2", 1),
                    ("8 ranks on the host", "host -n 8", 0.6, "host8", 1),
                    ("16 ranks on the host", "host -n 16", 0.9, "host16", 1),
                )
            ),
            Step(
                "the selected rule of a call on GPUs",
                "{python} -m isthmus explain allreduce --platform cuda -n 2 --bytes 1M",
                30,
                gpus=2,
                env=TUNE | {"ISTHMUS_PROFILE": "{out}/profile.toml"},
            ),
            Step(
                "a number of ranks that was not measured",
                "{python} -m isthmus explain allreduce -n 6 --bytes 1M",
                30,
                env=TUNE | {"ISTHMUS_PROFILE": "{out}/profile.toml"},
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON", "-DISTHMUS_P2P=ON"),
        needs=("mpi", "python_module", "click", "pydantic"),
    ),
    Topic(
        "train",
        ("isthmus_python", "isthmus_torch"),
        (
            Step(
                "DDP and FSDP2 over NCCL and over Isthmus, with and without the copy engines",
                "{python} bench/gpu/torch_train.py --ranks {ranks}"
                " --cases ddp:gpt-small:6:8x256,fsdp2:gpt-small:6:8x256"
                ",fsdp2:gpt-7b:8:1x2048,fsdp2:gpt-175b:2:1x2048"
                " --variants native,off,on,symmetric --steps 8 --limit 150 --memory-gib 75"
                " --out {out}/fsdp2.json",
                190,
                gpus=2,
                records="{out}/fsdp2.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
            Step(
                "DeepSpeed's ZeRO-3 over NCCL and over Isthmus, with and without the copy engines",
                "{python} bench/gpu/torch_train.py --wheels {carry}/deepspeed --ranks {ranks}"
                " --cases zero3:gpt-small:6:8x256,zero3:gpt-7b:8:1x2048,zero3:gpt-175b:2:1x2048"
                " --variants native,off,on --steps 8 --limit 150 --memory-gib 75 --out {out}/zero3.json",
                190,
                gpus=2,
                needs=("deepspeed",),
                records="{out}/zero3.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON",),
        needs=("torch", "python_module"),
    ),
    Topic(
        "train_trace",
        ("isthmus_python", "isthmus_torch"),
        (
            Step(
                "operations of FSDP2 steps",
                "{python} bench/gpu/torch_step_trace.py --ranks {ranks} --out {out}/training.json --limit 60",
                80,
                gpus=2,
                records="{out}/training.json",
                env={"PYTHONPATH": "{pythonpath}"},
            ),
        ),
        options=("-DISTHMUS_PYTHON=ON",),
        needs=("torch", "python_module"),
    ),
    Topic(
        "sycl",
        ("sycl_device_test", "sycl_bench"),
        (
            Step(
                "SYCL on devices, all ranks in one process",
                "{bin}/sycl_device_test --gpu",
                60,
                env=SYCL_RUNTIME,
            ),
            # With the default rules (which use p2p), and with rules that prefer NCCL or the copy engines.
            *(
                Step(
                    f"SYCL on devices, one process per rank, {words}",
                    "{each} {bin}/sycl_device_test --gpu",
                    90,
                    gpus=2,
                    share=True,
                    env=SYCL_RUNTIME | rules,
                )
                for words, rules in (
                    ("default rules", {}),
                    ("NCCL", {"ISTHMUS_RULE": "platform=cuda use=nccl"}),
                    ("copy engines", {"ISTHMUS_RULE": "platform=cuda use=copy_engine"}),
                )
            ),
            Step(
                "fused products and allreduce_rmsnorm under SYCL, arguments compared",
                "{each} {bin}/sycl_device_test --gpu --gtest_filter=fused.*",
                60,
                gpus=2,
                share=True,
                env=SYCL_RUNTIME | {"ISTHMUS_CHECK": "1"},
            ),
            *(
                Step(
                    f"Isthmus under SYCL against NCCL on the queue's stream, {words}",
                    "{bin}/sycl_bench --ranks {ranks} --out {out}/sycl_" + f"{kind}.json {flag}",
                    60,
                    records="{out}/" + f"sycl_{kind}.json",
                    env=SYCL_RUNTIME,
                )
                for kind, words, flag in (
                    ("processes", "ranks in processes", ""),
                    ("threads", "ranks in threads", "--threads"),
                    ("rules", "default rules", "--rules"),
                )
            ),
        ),
        options=("-DISTHMUS_SYCL=ON", "-DISTHMUS_P2P=ON"),
        needs=("sycl", "mpi", "nccl_header"),
    ),
    Topic(
        "sycl_apps",
        ("sycl_collectives", "sycl_applications", "sycl_guide_program"),
        (
            Step(
                "the program of docs/guide/sycl_gpus.md",
                "{mpiexec} -n {ranks} {bin}/sycl_guide_program",
                60,
                gpus=2,
                env=SYCL_RUNTIME,
            ),
            Step(
                "every collective through SYCL against plain MPI",
                "{mpiexec} -n {ranks} {bin}/sycl_collectives --quick --out {out}/sycl_collectives.json",
                90,
                records="{out}/sycl_collectives.json",
                env=SYCL_RUNTIME,
            ),
            Step(
                "every collective through SYCL with the mpi backend",
                "{mpiexec} -n 2 {bin}/sycl_collectives --quick --sizes 1000,64K --thread-multiple",
                90,
                env=SYCL_RUNTIME | {"ISTHMUS_BACKEND": "mpi"},
            ),
            # Strong and weak scaling: one rank with a problem, all ranks with it, all ranks with one each.
            *(
                Step(
                    f"{name} against Listing 1 of the paper, {words}",
                    "{mpiexec} -n " + f"{ranks} {{bin}}/sycl_applications {name}"
                    f" --scaling {scaling} --json {{out}}/{name}_{file}.json",
                    60,
                    records=f"{{out}}/{name}_{file}.json",
                    env=SYCL_RUNTIME,
                )
                for name in ("halo", "transpose", "comd")
                for words, ranks, scaling, file in (
                    ("one rank", "1", "strong", "one"),
                    ("the problem on all ranks", "{ranks}", "strong", "strong"),
                    ("a problem for each rank", "{ranks}", "weak", "weak"),
                )
            ),
            Step(
                "transpose against Listing 1 of the paper, copy engines",
                "{mpiexec} -n {ranks} {bin}/sycl_applications transpose --json {out}/transpose_copy.json",
                60,
                gpus=2,
                records="{out}/transpose_copy.json",
                env=SYCL_RUNTIME | {"ISTHMUS_RULE": "platform=cuda use=copy_engine"},
            ),
        ),
        options=("-DISTHMUS_SYCL=ON",),
        needs=("sycl", "mpi"),
    ),
)
