"""libisthmus_nccl_preload.so with an unmodified program that is linked with the NCCL stand-in.

Rules assign data movement to the copy engines and reductions to a test backend, on stand-in devices. The NCCL
stand-in plays the role of the program's own NCCL.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus import layout

HERE = Path(__file__).parent
BUILD = layout.build_folder() or Path()
LIBRARIES = layout.library_folder()
PRELOAD = LIBRARIES / "libisthmus_nccl_preload.so"
PROGRAM = BUILD / "bin" / "nccl_program"
STANDINS = LIBRARIES / "standins"
FUNCTIONS = HERE.parents[2] / "src" / "nccl" / "functions.def"

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="not built on this processor")

DEVICES = {
    "ISTHMUS_CUDA_DRIVER_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_CUDA_RUNTIME_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_NVRTC_LIBRARY": str(STANDINS / "libstandin_compilers.so"),
    "ISTHMUS_PLUGIN_PATH": str(LIBRARIES / "test_movers"),
    "MOVER_LIBRARY": str(STANDINS / "libstandin_nccl_older.so"),
    "ISTHMUS_RULE": "platform=cuda use=copy_engine; platform=cuda collective=allreduce,reduce use=mover",
    # Ranks that share two cores with other tests can be late.
    "ISTHMUS_NCCL_ATTACH_S": "100",
}
THREE_OWNERS = (
    "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover;"
    " platform=cuda collective=allgather use=copy_engine"
)
COLLECTIVES = {
    *("AllReduce", "AllGather", "ReduceScatter", "Broadcast"),
    *("Reduce", "AlltoAll", "Gather", "Scatter"),
}


def environment(preload: bool = True, **variables: str) -> dict[str, str]:
    shim = {"LD_PRELOAD": str(PRELOAD), "ISTHMUS_NCCL_REPORT": "1"} if preload else {}
    return os.environ | DEVICES | shim | variables


def start(*words: str, preload: bool = True, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [str(PROGRAM), *words]
    return subprocess.run(
        command,
        env=environment(preload, **variables),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def output_of(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def has_passed(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and done.stdout.splitlines()[-1:] == ["0 wrong"]


def handled_calls(report: str) -> dict[str, int]:
    """Calls that Isthmus handled according to the report, by NCCL name."""
    calls: dict[str, int] = {}
    for name, count in re.findall(r"^ +nccl(\w+) +(?:copy_engine|mover)\S* +(\d+)", report, re.MULTILINE):
        calls[name] = calls.get(name, 0) + int(count)
    return calls


def reasons(report: str) -> set[str]:
    return set(re.findall(r"passed to NCCL +\d+  (.*)$", report, re.MULTILINE))


@pytest.mark.parametrize(
    ("world", "ranks"), [("threads", 2), ("threads", 3), ("init_all", 3), ("init_group", 2), ("split", 5)]
)
def test_every_collective(world: str, ranks: int) -> None:
    done = start(world, str(ranks), "100", "11")
    assert has_passed(done), output_of(done)
    assert set(handled_calls(done.stderr)) == COLLECTIVES, output_of(done)
    assert reasons(done.stderr) <= {"no data", "communicator with one rank"}, output_of(done)


def test_program_with_own_operators() -> None:
    """Neither library may free what the program's operator new has allocated, or the other way round."""
    command = [str(PROGRAM.with_name("nccl_program_own_operators")), "threads", "2", "100", "11"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert has_passed(done) and handled_calls(done.stderr), output_of(done)


def test_program_without_the_library() -> None:
    done = start("threads", "2", "40", "11", preload=False)
    assert has_passed(done) and not handled_calls(done.stderr), output_of(done)


def test_switched_off_all_calls_go_to_nccl() -> None:
    done = start("threads", "2", "40", "11", ISTHMUS_NCCL="off")
    assert has_passed(done) and "isthmus" not in done.stderr, output_of(done)


def test_passed_through_calls_have_a_reason() -> None:
    done = start("mixed", "3", "0", "4")
    assert has_passed(done) and handled_calls(done.stderr), output_of(done)
    expected = {"selected by a rule", "user-defined reduction (PreMulSum)"}
    assert expected <= reasons(done.stderr), output_of(done)


def test_ranks_may_group_differently() -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("uneven_groups", "2", "12", "1", ISTHMUS_RULE=rules)
    assert has_passed(done) and handled_calls(done.stderr) == {"AllReduce": 40}, output_of(done)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("handled", ["none", "short", "all"])
def test_messages(handled: str, seed: str) -> None:
    """Groups of messages, which differ between the ranks and may use both libraries."""
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    sizes = {"none": "", "short": "bytes=..4K ", "all": " "}[handled]
    if sizes:
        rules += f"; platform=cuda collective=send,recv {sizes}use=mover"
    done = start("messages", "60", seed, ISTHMUS_RULE=rules)
    assert has_passed(done), output_of(done)
    calls = handled_calls(done.stderr)
    assert (calls.keys() >= {"Send", "Recv"}) == (handled != "none"), output_of(done)
    passed = re.findall(r"nccl(?:Send|Recv) +passed to NCCL", done.stderr)
    assert bool(passed) == (handled != "all"), output_of(done)


def test_group_of_two_communicators() -> None:
    """Isthmus executes the short message before NCCL's group, because the receiver may do the same."""
    rules = "platform=cuda use=nccl; platform=cuda collective=send,recv bytes=..4K use=mover"
    done = start("two_communicators", ISTHMUS_RULE=rules)
    assert has_passed(done) and handled_calls(done.stderr) == {"Send": 1, "Recv": 1}, output_of(done)


def test_simulated_group_end() -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("simulated", ISTHMUS_RULE=rules)
    assert has_passed(done) and handled_calls(done.stderr) == {"AllReduce": 2}, output_of(done)


def test_rules_can_select_nccl() -> None:
    rules = "platform=cuda use=copy_engine; platform=cuda use=nccl"
    done = start("threads", "2", "40", "3", ISTHMUS_RULE=rules)
    assert has_passed(done) and not handled_calls(done.stderr), output_of(done)
    assert "selected by a rule" in reasons(done.stderr)


def test_missing_backend_prints_one_warning() -> None:
    done = start("threads", "2", "40", "3", ISTHMUS_RULE="", ISTHMUS_PLUGIN_PATH="")
    assert has_passed(done) and not handled_calls(done.stderr), output_of(done)
    warning = "warning: all calls of a communicator with 2 ranks are passed through to NCCL"
    assert done.stderr.count(warning) == 1, output_of(done)


def test_one_rank_prints_no_warning() -> None:
    done = start("threads", "1", "40", "3")
    assert has_passed(done) and not handled_calls(done.stderr), output_of(done)
    assert reasons(done.stderr) <= {"no data", "communicator with one rank"}, output_of(done)
    assert "warning" not in done.stderr, output_of(done)


def test_invalid_arguments_are_reported_by_nccl() -> None:
    with_library, plain = start("errors"), start("errors", preload=False)
    assert with_library.returncode == plain.returncode == 0, output_of(with_library)
    assert with_library.stdout == plain.stdout
    counts = re.findall(r"passed to NCCL +(\d+)  invalid argument", with_library.stderr)
    assert sum(map(int, counts)) == 7, output_of(with_library)


@pytest.mark.parametrize("creation", ["alone", "group", "split"])
def test_nonblocking_communicator_is_passed_through(creation: str) -> None:
    done = start("configured", "3", "nonblocking", creation)
    has_parent_calls = creation == "split"
    assert has_passed(done) and bool(handled_calls(done.stderr)) == has_parent_calls, output_of(done)
    assert reasons(done.stderr) - {"no data"} == {"non-blocking communicator"}, output_of(done)


@pytest.mark.parametrize("creation", ["alone", "group", "split"])
def test_blocking_configuration_is_handled(creation: str) -> None:
    done = start("configured", "3", "blocking", creation)
    assert has_passed(done) and handled_calls(done.stderr), output_of(done)
    assert reasons(done.stderr) <= {"no data"}, output_of(done)


def test_unseen_communicator_is_passed_through() -> None:
    done = start("unseen", "2")
    assert has_passed(done) and not handled_calls(done.stderr), output_of(done)


def test_reused_handles_are_separate_communicators() -> None:
    done = start("reused_handles", "2")
    assert has_passed(done) and handled_calls(done.stderr), output_of(done)
    assert reasons(done.stderr) <= {"no data"}, output_of(done)


def test_asynchronous_error_of_nccl_is_returned() -> None:
    done = start("asynchronous_error")
    assert has_passed(done) and "errors 5 0\n" in done.stdout, output_of(done)


def test_revoked_communicator_goes_to_nccl() -> None:
    done = start("revoke")
    assert has_passed(done) and "revoked 0 3\n" in done.stdout, output_of(done)


def test_refused_call_prints_a_warning() -> None:
    done = start("refused_by_backend")
    assert has_passed(done) and "code 3\n" in done.stdout, output_of(done)
    assert done.stderr.count("an NCCL call handled by Isthmus failed: ") == 1, output_of(done)


@pytest.mark.parametrize("function", ["ncclSend", "ncclRecv", "ncclGroupEnd"])
def test_refused_self_message_fails_the_call(function: str) -> None:
    """After 16 calls on one stream, no more events are recorded."""
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("refused_self_message", function, ISTHMUS_RULE=rules)
    assert has_passed(done) and done.stdout.startswith("records 32\ncode 5\n"), output_of(done)


def test_stream_change_waits_for_the_previous_call() -> None:
    done = start("order")
    assert has_passed(done) and "waits 2\n" in done.stdout, output_of(done)


@pytest.mark.parametrize("words", [(), ("grouped",)])
@pytest.mark.parametrize("late", ["messages", "broadcast"])
@pytest.mark.parametrize("earlier_calls", ["0", "14", "15", "16", "40"])
def test_stream_change_waits_for_nccl_calls(earlier_calls: str, late: str, words: tuple[str, ...]) -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("behind_nccl", earlier_calls, late, *words, ISTHMUS_RULE=rules)
    assert has_passed(done) and handled_calls(done.stderr) == {"AllReduce": 2}, output_of(done)


@pytest.mark.parametrize("words", [(), ("grouped",)])
@pytest.mark.parametrize("reader", ["isthmus", "nccl"])
@pytest.mark.parametrize("earlier_calls", ["0", "40"])
def test_refused_nccl_call_keeps_the_order(earlier_calls: str, reader: str, words: tuple[str, ...]) -> None:
    done = start("behind_refused", earlier_calls, reader, *words, ISTHMUS_RULE=THREE_OWNERS)
    assert has_passed(done) and handled_calls(done.stderr).get("AllReduce") == 2, output_of(done)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_calls_on_random_streams_keep_their_order(seed: str) -> None:
    done = start("chain", "200", seed, ISTHMUS_RULE=THREE_OWNERS)
    assert has_passed(done) and set(handled_calls(done.stderr)) == {"AllReduce", "AllGather"}, output_of(done)


def test_abort_ends_a_call_without_peers() -> None:
    done = start("abort", "2")
    assert has_passed(done) and handled_calls(done.stderr) == {"AllGather": 1}, output_of(done)


@pytest.mark.parametrize("ranks", [2, 3])
def test_abort_is_local(ranks: int) -> None:
    done = start("abort_beside", str(ranks))
    assert has_passed(done), output_of(done)


def start_ranks(folder: Path, what: str, preloads: list[bool], **variables: str) -> list[tuple[int, str, str]]:
    """A process for each rank: (exit code, standard output, standard error)."""
    words = ["rank", None, str(len(preloads)), str(folder / "id"), what]
    started = []
    for rank, preload in enumerate(preloads):
        command = [str(PROGRAM), *(str(rank) if word is None else word for word in words)]
        started.append(
            subprocess.Popen(
                command,
                env=environment(preload, **variables),
                text=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
        )
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, *report) for process, report in zip(started, ended, strict=True)]


def test_processes(tmp_path: Path) -> None:
    ended = start_ranks(tmp_path, "play", [True, True])
    assert all(code == 0 and out.endswith("0 wrong\n") for code, out, _ in ended), ended
    assert set(handled_calls(ended[0][2])) == COLLECTIVES, ended


@pytest.mark.parametrize("alone", [0, 1])
def test_rank_without_the_library(tmp_path: Path, alone: int) -> None:
    """All ranks pass all calls through, whichever rank lacks the library, after waiting for it to attach."""
    preloads = [rank == alone for rank in range(2)]
    ended = start_ranks(tmp_path, "play", preloads, ISTHMUS_NCCL_ATTACH_S="2")
    assert all(code == 0 and out.endswith("0 wrong\n") for code, out, _ in ended), ended
    assert not any(handled_calls(report) for _, _, report in ended), ended


def test_lost_rank_is_reported(tmp_path: Path) -> None:
    """ncclCommGetAsyncError returns ncclRemoteError (6) to the program, but NCCL gets its own result."""
    ended = start_ranks(tmp_path, "lost", [True, True])
    assert ended[0][1] == "error 6\nsent 0 0 0 7\nagain 0 0 0 0 0\n", ended


def test_missing_nccl_fails_calls_with_a_text() -> None:
    """Programs print the texts of a call's result and of the last error."""
    script = """
import ctypes
nccl = ctypes.CDLL(None)
nccl.ncclGetErrorString.restype = nccl.ncclGetLastError.restype = ctypes.c_char_p
status = nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
print(status, nccl.ncclGetErrorString(2), nccl.ncclGetLastError(None))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(ISTHMUS_NCCL_LIBRARY="/nonexistent"),
        capture_output=True,
        text=True,
        check=False,
    )
    words = b"Isthmus found no NCCL library to pass the call through to"
    assert done.returncode == 0 and done.stdout.split("\n")[0] == f"2 {words} {words}", output_of(done)
    assert "ISTHMUS_NCCL_LIBRARY=/nonexistent is not loaded: /nonexistent cannot be" in done.stderr, output_of(
        done
    )


FIND_NCCL = """
import ctypes, sys
loaded = [ctypes.CDLL(each) for each in sys.argv[2:]]
shim = ctypes.CDLL(sys.argv[1])
shim.isthmus_nccl_library.restype = ctypes.c_char_p
print(shim.isthmus_nccl_library())
"""


def find_nccl(loads: Path | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    """Prints the NCCL that the library finds in a process that has loaded the library `loads`."""
    command = [sys.executable, "-c", FIND_NCCL, str(PRELOAD), *([str(loads)] if loads else [])]
    environment_variables = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    return subprocess.run(
        command, env=environment_variables | variables, capture_output=True, text=True, timeout=60, check=True
    )


@pytest.mark.parametrize("variable", ["ISTHMUS_NCCL_LIBRARY", "LD_LIBRARY_PATH"])
def test_untrusted_nccl_is_not_loaded(tmp_path: Path, variable: str) -> None:
    """A file that another user can write is refused, with its mode and the rule."""
    copy = tmp_path / "libnccl.so.2"
    shutil.copy(STANDINS / "libstandin_nccl.so", copy)
    (tmp_path / "libnccl.so").symlink_to(copy)
    value = str(copy if variable == "ISTHMUS_NCCL_LIBRARY" else tmp_path)
    copy.chmod(0o755)
    assert find_nccl(**{variable: value}).stdout == f"{str(copy).encode()}\n"
    copy.chmod(0o757)
    done = find_nccl(**{variable: value})
    assert str(copy) not in done.stdout and "mode 0757: code is loaded only from files" in done.stderr, (
        output_of(done)
    )


def test_relative_nccl_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(STANDINS / "libstandin_nccl.so", tmp_path / "libnccl.so.2")
    monkeypatch.chdir(tmp_path)
    done = find_nccl(ISTHMUS_NCCL_LIBRARY="./libnccl.so.2")
    assert done.stdout == "None\n" and "pass an absolute path" in done.stderr, output_of(done)


def test_loaded_nccl_is_found(tmp_path: Path) -> None:
    """A library that the process has loaded locally is found before the folders of LD_LIBRARY_PATH."""
    other = tmp_path / "other"
    for folder in (tmp_path, other):
        folder.mkdir(exist_ok=True)
        shutil.copy(STANDINS / "libstandin_nccl.so", folder / "libnccl.so.2")
    loaded = tmp_path / "libnccl.so.2"
    done = find_nccl(loads=loaded, LD_LIBRARY_PATH=str(other))
    assert done.stdout == f"{str(loaded).encode()}\n", output_of(done)


@pytest.mark.parametrize("variable", ["$ORIGIN", "${ORIGIN}"])
@pytest.mark.parametrize("tag", ["enable", "disable"])
def test_run_path_is_relative_to_its_library(tmp_path: Path, variable: str, tag: str) -> None:
    """PyTorch and JAX list the folder of their NCCL wheel in a run path with $ORIGIN."""
    inner, nccl = tmp_path / "framework" / "lib", tmp_path / "framework" / "nccl"
    for folder in (inner, nccl):
        folder.mkdir(parents=True)
    shutil.copy(STANDINS / "libstandin_nccl.so", nccl / "libnccl.so.2")
    (tmp_path / "empty.c").touch()
    flags = f"-Wl,--{tag}-new-dtags,-rpath,{tmp_path}/missing:{variable}/../nccl"
    library = inner / "libframework.so"
    subprocess.run(["cc", "-shared", flags, "-o", library, tmp_path / "empty.c"], check=True)
    done = find_nccl(loads=library)
    assert done.stdout == f"{str(nccl / 'libnccl.so.2').encode()}\n", output_of(done)


REQUIRED = ["GetUniqueId", "CommCount", "CommUserRank", "CommCuDevice", "GroupStart", "GroupEnd"]


@pytest.mark.parametrize("missing", [*REQUIRED, "CommRevoke"])
def test_engine_rejects_an_incomplete_nccl(missing: str) -> None:
    code = """
import ctypes, sys
FIND = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)
find = FIND(lambda name: None if name.decode() == sys.argv[2] else 1)
class Host(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("find_real", FIND)]
start = ctypes.CDLL(sys.argv[1]).isthmus_nccl_engine_v1
start.restype = ctypes.c_void_p
print(start(ctypes.byref(Host(ctypes.sizeof(Host), find))) is not None)
"""
    engine = PRELOAD.with_name("libisthmus_nccl_engine.so")
    command = [sys.executable, "-c", code, str(engine), f"nccl{missing}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"{missing not in REQUIRED}\n", output_of(done)


def test_messages_are_single_lines() -> None:
    """The name of a file cannot forge a line of the log."""
    done = find_nccl(ISTHMUS_NCCL_LIBRARY="/\x1b[2J\nisthmus: nccl: forged")
    assert len(done.stderr.splitlines()) == 1 and "/\\x1b[2J\\nisthmus" in done.stderr, output_of(done)


def listed_names() -> set[str]:
    rows = re.findall(r"^NATIVE_(\w+)\((\w+)", FUNCTIONS.read_text(), re.MULTILINE)
    configured = {f"nccl{name}Config" for kind, name in rows if kind == "COLLECTIVE"}
    return {f"nccl{name}" for _, name in rows} | configured


def test_exports_match_nccl() -> None:
    listed = listed_names()
    command = ["nm", "-D", "--defined-only", str(PRELOAD)]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" T (\w+)$", report, re.MULTILINE))
    assert exported == listed | {f"p{name}" for name in listed} | {"isthmus_nccl_library"}
    assert len(listed) >= 97


def test_name_list_covers_the_nccl_header() -> None:
    headers = [Path(each) / "nvidia" / "nccl" / "include" / "nccl.h" for each in sys.path]
    found = next((each for each in headers if each.is_file()), None)
    if found is None:
        pytest.skip("no nccl.h in this environment")
    listed = listed_names()
    declared = set(re.findall(r"^\S.*?\b(nccl[A-Z]\w+)\s*\(", found.read_text(), re.MULTILINE))
    assert declared <= listed, declared - listed


def test_backend_finds_the_real_nccl() -> None:
    """The preload library, which has the same name as NCCL, is not mistaken for NCCL."""
    code = (
        "import ctypes, sys\n"
        "shim = ctypes.CDLL(sys.argv[1])\n"
        "shim.isthmus_nccl_library.restype = ctypes.c_char_p\n"
        "print(shim.isthmus_nccl_library().decode())\n"
    )
    real = str(STANDINS / "libstandin_nccl.so")
    command = [sys.executable, "-c", code, str(PRELOAD)]
    variables = os.environ | {"ISTHMUS_NCCL_LIBRARY": real}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert Path(done.stdout.strip()) == Path(real)
