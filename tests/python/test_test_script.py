"""scripts/test: which failures may be retried, and builds in the background."""

import os
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import pytest

PATH = Path(__file__).parents[2] / "scripts" / "test"


@pytest.fixture(scope="module")
def script():
    spec = spec_from_loader("scripts_test", SourceFileLoader("scripts_test", str(PATH)))
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # required by dataclasses
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def report(tmp_path, *cases):
    """A JUnit report as CTest writes it: name, failed?, output."""
    lines = []
    for name, failed, text in cases:
        status, failure = ("fail", '<failure message=""/>') if failed else ("run", "")
        lines.append(f'<testcase name="{name}" classname="{name}" status="{status}">{failure}')
        lines.append(f"<system-out>{text}</system-out></testcase>")
    path = tmp_path / "junit.xml"
    path.write_text(f"<testsuite>{''.join(lines)}</testsuite>")
    return path


def test_pass_on_retry_is_unsteady(script, tmp_path):
    first = script.read_junit(report(tmp_path, ("a", False, ""), ("b", True, "2 s passed")), 8, "ctest")
    second = script.retry_failed(first, lambda: script.Result(passed=1))
    assert second.passed == 2
    assert not second.failed
    assert second.unsteady == ["ctest: b.b\n    2 s passed"]


@pytest.mark.parametrize(
    "second_try",
    [{"failed": ["ctest: b.b"]}, {"passed": 0}, {"passed": 1, "failed": ["ctest: exit status 8"]}],
    ids=["fails_again", "is_not_found", "fails_in_another_way"],
)
def test_second_failure_is_final(script, tmp_path, second_try):
    first = script.read_junit(report(tmp_path, ("b", True, "wrong")), 8, "ctest")
    second = script.retry_failed(first, lambda: script.Result(**second_try))
    assert second.failed == ["ctest: b.b\n    wrong"]
    assert not second.unsteady


@pytest.mark.parametrize("text", ["WARNING: ThreadSanitizer: data race", "***Exception: SEGFAULT"])
def test_crashes_and_sanitizer_reports_are_not_retried(script, tmp_path, text):
    first = script.read_junit(report(tmp_path, ("b", True, text)), 8, "ctest")
    assert script.retry_failed(first, lambda: pytest.fail("retried")) is first
    assert first.failed


def test_many_failures_are_not_retried(script, tmp_path):
    cases = [(f"t{i}", True, "late") for i in range(script.MAX_UNSTEADY + 1)]
    first = script.read_junit(report(tmp_path, *cases), 8, "ctest")
    assert script.retry_failed(first, lambda: pytest.fail("retried")) is first


def test_stopped_build_ends_with_its_processes(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "sanitized_build", lambda part, jobs: ["sleep", part])
    builds = script.BackgroundBuilds(["1000", "2000"])
    group = builds._process.pid
    builds.stop()
    assert not builds.are_complete()
    with pytest.raises(ProcessLookupError):
        os.killpg(group, 0)


def test_complete_build_shortens_the_estimate(script, monkeypatch):
    monkeypatch.setattr(script, "sanitized_build", lambda part, jobs: ["true"])
    builds = script.BackgroundBuilds(["address"])
    builds._process.wait()
    assert builds.are_complete()
    monkeypatch.setenv("ISTHMUS_TEST_DEADLINE", str(time.time() + 200))
    assert script.misses_deadline("address", is_built=False)
    assert not script.misses_deadline("address", is_built=True)
    assert not script.misses_deadline("ctest", is_built=False)
