"""The command line, run in subprocesses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from conftest import run_cli

import isthmus
from isthmus import layout, machine
from isthmus.cli import info, main
from isthmus.cli.explain import summarize_rules
from isthmus.records import Report
from isthmus.sizes import format_size, parse_size, parse_sizes
from isthmus.table import count_of_bytes

in_checkout = pytest.mark.skipif(layout.checkout() is None, reason="needs the programs of a build tree")


def run_json(*arguments: str, **variables: str) -> dict:
    completed = run_cli(*arguments, **variables)
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


def assert_one_line_error(completed: subprocess.CompletedProcess[str], code: int, pattern: str) -> None:
    assert completed.returncode == code, completed.stdout + completed.stderr
    assert completed.stderr.count("\n") == 1, completed.stderr
    assert re.search(pattern, completed.stderr), completed.stderr


def test_sizes() -> None:
    assert parse_sizes("128:1K") == [128, 256, 512, 1024]
    assert parse_sizes("8,1M") == [8, 1 << 20]
    assert [format_size(size) for size in (0, 100, 1024, 3 << 19, 1 << 30)] == ["0", "100", "1K", "1536K", "1G"]
    for text in ("", "1k", "-1", "1T", "x"):
        with pytest.raises(ValueError, match="must be bytes"):
            parse_size(text)
    with pytest.raises(ValueError, match="contain no size"):
        parse_sizes("8:4")


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        (["--report", "x"], "--report requires --torch, --mpi-shim or --nccl"),
        (["--nccl", "--ranks", "2", "x"], "--nccl starts PROGRAM once"),
        (["--nccl", "--torch", "x"], "--torch and --nccl exclude each other"),
        (["--torch", "--mpi-shim", "x"], "--torch and --mpi-shim exclude each other"),
        (["--torch", "--ggml", "x"], "exclude each other"),
        (["--torch", "--mpi", "impi", "x"], "--mpi impi cannot be used with --torch"),
        (["--torch", "nowhere.py"], "script 'nowhere.py' does not exist|PyTorch .* is not installed"),
        (["--torch", "python3", "train.py"], "leave out 'python3'|PyTorch .* is not installed"),
        (["--torch", sys.executable, "train.py"], "leave out '/.*python|PyTorch .* is not installed"),
    ],
)
def test_run_rejects_conflicting_options(
    arguments: list[str], pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", *arguments]) in (2, 3)
    assert re.search(pattern, error_text := capsys.readouterr().err) and error_text.count("\n") == 1, error_text


def test_count_of_bytes_follows_collective_table() -> None:
    assert count_of_bytes("allreduce", 64, "float32", 4) == 16
    assert count_of_bytes("allgather", 64, "float32", 4) == 16  # bytes per rank
    assert count_of_bytes("reduce_scatter", 64, "float32", 4) == 4
    assert count_of_bytes("alltoall", 8, "float64", 4) == 1
    assert count_of_bytes("barrier", 64, "float32", 4) == 0


def test_version_and_help() -> None:
    assert run_cli("--version").stdout.strip() == isthmus.__version__
    help_text = run_cli("--help").stdout
    for name in ("info", "doctor", "explain", "run", "bench", "tune", "simulate", "demo"):
        assert name in help_text
    assert run_cli().returncode == 2


@pytest.mark.parametrize(("columns", "limit"), [(80, 80), (200, 120)])
def test_help_fills_lines_and_flags_have_no_type(columns: int, limit: int) -> None:
    for command, flag in (
        ("explain", "--all"),
        ("trace merge", "--force"),
        ("tune", "--restart"),
        ("", "--version"),
    ):
        text = run_cli(*command.split(), "--help", COLUMNS=str(columns)).stdout
        assert flag in text and "--help" in text and "BOOLEAN" not in text
        assert (limit - 10 if command else 0) < max(map(len, text.splitlines())) <= limit


@pytest.mark.parametrize(
    ("arguments", "pattern"),
    [
        ("explian", "No such command 'explian'. Did you mean 'explain'"),
        ("trace merg", "No such command 'merg'. Did you mean 'merge'"),
        ("explain allreduce --rank 3", "No such option.*--rank.*'--ranks'"),
        ("explain allreduce --ranks 0", "'--ranks' / '-n': 0 is not in the range x>=1"),
        ("explain allreduce --ranks x", "'--ranks' / '-n': 'x' is not a valid integer"),
        ("doctor --timeout nan", "'--timeout': nan is not a number; pass a number of at least 1"),
        ("explain", "Missing argument 'COLLECTIVE'"),
    ],
)
def test_usage_errors_name_value_and_hint(
    arguments: str, pattern: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments.split()) == 2
    assert re.search(f"^Error: .*{pattern}", error_text := capsys.readouterr().err, re.M), error_text


def test_interrupted_command_returns_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(info, "collect", interrupt)
    assert main(["info"]) == 130


def test_info() -> None:
    info = run_json("info", "--json", ISTHMUS_TEST_MARK="here")
    assert info["version"] == isthmus.__version__
    assert info["machine"]["cores"] >= 1
    assert {backend["name"] for backend in info["core"]["backends"]} >= {"shm", "mpi"}
    assert info["environment"]["ISTHMUS_TEST_MARK"] == "here"
    assert "devices" in info["sycl_devices"]
    assert (info["fused_host"]["state"] == "available") == bool(info["fused_host"]["library"])
    if not info["gpus"]["devices"]:
        assert "no CUDA driver" in info["gpus"]["reason"]
        assert info["gpus"]["fused"] == {"state": "unavailable", "library": "", "reason": "no device"}
    text = run_cli("info", "--all", ISTHMUS_BLAS_LIBRARY="/nowhere/libblas.so", XDG_CONFIG_HOME="/nowhere")
    assert text.returncode == 0, text.stderr
    assert isthmus.__version__ in text.stdout
    assert "tried /nowhere/libblas.so" in text.stdout
    assert re.search(r"^ucx +not used ", text.stdout, re.M)
    assert re.search(r"^copy_engine +not for host ", text.stdout, re.M)
    assert re.search(r"^hip:0 +direct ", text.stdout, re.M) and "algorithms: packet" in text.stdout
    assert "does not support platform" not in text.stdout
    assert re.search(r"^Rules: \d+ defaults, 0 others", text.stdout, re.M)
    assert re.search(r"Profile of this machine: /nowhere/.*\.toml \(does not exist\)$", text.stdout, re.M)


def test_info_hides_what_the_machine_lacks() -> None:
    text = run_cli("info", ISTHMUS_BLAS_LIBRARY="/nowhere/libblas.so").stdout
    assert re.search(r"^shm .*available ", text, re.M) and re.search(r"^host:0 +direct ", text, re.M)
    assert re.search(r"^fused products, host +unavailable .*no BLAS library could be loaded; ", text, re.M)
    assert re.search(r"^Backends that are not used: self, .*\bucx\b", text, re.M)
    for hidden in ("tried ", "algorithms:", "no rule names it", "hip:0", "not registered"):
        assert hidden not in text, text


def test_info_survives_an_invalid_configuration(tmp_path: Path) -> None:
    config = tmp_path / "isthmus.toml"
    config.write_text('[[rule]]\nuse = "nonsense"\n')
    settings = {"ISTHMUS_CONFIG": str(config), "ISTHMUS_PLUGIN_PATH": "/nowhere", "ISTHMUS_TIMEOUT_S": "7"}
    text = run_cli("info", **settings)
    assert_one_line_error(text, 2, 'unknown backend "nonsense"')
    assert "The configuration is invalid" in text.stdout
    assert re.search(r"^shm .*available ", text.stdout, re.M) and "Timeout: 300 s" in text.stdout
    assert re.search("unavailable .*cannot read the folder /nowhere", text.stdout)
    assert f"ISTHMUS_CONFIG={config}" in text.stdout
    document = json.loads(run_cli("info", "--json", **settings).stdout)
    assert 'unknown backend "nonsense"' in document["configuration_error"]
    assert run_json("info", "--json")["configuration_error"] == ""


def test_info_names_the_profile_of_the_environment(tmp_path: Path) -> None:
    profile = tmp_path / "own.toml"
    profile.write_text('[[rule]]\nplatform = "host"\nnodes = 1\nuse = "shm"\n')
    text = run_cli("info", ISTHMUS_PROFILE=str(profile)).stdout
    assert f"Profile from ISTHMUS_PROFILE: {profile}\n" in text
    assert re.search(rf"^platform=host nodes=1 use=shm +profile {profile}:1$", text, re.M)


def test_mpiexec_of_open_mpi_is_not_mpich(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "bin" / "mpiexec"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'mpiexec (Open MPI) 5.0.11'\n")
    program.chmod(0o755)
    monkeypatch.setattr(layout, "environment_folder", lambda: tmp_path)
    assert main(["run", "--json", "true"]) == 3
    error_text = capsys.readouterr().err
    assert f"mpiexec in {program.parent} is that of Open MPI, not of MPICH; run pip install mpich" in error_text
    assert error_text.count("\n") == 1 and "LD_PRELOAD=" in error_text, error_text


def test_explain_in_this_process() -> None:
    reply = run_json("explain", "allreduce", "--bytes", "64K", "--ranks", "3", "--json")
    assert reply["query"]["bytes"] == 65536
    assert reply["query"]["ranks"] == 3
    assert reply["backend"]
    assert reply["reduction"]["order"] == "rank 0, 1, 2, from left to right"
    text = run_cli("explain", "allreduce", "--bytes", "64K").stdout
    assert "each sum to float32" in text
    assert "deterministic = true" in text
    assert "selected" in text
    assert "p2p" not in text
    assert "p2p" in run_cli("explain", "allreduce", "--bytes", "64K", "--all").stdout


@pytest.mark.parametrize("columns", [80, 140])
def test_explain_lists_own_rules_and_counts_others(tmp_path: Path, columns: int) -> None:
    config = tmp_path / "own.toml"
    config.write_text('[[rule]]\nbytes = "..1K"\nuse = "shm:packet"\n[[rule]]\nuse = "mpi"\n')
    arguments = ["explain", "allreduce", "--bytes", "64K", "--config", str(config)]
    rejected = run_json(*arguments, "--json")["rejected"]
    lines = run_cli(*arguments, COLUMNS=str(columns)).stdout.splitlines()
    assert max(map(len, lines)) <= columns
    text = " ".join(" ".join(lines).split())
    relevant = [rule for rule in rejected if rule["is_relevant"]]
    assert [rule["source"] for rule in relevant] == [f"config {config}:4", f"config {config}:1", "default"]
    assert sum(line.startswith("rejected") for line in lines) == len(relevant)
    assert "use=mpi" in text and "it supports one rank per process" in text
    assert "bytes 65536 is not less than 1024" in text
    assert "matches, but the selected rule takes precedence" in text
    # All other rules are counted.
    counts = [int(count) for count in re.findall(r"(\d+) (?:default )?rules?(?::| is | are | match)", text)]
    assert len(counts) > 2 and sum(counts) == len(rejected) - len(relevant), text
    all_text = run_cli(*arguments, "--all").stdout
    assert len(re.findall("^rejected ", all_text, re.M)) == len(rejected)
    assert "are for other" not in all_text


def test_explain_groups_rules_by_reason() -> None:
    def rule(mismatch: str | None, reason: str = "", source: str = "default") -> dict[str, Any]:
        return {"mismatch": mismatch, "reason": reason, "source": source, "is_relevant": False}

    rules = [rule("memory", "not symmetric"), rule("bytes"), rule("memory", "not symmetric"), rule("nodes")]
    assert summarize_rules(rules) == [
        "2 default rules: not symmetric",
        "2 default rules are for other sizes or numbers of nodes",
    ]
    rules = [rule("op", source="default, threshold"), rule("platform", source="config f:1"), rule(None)]
    assert summarize_rules(rules) == [
        "1 default rule matches, but the selected rule takes precedence",
        "1 default rule is for other operations",
        "1 rule is for other platforms",
    ]
    assert summarize_rules([rule("memory", "") | {"is_relevant": True}]) == []


def test_explain_in_mpi_job_includes_mpi_backend() -> None:
    variables = {"ISTHMUS_RULE": "collective=broadcast bytes=..1K use=mpi"}
    reply = run_json("explain", "broadcast", "--bytes", "512", "--ranks", "2", "--mpi", "--json", **variables)
    assert reply["backend"] == "mpi"
    assert "environment ISTHMUS_RULE" in reply["source"]
    assert (
        run_json("explain", "broadcast", "--bytes", "2K", "-n", "2", "--mpi", "--json", **variables)["backend"]
        != "mpi"
    )


def test_explain_in_mpi_job_with_mpi_as_only_backend() -> None:
    reply = run_json("explain", "broadcast", "-n", "2", "--mpi", "--json", ISTHMUS_BACKEND="mpi")
    assert (reply["backend"], reply["source"]) == ("mpi", "environment ISTHMUS_BACKEND")


def test_explain_shows_plan_of_several_nodes() -> None:
    arguments = ["explain", "allreduce", "--bytes", "1M", "-n", "4", "--nodes", "2"]
    variables = {
        "ISTHMUS_RULE": "nodes=2.. use=hierarchical",
        "ISTHMUS_OPTION": "backend.hierarchical.inter_node=mpi",
    }
    reply = run_json(*arguments, "--json", **variables)
    assert reply["backend"] == "hierarchical" and reply["query"]["nodes"] == 2
    assert [step["collective"] for step in reply["plan"]] == ["reduce_scatter", "allreduce", "allgather"]
    assert [step["backend"] for step in reply["plan"]] == ["shm", "mpi", "shm"]
    assert reply["plan"][1]["bytes"] == 1 << 19, "each of the two leaders reduces half of the data"
    output = run_cli(*arguments, **variables).stdout
    assert "step of rank 0" in output and "reduce_scatter" in output
    assert_one_line_error(
        run_cli("explain", "allreduce", "-n", "2", "--nodes", "3"), 2, "--nodes 3 must be at most --ranks 2"
    )


@pytest.mark.parametrize("job", [[], ["--mpi"]])
@pytest.mark.parametrize("kind", ["allgather_gemm", "gemm_reduce_scatter"])
def test_explain_shows_plan_of_product(kind: str, job: list[str]) -> None:
    arguments = ["explain", kind, "-n", "2", "--m", "64", "--k", "48", "--n", "24", "--dtype", "float16", *job]
    info = run_json(*arguments, "--output", "float32", "--measure", "--json")
    assert (info["kind"], info["ranks"], info["m"], info["n"]) == (kind, 2, 64, 24)
    assert info["k"] == (48 if kind == "allgather_gemm" else 24)  # of rank 0
    assert (info["input"], info["output"]) == ("float16", "float32")
    predicted_us = info["predicted_us"]
    assert predicted_us["bound"] == max(predicted_us["product"], predicted_us["transfer"]) > 0
    assert all(info["measured_us"][name] > 0 for name in ("product", "transfer", "whole"))
    text = run_cli(*arguments).stdout
    assert f"selected: {info['mode']}" in text
    for name in ("product", "transfer", "bound", "pipelined", "sequential"):
        assert re.search(rf"^{name} +[0-9.]+ +-", text, re.M), text


def test_explain_of_gemm_allreduce() -> None:
    arguments = ["explain", "gemm_allreduce", "-n", "2", "--m", "3", "--k", "48", "--n", "24"]
    info = run_json(*arguments, "--measure", "--json")
    assert (info["kind"], info["m"], info["k"], info["mode"]) == ("gemm_allreduce", 3, 24, "sequential")
    assert info["measured_us"]["whole"] > 0
    assert "the host has no kernel for the product and the sum" in run_cli(*arguments).stdout


def test_explain_of_product_on_several_nodes() -> None:
    text = run_cli(
        "explain", "allgather_gemm", "-n", "2", "--nodes", "2", "--m", "4", "--k", "4", "--n", "4"
    ).stdout
    assert "the ranks are on 2 machines" in text and "There is no prediction for this plan" in text


def test_explain_shows_selection_of_allreduce_rmsnorm() -> None:
    arguments = ["explain", "allreduce_rmsnorm", "-n", "2", "--m", "32", "--n", "1024", "--dtype", "bfloat16"]
    reply = run_json(*arguments, "--json")
    plain = run_json("explain", "allreduce", "-n", "2", "--bytes", "64K", "--dtype", "bfloat16", "--json")
    assert reply["operator"] == {"name": "allreduce_rmsnorm", "tokens": 32, "hidden": 1024}
    assert (reply["query"], reply["rule"]) == (plain["query"], plain["rule"])
    text = run_cli(*arguments).stdout
    assert text.startswith("allreduce_rmsnorm, 32 rows of 1024 elements")
    assert "the calling thread adds the residual" in text


def test_explain_rejects_invalid_products() -> None:
    assert_one_line_error(
        run_cli("explain", "allgather_gemm", "-n", "3", "--m", "4"),
        2,
        "--m 4 must be a multiple of the 3 ranks",
    )
    assert_one_line_error(
        run_cli("explain", "gemm_reduce_scatter", "-n", "2", "--k", "5"), 2, "--k 5 must be a multiple"
    )
    assert_one_line_error(run_cli("explain", "allreduce", "--measure"), 2, "--measure is not supported for")
    assert_one_line_error(run_cli("explain", "allgather_gemm", "--dtype", "foo"), 2, "dtype 'foo' is unknown")
    norm = ("explain", "allreduce_rmsnorm")
    assert_one_line_error(run_cli(*norm, "--dtype", "int32"), 2, "--dtype int32 is not supported")
    assert_one_line_error(run_cli(*norm, "--n", "20000"), 2, "--n 20000 must be at most 16384")


def test_error_omits_backends_of_other_platforms() -> None:
    error_text = run_cli("explain", "allreduce", ISTHMUS_BACKEND="nccl").stderr
    assert "no backend works for these ranks" in error_text
    assert "nccl: it does not support platform host" in error_text, "a rule names it"
    assert "rccl" not in error_text and "copy_engine" not in error_text


def test_explain_matches_logged_selection(tmp_path) -> None:
    """The log contains the selected path of each kind of call once."""
    program = tmp_path / "calls.py"
    program.write_text(
        "import isthmus, numpy as np\n"
        "comm = isthmus.Communicator.create_all(1)[0]\n"
        "for count in (4, 4096):\n"
        "    comm.allreduce(np.zeros(count, np.float32))\n"
    )
    rule = {"ISTHMUS_RULE": "collective=allreduce bytes=1K.. use=shm:two_shot"}
    completed = subprocess.run(
        [sys.executable, str(program)],
        env=os.environ | rule | {"ISTHMUS_LOG": "debug"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    logged = re.findall(r"allreduce of float32 takes (\S+): (.+)", completed.stdout + completed.stderr)
    explanations = [
        run_json("explain", "allreduce", "--bytes", size, "--ranks", "1", "--json", **rule)
        for size in ("16", "16K")
    ]
    assert len(logged) == 2
    for (path, reason), reply in zip(logged, explanations, strict=True):
        assert path == ":".join(part for part in (reply["backend"], reply["algorithm"]) if part)
        assert reason == reply["reason"]
    assert logged[0] != logged[1]


def test_bad_arguments_print_one_error_line() -> None:
    assert_one_line_error(
        run_cli("explain", "alreduce"),
        2,
        r"isthmus: collective 'alreduce' is unknown; allowed: broad.*; did you mean \"allreduce\"\?",
    )
    assert_one_line_error(run_cli("explain", "allreduce", "--bytes", "64k"), 2, r"size '64k' must be bytes")
    assert_one_line_error(
        run_cli("explain", "allreduce", "--dtype", "f32"), 2, r"dtype 'f32' is unknown.*\"float32\"\?"
    )
    assert_one_line_error(run_cli("bench", "allreduce", "--sizes", "x"), 2, r"size 'x'")
    assert_one_line_error(
        run_cli("bench", "allreduce", "--sizes", "8", "--peers", "nompi"), 2, r"peer 'nompi' is unknown"
    )
    assert_one_line_error(run_cli("run", "--mpi", "lam", "true"), 2, r"--mpi 'lam' is unknown; allowed: mpich")
    assert_one_line_error(run_cli("run", "no-such-program"), 2, r"program 'no-such-program' was not found")
    assert_one_line_error(
        run_cli("explain", "reduce", ISTHMUS_THRESHOLD="soon"), 2, r"environment ISTHMUS_THRESHOLD"
    )


def test_run_forwards_arguments_and_exit_code(tmp_path) -> None:
    program = tmp_path / "program"
    program.write_text(
        '#!/bin/sh\nprintf \'%s|%s|%s\\n\' "$*" "$SYCL_CACHE_PERSISTENT" "$OCL_ICD_FILENAMES"\nexit 7\n'
    )
    program.chmod(0o755)
    completed = run_cli("run", "-n", "2", str(program), "--json", "a b")
    assert completed.returncode == 7
    lines = completed.stdout.splitlines()
    assert len(lines) == 2
    driver = Path(sys.prefix) / "lib" / "libintelocl.so"
    expected = f"--json a b|1|{driver}" if driver.is_file() else "--json a b||"
    assert lines == [expected] * 2


def test_run_json_describes_started_command() -> None:
    completed = run_cli("run", "-n", "2", "--json", "true")
    assert completed.returncode == 0, completed.stderr
    reply = json.loads(completed.stdout)
    assert reply["exit_code"] == 0
    assert " -n 2 " in reply["command"]
    assert "LD_LIBRARY_PATH" in reply["environment"]


def test_oversubscribed_ranks_enable_mpich_throttle() -> None:
    throttle = "MPIR_CVAR_CH4_PROGRESS_THROTTLE"
    cores = len(os.sched_getaffinity(0))
    for ranks, expected in ((1, {}), (cores + 1, {throttle: "1", throttle + "_NO_PROGRESS_COUNT": "100"})):
        reply = run_json("run", "-n", str(ranks), "--json", "sleep", "0.2")
        info = {key: value for key, value in reply["environment"].items() if key.startswith(throttle)}
        assert info == expected
    oversubscribed = run_cli("run", "-n", str(cores + 1), "printenv", throttle, **{throttle: "0"})
    assert oversubscribed.stdout.split() == ["0"] * (cores + 1), "the value of the caller is not changed"


def test_run_forwards_signals(tmp_path) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho started\nexec sleep 60\n")
    program.chmod(0o755)
    started = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "isthmus", "run", "-n", "1", str(program)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout.readline() == "started\n"
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) != 0
    assert time.monotonic() - started < 40


@in_checkout
def test_bench_writes_valid_records(tmp_path) -> None:
    file, plot_file = tmp_path / "bench.json", tmp_path / "bench.png"
    completed = run_cli(
        *("bench", "allreduce", "--ranks", "2", "--sizes", "128,4K", "--peers", "mpich", "--rounds", "2"),
        *("--min-time", "0.001", "--heap", "--json", str(file), "--plot", str(plot_file)),
    )
    assert completed.returncode == 0, completed.stderr
    report = Report.load(file)
    measured = {(record.provider, record.mode, record.bytes) for record in report.records}
    paths = (("isthmus", "host"), ("isthmus", "shared_heap"), ("mpich", "host"))
    assert measured == {(*path, size) for path in paths for size in (128, 4096)}
    for record in report.records:
        assert record.wrong == 0
        assert len(record.round_medians_us) == 2
        assert record.provider != "isthmus" or (record.backend and record.reason)
    assert report.machine.name.startswith(("cpu", "h"))
    assert plot_file.read_bytes().startswith(b"\x89PNG")
    assert "vs best peer" in completed.stdout


@contextmanager
def busy_process() -> Iterator[None]:
    """A process that uses a core."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_other_load_makes_ratios_unreliable(monkeypatch: pytest.MonkeyPatch) -> None:
    with busy_process(), machine.OtherLoad() as load:
        time.sleep(0.5)
    assert load.cores >= 0.25
    # 6 s of 10 s of the machine are not from this process and its children, within 4 s.
    for name, values in (("_machine_busy_s", (100, 110)), ("_own_busy_s", (3, 7))):
        monkeypatch.setattr(machine, name, iter(values).__next__)
    monkeypatch.setattr(time, "monotonic", iter((1.0, 5.0)).__next__)
    with machine.OtherLoad() as load:
        pass
    assert load.cores == 1.5
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    assert "other processes used 1.5 of 4 cores" in machine.unreliable_reason(4, 1.5)
    assert machine.unreliable_reason(4, 0.2) == ""
    assert "5 ranks share 4 cores" in machine.unreliable_reason(5, 0.0)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert machine.unreliable_reason(4, 1.5) == ""


@in_checkout
def test_bench_reports_load_of_other_processes() -> None:
    arguments = ("--ranks", "2", "--sizes", "1K", "--rounds", "1", "--min-time", "0.5")
    with busy_process():
        completed = run_cli("bench", "allreduce", *arguments)
    assert completed.returncode == 0, completed.stderr
    assert "vs best peer" in completed.stdout
    assert "Times and ratios are unreliable: other processes used " in completed.stdout


@in_checkout
def test_bench_forces_backend() -> None:
    arguments = ("--ranks", "2", "--sizes", "1K", "--peers", "", "--rounds", "1", "--min-time", "0.001")
    report = Report.model_validate(
        run_json("bench", "broadcast", *arguments, "--backend", "mpi", "--json", "-")
    )
    assert [record.backend for record in report.records] == ["mpi"]
    assert_one_line_error(
        run_cli("bench", "broadcast", *arguments, "--backend", "shmm"), 2, 'shmm.*did you mean "shm"'
    )


@in_checkout
def test_bench_compares_mpi_with_and_without_shim() -> None:
    arguments = ("--ranks", "2", "--sizes", "1K", "--mpi-shim", "--rounds", "1", "--min-time", "0.001")
    report = Report.model_validate(run_json("bench", "allreduce", *arguments, "--json", "-"))
    assert [(each.provider, each.wrong) for each in report.records] == [("mpich", 0), ("mpich+shim", 0)]
    assert_one_line_error(
        run_cli("bench", "allreduce", *arguments, "--heap"), 2, "--mpi-shim excludes --backend and --heap"
    )


def test_bench_of_fused_products_requires_checkout(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(layout, "checkout", lambda: None)
    assert main(["bench", "allgather_gemm"]) == 3
    error_text = capsys.readouterr().err
    assert "bench allgather_gemm requires a checkout" in error_text and error_text.count("\n") == 1, error_text


@in_checkout
def test_bench_skips_unsupported_peer() -> None:
    arguments = ("--ranks", "2", "--sizes", "1K", "--rounds", "1", "--min-time", "0.001")
    completed = run_cli("bench", "allreduce", "--dtype", "bfloat16", "--peers", "mpich", *arguments)
    assert completed.returncode == 0, completed.stderr
    assert "mpich was skipped: " in completed.stderr


# Runs the command line as if packages were not installed, in a checkout or in an installed package.
WITHOUT_PACKAGES = """
import sys
from isthmus import layout
sys.modules.update(dict.fromkeys(sys.argv.pop(1).split(",")))
if sys.argv.pop(1) == "installed":
    layout.checkout = layout.build_folder = lambda: None
from isthmus.cli import main
sys.exit(main())
"""


def run_without(packages: str, place: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_PACKAGES, packages, place, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_commands_without_optional_packages() -> None:
    """`pip install` without extras installs none of the packages of the extra `report`."""
    for arguments in ("info", "explain allreduce", "doctor --only package", "run --json true", "trace --help"):
        completed = run_without("jinja2,matplotlib,pydantic", "checkout", *arguments.split())
        assert completed.returncode == 0, completed.stderr


@pytest.mark.parametrize("package", ["jinja2", "pydantic"])
@pytest.mark.parametrize(
    ("place", "command"), [("checkout", "scripts/setup"), ("installed", r"pip install 'isthmus\[report\]'")]
)
def test_missing_package_names_the_extra(package: str, place: str, command: str) -> None:
    records = next((Path(__file__).resolve().parents[2] / "bench" / "results").rglob("*.json"))
    expected = rf"requires the package {package} \(extra isthmus\[report\]\); run {command}$"
    assert_one_line_error(run_without(package, place, "report", str(records)), 3, expected)


@pytest.mark.parametrize("command", ["bench", "demo", "tune"])
def test_missing_checkout_is_named_before_the_extra(command: str) -> None:
    assert_one_line_error(run_without("pydantic", "installed", command), 3, "run make build in a checkout")
