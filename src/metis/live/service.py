"""A federation that sites call: thread-safe, one caller at a time.

What is told to the controller is told in the order of turns. Packets travel outside of them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator

from metis.codecs.packet import checksum_of
from metis.core.checks import MOST
from metis.core.errors import (
    GoneError,
    HandshakeError,
    JournalError,
    MetisError,
    ModelError,
    RunError,
)
from metis.core.events import (
    Arrived,
    EvaluationExpired,
    Failed,
    Joined,
    Left,
    Scored,
    TaskExpired,
)
from metis.core.types import Counts, LearnerId, Model, Task, Update
from metis.live.complaints import Complaints
from metis.live.desk import Desk, Seat, Terms, refusal_of
from metis.live.ledger import Ledger, Settled
from metis.live.line import (
    PROTOCOL,
    Charter,
    Delivery,
    Farewell,
    Hello,
    Item,
    ModelOf,
    Order,
    PacketOf,
    Receipt,
    SnapshotOf,
    Standing,
    UpdateOf,
    Welcome,
)
from metis.live.overview import Overview, overview_of
from metis.runtime.journal import Journal, Record
from metis.runtime.post import packet_digest
from metis.runtime.records import AuditRecord, StartRecord
from metis.store.packets import Held, Packets, Piece

_NOT_OPEN = "no such task is open for this learner"
_REPLACED = "this name has joined from somewhere else"
_GROUP_CHARACTERS = 64


class Service:
    """Any thread may call any method."""

    def __init__(
        self,
        terms: Terms,
        ledger: Ledger,
        packets: Packets,
        journal: Journal,
        clock: Callable[[], float],
        save: Callable[[Ledger], None] = lambda ledger: None,
        federation: str = "",
    ) -> None:
        self.terms = terms
        self.federation = federation
        self._desk = Desk(terms, ledger, packets, journal, clock)
        self._turn = threading.RLock()
        self._save = save
        self._saved = clock()
        self._save_took = 0.0
        self._complaints = Complaints(self.audit, clock)

    @property
    def ledger(self) -> Ledger:
        return self._desk.ledger

    @property
    def journal(self) -> Journal:
        return self._desk.journal

    @property
    def over(self) -> str | None:
        """Why there will be no more orders; None as long as there will be."""
        return self._desk.ledger.over

    @property
    def broken(self) -> MetisError | None:
        """Why nothing can be acknowledged any more; such a service must be started anew."""
        return self._desk.broken

    # ---- what sites call ----------------------------------------------------------------------

    def charter(self) -> Charter:
        terms = self.terms
        return Charter(
            PROTOCOL, terms.config_text, terms.layout.digest, terms.num_classes, self.federation
        )

    def join(self, learner: LearnerId, hello: Hello) -> Welcome:
        """Take a site in, or back. Raises HandshakeError if it is not of this federation."""
        fault = _fault(hello, self.terms)
        with self._turn:
            if fault is None and self._desk.site(learner).was_replaced(hello.instance):
                fault = _REPLACED  # a call that came late: whose it was may be dead by now
            if fault is not None:
                self._complaints.add("handshake refused", learner, fault)
                raise HandshakeError(fault)
            site = self._heard(learner)
            self.ledger.mail.hold(learner, hello.holds)
            site.begin(hello.instance)
            site.has_left = site.has_withdrawn = False
            self._desk.tell(Joined(hello.profile), holds=hello.holds)
            if self.over is not None:
                site.orders.put(Farewell(self.over, over=True))
            return Welcome(
                self.terms.lease_seconds,
                self.ledger.controller.committed_steps,
                self.federation,
                site.session,
            )

    def orders(
        self, learner: LearnerId, session: int | None = None, wait_seconds: float = 1.0
    ) -> Iterator[Order | None]:
        """Give a site its orders as they come; None when there was none for a while.

        `session` is what it was told when it joined (None: whatever that was). Ends when the name
        joins anew, or there will be no more orders.
        """
        site = self._desk.site(learner)
        with self._turn:
            session = site.session if session is None else session
            mine = site.orders if session == site.session else None
        while mine is not None and site.orders is mine:
            try:
                order = mine.get(timeout=wait_seconds)
            except queue.Empty:
                yield None
                continue
            if isinstance(order, Farewell):
                site.knows = order.over  # before: whoever hears it may hang up at once
            yield order
            if isinstance(order, Farewell):
                return
        # If it was this very process that joined anew, a call of it may have come late: it has to
        # join once more then. Else it hears for good that it is not wanted.
        yield Farewell(_REPLACED, over=site.is_other(session))

    def fetch(self, learner: LearnerId, item: Item) -> Iterator[Piece]:
        """Give what an order named, piece by piece. GoneError if it is not there any more.

        To be further than ever with the model that a task starts from is progress, too.
        """
        self._heard(learner)
        task = self.ledger.controller.task_of.get(learner, 0)
        is_start = isinstance(item, SnapshotOf | PacketOf)
        num_bytes = 0
        try:
            for piece in self._source(learner, item):
                yield piece
                num_bytes += len(piece)
                if is_start and self._desk.is_further(task, item, num_bytes):
                    self._desk.renew(task)
        except JournalError as error:
            raise GoneError(f"it is not kept any more: {error}") from None

    def progress(self, learner: LearnerId, task: int, num_steps: int) -> Standing:
        """Hear how far a task is. Only progress renews its lease."""
        with self._turn:
            self._heard(learner)
            controller = self.ledger.controller
            is_open = controller.task_of.get(learner) == task
            watch = self._desk.leases.get(task)
            if is_open and watch is not None and num_steps > watch.num_steps:
                watch.num_steps = num_steps
                watch.until = self._desk.clock() + self.terms.lease_seconds
            return Standing(controller.committed_steps, is_open)

    def deliver(self, learner: LearnerId, delivery: Delivery, packet: Iterable[Piece]) -> Receipt:
        """Take an answer. When this returns, it is on disk, or was turned down for a reason.

        A line that goes down half-way is a LineError out of `packet`, and changes nothing.
        """
        number = delivery.task
        task = self._expected(learner, number)
        if isinstance(task, Receipt):
            return task
        with self._desk.site(learner).one_of_few():
            received = self._received(task, packet)
        more = {} if isinstance(received, str) else _about(received[0], self.terms.keep_updates)
        with self._turn:
            again = self._expected(learner, number)
            if isinstance(again, Receipt):  # sent twice at once, or too late by now
                if not isinstance(received, str):
                    self._desk.shelf.discard(received[0])
                return again
            if isinstance(received, str):
                return self._settle(learner, number, Failed(learner, number, received))
            held, model = received
            with self._desk.or_broken():
                self._desk.shelf.keep_update(number, held)
            self.ledger.arrived[number] = len(held.content)
            arrived = Arrived(_update(learner, delivery, model))
            return self._settle(learner, number, arrived, **more)

    def fail(self, learner: LearnerId, task: int, reason: str, traceback: str = "") -> None:
        """Hear that a task came to nothing, why and, if a site wants to share it, where."""
        more = {"traceback": traceback} if traceback else {}
        with self._turn:
            if isinstance(self._expected(learner, task), Task):
                self._desk.leases.pop(task, None)
                self._desk.tell(Failed(learner, task, reason), **more)

    def score(self, learner: LearnerId, evaluation: int, counts: Counts | None) -> None:
        """Hear what a judge counted. Anybody else's answer, or a second one, changes nothing."""
        with self._turn:
            self._heard(learner)
            ticket = self.ledger.controller.evaluations.get(evaluation)
            if ticket is not None and ticket.waiting_for[evaluation] == learner:
                asked = self._desk.deadlines.pop(evaluation, None)
                waited = None if asked is None else round(self._desk.clock() - asked.since, 4)
                self._desk.tell(Scored(evaluation, counts), judge=learner, wall_waited=waited)

    def leave(self, learner: LearnerId, withdraw: bool) -> None:
        with self._turn:
            site = self._heard(learner)
            if site.has_withdrawn or (site.has_left and not withdraw):
                return  # said already
            site.has_left, site.has_withdrawn = True, withdraw
            self._desk.leases.pop(self.ledger.controller.task_of.get(learner, 0), None)
            self._desk.tell(Left(learner, withdraw))
            # Its process, if there is one, would only join again.
            self._desk.order(learner, Farewell("this site has left", over=True))

    # ---- what keepers of a service call -------------------------------------------------------

    def look_at_the_clock(self) -> None:
        """Give up on what has not been heard of for too long. To be called now and then."""
        with self._turn:
            now = self._desk.clock()
            for task in [task for task, watch in self._desk.leases.items() if watch.until <= now]:
                del self._desk.leases[task]
                self._desk.tell(TaskExpired(task))
            for number in [n for n, watch in self._desk.deadlines.items() if watch.until <= now]:
                del self._desk.deadlines[number]
                self._desk.tell(EvaluationExpired(number))
            limit, every = self.terms.max_seconds, self.terms.checkpoint_seconds
            if limit is not None and self._desk.now() >= limit:
                self._desk.end("seconds", over=True)
            # However large the model, no more than a twentieth of the time goes into checkpoints.
            if every and now - self._saved > max(every, 20 * self._save_took):
                self.checkpoint()

    def checkpoint(self) -> None:
        """Write all that a restart needs, so that it need not read the journal from the start."""
        with self._turn:
            if self._desk.broken is not None:
                return
            began = self._desk.clock()
            ledger = self.ledger
            ledger.seconds = self._desk.now()
            waiting = {ticket.update.task for ticket in ledger.controller.queue}
            ledger.arrived = {task: ledger.arrived[task] for task in waiting}
            with self._desk.or_broken():
                self._save(ledger)
                if not self.terms.keep_updates:
                    self._desk.shelf.keep_updates(waiting)
            self._saved = self._desk.clock()
            self._save_took = self._saved - began

    def end(self, reason: str, over: bool) -> None:
        """Send everybody home. If it is not over, they are to come back."""
        with self._turn:
            self._desk.end(reason, over)

    def everybody_knows(self) -> bool:
        """Whether all members have heard that the federation is over."""
        with self._turn:
            members = self.ledger.controller.members
            return all(self._desk.site(learner).knows for learner in members)

    def audit(self, what: str, who: str, reason: str) -> None:
        """Note for good that somebody was turned away, or what else a keeper may be asked about."""
        self.note(AuditRecord(what=what, who=who, reason=reason[:500]))

    def note(self, record: StartRecord | AuditRecord) -> None:
        """Write down what is no event of the federation; it is on disk when this returns."""
        with self._turn:
            self._desk.note(record)

    def recover(self, records: Iterable[Record]) -> int:
        """Take up what a journal tells after the ledger was saved; return how many events."""
        with self._turn:
            return self._desk.recover(records)

    def overview(self) -> Overview:
        with self._turn:
            return overview_of(self._desk)

    # ---- answers ------------------------------------------------------------------------------

    def _expected(self, learner: LearnerId, number: int) -> Task | Receipt:
        """Return the open task that an answer is for, or what to say if there is none."""
        with self._turn:
            self._heard(learner)
            if self.over is not None:
                return Receipt(False, f"the federation is over: {self.over}")
            settled = self.ledger.answered.get(learner)
            if settled is not None and settled.task == number:  # the site did not hear so
                return Receipt(not settled.refused, settled.refused)
            task = self.ledger.controller.tasks.get(number)
            if task is not None and task.learner == learner:
                return task
            if self.ledger.controller.lost.get(learner) == number:  # late: it is taken back in
                commands = self._desk.tell(Failed(learner, number, "its task is not open"))
                return Receipt(False, refusal_of(commands, number) or _NOT_OPEN)
            self._complaints.add("answer refused", learner, f"task {number}: {_NOT_OPEN}")
            return Receipt(False, _NOT_OPEN)

    def _received(self, task: Task, packet: Iterable[Piece]) -> tuple[Held, Model] | str:
        """Return a packet and the model in it, or what is wrong with them."""
        shelf = self._desk.shelf
        try:
            held = shelf.take(self._renewing(task.number, packet))
        except RunError as error:  # the disk: whoever comes next would not fare better
            self._desk.broken = error
            raise
        except ModelError as error:
            return str(error)
        try:
            return held, self.terms.upload.decode(held.content, task.start.weights)
        except ModelError as error:
            shelf.discard(held)
            return str(error)

    def _settle(
        self, learner: LearnerId, number: int, event: Arrived | Failed, **more: object
    ) -> Receipt:
        self._desk.leases.pop(number, None)
        self.ledger.answered[learner] = Settled(number)  # before a checkpoint can be made
        refused = refusal_of(self._desk.tell(event, **more), number) or ""
        self.ledger.answered[learner] = Settled(number, refused)
        return Receipt(not refused, refused)

    def _renewing(self, task: int, chunks: Iterable[Piece]) -> Iterator[Piece]:
        """Give chunks as they come; that they come is progress."""
        for chunk in chunks:
            self._desk.renew(task if len(chunk) else 0)
            yield chunk
            self._desk.renew(task if len(chunk) else 0)  # when it has been taken

    def _source(self, learner: LearnerId, item: Item) -> Iterator[Piece]:
        shelf = self._desk.shelf
        match item:
            case SnapshotOf(version):
                return shelf.snapshot_pieces(version)
            case PacketOf(version):
                return shelf.version_pieces(version)
            case UpdateOf(task):
                self._judged_by(learner, task)
                return shelf.update_pieces(task)
            case ModelOf(task):
                return shelf.model_pieces(self._judged_by(learner, task))

    def _judged_by(self, learner: LearnerId, task: int) -> Model:
        """Return the model of an update, to whoever was asked to judge it and to nobody else."""
        with self._turn:
            for number, ticket in self.ledger.controller.evaluations.items():
                if ticket.update.task == task and ticket.waiting_for[number] == learner:
                    return ticket.update.weights
        raise GoneError(f"the update of task {task} is not for {learner} to judge, or no more")

    # ---- small facts --------------------------------------------------------------------------

    def _heard(self, learner: LearnerId) -> Seat:
        if self._desk.broken is not None:
            raise self._desk.broken
        site = self._desk.site(learner)
        site.heard = self._desk.clock()
        return site


def _fault(hello: Hello, terms: Terms) -> str | None:
    """Return why a site is not of this federation, if it is not."""
    for what, theirs, ours in (
        ("protocol", hello.protocol, PROTOCOL),
        ("model layout", hello.layout, terms.layout.digest),
        ("config", hello.config, terms.config),
    ):
        if theirs != ours:
            said = ascii(theirs)[1:-1][:40] if isinstance(theirs, str) else theirs
            return f"this site has {what} {said}, the controller has {ours}: they must be equal"
    profile = hello.profile
    full = profile.epoch_steps(all_examples=True)
    if profile.num_held_out > MOST or not 1 <= full <= MOST:
        return (
            f"this site holds out {profile.num_held_out} examples and has {full} steps with them: "
            f"it needs at least one step, and of neither more than {MOST}"
        )
    if not 1 <= profile.num_examples <= MOST or not 1 <= profile.steps_per_epoch <= MOST:
        return (
            f"this site has {profile.num_examples} examples in {profile.steps_per_epoch} steps: "
            "it needs at least one of each"
        )
    if len(profile.group) > _GROUP_CHARACTERS or not profile.group.isprintable():
        return f"the group of this site is no word of at most {_GROUP_CHARACTERS} characters"
    return None


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


def _about(held: Held, with_digest: bool) -> dict[str, object]:
    """Return what a journal says of a packet: enough to know it again, or to verify a replay."""
    about: dict[str, object] = {"bytes_up": len(held.content)}
    about["checksum"] = checksum_of(held.content)
    if with_digest:
        about["digest"] = packet_digest(held.content)
    return about
