"""What the command line prints is what `tests/golden/terminal` holds, to the letter."""

from __future__ import annotations

from tests.golden import texts


def test_every_text_of_the_command_line_is_the_one_that_was_read() -> None:
    """If a text was changed on purpose: `make texts`, and read the diff."""
    written = {path.stem: path.read_text(encoding="utf-8") for path in texts.FOLDER.glob("*.txt")}
    printed = dict(texts.texts())

    assert printed.keys() == written.keys()
    for name, text in printed.items():
        assert text == written[name], name
