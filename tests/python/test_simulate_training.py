"""Training steps: the schedule of operations, predictions, and the recorder of operations."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import run_cli
from test_cli import in_checkout, run_json
from test_model import machine, record

from isthmus.model import training
from isthmus.model.network import Network
from isthmus.model.plans import Cluster
from isthmus.model.training import Operation, Step
from isthmus.records import Report, report_from

ROOT = Path(__file__).resolve().parents[2]
NETWORK = Network(bytes_per_us=1000.0, latency_us=10.0)

# Stream 0 computes. Streams 1 and 2 gather and scatter: two gathers, of which the second overlaps compute, and
# a reduce-scatter that waits for the last compute.
OPERATIONS = (
    Operation(kind="compute", stream=0, us=10),
    Operation(kind="allgather", stream=1, us=30, bytes=1000, after=(0,)),  # 10 .. 40
    Operation(kind="allgather", stream=1, us=30, bytes=1000),  # 40 .. 70
    Operation(kind="compute", stream=0, us=50, after=(1,)),  # 40 .. 90
    Operation(kind="compute", stream=0, us=50, after=(2,)),  # 90 .. 140
    Operation(kind="reduce_scatter", stream=2, us=25, bytes=4000, after=(4,)),  # 140 .. 165
)


def test_operations_wait_for_stream_and_dependencies() -> None:
    intervals = training.schedule(OPERATIONS, lambda operation: operation.us)
    assert [(each.start_us, each.end_us) for each in intervals] == [
        (0, 10),
        (10, 40),
        (40, 70),
        (40, 90),
        (90, 140),
        (140, 165),
    ]
    assert [each.cause for each in intervals] == [None, 0, 1, 1, 3, 4]
    assert training.step_time_us(intervals) == 165


def test_exposed_times_add_up_to_step() -> None:
    shares = training.shares_of(OPERATIONS, training.schedule(OPERATIONS, lambda operation: operation.us))
    assert {kind: (each.calls, each.time_us, each.exposed_us) for kind, each in shares.items()} == {
        "compute": (3, 110, 110),
        "allgather": (2, 60, 30),
        "reduce_scatter": (1, 25, 25),
    }


def test_operations_wait_for_host() -> None:
    operations = [*OPERATIONS[:4], OPERATIONS[4].model_copy(update={"issue_us": 500.0}), OPERATIONS[5]]
    intervals = training.schedule(operations, lambda operation: operation.us)
    assert (intervals[4].start_us, intervals[4].cause) == (500, None)
    shares = training.shares_of(operations, intervals)
    assert {kind: each.exposed_us for kind, each in shares.items()} == {
        "compute": 50,
        "allgather": 0,
        "reduce_scatter": 25,
        training.HOST: 500,
    }


def test_collectives_of_different_streams_run_in_order() -> None:
    operations = [
        Operation(kind="allgather", stream=1, us=30, bytes=8),
        Operation(kind="reduce_scatter", stream=2, us=20, bytes=8),
    ]
    ends = [
        [each.end_us for each in training.schedule(operations, lambda each: each.us, in_order=in_order)]
        for in_order in (True, False)
    ]
    assert ends == [[30, 50], [30, 20]]


def test_collectives_scale_with_ranks() -> None:
    """The machine has 1 us and 1 GB/s per phase. The size of allgather is one shard."""
    step = Step("test", 2, 165.0, OPERATIONS)
    one_node = Cluster(machine(), 1, 2, NETWORK, "shm")
    prediction = training.predict(step, one_node, [1 << 20])
    assert prediction.shares["compute"].time_us == 110
    assert prediction.shares["allgather"].time_us == pytest.approx(2 * (1 + 1000 * 1e-3))
    assert prediction.shares["reduce_scatter"].time_us == pytest.approx(1 + 4000 * 1e-3)
    assert sum(each.exposed_us for each in prediction.shares.values()) == pytest.approx(prediction.step_us)
    two_nodes = training.predict(step, Cluster(machine(), 2, 4, NETWORK, "shm"), [1 << 20])
    assert set(two_nodes.plans) == {("allgather", 1000), ("reduce_scatter", 4000)}
    assert two_nodes.plans["allgather", 1000].name in ("flat ucx", "hierarchical")
    alone = training.predict(step, Cluster(machine(), 1, 1, NETWORK, "shm"), [1 << 20])
    assert alone.step_us == 110


def test_replay_uses_recorded_times() -> None:
    assert training.replay_us(Step("test", 2, 165.0, OPERATIONS)) == 165


def trace_record(operations: list[dict[str, Any]]) -> Any:
    return record(0, 165.0, collective="fsdp2_step", operations=operations, model="tiny, 2 layers")


@pytest.mark.parametrize(
    ("operation", "reason"),
    [
        ({"kind": "compute", "stream": 0, "us": -1}, "operations 0.us"),
        ({"kind": "compute", "us": 1}, "operations 0.stream"),
        ({"kind": "compute", "stream": 0, "us": 1, "after": [0]}, r"operation 0 waits for \(0,\)"),
    ],
)
def test_invalid_operations_are_rejected(operation: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        training.steps_of([trace_record([operation])])


def test_unsupported_collective_is_rejected() -> None:
    step = Step("test", 2, 1.0, (Operation(kind="gather", stream=0, us=1, bytes=8),))
    with pytest.raises(ValueError, match="gather cannot be predicted; supported: allreduce"):
        training.predict(step, Cluster(machine(), 1, 2, NETWORK, "shm"), [1 << 20])


def write_trace(folder: Path) -> Path:
    report = report_from(
        [record(8, 1.0), trace_record([each.model_dump() for each in OPERATIONS])],
        command="test",
        commit="0",
        machine={"name": "test", "cpu": "test", "cores": 2},
        versions={},
    )
    report.save(folder / "trace.json")
    return folder / "trace.json"


def test_command_predicts_step_and_checks_itself(tmp_path: Path) -> None:
    trace = str(write_trace(tmp_path))
    arguments = ("simulate", "training", "--trace", trace, "--platform", "host", "--nodes", "2")
    completed = run_cli(*arguments, "--ranks-per-node", "4", "--network", "10G", COLUMNS="200")
    assert completed.returncode == 0, completed.stderr
    for part in (
        "tiny, 2 layers: predicted step on 2 nodes x 4 ranks",
        "reduce_scatter",
        "measured step on 2 ranks 0.17 ms, from recorded times 0.17 ms (+0.0%)",
        "collectives run one after another",
        "assumed: network: 1 x 10Gbit/s per node",
    ):
        assert part in completed.stdout, completed.stdout
    (step,) = run_json(*arguments, "--json")["steps"]
    assert step["check"]["predicted_us"]["recorded times"] == 165
    assert sum(each["exposed_us"] for each in step["shares"].values()) == pytest.approx(step["step_us"])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["training"], "training requires --trace FILE"),
        (["allreduce", "--trace", "x"], "--trace requires training"),
        (["training", "--trace", "absent.json"], "--trace absent.json: No such file"),
        (["training", "--trace", "{empty}"], "contains no operations; record it with"),
        (["training", "--trace", "{trace}", "--plot", "x.png"], "--plot does not support training"),
    ],
)
def test_command_rejects_arguments(arguments: list[str], reason: str, tmp_path: Path) -> None:
    trace = write_trace(tmp_path)
    empty = Report.load(trace)
    empty.records = empty.records[:1]
    empty.save(tmp_path / "empty.json")
    words = [each.format(trace=trace, empty=tmp_path / "empty.json") for each in arguments]
    completed = run_cli("simulate", *words)
    assert completed.returncode == 2 and reason in completed.stderr, completed.stderr


@pytest.fixture
def recorder_script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("torch_step_trace", ROOT / "bench/gpu/torch_step_trace.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # required by dataclasses
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec.loader.exec_module(module)
    return module


@in_checkout
def test_recorder_divides_streams_into_operations(recorder_script: ModuleType) -> None:
    marks = itertools.count()
    recorder = recorder_script.StepRecorder(lambda stream: next(marks), lambda: next(marks))
    gathered, waited = object(), []
    recorder.start("main")
    recorder.wait_event(object(), "side", lambda: waited.append("unknown"))
    assert not recorder.operations, "the program enqueues nothing on this stream yet"
    recorder.start("side")
    assert recorder.collective("allgather", 64, "side", lambda: "result") == "result"
    recorder.leave("side")
    recorder.record_event(gathered, "side")
    recorder.wait_event(gathered, "main", lambda: waited.append("gathered"))
    recorder.finish("main")
    assert waited == ["unknown", "gathered"]
    found = [(each.kind, each.stream, each.bytes, each.after) for each in recorder.operations]
    assert found == [
        ("compute", 1, 0, []),
        ("allgather", 1, 64, []),
        ("compute", 1, 0, []),
        ("compute", 0, 0, []),
        ("compute", 0, 0, [2]),
    ]
    for stream in (0, 1):
        operations = [each for each in recorder.operations if each.stream == stream]
        assert all(a.begin < a.end <= b.begin for a, b in itertools.pairwise(operations))
        assert all(a.issue_us <= b.issue_us for a, b in itertools.pairwise(operations))


class FakeCuda:
    """The part of torch.cuda that the recorder uses. Times are numbers of recorded events."""

    def __init__(self) -> None:
        clock = itertools.count()

        class Event:
            time = 0

            def __init__(self, enable_timing: bool = False) -> None:
                self.has_timing = enable_timing

            def record(self, stream: Any = None) -> None:
                self.time = next(clock)

            def wait(self, stream: Any = None) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                assert self.has_timing and end.has_timing
                return (end.time - self.time) / 1e3

        class StreamContext:
            def __init__(self, stream: Any) -> None:
                self.stream = stream
                self.src_prev_stream = "current"

            def __enter__(self) -> None:
                pass

            def __exit__(self, *exception: object) -> None:
                pass

        self.Event, self.StreamContext = Event, StreamContext

    def current_stream(self) -> str:
        return "current"


@in_checkout
def test_recorder_sees_events_of_program(recorder_script: ModuleType) -> None:
    cuda = FakeCuda()
    kinds = cuda.Event, cuda.StreamContext
    originals = [dict(vars(kind)) for kind in kinds]
    device = recorder_script.CudaDevice(cuda)
    recorder = recorder_script.StepRecorder(device.mark, device.clock)
    recorder.start("current")
    event = cuda.Event()
    with device.events(recorder):
        with cuda.StreamContext("side"):
            event.record("side")
        event.wait()
        recorder.finish("current")
    assert [dict(vars(kind)) for kind in kinds] == originals
    assert [(each.stream, each.after) for each in recorder.operations] == [(1, []), (1, []), (0, []), (0, [0])]
    assert all(device.elapsed_us(each.begin, each.end) > 0 for each in recorder.operations)


@in_checkout
def test_merged_times_are_of_last_and_slowest_rank(recorder_script: ModuleType) -> None:
    shape = [["compute", 0, 0, []], ["allgather", 0, 64, []]]
    ranks = [
        {"shape": shape, "us": [[10.0, 5.0], [12.0, 6.0], [11.0, 5.0]], "issue_us": [[0.0, 10.0]]},
        {"shape": shape, "us": [[9.0, 7.0], [9.0, 4.0], [9.0, 9.0]], "issue_us": [[0.0, 9.0]]},
    ]
    assert recorder_script.merge(ranks) == [
        {"kind": "compute", "stream": 0, "us": 11.0, "issue_us": 0.0},
        {"kind": "allgather", "stream": 0, "us": 5.0, "issue_us": 10.0, "bytes": 64},
    ]
    ranks[1] = ranks[1] | {"shape": shape[:1]}
    with pytest.raises(RuntimeError, match="different operations"):
        recorder_script.merge(ranks)
