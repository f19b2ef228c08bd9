"""Several runs while they run: a line for each, with how far it is and how well it does."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from metis.journal.file import Record
from metis.journal.totals import Tally


class ManyView:
    """Give each run a listener; use it as a context manager."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[status]}"),
            TimeElapsedColumn(),
            console=console,
        )

    def __enter__(self) -> ManyView:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def listener(self, title: str, seconds: float | None, versions: int | None) -> Line:
        """Return what a run is to tell of its records; its limits say when it is done."""
        line = self._progress.add_task(title, total=1.0, status="")
        return Line(self._progress, line, seconds, versions)


class Line:
    """One run's line. Renewed with every version and test, not with every record."""

    def __init__(
        self, progress: Progress, line: TaskID, seconds: float | None, versions: int | None
    ) -> None:
        self._progress = progress
        self._line = line
        self._seconds = seconds
        self._versions = versions
        self._tally = Tally()
        self._version = 0
        self._score = ""

    def __call__(self, record: Record) -> None:
        self._tally.add(record)
        match record["kind"]:
            case "version":
                self._version = record["version"]
            case "test" if record["score"] is not None:
                self._score = f"{record['score']:.4f}"
            case "end":
                self._progress.update(self._line, completed=1.0, status=self._status())
                return
            case _:
                return
        shares = [0.0]
        if self._seconds is not None:
            shares.append(record["at"] / self._seconds)
        if self._versions is not None:
            shares.append(self._version / self._versions)
        self._progress.update(self._line, completed=max(shares), status=self._status())

    def remove(self) -> None:
        self._progress.remove_task(self._line)

    def _status(self) -> str:
        rate = self._tally.samples_trained / max(self._tally.wall_seconds, 1e-3)
        return f"version {self._version}  {self._score}  {rate:,.0f} samples/s"
