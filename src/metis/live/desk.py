"""One controller, its journal and its sites' orders: an event is told, and what follows is done.

Whatever changes the controller is a record of the journal first, and the packet that belongs to it
is on disk; before anything of it can be seen outside, the journal is on disk too. So what was
killed finds all that it ever acknowledged, feeds it to a new controller, and goes on: see
`recover`. A desk that cannot write any more says so and does nothing further.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from metis.codecs.packet import checksum_of
from metis.core.codec import Codec
from metis.core.errors import JournalError, LineError, MetisError, RunError
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    Event,
    Failed,
    Joined,
    Left,
    Publish,
    Refuse,
    Train,
)
from metis.core.types import Layout, LearnerId, Model, Task
from metis.live.ledger import Ledger, Settled
from metis.live.line import (
    EvaluateOrder,
    Farewell,
    Item,
    ModelOf,
    Order,
    PacketOf,
    Refusal,
    SnapshotOf,
    TrainOrder,
    UpdateOf,
)
from metis.live.shelf import Shelf
from metis.runtime.journal import (
    EVENTS,
    Journal,
    Record,
    evaluate_record,
    event_record,
    record_event,
    refuse_record,
    task_record,
    version_record,
)
from metis.runtime.post import Post
from metis.runtime.records import ArriveRecord, AuditRecord, EndRecord, StartRecord
from metis.store.packets import Packets

#: Records that stand for themselves: what was done to the service, and who was turned away.
NOTES = {"start", "audit"}


_MOST_ORDERS = 10_000  # that wait for one learner
_SESSIONS = 16  # of a name that are remembered
_DELIVERIES_AT_ONCE = 2  # of one learner

#: What makes a record that is yet to be written. The digest of a version takes a while, and nobody
#: needs to wait for it.
Written: TypeAlias = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Terms:
    """What a federation is told once and never changes."""

    layout: Layout
    config: str  # digest of what every site must agree on
    upload: Codec
    lease_seconds: float
    deadline_seconds: float
    latest_models: str  # in memory, or on disk
    max_versions: int | None = None
    max_seconds: float | None = None
    keep_updates: bool = True
    checkpoint_seconds: float = 0.0  # between checkpoints; 0: only when it is stopped
    policy: str = ""
    config_text: str = ""  # what the digest is of
    num_classes: int = 0


@dataclass(slots=True)
class Watch:
    """When somebody must have been heard of, since when, and how far they were then."""

    until: float
    since: float
    num_steps: int = 0
    fetched: dict[Item, int] = field(default_factory=dict)  # bytes of what the task starts from


@dataclass(slots=True)
class Seat:
    """A learner as the service sees it now."""

    orders: queue.SimpleQueue[Order] = field(default_factory=queue.SimpleQueue)
    session: int = 0  # counts how often the name has joined
    instances: dict[int, str] = field(default_factory=dict)  # which process of it, by session
    heard: float | None = None
    knows: bool = False  # that the federation is over
    has_left: bool = False  # and not come back
    has_withdrawn: bool = False  # taking its models along
    deliveries: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_DELIVERIES_AT_ONCE)
    )

    @contextmanager
    def one_of_few(self) -> Iterator[None]:
        """Each delivery takes the memory of a model. A second may come while the first, whose line
        was cut, is still waited for; nobody has a reason to send a third. LineError then."""
        if not self.deliveries.acquire(blocking=False):
            raise LineError("too many deliveries of this learner are under way already")
        try:
            yield
        finally:
            self.deliveries.release()

    def begin(self, instance: str) -> None:
        """A new session: whatever was ordered before is ordered again."""
        self.orders = queue.SimpleQueue()
        self.session += 1
        self.instances[self.session] = instance
        self.instances.pop(self.session - _SESSIONS, None)

    def was_replaced(self, instance: str) -> bool:
        """Whether that process has joined, and another of its name since: it is not wanted back."""
        known = self.instances.get(self.session, "")
        return instance != "" and instance != known and instance in self.instances.values()

    def is_other(self, session: int) -> bool:
        """Whether some other process than that session's has joined since."""
        before = self.instances.get(session, "")
        return before == "" or before != self.instances[self.session]


class Desk:
    """Everything a service does in turn. Not thread-safe: whoever calls holds the turn."""

    def __init__(
        self,
        terms: Terms,
        ledger: Ledger,
        packets: Packets,
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self.terms = terms
        self.ledger = ledger
        self.journal = journal
        self.shelf = Shelf(packets, terms.layout)
        self.clock = clock
        self.sites: dict[LearnerId, Seat] = {}
        self.leases: dict[int, Watch] = {}
        self.deadlines: dict[int, Watch] = {}
        self.broken: MetisError | None = None
        self._began = clock() - ledger.seconds
        self._post = Post(terms.upload, self.shelf.snapshot_bytes)
        self._offer()

    def now(self) -> float:
        """Return for how many seconds the federation has been up."""
        return self.clock() - self._began

    def site(self, learner: LearnerId) -> Seat:
        return self.sites.setdefault(learner, Seat())

    def renew(self, task: int) -> None:
        """There was progress with a task, if it is open. Any thread may say so."""
        watch = self.leases.get(task)
        if watch is not None:
            watch.until = self.clock() + self.terms.lease_seconds

    def is_further(self, task: int, item: Item, num_bytes: int) -> bool:
        """Whether more has been fetched of what an open task starts from than ever before."""
        watch = self.leases.get(task)
        if watch is None or num_bytes <= watch.fetched.get(item, 0):
            return False
        watch.fetched[item] = num_bytes
        return True

    def order(self, learner: LearnerId, order: Order) -> None:
        """Have an order ready. Whoever lets them pile up must join anew, and is told all again."""
        site = self.site(learner)
        if site.orders.qsize() >= _MOST_ORDERS:
            site.begin(site.instances.get(site.session, ""))
        site.orders.put(order)

    def tell(self, event: Event, **more: object) -> list[Command]:
        """Write an event down, tell the controller, and do what it says when that is safe."""
        if self.ledger.over is not None:
            return []
        with self.or_broken():
            self.journal.put(self.now(), event_record(event, **more))
            commands = self.ledger.controller.handle(event)
            if commands or isinstance(event, Arrived | Left):
                self.journal.sync()  # before anybody can know of it
            self._obey(commands)
            self.journal.flush()
            self._end_if_due()
        return commands

    def recover(self, records: Iterable[Record]) -> int:
        """Take up what a journal tells after the ledger was saved; return how many events.

        Nothing is written of the past, but what the last event leads to, if nothing else follows
        it: of that, nothing may have been written yet.
        """
        num_events = 0
        pending: list[Command] = []
        for record in records:
            if record["kind"] in EVENTS:
                self._obey(pending, quiet=True)
                pending = self._told_again(record)
                num_events += 1
            elif record["kind"] in NOTES:  # so all that the event led to is there
                self._obey(pending, quiet=True)
                pending = []
                number = record.get("crl_number", 0)
                self.ledger.crl_number = max(self.ledger.crl_number, number)
            elif record["kind"] == "end":
                self.ledger.over = record["reason"]
        self._obey(pending)
        if self.ledger.over is not None and not self._is_due():
            self.ledger.over = None  # it was given more time since
        self._end_if_due()
        controller = self.ledger.controller
        self.leases = {n: self._watch(self.terms.lease_seconds) for n in controller.tasks}
        self.deadlines = {n: self._watch(self._deadline_seconds()) for n in controller.evaluations}
        return num_events

    def end(self, reason: str, over: bool) -> None:
        """Send everybody home. If it is not over, they are to come back."""
        if over and self.ledger.over is None:
            with self.or_broken():
                self.journal.put(self.now(), EndRecord(reason=reason))
                self.journal.sync()
            self.ledger.over = reason
        for site in self.sites.values():
            site.orders.put(Farewell(reason, over))

    def note(self, record: StartRecord | AuditRecord) -> None:
        """Write down what is no event of the federation; it is on disk when this returns."""
        if self.broken is not None:
            raise self.broken
        with self.or_broken():
            self.journal.put(self.now(), record)
            self.journal.sync()

    def _told_again(self, record: Record) -> list[Command]:
        ledger = self.ledger
        event = record_event(record, self._stored)
        assert event is not None
        answered: tuple[LearnerId, int] | None = None
        match event:
            case Arrived(update):
                ledger.arrived[update.task] = record["bytes_up"]
                answered = (update.learner, update.task)
            case Failed(learner, task, _) if ledger.controller.task_of.get(learner) == task:
                answered = (learner, task)
            case Joined(profile):
                ledger.mail.hold(profile.learner, record["holds"])
        commands = ledger.controller.handle(event)
        if answered is not None:
            learner, task = answered
            ledger.answered[learner] = Settled(task, refusal_of(commands, task) or "")
        return commands

    def _is_due(self) -> bool:
        """Whether the federation has all the versions, or all the time, that it is to have."""
        versions, seconds = self.terms.max_versions, self.terms.max_seconds
        return (versions is not None and self.ledger.controller.current.version >= versions) or (
            seconds is not None and self.now() >= seconds
        )

    def _end_if_due(self) -> None:
        limit = self.terms.max_versions
        if limit is not None and self.ledger.controller.current.version >= limit:
            self.end("versions", over=True)

    def _stored(self, record: ArriveRecord) -> Model:
        controller = self.ledger.controller
        task = controller.tasks.get(record.task)
        base = controller.current.weights if task is None else task.start.weights
        packet = self.shelf.update(record.task)
        if checksum_of(packet) != record.checksum:
            raise JournalError(f"task-{record.task}.packet is not the one that was acknowledged")
        return self.terms.upload.decode(packet, base)

    def _obey(self, commands: Iterable[Command], quiet: bool = False) -> None:
        """Do what the controller says, then write it down: sites need not wait for that."""
        writing: list[Written] = []
        for command in commands:
            match command:
                case Publish():
                    writing.append(self._publish(command))
                case Train() | Evaluate() if self._is_due():
                    continue  # nobody would want the answer
                case Train(task):
                    writing.append(self._hand_out(task))
                case Evaluate():
                    writing.append(self._ask(command))
                case Refuse(learner, number, reason):
                    self._settled(number)
                    self.order(learner, Refusal(number, reason))
                    writing.append(partial(refuse_record, command))
        if not quiet:
            for record in writing:
                self.journal.put(self.now(), record())

    def _publish(self, command: Publish) -> Written:
        packet, version = command.packet, command.snapshot.version
        self._post.publish(self.ledger.mail, version, packet)
        if packet is not None:
            self.shelf.put_version(version, packet, self.ledger.mail.packets)
        for fold in command.folds:
            self._settled(fold.task)
            self.ledger.folded[fold.learner] = self.ledger.folded.get(fold.learner, 0) + 1
        self._offer()
        return partial(version_record, command)

    def _settled(self, task: int) -> None:
        if self.ledger.arrived.pop(task, None) is not None:
            self.shelf.settled(task)

    def _offer(self) -> None:
        """Have ready whatever anybody at work starts from, and the newest version."""
        controller = self.ledger.controller
        starts = [controller.current, *(task.start for task in controller.tasks.values())]
        self.shelf.offer({start.version: start.weights for start in starts})

    def _hand_out(self, task: Task) -> Written:
        route = self._post.to_learner(self.ledger.mail, task.learner, task.start.version)
        items: tuple[Item, ...] = tuple(PacketOf(number) for number in route.packets)
        if route.whole:
            items = (SnapshotOf(task.start.version),)
        # One that comes back gets no more time than it had.
        self.leases.setdefault(task.number, self._watch(self.terms.lease_seconds))
        self.order(
            task.learner,
            TrainOrder(
                task.number,
                task.start.version,
                task.committed_steps,
                task.max_steps,
                task.ordinal,
                task.rate_factor,
                task.all_examples,
                items,
            ),
        )
        return partial(task_record, task, route.num_bytes)

    def _ask(self, command: Evaluate) -> Written:
        packet_bytes = self.ledger.arrived[command.task]
        route = self._post.to_judge(
            self.ledger.mail, command.judge, command.base_version, packet_bytes
        )
        items: tuple[Item, ...] = (ModelOf(command.task),)
        if not route.whole:
            items = (*(PacketOf(number) for number in route.packets), UpdateOf(command.task))
        number = command.evaluation
        self.deadlines.setdefault(number, self._watch(self._deadline_seconds()))
        self.order(command.judge, EvaluateOrder(number, command.task, command.base_version, items))
        return partial(evaluate_record, command, route.num_bytes)

    def _deadline_seconds(self) -> float:
        """A judge that died must not hold up a round for longer than a trainer that did."""
        return min(self.terms.deadline_seconds, self.terms.lease_seconds)

    def _watch(self, seconds: float) -> Watch:
        now = self.clock()
        return Watch(now + seconds, now)

    @contextmanager
    def or_broken(self) -> Iterator[None]:
        """What cannot be written cannot be acknowledged, nor anything after it.

        Whatever else ends an event half-way leaves the controller ahead of its journal, too.
        """
        try:
            yield
        except Exception as error:
            self.broken = RunError(f"the controller failed: {error!r}")
            if isinstance(error, MetisError):
                self.broken = error
            raise


def refusal_of(commands: Iterable[Command], task: int) -> str | None:
    """Return what the controller said against an answer, if it did."""
    for command in commands:
        if isinstance(command, Refuse) and command.task == task:
            return command.reason
    return None
