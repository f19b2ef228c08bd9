"""A learner's site: it joins, trains and judges as it is ordered, and comes back when cut off.

Training and judging have a thread each, so that a score never waits for an epoch to end. What must
outlive the process (the learner's history, what its packets left out, an answer not yet taken) is
told to `keep` before anything is said that cannot be unsaid.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from metis.core.codec import Codec
from metis.core.errors import LineError, ModelError
from metis.core.local_run import Learners, LocalRun, Trigger
from metis.core.types import LearnerId, Profile, Snapshot, Task, Vector, dense
from metis.live.line import (
    PROTOCOL,
    Delivery,
    EvaluateOrder,
    Farewell,
    Hello,
    Item,
    Line,
    ModelOf,
    Order,
    PacketOf,
    Receipt,
    Refusal,
    SnapshotOf,
    TrainOrder,
    UpdateOf,
    pieces,
)
from metis.live.mirror import Mirror

_LONGEST_WAIT_SECONDS = 30.0


@dataclass(slots=True)
class Memory:
    """What a site must not forget."""

    cycles: list[int] = field(default_factory=list)
    residual: Vector | None = None
    learner_state: object = None  # optimizer state carried over, as its trainer tells it
    answer: tuple[Delivery, bytes] | None = None  # trained, not acknowledged yet


@dataclass(frozen=True, slots=True)
class Equipment:
    """All that a site works with."""

    name: LearnerId
    profile: Profile
    config: str  # digest of what it must have in common with the controller
    trigger: Trigger
    trainer: Learners
    judge: Learners  # its own module, so that it can be used while the other trains
    upload: Codec
    is_judged: bool  # its own counts are wanted


class Site:
    """Attends a federation until it is over or `stop` is set."""

    def __init__(
        self,
        equipment: Equipment,
        line: Line,
        mirror: Mirror,
        memory: Memory,
        keep: Callable[[Memory], None] = lambda memory: None,
    ) -> None:
        self._with = equipment
        self._line = line
        self._mirror = mirror
        self._memory = memory
        if memory.learner_state is not None:  # of an earlier life
            equipment.trainer.restore(memory.learner_state)
        self._keep = keep
        self._mirror_turn = threading.Lock()
        self._to_train: queue.SimpleQueue[TrainOrder | None] = queue.SimpleQueue()
        self._to_judge: queue.SimpleQueue[EvaluateOrder | None] = queue.SimpleQueue()
        self._at_work: int | None = None  # the task being trained
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self.farewell: Farewell | None = None
        self.refusals: list[Refusal] = []

    def stop(self) -> None:
        """End when what is said now has been said."""
        self._stop.set()

    def attend(self) -> Farewell | None:
        """Work until the federation is over; return its last words."""
        threads = [
            threading.Thread(target=self._guarded, args=(work,), daemon=True)
            for work in (self._train_all, self._judge_all)
        ]
        for thread in threads:
            thread.start()
        try:
            self._listen()
        finally:
            self._stop.set()
            self._to_train.put(None)
            self._to_judge.put(None)
            for thread in threads:
                thread.join()
        if self._failure is not None:
            raise self._failure
        return self.farewell

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # told to whoever called `attend`
            self._failure = error
            self._stop.set()

    # ---- orders -------------------------------------------------------------------------------

    def _listen(self) -> None:
        while not self._stop.is_set() and self.farewell is None:
            for _ in self._retried():
                try:
                    self._line.join(self._hello())
                    break
                except LineError:
                    continue
            try:
                for order in self._line.orders():
                    self._take(order)
                    if self._stop.is_set() or self.farewell is not None:
                        break
            except LineError:
                continue

    def _hello(self) -> Hello:
        equipment = self._with
        with self._mirror_turn:
            holds = self._mirror.holds
        layout = self._mirror.snapshot.layout.digest
        return Hello(PROTOCOL, layout, equipment.config, equipment.profile, holds)

    def _take(self, order: Order) -> None:
        match order:
            case TrainOrder():
                if order.task != self._at_work:
                    self._at_work = order.task
                    self._to_train.put(order)
            case EvaluateOrder():
                self._to_judge.put(order)
            case Refusal():
                self.refusals.append(order)
            case Farewell():
                self.farewell = order

    def _retried(self) -> Iterator[int]:
        """Give numbers, each after a longer wait, until the site is to stop."""
        attempt = 0
        while not self._stop.is_set():
            yield attempt
            attempt += 1
            self._stop.wait(min(_LONGEST_WAIT_SECONDS, 0.1 * 2**attempt))

    def _insisting(self, say: Callable[..., Any], *what: Any) -> Any:
        """Say something until it is heard; None if the site is to stop."""
        for _ in self._retried():
            try:
                return say(*what)
            except LineError:
                continue
        return None

    # ---- training -----------------------------------------------------------------------------

    def _train_all(self) -> None:
        if self._memory.answer is not None:  # of an earlier life
            self._deliver()
        while (order := self._to_train.get()) is not None and not self._stop.is_set():
            try:
                self._train(order)
            except ModelError as error:
                self._insisting(self._line.fail, order.task, str(error))
            self._at_work = None

    def _train(self, order: TrainOrder) -> None:
        equipment, memory = self._with, self._memory
        me = equipment.name
        start = self._insisting(self._fetched_version, order.version, order.items)
        if start is None:
            return
        task = Task(
            order.task,
            me,
            Snapshot(order.version, start),
            order.committed_steps,
            order.max_steps,
            order.ordinal,
        )
        cycles = list(memory.cycles)
        run = LocalRun(task, equipment.profile.steps_per_epoch, equipment.trigger, cycles)
        trainer = equipment.trainer
        trainer.begin(task, equipment.trigger.needs_loss)
        done = False
        while not done:
            num_steps = run.next_steps()
            trainer.expect(me, run.num_steps + num_steps)
            began = time.perf_counter()
            try:
                losses = trainer.advance(me, num_steps)
            except FloatingPointError as error:
                trainer.abandon(me)
                raise ModelError(str(error)) from None
            run.seconds += time.perf_counter() - began
            steps = run.num_steps + num_steps
            standing = self._insisting(self._line.progress, order.task, steps)
            if standing is None or not standing.is_open:
                trainer.abandon(me)
                return
            done = run.after_steps(num_steps, losses, standing.committed_steps)
        self._answer(run, trainer.finish(me), cycles)

    def _answer(self, run: LocalRun, trained: Vector, cycles: list[int]) -> None:
        equipment, memory = self._with, self._memory
        base = run.task.start.weights
        packet, residual = equipment.upload.encode(trained, base, memory.residual)
        counts = None
        if equipment.is_judged:
            model = dense(equipment.upload.decode(packet, base))
            (question,) = equipment.trainer.ask(model, [equipment.name])
            counts = equipment.trainer.answer(question)
        delivery = Delivery(
            run.task.number,
            run.task.start.version,
            equipment.profile.num_examples,
            run.num_steps,
            run.seconds,
            counts,
        )
        memory.answer = (delivery, packet)
        memory.cycles = cycles
        memory.residual = residual
        memory.learner_state = equipment.trainer.state()
        self._keep(memory)
        self._deliver()

    def _deliver(self) -> None:
        """Bring an answer to the controller. It is kept until it was taken or turned down."""
        assert self._memory.answer is not None
        delivery, packet = self._memory.answer
        receipt: Receipt | None = self._insisting(
            lambda: self._line.deliver(delivery, pieces(packet))  # from the start each time
        )
        if receipt is not None:
            self._memory.answer = None
            self._keep(self._memory)

    # ---- judging ------------------------------------------------------------------------------

    def _judge_all(self) -> None:
        me, judge = self._with.name, self._with.judge
        while (order := self._to_judge.get()) is not None and not self._stop.is_set():
            try:
                model = self._insisting(self._fetched_update, order)
            except ModelError:  # it is not there any more, or no good; nobody should wait for us
                self._insisting(self._line.score, order.evaluation, None)
                continue
            if model is None:
                return
            (question,) = judge.ask(model, [me])
            counts = judge.answer(question)
            self._insisting(self._line.score, order.evaluation, counts)

    # ---- models -------------------------------------------------------------------------------

    def _fetched_version(self, version: int, items: tuple[Item, ...]) -> Vector:
        with self._mirror_turn:
            if SnapshotOf(version) in items:
                packet = b"".join(self._line.fetch(SnapshotOf(version)))
                self._mirror.take_snapshot(version, packet)
            return self._made(version)

    def _made(self, version: int) -> Vector:
        """Return a version, fetching what it takes: also what is yet to be fetched for training."""
        held = self._mirror.holds
        if held is None:
            packet = b"".join(self._line.fetch(SnapshotOf(version)))
            self._mirror.take_snapshot(version, packet)
        else:
            for number in range(held[1] + 1, version + 1):
                self._mirror.take_packet(number, b"".join(self._line.fetch(PacketOf(number))))
        return self._mirror.make(version)

    def _fetched_update(self, order: EvaluateOrder) -> Vector:
        """Return the model to be judged: of its packet if its base can be had, else as a whole."""
        if UpdateOf(order.task) in order.items:
            with contextlib.suppress(ModelError):
                with self._mirror_turn:
                    base = self._made(order.base_version)
                packet = b"".join(self._line.fetch(UpdateOf(order.task)))
                return dense(self._with.upload.decode(packet, base))
        return self._mirror.snapshot.decode(b"".join(self._line.fetch(ModelOf(order.task))))
