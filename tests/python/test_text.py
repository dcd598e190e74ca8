"""Text that is not UTF-8 or contains control characters: errors of the core, and output of the command line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from conftest import run_cli

import isthmus
from isthmus._console import SafeConsole, lines, printable, styled
from isthmus.cli import console
from isthmus.table import Status

# A newline and an escape sequence, as in a name that forges lines of output, and a byte that is not UTF-8.
FORGED = "a\n\x1b[31misthmus: all checks passed\udcff"
ESCAPED = r"a\n\x1b[31misthmus: all checks passed\xff"


def assert_no_control_characters(text: str) -> None:
    assert [each for each in text if not each.isprintable() and each != "\n"] == []


# ---- errors of the core -----------------------------------------------------------------------------------


def test_setting_that_is_not_utf8_raises_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISTHMUS_RULE", "use=\udcff")
    with pytest.raises(isthmus.Error, match=r'ISTHMUS_RULE: rule 1 "use=\\xff": .* is not a name') as failure:
        isthmus.Communicator.create_all(1)
    assert failure.value.code == Status.config


def test_configuration_path_may_not_be_utf8(tmp_path: Path) -> None:
    file = tmp_path / "\udcff.toml"
    file.write_text("timeout_s = 7.0\n")
    with isthmus.Communicator.create_all(1, config=str(file))[0] as communicator:
        info = communicator.info()
    assert info["timeout_s"] == 7.0
    assert info["config_files"] == [str(tmp_path / "\ufffd.toml")]
    with pytest.raises(isthmus.Error, match=r"cannot read .*/missing\\xff.toml") as failure:
        isthmus.Communicator.create_all(1, config=str(tmp_path / "missing\udcff.toml"))
    assert failure.value.code == Status.config


def test_address_that_is_not_utf8_raises_isthmus_error() -> None:
    with pytest.raises(isthmus.Error, match=r'host "\\xff" cannot be resolved'):
        isthmus.UniqueId.create("\udcff")


# ---- output -----------------------------------------------------------------------------------------------


def test_printable_escapes_control_characters() -> None:
    assert printable(FORGED) == ESCAPED
    assert printable("\r\x08\x9b1m\u2028\u202e\0") == r"\r\x08\x9b1m\u2028\u202e\x00"
    assert printable("Größe 1 µs 日本") == "Größe 1 µs 日本"


def test_console_escapes_lines_and_cells(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    safe = SafeConsole(file=sys.stdout, width=200)
    safe.print(f"[red]{FORGED}[/] :smile:")
    table = Table(title=FORGED, box=None)
    table.add_column(lines("head", FORGED))
    table.add_row(f"[bold]{FORGED}")
    table.add_row(styled(FORGED, "green"))
    safe.print(table)
    printed = capsys.readouterr().out
    assert f"[red]{ESCAPED}[/] :smile:\n" in printed
    assert printed.count(ESCAPED) == 5
    assert f"[bold]{ESCAPED}" in printed
    assert len(printed.splitlines()) == 6
    assert_no_control_characters(printed)


def test_command_line_of_reports_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["isthmus", "bench", FORGED])
    assert console.command_line() == f"isthmus bench '{ESCAPED}'"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("report", f"/nowhere/{FORGED}"), f"/nowhere/{ESCAPED} does not exist"),
        (("doctor", "--job", FORGED), ESCAPED),
        (("explain", FORGED), r"is unknown; allowed: "),
        (("explain", "allreduce", "--config", f"/nowhere/{FORGED}"), r"/nowhere/a\n\x1b[31m"),
    ],
    ids=["report", "doctor", "explain", "config"],
)
def test_errors_are_one_line(arguments: tuple[str, ...], expected: str) -> None:
    completed = run_cli(*arguments)
    assert completed.returncode == 2
    assert expected in completed.stderr
    assert len(completed.stderr.splitlines()) == 1
    assert_no_control_characters(completed.stderr)


def test_info_and_explain_escape_names_of_the_machine(tmp_path: Path) -> None:
    folder = tmp_path / FORGED
    folder.mkdir()
    (folder / "isthmus.toml").write_text('[[rule]]\ncollective = ["allreduce"]\nuse = "shm"\n')
    settings = {"ISTHMUS_CONFIG": str(folder / "isthmus.toml"), "COLUMNS": "1000"}
    explained = run_cli("explain", "allreduce", **settings)
    assert explained.returncode == 0, explained.stderr
    assert r"a\n\x1b[31misthmus: all checks passed" in explained.stdout
    assert_no_control_characters(explained.stdout + explained.stderr)
    information = run_cli("info", **settings)
    assert information.returncode == 0, information.stderr
    assert f"ISTHMUS_CONFIG={folder.parent}/{ESCAPED}/isthmus.toml" in information.stdout
    assert_no_control_characters(information.stdout)
    document = json.loads(run_cli("info", "--json", **settings).stdout)
    assert os.fsencode(document["environment"]["ISTHMUS_CONFIG"]) == os.fsencode(settings["ISTHMUS_CONFIG"])
