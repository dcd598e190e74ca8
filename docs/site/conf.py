"""Sphinx configuration of the documentation site. `make docs` builds the site in out/docs/html."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs" / "site")]

project = "Isthmus"
author = "the Isthmus authors"
copyright = "the Isthmus authors, Apache-2.0"
version = release = re.search(r"project\(isthmus VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]

extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc", "sphinx_copybutton", "search"]
exclude_patterns = ["site"]
html_theme = "furo"
html_title = f"Isthmus {version}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
# Blocks of the language `text` are output, and have no button.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = "$ "

myst_heading_anchors = 4
# `make docs` runs Doxygen first.
breathe_projects = {"isthmus": str(ROOT / "out" / "docs" / "doxygen" / "xml")}
breathe_default_project = "isthmus"
breathe_domain_by_extension = {"h": "c", "hpp": "cpp"}

# The site can be built without the library: compiled modules and optional packages are mocked.
autodoc_mock_imports = [
    "isthmus._isthmus",
    "isthmus._mpi",
    "matplotlib",
    "ml_dtypes",
    "mpi4py",
    "numpy",
    "rich",
    "torch",
]
autodoc_typehints = "description"
autodoc_member_order = "bysource"

LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")


def rewrite_external_links(_app, page: str, source: list[str]) -> None:
    """Replaces links to folders and pages outside the site with names. Links to files become downloads."""
    folder = (ROOT / "docs" / page).parent

    def as_name(match: re.Match) -> str:
        target = (folder / match[2]).resolve()
        if "://" in match[2] or target.is_relative_to(ROOT / "docs"):
            return match[0]
        if target.is_dir() or target.suffix == ".md":
            return f"{match[1]} (`{target.relative_to(ROOT)}`)"
        return match[0]

    source[0] = LINK.sub(as_name, source[0])


def setup(app) -> None:
    app.connect("source-read", rewrite_external_links)
