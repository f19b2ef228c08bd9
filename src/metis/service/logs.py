"""What an operator wants to read while a controller runs: one line for each thing that matters.

Fed by the journal's records alone, like every view. Text that came from a site is cut to a length
and its control characters are escaped, so that nobody far away can paint on this terminal.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

from metis.core.errors import ConfigError, unknown
from metis.journal.file import Record
from metis.journal.membership import Attendance

Style: TypeAlias = Literal["text", "json"]
Level: TypeAlias = Literal["debug", "info", "warning", "error"]

STYLES: tuple[Style, ...] = ("text", "json")
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")

#: The records that become lines: how loud each is, and which of its fields a JSON line keeps.
_KINDS: dict[str, tuple[Level, tuple[str, ...]]] = {
    "run": ("info", ("policy", "parameters")),
    "start": ("info", ("recovered_events", "wall_recovery_seconds")),
    "join": ("info", ("learner", "num_examples", "group")),
    "leave": ("info", ("learner", "withdraw")),
    "task": ("debug", ("learner", "task", "version", "bytes_down")),
    "arrive": ("debug", ("learner", "task", "num_steps", "bytes_up")),
    "fail": ("error", ("learner", "task", "reason", "traceback")),
    "refuse": ("warning", ("learner", "task", "reason")),
    "task-expired": ("warning", ("learner", "task")),
    "evaluate": ("debug", ("judge", "evaluation", "learner", "task", "bytes_down")),
    "score": ("debug", ("judge", "evaluation", "task", "wall_waited")),
    "evaluation-expired": ("warning", ("judge", "evaluation", "task")),
    "version": ("info", ("version", "committed_steps")),
    "test": ("info", ("version", "score", "loss")),
    "audit": ("warning", ("what", "who", "reason")),
    "end": ("info", ("reason",)),
}

_MAX_NAMES = 8  # of those folded, in a line of text
_MAX_CHARACTERS = 500  # of a reason, or of a line of a traceback
_MAX_TRACEBACK_LINES = 60  # the last ones: they say what went wrong


class Log:
    """Listens to a journal and writes lines to a stream, each at once.

    A log that cannot be written (a full disk, a closed pipe) never stops the federation: such lines
    are counted in `num_lost`. A stream that blocks does hold up the controller.
    """

    def __init__(
        self,
        stream: TextIO,
        style: str = "text",
        level: str = "info",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if style not in STYLES:
            raise ConfigError(unknown("log style", style, STYLES))
        if level not in LEVELS:
            raise ConfigError(unknown("log level", level, LEVELS))
        self._stream = stream
        self._style = style
        self._lowest = LEVELS.index(level)
        self._clock = clock
        self._attendance = Attendance()
        self.num_lost = 0

    def __call__(self, record: Record) -> None:
        told = self._told(record)
        if told is None:
            return
        level, fields = told
        if LEVELS.index(level) < self._lowest:
            return
        moment = self._clock()
        if self._style == "json":
            text = _json_line(moment, level, record, fields)
        else:
            text = _text_lines(moment, level, record["kind"], fields)
        self._put(text)

    def _told(self, record: Record) -> tuple[Level, dict[str, Any]] | None:
        """Return how loud a record is and the fields its line has, or None if it gets no line."""
        kind = record["kind"]
        before = self._before(record)
        whom = self._attendance.note(record)
        if kind not in _KINDS or (whom is None and "traceback" not in record):
            return None
        level, names = _KINDS[kind]
        fields = {name: _cut(record[name]) for name in names if name in record} | before
        if kind == "version":
            fields |= _folds(record["folds"])
        if "traceback" in fields:
            fields["traceback"] = _tail(record["traceback"])
        return level, fields

    def _before(self, record: Record) -> dict[str, Any]:
        """Return what only is known until the record is noted."""
        match record["kind"]:
            case "join":
                return {"again": record["learner"] in self._attendance.known}
            case "task-expired" if record["task"] in self._attendance.tasks:
                return {"learner": self._attendance.tasks[record["task"]][0]}
            case "score" | "evaluation-expired":
                known = self._attendance.evaluations.get(record["evaluation"])
                return {} if known is None else {"judge": known[0], "task": known[1]}
        return {}

    def _put(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError):  # a closed stream is a ValueError
            self.num_lost += 1


# ---- lines ------------------------------------------------------------------------------------


def _json_line(moment: float, level: Level, record: Record, fields: dict[str, Any]) -> str:
    stamp = datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")
    head = {
        "ts": stamp.replace("+00:00", "Z"),
        "level": level,
        "event": record["kind"],
        "at": record["at"],
    }
    plain = {name: _finite(value) for name, value in fields.items()}
    # JSON leaves this one control character as it is.
    return json.dumps(head | plain).replace("\x7f", "\\u007f") + "\n"


def _text_lines(moment: float, level: Level, kind: str, fields: dict[str, Any]) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))
    lines = [f"{stamp}  {level:7}  {printable(_sentence(kind, fields))}"]
    indent = " " * (len(stamp) + 11)
    for line in fields.get("traceback", "").splitlines():
        lines.append(f"{indent}{printable(fields['learner'])} | {printable(line.expandtabs(4))}")
    return "\n".join(lines) + "\n"


def printable(text: str) -> str:
    """Return a text in which what is no visible character or space is escaped, as in \\x1b."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def _sentence(kind: str, f: dict[str, Any]) -> str:
    match kind:
        case "run":
            return f"a new federation begins{_policy(f)}"
        case "start":
            return f"controller started{_recovery(f)}"
        case "join":
            again = " again" if f["again"] else ""
            return f"{f['learner']} joined{again}: {f['num_examples']} examples, group {f['group']}"
        case "leave":
            return f"{f['learner']} left{' and withdrew its model' if f['withdraw'] else ''}"
        case "task":
            return f"{f['learner']} is to train task {f['task']} from version {f['version']}"
        case "arrive":
            return f"{f['learner']} delivered task {f['task']}: {f['num_steps']} steps"
        case "fail":
            return f"{f['learner']} failed task {f['task']}: {f['reason']}"
        case "refuse":
            return f"{f['learner']}, task {f['task']} refused: {f['reason']}"
        case "task-expired":
            return f"{f['learner']} was silent too long: the lease of task {f['task']} ran out"
        case "evaluate":
            return f"{f['judge']} is to score task {f['task']} of {f['learner']}"
        case "score":
            return f"{f['judge']} scored {_of_task(f)}{_waited(f)}"
        case "evaluation-expired":
            return f"{f['judge']} did not score {_of_task(f)} in time"
        case "version":
            return f"version {f['version']}: {_names(f['folded'])}{_scores(f)}"
        case "test":
            return f"version {f['version']} tested: {f['score']:.4f}"
        case "audit":
            return f"audit: {f['what']}: {f.get('who') or '?'}: {f.get('reason') or 'no reason'}"
        case _:
            return f"the federation ended: {f['reason']}"


def _policy(fields: dict[str, Any]) -> str:
    return f", policy {fields['policy']}" if fields.get("policy") else ""


def _recovery(fields: dict[str, Any]) -> str:
    if not fields.get("recovered_events"):
        return ""
    seconds = fields.get("wall_recovery_seconds")
    took = "" if seconds is None else f" in {seconds:.2f} s"
    return f", took up {fields['recovered_events']} events{took}"


def _of_task(fields: dict[str, Any]) -> str:
    """Whose task it was is not known if it was asked for before this process began."""
    return f"task {fields['task']}" if "task" in fields else f"evaluation {fields['evaluation']}"


def _waited(fields: dict[str, Any]) -> str:
    seconds = fields.get("wall_waited")
    return "" if seconds is None else f" after {seconds:.2f} s"


def _names(folded: list[str]) -> str:
    if not folded:
        return "nobody's update"
    more = len(folded) - _MAX_NAMES
    return ", ".join(folded[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def _scores(fields: dict[str, Any]) -> str:
    low, high = fields.get("lowest_score"), fields.get("highest_score")
    if low is None or high is None:
        return ""
    return f", score {low:.4f}" if low == high else f", scores {low:.4f} to {high:.4f}"


def _folds(folds: list[Record]) -> dict[str, Any]:
    scores = [fold["score"] for fold in folds if fold["score"] is not None]
    return {
        "folded": [fold["learner"] for fold in folds],
        "lowest_score": min(scores, default=None),
        "highest_score": max(scores, default=None),
        "missing_judges": sorted({name for fold in folds for name in fold["missing"]}),
    }


def _cut(value: Any) -> Any:
    """Return a value; of a text that somebody far away made too long, the beginning."""
    if isinstance(value, str) and len(value) > _MAX_CHARACTERS:
        return f"{value[:_MAX_CHARACTERS]} ... ({len(value)} characters)"
    return value


def _tail(traceback: str) -> str:
    """Return the last lines of a traceback, none of them too long."""
    lines = traceback.splitlines()
    left_out = len(lines) - _MAX_TRACEBACK_LINES
    first = [f"... ({left_out} lines before)"] if left_out > 0 else []
    return "\n".join(first + [_cut(line) for line in lines[-_MAX_TRACEBACK_LINES:]])


def _finite(value: Any) -> Any:
    """JSON has no word for what is not a number."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
