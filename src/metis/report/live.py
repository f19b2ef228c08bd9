"""A run while it runs: a view that renews itself on a terminal, plain lines anywhere else."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from metis.report.runs import short_policy
from metis.report.summary import Tally
from metis.runtime.journal import Record

_REFRESH_SECONDS = 0.25
_REST = 20  # a rendering is followed by a pause of so many times its own length
_LINE_SECONDS = 5.0
_MAX_LEARNERS = 20  # shown one by one; more are shown by group
_RECENT = 5


@dataclass(slots=True)
class LearnerState:
    """What is known of a learner right now. One journal record changes it at a time."""

    learner: str
    group: str = ""
    examples: int = 0
    # absent, idle, training, judged (its update is at the judges), waiting (for its round, or
    # for its turn to be folded), lost (its lease ran out, or it crashed) or left
    state: str = "absent"
    task: int | None = None  # the one it was given last; answers to others change nothing
    epochs: int = 0  # whole ones, in its present task
    is_judged: bool = False  # what it answers to that task
    updates: int = 0
    weight: float | None = None
    steps_behind: int | None = None
    versions_behind: int | None = None
    loss: float | None = None

    def answered(self, task: int, state: str) -> None:
        """Go on to a state, unless the answer is to a task of old or comes from the departed."""
        if task == self.task and self.state in ("training", "judged", "waiting"):
            self.state = state


class LiveView:
    """Listens to a journal and shows how the run goes. Use it as a context manager.

    Keeps up with any rate of records: each costs O(1) (a version O(its folds)), and drawing takes
    place at most four times a second, less often if it is slow. There is no thread; an error in
    drawing surfaces where the record was written, and leaving the context restores the terminal.

    With a `title` the view belongs to a row of runs, and leaves only one line behind.
    """

    def __init__(
        self,
        max_seconds: float | None,
        max_versions: int | None,
        console: Console | None = None,
        title: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_seconds = max_seconds
        self._max_versions = max_versions
        self._console = console or Console()
        self._redraws = self._console.is_terminal and not self._console.is_dumb_terminal
        self._title = title
        self._clock = clock
        self._tally = Tally()
        self._began = False
        self._learners: dict[str, LearnerState] = {}
        self._task_learner: dict[int, str] = {}  # tasks that are not answered
        self._judge: dict[int, str] = {}  # evaluations that are not answered
        self._judging: Counter[str] = Counter()
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._best: float | None = None
        self._quiet_until = clock()
        self._next_tenth = 0.1
        self._live: Live | None = None

    # ---- context ------------------------------------------------------------------------------

    def __enter__(self) -> LiveView:
        if self._redraws:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        live, self._live = self._live, None
        began = self._began  # a config that is refused has nothing to show
        if live is None:
            if not began:
                return
            self._print(f"{self._line()}{self._how_it_ended()}")
            return
        try:
            if not began:
                live.update(Text(""))
            else:
                live.update(Text(self._row()) if self._title else self._view(closing=True))
        finally:
            live.stop()

    # ---- listening ----------------------------------------------------------------------------

    def __call__(self, record: Record) -> None:
        self._began = True
        self._tally.add(record)
        self._follow(record)
        now = self._clock()
        if self._live is not None:
            if now >= self._quiet_until:
                self._live.update(self._view(), refresh=True)
                took = self._clock() - now
                self._quiet_until = now + max(_REFRESH_SECONDS, _REST * took)
        elif not self._redraws:
            self._say(record, now)

    def _say(self, record: Record, now: float) -> None:
        """Print a line at the start, then one every few seconds or every tenth of the way."""
        if record["kind"] == "run":
            many = f", {len(record['learners']):,} learners" if record["learners"] else ""
            self._print(f"[{self._tally.wall_seconds:6.1f} s] {self._name()}{many}")
            self._quiet_until = now + _LINE_SECONDS
            return
        progress = self._progress()
        a_tenth = progress is not None and self._next_tenth <= progress < 1.0
        if a_tenth or now >= self._quiet_until:
            self._quiet_until = now + _LINE_SECONDS
            self._next_tenth = 0.1 * (int(10 * (progress or 0.0)) + 1)
            self._print(self._line())

    def _follow(self, record: Record) -> None:
        match record["kind"]:
            case "run":
                for one in record["learners"]:
                    name = one["learner"]
                    self._learners[name] = LearnerState(name, one["group"], one["examples"])
            case "join":
                one = self._learner(record["learner"])
                one.group = record["group"]
                one.examples = one.examples or record["num_examples"]
                if one.state in ("absent", "lost", "left"):
                    one.state = "idle"
            case "leave":
                self._learner(record["learner"]).state = "left"
            case "task":
                one = self._learner(record["learner"])
                one.state, one.task, one.epochs = "training", record["task"], 0
                one.is_judged = bool(self._tally.run.get("judged")) and not record["all_examples"]
                self._task_learner[record["task"]] = one.learner
            case "steps":
                one = self._learner(record["learner"])
                one.state, one.task, one.epochs = "training", record["task"], record["epoch"]
                one.steps_behind = record["steps_behind"]
                if record["loss"] is not None:
                    one.loss = record["loss"]
            case "arrive":
                self._task_learner.pop(record["task"], None)
                one = self._learner(record["learner"])
                one.answered(record["task"], "judged" if one.is_judged else "waiting")
            case "fail" | "refuse":
                self._task_learner.pop(record["task"], None)
                self._learner(record["learner"]).answered(record["task"], "idle")
            case "task-expired":
                learner = self._task_learner.pop(record["task"], None)
                if learner is not None:
                    self._learner(learner).state = "lost"
            case "evaluate":
                self._judge[record["evaluation"]] = record["judge"]
                self._judging[record["judge"]] += 1
            case "score" | "evaluation-expired":
                judge = self._judge.pop(record["evaluation"], None)
                if judge is not None:
                    self._judging[judge] -= 1
            case "version":
                for fold in record["folds"]:
                    self._folded(fold)
            case "test":
                score = record["score"]
                if score is not None:
                    self._best = score if self._best is None else max(self._best, score)
            case "incident":
                if record["incident"] == "crash":
                    self._learner(record["learner"]).state = "lost"

    def _folded(self, fold: Record) -> None:
        one = self._learner(fold["learner"])
        one.updates += 1
        one.weight = fold["weight"]
        one.steps_behind, one.versions_behind = fold["steps_behind"], fold["versions_behind"]
        one.answered(fold["task"], "idle")
        self._recent.append(one.learner)

    def _learner(self, name: str) -> LearnerState:
        """Return a learner's state; a resumed journal may name one before saying who it is."""
        return self._learners.setdefault(name, LearnerState(name))

    # ---- numbers ------------------------------------------------------------------------------

    def _progress(self) -> float | None:
        """Return how far the run is on its way to the nearer of its horizons, from 0 to 1."""
        parts = []
        if self._max_seconds is not None:
            parts.append(self._tally.virtual_seconds / self._max_seconds)
        if self._max_versions is not None:
            parts.append(self._tally.versions / self._max_versions)
        return min(1.0, max(parts)) if parts else None

    def _seconds_left(self) -> float | None:
        """Return the wall time the rest takes at the pace so far, once there is a pace.

        The journal's own count of seconds, since a resumed run is first told all of its past.
        """
        progress = self._progress()
        if not progress:
            return None
        return self._tally.wall_seconds * (1.0 - progress) / progress

    def _is_live(self) -> bool:
        """Whether this happens in real time: samples are then counted where they are trained on."""
        return bool(self._tally.run.get("live"))

    def _rate(self) -> str:
        if self._is_live():
            return f"{self._tally.num_arrived:,} updates"
        return f"{self._tally.samples_trained / max(self._tally.wall_seconds, 1e-3):,.0f} samples/s"

    def _score(self) -> str:
        if not self._tally.curve or self._best is None:
            return "no test set here" if self._is_live() else "not tested yet"
        name = "R²" if self._tally.run.get("test_metric") == "r2" else "accuracy"
        return f"{name} {self._tally.curve[-1][2]:.3f} (best {self._best:.3f})"

    # ---- lines --------------------------------------------------------------------------------

    def _print(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)

    def _stamp(self) -> str:
        title = f" {self._title}:" if self._title else ""
        return f"[{self._tally.wall_seconds:6.1f} s]{title}"

    def _line(self) -> str:
        tally = self._tally
        return (
            f"{self._stamp()} t={tally.virtual_seconds:,.1f} s version {tally.versions:,} "
            f"{self._score()} {self._rate()}"
        )

    def _row(self) -> str:
        """Return the one line that stays of a run in a row of runs."""
        tally = self._tally
        times = f"t={tally.virtual_seconds:,.1f} s, in {tally.wall_seconds:,.1f} s"
        score, end = self._score(), self._how_it_ended()
        return f"{self._title}: {score}, version {tally.versions:,}, {times}{end}"

    def _how_it_ended(self) -> str:
        """Return what is worth saying of the end: nothing, if a horizon was reached."""
        ended = self._tally.ended
        if ended is None:
            return ", interrupted"
        return "" if ended in ("seconds", "versions") else f", ended: {ended}"

    def _name(self) -> str:
        run = self._tally.run
        policy = short_policy(str(run.get("policy", "run")))
        named = self._title if policy in self._title else f"{self._title} {policy}".strip()
        return f"{named} on {run.get('dataset', 'its data')}"

    # ---- the view -----------------------------------------------------------------------------

    def _view(self, closing: bool = False) -> RenderableType:
        parts: list[RenderableType] = [self._header(closing)]
        progress = self._progress()
        if progress is not None:
            bar = Table.grid(expand=True)  # a bar alone does not end its line
            bar.add_row(ProgressBar(total=1.0, completed=progress))
            parts.append(bar)
        # Header, bar, heads and borders take nine lines or so; a view taller than the screen
        # would lose its lower end.
        if len(self._learners) <= min(_MAX_LEARNERS, max(self._console.height - 9, 1)):
            parts.append(self._table(list(self._learners.values())))
        else:
            parts.append(self._group_table())
            recent = reversed(dict.fromkeys(reversed(self._recent)))
            if self._recent:
                parts.append(Text("most recent updates", "dim"))
                parts.append(self._table([self._learners[name] for name in recent]))
        return Group(*parts)

    def _header(self, closing: bool) -> Text:
        tally = self._tally
        of_seconds = "" if self._max_seconds is None else f" of {self._max_seconds:,.0f}"
        of_versions = "" if self._max_versions is None else f" of {self._max_versions:,}"
        left = self._seconds_left()
        if tally.ended is not None:
            state = f"ended: {tally.ended}"
        elif closing:
            state = "interrupted"
        elif left is None:
            state = f"{_duration(self._tally.wall_seconds)} so far"
        else:
            state = f"{_duration(left)} left"
        parts = [
            f"t={tally.virtual_seconds:,.1f}{of_seconds} s",
            f"version {tally.versions:,}{of_versions}",
            self._score(),
            self._rate(),
            state,
        ]
        return Text.assemble((self._name(), "bold"), "\n", " · ".join(parts))

    def _table(self, learners: list[LearnerState]) -> Table:
        table = self._compact("learner", "group", "state")
        _add_numbers(table, "epochs", "examples", "updates", "weight")
        _add_numbers(table, "steps\nbehind", "versions\nbehind", "loss")
        for one in learners:
            table.add_row(
                Text(one.learner),
                Text(one.group),
                self._state(one),
                f"{one.epochs:,}" if one.state == "training" else "",
                f"{one.examples:,}",
                f"{one.updates:,}",
                "" if one.weight is None else _weight(one.weight),
                "" if one.steps_behind is None else f"{one.steps_behind:,}",
                "" if one.versions_behind is None else f"{one.versions_behind:,}",
                "" if one.loss is None else f"{one.loss:.4f}",
            )
        return table

    def _state(self, one: LearnerState) -> Text:
        """Return a state in a word. Judging goes on beside training, so it shows when idle only."""
        if one.state == "idle" and self._judging[one.learner] > 0:
            return Text("judging")
        colour = {"lost": "red", "left": "dim", "absent": "dim", "idle": "dim"}.get(one.state, "")
        return Text(one.state, colour)

    def _compact(self, *headings: str) -> Table:
        roomy = self._console.width >= 96
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            padding=(0, 1, 0, 0) if roomy else 0,
            header_style="dim",
        )
        for heading in headings:
            table.add_column(heading, no_wrap=True, min_width=8 if heading == "state" else None)
        return table

    def _group_table(self) -> Table:
        table = self._compact("group")
        _add_numbers(table, "learners", "training", "judged", "waiting", "idle", "gone")
        _add_numbers(table, "updates", "mean\nweight", "mean steps\nbehind")
        groups: dict[str, list[LearnerState]] = {}
        for one in self._learners.values():
            groups.setdefault(one.group, []).append(one)
        for group, members in groups.items():
            states = Counter(one.state for one in members)
            gone = states["absent"] + states["lost"] + states["left"]
            weights = [one.weight for one in members if one.weight is not None]
            behind = [one.steps_behind for one in members if one.steps_behind is not None]
            table.add_row(
                Text(group),
                f"{len(members):,}",
                *(f"{states[state]:,}" for state in ("training", "judged", "waiting", "idle")),
                f"{gone:,}",
                f"{sum(one.updates for one in members):,}",
                _weight(sum(weights) / len(weights)) if weights else "",
                f"{sum(behind) / len(behind):,.0f}" if behind else "",
            )
        return table


def _add_numbers(table: Table, *headings: str) -> None:
    for heading in headings:
        table.add_column(heading, justify="right", min_width=6)  # so that columns do not jump


def _weight(weight: float) -> str:
    """Return a score, which is at most one, or a number of examples."""
    return f"{weight:.3f}" if abs(weight) < 100 else f"{weight:,.0f}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 0.5), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
