"""scripts/check_site.py finds dead links and, in a browser, pages that do not fit."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOOD = '<article><h1 id="top">A page</h1><p><a href="other.html#top">other</a></p></article>'


def load_check_site():
    spec = importlib.util.spec_from_file_location("check_site", ROOT / "scripts" / "check_site.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_site"] = module
    spec.loader.exec_module(module)
    return module


check_site = load_check_site()


def write_site(folder: Path, article: str) -> Path:
    (folder / "index.html").write_text(f"<!DOCTYPE html><body><article>{article}</article></body>")
    (folder / "other.html").write_text(f"<!DOCTYPE html><body>{GOOD}</body>")
    return folder


@pytest.mark.parametrize(
    ("article", "problem"),
    [
        ('<a href="gone.html">x</a>', "links to gone.html, which does not exist"),
        ('<a href="other.html#gone">x</a>', "links to other.html#gone, but that page has no such anchor"),
        ('<a href="file:line">file:line</a>', "file:line is not a link"),
        ('<a href="other.html">more</a> <a href="other.html#top">more</a>', "2 links have the text 'more'"),
        ('<img src="gone.png">', "links to gone.png, which does not exist"),
    ],
)
def test_dead_and_equal_links_are_found(tmp_path: Path, article: str, problem: str) -> None:
    (found,) = check_site.check_links(write_site(tmp_path, article))
    assert found.startswith("index.html: ") and problem in found


def test_good_links_are_accepted(tmp_path: Path) -> None:
    table = '<table><tr><td><a href="other.html">x1</a> <a href="other.html#top">x1</a></td></tr></table>'
    assert check_site.check_links(write_site(tmp_path, GOOD + table)) == []


def commands_with(text: str) -> list[str]:
    """The commands of running processes that contain `text`."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_text(errors="replace")
        except OSError:  # the process has ended
            continue
        if text in command:
            found.append(command)
    return found


def test_browser_finds_pages_that_do_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    browser = next(filter(None, map(shutil.which, check_site.BROWSERS)), None)
    if browser is None:
        pytest.skip("no browser; scripts/setup docs installs one")
    wide = f'<pre style="overflow: visible">{"wide " * 60}</pre>'
    clipped = f'<pre style="overflow: hidden">{"clipped " * 60}</pre>'
    scrolls = f'<pre style="overflow: auto">{"scrolls " * 60}</pre>'
    code = '<div class="highlight-sh"><div class="highlight"><pre>ls</pre></div></div>'
    write_site(tmp_path, wide + clipped + scrolls + code)
    profiles = tmp_path / "profiles"
    profiles.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(profiles))
    found = check_site.check_pages(tmp_path, browser, {})
    deadline = time.monotonic() + 60
    while commands_with(str(profiles)) and time.monotonic() < deadline:  # killed processes end soon
        time.sleep(0.1)
    assert not commands_with(str(profiles)), "the browser is still running"
    for width in (1280, 400):
        problems = " ".join(problem for problem in found if f"index.html at {width} px" in problem)
        assert "scrolls sideways" in problems
        assert 'pre "clipped' in problems and "is cut off" in problems
        assert 'div "ls" has no copy button' in problems
        assert 'pre "scrolls' not in problems
