"""The federation in real time: sites call in, one at a time, and the controller is told.

Whatever changes the controller is a record of the journal first, on disk, and the packet that
belongs to it too; only then is it acknowledged. So a service that was killed finds all that it ever
acknowledged, feeds it to a new controller, and goes on. See `recover`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

from metis.codecs.dense import Dense
from metis.core.codec import Codec, Published
from metis.core.controller import Controller
from metis.core.errors import HandshakeError, ModelError
from metis.core.events import (
    Arrived,
    Command,
    Evaluate,
    EvaluationExpired,
    Event,
    Failed,
    Joined,
    Left,
    Publish,
    Refuse,
    Scored,
    TaskExpired,
    Train,
)
from metis.core.types import Counts, Layout, LearnerId, Model, Task, Update, dense
from metis.live.line import (
    PROTOCOL,
    Delivery,
    EvaluateOrder,
    Farewell,
    Hello,
    Item,
    ModelOf,
    Order,
    PacketOf,
    Receipt,
    Refusal,
    SnapshotOf,
    Standing,
    TrainOrder,
    UpdateOf,
    Welcome,
    pieces,
)
from metis.runtime.journal import (
    Journal,
    Record,
    evaluate_record,
    event_record,
    record_event,
    refuse_record,
    task_record,
    version_record,
)
from metis.runtime.post import Mail, Post, packet_digest
from metis.store.packets import Packets

_SLACK_BYTES = 4096  # that a packet may be longer than the model as it is


@dataclass(frozen=True, slots=True)
class Terms:
    """What a federation is told once and never changes."""

    layout: Layout
    config: str  # digest of what every site must agree on
    upload: Codec
    lease_seconds: float
    deadline_seconds: float
    max_versions: int | None = None


@dataclass(slots=True)
class Watch:
    """When somebody must have been heard of, and how far they were then."""

    until: float
    num_steps: int = 0


@dataclass(slots=True)
class Attendee:
    """A learner as the service sees it now."""

    orders: queue.SimpleQueue[Order] = field(default_factory=queue.SimpleQueue)
    listening: int = 0  # counts connections, so that an old one ends when a new one comes


class Service:
    """Thread-safe. Calls take their turn; what they tell the controller is told in that order."""

    def __init__(
        self,
        terms: Terms,
        controller: Controller,
        packets: Packets,
        journal: Journal,
        clock: Callable[[], float],
    ) -> None:
        self.terms = terms
        self.controller = controller
        self.journal = journal
        self._packets = packets
        self._clock = clock
        self._began = clock()
        self._post = Post(terms.upload, Dense(terms.layout).num_bytes)
        self._mail = Mail()
        self._turn = threading.RLock()
        self._sites: dict[LearnerId, Attendee] = {}
        self._leases: dict[int, Watch] = {}
        self._deadlines: dict[int, Watch] = {}
        self._answered: dict[int, tuple[LearnerId, str]] = {}  # task -> who, digest of the packet
        self._arrived: dict[int, tuple[Model, int]] = {}  # being judged: the model, its bytes
        self._snapshots: dict[int, bytes] = {}
        self.over: str | None = None

    # ---- what sites call ----------------------------------------------------------------------

    def join(self, learner: LearnerId, hello: Hello) -> Welcome:
        """Take a site in, or back. Raises HandshakeError if it is not of this federation."""
        self._check(hello)
        with self._turn:
            if hello.holds is None:
                self._mail.holds.pop(learner, None)
            else:
                self._mail.holds[learner] = hello.holds
            self._site(learner).orders = queue.SimpleQueue()  # all that is open is ordered again
            self._tell(Joined(hello.profile))
            if self.over is not None:
                self._site(learner).orders.put(Farewell(self.over, over=True))
            return Welcome(self.terms.lease_seconds, self.controller.committed_steps)

    def orders(self, learner: LearnerId, wait_seconds: float = 1.0) -> Iterator[Order | None]:
        """Give a site its orders as they come; None when there was none for a while.

        Ends when the site listens anew, or there will be no more orders.
        """
        site = self._site(learner)
        with self._turn:
            site.listening += 1
            mine = site.listening
        while site.listening == mine:
            try:
                order = site.orders.get(timeout=wait_seconds)
            except queue.Empty:
                yield None
                continue
            yield order
            if isinstance(order, Farewell):
                return

    def fetch(self, learner: LearnerId, item: Item) -> Iterator[bytes]:
        """Give what an order named, piece by piece. ModelError if it is not there any more."""
        with self._turn:
            source = self._source(item)
        yield from source

    def progress(self, learner: LearnerId, task: int, num_steps: int) -> Standing:
        """Hear how far a task is. Only progress renews its lease."""
        with self._turn:
            is_open = self.controller.task_of.get(learner) == task
            watch = self._leases.get(task)
            if is_open and watch is not None and num_steps > watch.num_steps:
                watch.num_steps = num_steps
                watch.until = self._clock() + self.terms.lease_seconds
            return Standing(self.controller.committed_steps, is_open)

    def deliver(self, learner: LearnerId, delivery: Delivery, packet: Iterable[bytes]) -> Receipt:
        """Take an answer. When this returns, it is on disk, or was turned down for a reason."""
        number = delivery.task
        with self._turn:
            if number in self._answered:
                return self._again(learner, number)
            task = self.controller.tasks.get(number)
        if task is None or task.learner != learner:
            # Not worth a byte of the disk, but the controller says why, and may take it back in.
            with self._turn:
                self._tell(Failed(learner, number, "its task is not open"))
            return Receipt(False, "no such task is open for this learner")
        name = f"task-{number}"
        try:
            self._packets.put(name, packet, self._post.snapshot_bytes + _SLACK_BYTES)
            content = self._packets.get(name)
            model = self.terms.upload.decode(content, task.start.weights)
        except ModelError as error:
            with self._turn:
                self._packets.drop(name)
                self._tell(Failed(learner, number, str(error)))
            return Receipt(False, str(error))
        digest = packet_digest(content)
        with self._turn:
            if number in self._answered:  # sent twice at once
                return self._again(learner, number)
            update = _update(learner, delivery, model)
            self._answered[number] = (learner, digest)
            self._arrived[number] = (model, len(content))
            self._tell(Arrived(update), bytes_up=len(content), digest=digest)
        return Receipt(True)

    def fail(self, learner: LearnerId, task: int, reason: str) -> None:
        """Hear that a task came to nothing."""
        with self._turn:
            self._tell(Failed(learner, task, reason))

    def score(self, learner: LearnerId, evaluation: int, counts: Counts | None) -> None:
        """Hear what a judge counted. Anybody else's answer, or a second one, changes nothing."""
        with self._turn:
            ticket = self.controller.evaluations.get(evaluation)
            if ticket is not None and ticket.waiting_for[evaluation] == learner:
                self._tell(Scored(evaluation, counts))

    def leave(self, learner: LearnerId, withdraw: bool) -> None:
        with self._turn:
            self._tell(Left(learner, withdraw))

    # ---- what the clock calls -----------------------------------------------------------------

    def look_at_the_clock(self) -> None:
        """Give up on what has not been heard of for too long. To be called now and then."""
        with self._turn:
            now = self._clock()
            for task in [task for task, watch in self._leases.items() if watch.until <= now]:
                del self._leases[task]
                self._tell(TaskExpired(task))
            for number in [n for n, watch in self._deadlines.items() if watch.until <= now]:
                del self._deadlines[number]
                self._tell(EvaluationExpired(number))

    def end(self, reason: str, over: bool) -> None:
        """Send everybody home. If it is not over, they are to come back."""
        with self._turn:
            if over and self.over is None:
                self.over = reason
                self.journal.write("end", self._now(), reason=reason)
            self.journal.sync()
            for site in self._sites.values():
                site.orders.put(Farewell(reason, over))

    # ---- the controller -----------------------------------------------------------------------

    def _tell(self, event: Event, **more: object) -> None:
        """Write an event down, then tell the controller, then do what it says."""
        if self.over is not None:
            return
        kind, fields = event_record(event)
        self.journal.write(kind, self._now(), **fields, **more)
        self.journal.sync()
        self._obey(self.controller.handle(event))
        self._end_if_due()

    def _end_if_due(self) -> None:
        limit = self.terms.max_versions
        if limit is not None and self.controller.current.version >= limit:
            self.end("versions", over=True)

    def recover(self, records: Iterable[Record]) -> None:
        """Take up a journal that ends with an event: all its events are told again.

        Nothing is written of the past, but what the last event leads to: of that, nothing may have
        been written yet.
        """
        events = [record for record in records if record["kind"] in EVENTS]
        for position, record in enumerate(events):
            event = record_event(record, self._stored)
            assert event is not None
            if isinstance(event, Arrived):
                update = event.update
                self._answered[update.task] = (update.learner, record["digest"])
                self._arrived[update.task] = (update.weights, record["bytes_up"])
            last = position == len(events) - 1
            self._obey(self.controller.handle(event), quiet=not last)
        self._end_if_due()
        now = self._clock()
        self._leases = {n: Watch(now + self.terms.lease_seconds) for n in self.controller.tasks}
        self._deadlines = {
            n: Watch(now + self.terms.deadline_seconds) for n in self.controller.evaluations
        }

    def _stored(self, record: Record) -> Model:
        task = self.controller.tasks.get(record["task"])
        base = self.controller.current.weights if task is None else task.start.weights
        return self.terms.upload.decode(self._packets.get(f"task-{record['task']}"), base)

    def _obey(self, commands: Iterable[Command], quiet: bool = False) -> None:
        for command in commands:
            match command:
                case Publish():
                    self._publish(command, quiet)
                case Train(task):
                    self._hand_out(task, quiet)
                case Evaluate():
                    self._ask(command, quiet)
                case Refuse(learner, number, reason):
                    self._settled(number)
                    self._write(quiet, "refuse", refuse_record(command))
                    self._site(learner).orders.put(Refusal(number, reason))

    def _publish(self, command: Publish, quiet: bool) -> None:
        community = self.controller.community
        packet = community.packet if isinstance(community, Published) else None
        version = command.snapshot.version
        self._post.publish(self._mail, version, packet)
        if packet is not None:
            self._packets.put(f"version-{version}", [packet], len(packet))
            kept = {f"version-{number}" for number in self._mail.packets}
            for name in self._packets.names() - kept:
                if name.startswith("version-"):
                    self._packets.drop(name)
        for fold in command.folds:
            self._settled(fold.task)
        self._write(quiet, "version", version_record(command, packet))

    def _hand_out(self, task: Task, quiet: bool) -> None:
        route = self._post.to_learner(self._mail, task.learner, task.start.version)
        items: tuple[Item, ...] = tuple(PacketOf(number) for number in route.packets)
        if route.whole:
            items = (SnapshotOf(task.start.version),)
        self._leases[task.number] = Watch(self._clock() + self.terms.lease_seconds)
        self._write(quiet, "task", task_record(task, route.num_bytes))
        self._site(task.learner).orders.put(
            TrainOrder(
                task.number,
                task.start.version,
                task.committed_steps,
                task.max_steps,
                task.ordinal,
                items,
            )
        )

    def _ask(self, command: Evaluate, quiet: bool) -> None:
        _, packet_bytes = self._arrived[command.task]
        route = self._post.to_judge(self._mail, command.judge, command.base_version, packet_bytes)
        items: tuple[Item, ...] = (ModelOf(command.task),)
        if not route.whole:
            items = (*(PacketOf(number) for number in route.packets), UpdateOf(command.task))
        number = command.evaluation
        self._deadlines[number] = Watch(self._clock() + self.terms.deadline_seconds)
        self._write(quiet, "evaluate", evaluate_record(command, route.num_bytes))
        self._site(command.judge).orders.put(
            EvaluateOrder(number, command.task, command.base_version, items)
        )

    # ---- small facts --------------------------------------------------------------------------

    def _check(self, hello: Hello) -> None:
        for what, theirs, ours in (
            ("protocol", hello.protocol, PROTOCOL),
            ("model layout", hello.layout, self.terms.layout.digest),
            ("config", hello.config, self.terms.config),
        ):
            if theirs != ours:
                raise HandshakeError(
                    f"this site has {what} {theirs}, the controller has {ours}: they must be equal"
                )

    def _again(self, learner: LearnerId, task: int) -> Receipt:
        """Answer a delivery that is here already: the site did not hear so."""
        if self._answered[task][0] == learner:
            return Receipt(True)
        return Receipt(False, "no such task is open for this learner")

    def _settled(self, task: int) -> None:
        """An update was folded or refused: no judge will ask for it again."""
        self._arrived.pop(task, None)

    def _source(self, item: Item) -> Iterator[bytes]:
        match item:
            case PacketOf(version):
                return self._packets.chunks(f"version-{version}")
            case UpdateOf(task):
                return self._packets.chunks(f"task-{task}")
            case ModelOf(task):
                if task not in self._arrived:
                    raise ModelError(f"the update of task {task} is not judged any more")
                return pieces(self._as_packet(self._arrived[task][0]))
            case SnapshotOf(version):
                return pieces(self._snapshot(version))

    def _snapshot(self, version: int) -> bytes:
        """Return a version as a packet, made once for all who start from it."""
        if version not in self._snapshots:
            starts = chain(
                [self.controller.current], (t.start for t in self.controller.tasks.values())
            )
            found = {start.version: start.weights for start in starts}
            if version not in found:
                raise ModelError(f"version {version} is not handed out any more")
            self._snapshots = {n: p for n, p in self._snapshots.items() if n in found}
            self._snapshots[version] = self._as_packet(found[version])
        return self._snapshots[version]

    def _as_packet(self, model: Model) -> bytes:
        weights = dense(model)
        return Dense(self.terms.layout).encode(weights, weights)[0]

    def _site(self, learner: LearnerId) -> Attendee:
        return self._sites.setdefault(learner, Attendee())

    def _now(self) -> float:
        return self._clock() - self._began

    def _write(self, quiet: bool, kind: str, fields: Record) -> None:
        if not quiet:
            self.journal.write(kind, self._now(), **fields)


#: The records that are events; all others follow from them.
EVENTS = {
    "join",
    "leave",
    "arrive",
    "fail",
    "score",
    "task-expired",
    "evaluation-expired",
}


def _update(learner: LearnerId, delivery: Delivery, model: Model) -> Update:
    return Update(
        learner=learner,
        task=delivery.task,
        weights=model,
        base_version=delivery.base_version,
        num_examples=delivery.num_examples,
        num_steps=delivery.num_steps,
        seconds=delivery.seconds,
        counts=delivery.counts,
    )
