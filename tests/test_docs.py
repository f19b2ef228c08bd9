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
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    for document in documents:
        for target in re.findall(r"\]\(([^)#]+)", document.read_text(encoding="utf-8")):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


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
