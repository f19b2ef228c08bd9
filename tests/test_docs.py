"""Every example in the documents runs: Python blocks in order, console blocks line by line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
DOCUMENTS = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/tutorial.md",
    "docs/how-to.md",
    "docs/certs.md",
    "docs/observe.md",
)
BLOCK = re.compile(r"^```(python|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


#: Runs all command lines of a document in one process: importing torch takes seconds.
COMMANDS = """
import shlex, sys
from metis import cli
for line in sys.stdin:
    sys.argv = ["metis", *shlex.split(line)]
    try:
        cli.main()
    except SystemExit as stop:
        assert not stop.code, (line, stop.code)
"""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_the_examples_of_a_document_run(document: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert blocks
    python = "".join(text for language, text in blocks if language == "python")
    console = "".join(text for language, text in blocks if language == "console")
    assert all(line.startswith("$ metis ") for line in console.splitlines())
    _call(python, "", tmp_path)
    _call(COMMANDS, console.replace("$ metis ", ""), tmp_path)


def test_links_between_documents_lead_somewhere() -> None:
    folders = (ROOT / "docs", ROOT / "papers")
    documents = [*ROOT.glob("*.md"), *(path for each in folders for path in each.rglob("*.md"))]
    for document in documents:
        text = document.read_text(encoding="utf-8")
        for target, section in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text):
            if "://" in target:
                continue
            there = document.parent / target if target else document
            assert there.exists(), f"{document.name}: {target}"
            assert not section or section in _sections(there), f"{document.name}: #{section}"


def _sections(document: Path) -> set[str]:
    """Return what headings are called in links."""
    text = re.sub(r"^```.*?^```$", "", document.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def _call(program: str, standard_input: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=standard_input,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{program}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
