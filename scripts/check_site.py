#!/usr/bin/env python3
"""Checks a built documentation site: links, and the pages in a browser.

    scripts/check_site.py [FOLDER]      default: out/docs/html

Links: every link leads to a page, file or anchor that exists, and links of a page with equal texts lead to the
same place. The second rule does not apply to tables and generated signatures, because their context differs.

Browser (headless Chromium, at 1280 and 400 px): no page scrolls sideways, nothing is cut off, pictures load,
every block of code has a button that copies it, and searches for SEARCHES find the right page first. Without a
browser, this part is skipped with a message. scripts/setup docs installs one.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")
WIDTHS = (1280, 400)
BROWSER_TIMEOUT_S = 120
# Words that a user searches for -> pages, one of which must be the first result.
SEARCHES = {
    "all-reduce": ("reference/c_api", "reference/cpp_api", "reference/python_api"),
    "ncclAllReduce": ("reference/c_api", "reference/cpp_api", "reference/python_api"),
    "MPI_Allreduce": ("reference/c_api", "reference/cpp_api", "reference/python_api"),
    "reduce scatter": ("reference/c_api", "reference/cpp_api", "reference/python_api"),
    "all_to_all": ("reference/c_api", "reference/cpp_api", "reference/python_api"),
    "GPU": ("reference/support",),
    "multi-node": ("internals/hierarchical", "internals/ucx", "reference/support"),
    "InfiniBand": ("internals/ucx",),
    "environment variables": ("reference/configuration",),
    "plugin": ("start/backend",),
    "limitations": ("guide/known_limits",),
    "unique id": ("guide/python",),
}


@dataclass
class Page:
    """The anchors and links of a page."""

    anchors: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))  # of links in running text


class PageParser(HTMLParser):
    """Collects the anchors and links of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.page = Page()
        self._depth = {"article": 0, "table": 0, "dt": 0}
        self._link: str | None = None
        self._text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag in self._depth:
            self._depth[tag] += 1
        if values.get("id"):
            self.page.anchors.add(values["id"])
        target = values.get("href") or values.get("src")
        if target:
            self.page.targets.append(target)
        if tag == "a" and self._depth["article"] and not self._depth["table"] and not self._depth["dt"]:
            self._link, self._text = target, ""

    def handle_endtag(self, tag: str) -> None:
        if tag in self._depth:
            self._depth[tag] -= 1
        if tag == "a" and self._link:
            if len(self._text.strip()) > 1:  # a single sign is the link of a heading to itself
                self.page.texts[" ".join(self._text.split())].add(self._link)
            self._link = None

    def handle_data(self, data: str) -> None:
        self._text += data


def check_links(site: Path) -> list[str]:
    pages = {file: PageParser(file.read_text()).page for file in sorted(site.rglob("*.html"))}
    problems = []
    for file, page in pages.items():
        name = file.relative_to(site)
        problems += [f"{name}: {problem}" for target in page.targets if (problem := dead(file, target, pages))]
        if name.name == "genindex.html":
            continue
        for text, targets in page.texts.items():
            if len(targets) > 1:
                problems.append(
                    f"{name}: {len(targets)} links have the text {text!r}: {', '.join(sorted(targets))}"
                )
    return problems


def dead(file: Path, target: str, pages: dict[Path, Page]) -> str | None:
    url = urlsplit(target)
    if url.scheme in ("http", "https", "mailto", "data"):
        return None  # CI has no network
    if url.scheme or url.netloc:
        return f"{target} is not a link"
    path = (file.parent / unquote(url.path)).resolve() if url.path else file
    if not path.is_file():
        return f"links to {target}, which does not exist"
    if url.fragment and path in pages and unquote(url.fragment) not in pages[path].anchors:
        return f"links to {target}, but that page has no such anchor"
    return None


HARNESS = ROOT / "scripts" / "check_site.html"


class Handler(SimpleHTTPRequestHandler):
    """Serves the site and the harness, and receives the problems."""

    site: Path
    task: dict[str, Any]
    result: list[str] | None = None
    is_done: threading.Event

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, directory=str(self.site), **options)

    def do_GET(self) -> None:
        generated = {"/harness.html": HARNESS.read_text(), "/task.json": json.dumps(self.task)}.get(self.path)
        if generated is None:
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.path.endswith("json") else "text/html")
        self.end_headers()
        self.wfile.write(generated.encode())

    def do_POST(self) -> None:
        type(self).result = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        self.is_done.set()

    def log_message(self, *arguments: Any) -> None:
        """Prints nothing."""


def check_pages(site: Path, browser: str, searches: dict[str, tuple[str, ...]]) -> list[str]:
    names = sorted(str(file.relative_to(site)) for file in site.rglob("*.html"))
    pages = [name for name in names if name not in ("search.html", "genindex.html", "py-modindex.html")]
    task = {"pages": pages, "widths": WIDTHS, "searches": searches}
    handler = type("SiteHandler", (Handler,), {"site": site, "task": task, "is_done": threading.Event()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        command += ["--window-size=1400,1000", "--remote-debugging-port=0"]  # without a port, it exits at once
        url = f"http://127.0.0.1:{server.server_address[1]}/harness.html"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen([*command, url], start_new_session=True, **quiet)
        is_done = handler.is_done.wait(BROWSER_TIMEOUT_S)
        os.killpg(process.pid, signal.SIGKILL)  # Debian's command is a shell script, which starts the browser
        process.wait()
    server.shutdown()
    return handler.result if is_done else [f"{browser} did not report within {BROWSER_TIMEOUT_S} s"]


def main() -> int:
    site = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "out/docs/html").resolve()
    problems = check_links(site)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    looked = "no browser, so pages were not looked at: apt-get install chromium-headless-shell"
    if browser:
        problems += check_pages(site, browser, SEARCHES)
        looked = f"pages looked at with {Path(browser).name} at {' and '.join(map(str, WIDTHS))} px"
    print("\n".join([*problems, f"site: {len(problems)} problems; {looked}"]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
