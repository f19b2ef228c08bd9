"""Who is here and what is open, as a journal tells it: what logs and metrics both need."""

from __future__ import annotations

from dataclasses import dataclass, field

from metis.journal.file import Record


@dataclass(slots=True)
class Attendance:
    """Who is here, and what is open, as the records tell it.

    Some records name only the number of a task or an evaluation; this knows whose it is. Small: it
    holds one open task for each learner, and the evaluations that nobody has answered.
    """

    known: set[str] = field(default_factory=set)  # everybody who ever joined
    members: set[str] = field(default_factory=set)
    tasks: dict[int, tuple[str, float | None]] = field(default_factory=dict)  # whose, since when
    evaluations: dict[int, tuple[str, int]] = field(default_factory=dict)  # judge, task
    _task_of: dict[str, int] = field(default_factory=dict)
    _lost: dict[str, int] = field(default_factory=dict)  # whose lease ran out, on which task
    _failed: int | None = None  # the task whose failure was told last

    def note(self, record: Record) -> str | None:
        """Return whom a record concerns ("" if nobody in particular), None if it changes nothing.

        What changes nothing: an answer or a timeout of something that is not open any more, and
        the refusal by which the controller confirms a failure that it was just told of.
        """
        match record["kind"]:
            case "start":
                return self._stand(record)
            case "join":
                return self._join(record["learner"])
            case "leave":
                return self._leave(record["learner"])
            case "task":
                return self._open(record["learner"], record["task"], record["at"])
            case "task-expired":
                return self._expire(record["task"])
            case "arrive":
                self._answer(record["learner"], record["task"])
                return str(record["learner"])
            case "fail":
                return self._fail(record["learner"], record["task"])
            case "refuse":
                return self._refuse(record["learner"], record["task"])
            case "evaluate":
                self.evaluations[record["evaluation"]] = (record["judge"], record["task"])
                return str(record["judge"])
            case "score" | "evaluation-expired":
                judge, _ = self.evaluations.pop(record["evaluation"], (record.get("judge"), 0))
                return judge
        return ""

    def _stand(self, record: Record) -> str:
        """A controller was started: it says how things stand. How long that has been so is not
        known, since it was away in between."""
        self.members = set(record.get("members", ()))
        self.known |= self.members
        self.tasks, self._task_of, self._lost = {}, {}, {}
        for number, learner in record.get("tasks", ()):
            self.known.add(learner)
            self.tasks[number] = (learner, None)
            self._task_of[learner] = number
        self.evaluations = {
            number: (judge, task) for number, judge, task in record.get("evaluations", ())
        }
        return ""

    def _join(self, learner: str) -> str:
        self.known.add(learner)
        self.members.add(learner)
        self._lost.pop(learner, None)
        return learner

    def _leave(self, learner: str) -> str:
        self.members.discard(learner)
        self._lost.pop(learner, None)
        self._close(learner)
        self._forget_evaluations(judge=learner)
        return learner

    def _open(self, learner: str, task: int, at: float) -> str:
        """A task that is handed out again, after a reconnection, is as old as it was."""
        _, since = self.tasks.get(task, (learner, None))
        self._close(learner)
        self.tasks[task] = (learner, at if since is None else since)
        self._task_of[learner] = task
        return learner

    def _close(self, learner: str) -> None:
        task = self._task_of.pop(learner, None)
        if task is not None:
            del self.tasks[task]

    def _expire(self, task: int) -> str | None:
        if task not in self.tasks:
            return None
        learner, _ = self.tasks[task]
        self._close(learner)
        self.members.discard(learner)
        self._lost[learner] = task
        return learner

    def _answer(self, learner: str, task: int) -> bool:
        """Close a task; return whether it was open. Who was lost and is heard of is back."""
        if self._task_of.get(learner) == task:
            self._close(learner)
            return True
        if self._lost.get(learner) == task:
            del self._lost[learner]
            self.members.add(learner)
        return False

    def _fail(self, learner: str, task: int) -> str | None:
        if not self._answer(learner, task):
            return None
        self._failed = task
        return learner

    def _refuse(self, learner: str, task: int) -> str | None:
        self._forget_evaluations(task=task)
        if self._failed == task:
            self._failed = None
            return None
        return learner

    def _forget_evaluations(self, judge: str | None = None, task: int | None = None) -> None:
        for number, (by, of) in list(self.evaluations.items()):
            if by == judge or of == task:
                del self.evaluations[number]
