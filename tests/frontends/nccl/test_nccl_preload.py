"""libisthmus_nccl_preload.so under a program that knows nothing of it, linked with the stand-in of NCCL.

Rules give the calls that move data to the copy engines and reductions to a test's backend, over the stand-in of
the devices. The stand-in NCCL counts as the program's own.
"""

from __future__ import annotations

import os
import re
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
NAMES = HERE.parents[2] / "src" / "frontends" / "nccl" / "names.def"

pytestmark = pytest.mark.skipif(not PROGRAM.is_file(), reason="not built on this processor")

DEVICES = {
    "ISTHMUS_CUDA_DRIVER_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_CUDA_RUNTIME_LIBRARY": str(STANDINS / "libstandin_device.so"),
    "ISTHMUS_NVRTC_LIBRARY": str(STANDINS / "libstandin_compilers.so"),
    "ISTHMUS_PLUGIN_PATH": str(LIBRARIES / "test_movers"),
    "MOVER_LIBRARY": str(STANDINS / "libstandin_nccl_older.so"),
    "ISTHMUS_RULE": "platform=cuda use=copy_engine; platform=cuda collective=allreduce,reduce use=mover",
    # Ranks that share two cores with other tests may come late.
    "ISTHMUS_NCCL_ATTACH_S": "100",
}
THREE_CARRIERS = (
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


def told(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout + done.stderr


def is_right(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and done.stdout.splitlines()[-1:] == ["0 wrong"]


def taken(said: str) -> dict[str, int]:
    """Calls that Isthmus took, by NCCL's name, of the report."""
    calls: dict[str, int] = {}
    for name, count in re.findall(r"^ +nccl(\w+) +(?:copy_engine|mover)\S* +(\d+)", said, re.MULTILINE):
        calls[name] = calls.get(name, 0) + int(count)
    return calls


def reasons(said: str) -> set[str]:
    return set(re.findall(r"passed to NCCL +\d+  (.*)$", said, re.MULTILINE))


@pytest.mark.parametrize(
    ("world", "ranks"), [("threads", 2), ("threads", 3), ("init_all", 3), ("init_group", 2), ("split", 5)]
)
def test_every_collective(world: str, ranks: int) -> None:
    done = start(world, str(ranks), "100", "11")
    assert is_right(done), told(done)
    assert set(taken(done.stderr)) == COLLECTIVES, told(done)
    assert reasons(done.stderr) <= {"nothing to move", "a communicator of one rank"}, told(done)


def test_without_the_library_it_is_the_same_program() -> None:
    done = start("threads", "2", "40", "11", preload=False)
    assert is_right(done) and not taken(done.stderr), told(done)


def test_switched_off_everything_is_nccls() -> None:
    done = start("threads", "2", "40", "11", ISTHMUS_NCCL="off")
    assert is_right(done) and "isthmus" not in done.stderr, told(done)


def test_what_passes_through_says_why() -> None:
    done = start("mixed", "3", "0", "4")
    assert is_right(done) and taken(done.stderr), told(done)
    wanted = {"a message between two ranks", "an operation of the program's own (PreMulSum)"}
    assert wanted <= reasons(done.stderr), told(done)


def test_ranks_that_group_differently() -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("uneven_groups", "2", "12", "1", ISTHMUS_RULE=rules)
    assert is_right(done) and taken(done.stderr) == {"AllReduce": 40}, told(done)


def test_a_group_whose_end_is_simulated() -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("simulated", ISTHMUS_RULE=rules)
    assert is_right(done) and taken(done.stderr) == {"AllReduce": 2}, told(done)


def test_rules_that_name_nccl_are_followed() -> None:
    rules = "platform=cuda use=copy_engine; platform=cuda use=nccl"
    done = start("threads", "2", "40", "3", ISTHMUS_RULE=rules)
    assert is_right(done) and not taken(done.stderr), told(done)
    assert "a rule gives it to NCCL" in reasons(done.stderr)


def test_without_a_backend_one_line_says_why() -> None:
    done = start("threads", "2", "40", "3", ISTHMUS_RULE="", ISTHMUS_PLUGIN_PATH="")
    assert is_right(done) and not taken(done.stderr), told(done)
    assert done.stderr.count("warning: all calls of a communicator of 2 ranks go to NCCL") == 1, told(done)


def test_wrong_arguments_get_nccls_answer() -> None:
    with_library, plain = start("errors"), start("errors", preload=False)
    assert with_library.returncode == plain.returncode == 0, told(with_library)
    assert with_library.stdout == plain.stdout


def test_a_call_on_another_stream_waits_for_the_one_before() -> None:
    done = start("order")
    assert is_right(done) and "waits 2\n" in done.stdout, told(done)


@pytest.mark.parametrize("words", [(), ("grouped",)])
@pytest.mark.parametrize("late", ["messages", "broadcast"])
@pytest.mark.parametrize("earlier_calls", ["0", "14", "15", "16", "40"])
def test_a_call_on_another_stream_waits_for_nccls(
    earlier_calls: str, late: str, words: tuple[str, ...]
) -> None:
    rules = "platform=cuda use=nccl; platform=cuda collective=allreduce use=mover"
    done = start("behind_nccl", earlier_calls, late, *words, ISTHMUS_RULE=rules)
    assert is_right(done) and taken(done.stderr) == {"AllReduce": 2}, told(done)


@pytest.mark.parametrize("words", [(), ("grouped",)])
@pytest.mark.parametrize("reader", ["isthmus", "nccl"])
@pytest.mark.parametrize("earlier_calls", ["0", "40"])
def test_a_call_that_nccl_refuses_loses_no_order(
    earlier_calls: str, reader: str, words: tuple[str, ...]
) -> None:
    done = start("behind_refused", earlier_calls, reader, *words, ISTHMUS_RULE=THREE_CARRIERS)
    assert is_right(done) and taken(done.stderr).get("AllReduce") == 2, told(done)


@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_calls_on_any_streams_keep_their_order(seed: str) -> None:
    done = start("chain", "200", seed, ISTHMUS_RULE=THREE_CARRIERS)
    assert is_right(done) and set(taken(done.stderr)) == {"AllReduce", "AllGather"}, told(done)


def test_abort_ends_what_nobody_else_called() -> None:
    done = start("abort", "2")
    assert is_right(done) and taken(done.stderr) == {"AllGather": 1}, told(done)


@pytest.mark.parametrize("ranks", [2, 3])
def test_an_abort_is_the_ranks_own(ranks: int) -> None:
    done = start("abort_beside", str(ranks))
    assert is_right(done), told(done)


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
    return [(process.returncode, *said) for process, said in zip(started, ended, strict=True)]


def test_processes(tmp_path: Path) -> None:
    ended = start_ranks(tmp_path, "play", [True, True])
    assert all(code == 0 and out.endswith("0 wrong\n") for code, out, _ in ended), ended
    assert set(taken(ended[0][2])) == COLLECTIVES, ended


@pytest.mark.parametrize("alone", [0, 1])
def test_a_rank_without_the_library(tmp_path: Path, alone: int) -> None:
    """All ranks pass on alike, whoever lacks it; the others have waited for it."""
    preloads = [rank == alone for rank in range(2)]
    ended = start_ranks(tmp_path, "play", preloads, ISTHMUS_NCCL_ATTACH_S="2")
    assert all(code == 0 and out.endswith("0 wrong\n") for code, out, _ in ended), ended
    assert not any(taken(said) for _, _, said in ended), ended


def test_a_lost_rank_is_told_of(tmp_path: Path) -> None:
    """ncclCommGetAsyncError gives the program ncclRemoteError, which is 6, and NCCL itself its own answer."""
    ended = start_ranks(tmp_path, "lost", [True, True])
    assert ended[0][1] == "error 6\nsent 0 0 0 7\nagain 0 0 0 0 0\n", ended


def test_without_an_nccl_calls_fail_and_have_words() -> None:
    """Programs print what a call's result and the last error are in words."""
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
    words = b"Isthmus found no NCCL to pass the call to"
    assert done.returncode == 0 and done.stdout.split("\n")[0] == f"2 {words} {words}", told(done)
    assert "ISTHMUS_NCCL_LIBRARY=/nonexistent is no NCCL" in done.stderr, told(done)


def test_exports_are_the_names_of_nccl() -> None:
    listed = set(re.findall(r"^NCCL_(?:PASSED_THROUGH|HANDLED)\((\w+)\)", NAMES.read_text(), re.MULTILINE))
    command = ["nm", "-D", "--defined-only", str(PRELOAD)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    exported = set(re.findall(r" T (\w+)$", said, re.MULTILINE))
    assert exported == listed | {f"p{name}" for name in listed} | {"isthmus_nccl_library"}
    assert len(listed) >= 97


def test_the_list_has_what_nccls_header_has() -> None:
    headers = [Path(each) / "nvidia" / "nccl" / "include" / "nccl.h" for each in sys.path]
    found = next((each for each in headers if each.is_file()), None)
    if found is None:
        pytest.skip("no nccl.h in this environment")
    listed = set(re.findall(r"^NCCL_(?:PASSED_THROUGH|HANDLED)\((\w+)\)", NAMES.read_text(), re.MULTILINE))
    declared = set(re.findall(r"^\S.*?\b(nccl[A-Z]\w+)\s*\(", found.read_text(), re.MULTILINE))
    assert declared <= listed, declared - listed


def test_the_backend_for_nccl_finds_the_real_library() -> None:
    """A library of that name that stands before NCCL is not taken for it."""
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
