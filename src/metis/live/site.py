"""A learner's site: it joins, trains and judges as it is ordered, and comes back when cut off.

Training and judging have a thread each, so that a score never waits for an epoch to end; a third
tells of steps within an epoch, so that a lease need not be longer than one. What must outlive the
process (the learner's history, what its packets left out, an answer not yet taken) is told to
`keep` before anything is said that cannot be unsaid.
"""

from __future__ import annotations

import queue
import random
import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from metis.codecs.dense import Dense
from metis.core.codec import Codec
from metis.core.errors import GoneError, HandshakeError, LineError, MetisError, ModelError
from metis.core.learners import Durable, Judge, Trainer
from metis.core.local_run import LocalRun
from metis.core.triggers import AfterEpochs, Trigger
from metis.core.types import LearnerId, Profile, Snapshot, Task, Vector, dense
from metis.live.library import Library
from metis.live.line import (
    PROTOCOL,
    Delivery,
    EvaluateOrder,
    Farewell,
    Hello,
    Line,
    Order,
    Receipt,
    Refusal,
    TrainOrder,
    Welcome,
    pieces,
)
from metis.live.mirror import Mirror
from metis.store.packets import Piece

_LONGEST_WAIT_SECONDS = 30.0
_SHORTEST_PULSE_SECONDS = 0.5


@dataclass(slots=True)
class Memory:
    """What a site must not forget."""

    cycles: list[int] = field(default_factory=list)
    residual: Vector | None = None
    learner_state: object = None  # optimizer state carried over, as its trainer tells it
    #: Trained, not acknowledged yet: what it is, and the parts of its packet.
    answer: tuple[Delivery, *tuple[Piece, ...]] | None = None
    last_task: int = 0  # the last that was trained to its end


@dataclass(slots=True)
class Pulse:
    """How many steps of the task at hand are done, told by whoever does them."""

    num_steps: int = 0

    def beat(self, num_steps: int) -> None:
        self.num_steps = num_steps


@dataclass(frozen=True, slots=True)
class Equipment:
    """All that a site works with."""

    name: LearnerId
    profile: Profile
    config: str  # digest of what it must have in common with the controller
    trigger: Trigger
    trainer: Trainer
    own_judge: Judge  # scores what the trainer has trained, when that is done
    judge: Judge  # has a module of its own, to score models while the trainer works
    durable: Durable  # the trainer's state
    upload: Codec
    is_judged: bool  # its own counts are wanted
    fixed_epochs: int = 1  # of a task that trains on all examples
    #: Told of each new task before any model of its round comes to be judged, and before the task
    #: itself is begun, for which its model must be fetched first.
    ordered: Callable[[], object] = lambda: None
    pulse: Pulse = field(default_factory=Pulse)


#: Told what happens at a site, in one sentence each.
News = Callable[[str], None]


class Site:
    """Attends a federation until it is over or `stop` is called."""

    def __init__(
        self,
        equipment: Equipment,
        line: Line,
        mirror: Mirror,
        memory: Memory,
        keep: Callable[[Memory], None] = lambda memory: None,
        news: News = lambda sentence: None,
        share_tracebacks: bool = False,
    ) -> None:
        self._with = equipment
        self._line = line
        self._library = Library(line, mirror, equipment.upload)
        self._memory = memory
        if memory.learner_state is not None:  # of an earlier life
            equipment.durable.restore(memory.learner_state)
        self._keep = keep
        self._news = news
        self._share_tracebacks = share_tracebacks
        self._to_train: queue.SimpleQueue[TrainOrder | None] = queue.SimpleQueue()
        self._to_judge: queue.SimpleQueue[EvaluateOrder | None] = queue.SimpleQueue()
        self._ordered = 0  # the last task that was ordered
        self._at_work: int | None = None  # the task being trained
        self._num_joins = 0
        self._instance = secrets.token_hex(8)
        self._federation = ""
        self._lease_seconds: float | None = None  # not known before it has joined
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
            for work in (self._train_all, self._judge_all, self._pulse)
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
        wait = 0.0
        while not self._stop.wait(wait * random.uniform(0.5, 1.0)):  # not all of them at once
            try:
                self._welcomed(self._line.join(self._hello()))
                wait = 1.0
                for order in self._line.orders():
                    if order is not None:
                        self._take(order)
                    if self._stop.is_set() or self.farewell is not None:
                        return
                    if isinstance(order, Farewell):
                        break
            except LineError as error:
                wait = min(_LONGEST_WAIT_SECONDS, max(0.2, 2 * wait))
                self._news(f"trying again in {wait:.1f} s: {error}")

    def _welcomed(self, welcome: Welcome) -> None:
        if self._federation not in ("", welcome.federation):
            raise HandshakeError(
                "the controller has begun another federation since this site joined: start it anew"
            )
        self._federation = welcome.federation
        self._lease_seconds = welcome.lease_seconds
        self._num_joins += 1
        self._news("joined")

    def _hello(self) -> Hello:
        equipment = self._with
        holds = self._library.holds()
        return Hello(
            PROTOCOL,
            self._library.layout,
            equipment.config,
            equipment.profile,
            holds,
            self._instance,
        )

    def _take(self, order: Order) -> None:
        match order:
            case TrainOrder():
                if order.task not in (self._ordered, self._memory.last_task):
                    self._ordered = order.task
                    self._with.ordered()
                    self._to_train.put(order)
            case EvaluateOrder():
                self._to_judge.put(order)
            case Refusal():
                self._news(f"task {order.task} was refused: {order.reason}")
                self.refusals = [*self.refusals[-99:], order]
            case Farewell():
                self._news(f"farewell: {order.reason}")
                self.farewell = order if order.over else None

    def _retried(self) -> Iterator[int]:
        """Give numbers, each after a longer wait, until the site is to stop."""
        attempt = 0
        while not self._stop.is_set():
            yield attempt
            attempt += 1
            before = self._num_joins
            until = time.monotonic() + min(_LONGEST_WAIT_SECONDS, 0.1 * 2 ** min(attempt, 16))
            while time.monotonic() < until and self._num_joins == before:
                if self._stop.wait(min(0.2, max(0.0, until - time.monotonic()))):
                    return

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
        num_failures = 0
        while (order := self._to_train.get()) is not None and not self._stop.is_set():
            if order.task != self._memory.last_task:  # which may have been delivered just now
                self._with.pulse.beat(0)
                self._at_work = order.task
                num_failures = num_failures + 1 if self._try_to_train(order) else 0
                self._at_work = None
            # Whoever fails at everything should not do so a thousand times a second.
            self._stop.wait(min(_LONGEST_WAIT_SECONDS, 2.0**num_failures - 1))

    def _try_to_train(self, order: TrainOrder) -> bool:
        """Train; return whether that failed. Whatever a trainer raises is told the controller."""
        me = self._with.name
        try:
            self._train(order)
        except GoneError as error:  # too late, which is no reason to be later with the next
            self._with.trainer.abandon(me)
            self._say_failed(order.task, str(error), "")
            return False
        except ModelError as error:
            self._with.trainer.abandon(me)
            self._say_failed(order.task, str(error), "")
        except MetisError:
            raise  # the federation does not want us
        except Exception as error:
            self._with.trainer.abandon(me)
            where = traceback.format_exc() if self._share_tracebacks else ""
            self._say_failed(order.task, f"{type(error).__name__}: {error}", where)
        else:
            return False
        return True

    def _say_failed(self, task: int, reason: str, where: str) -> None:
        self._news(f"task {task} failed: {reason}")
        self._insisting(self._line.fail, task, reason, where)

    def _train(self, order: TrainOrder) -> None:
        equipment, memory = self._with, self._memory
        me = equipment.name
        start = self._insisting(self._library.start_of, order)
        if start is None:
            return
        self._news(f"task {order.task}: training from version {order.version}")
        task = Task(
            order.task,
            me,
            Snapshot(order.version, start),
            order.committed_steps,
            order.max_steps,
            order.ordinal,
            order.rate_factor,
            order.all_examples,
        )
        cycles = list(memory.cycles)
        # Whoever trains on its validation set has no loss to follow.
        fixed = AfterEpochs(equipment.fixed_epochs)
        trigger = fixed if task.all_examples else equipment.trigger
        steps_per_epoch = equipment.profile.epoch_steps(task.all_examples)
        run = LocalRun(task, steps_per_epoch, trigger, cycles)
        trainer = equipment.trainer
        trainer.begin(task, trigger.needs_loss)
        done = False
        while not done:
            num_steps = run.next_steps()
            trainer.announce(me, run.num_steps + num_steps)
            began = time.perf_counter()
            try:
                losses = trainer.advance(me, num_steps)
            except FloatingPointError as error:
                raise ModelError(str(error)) from None
            run.seconds += time.perf_counter() - began
            steps = run.num_steps + num_steps
            standing = self._insisting(self._line.progress, order.task, steps)
            if standing is None:
                trainer.abandon(me)
                return
            if not standing.is_open:  # we were too slow: say so, to be given other work
                trainer.abandon(me)
                self._say_failed(order.task, "its lease ran out while it trained", "")
                return
            done = run.after_steps(num_steps, losses, standing.committed_steps)
        self._answer(run, trainer.finish(me), cycles)

    def _answer(self, run: LocalRun, trained: Vector, cycles: list[int]) -> None:
        equipment, memory = self._with, self._memory
        base = run.task.start.weights
        packet, residual = _packed(equipment.upload, trained, base, memory.residual)
        counts = None
        if equipment.is_judged and not run.task.all_examples:
            model = dense(equipment.upload.decode(b"".join(packet), base))
            (request,) = equipment.own_judge.request_counts(model, [equipment.name])
            counts = equipment.own_judge.take_counts(request)
        delivery = Delivery(
            run.task.number,
            run.task.start.version,
            equipment.profile.examples(run.task.all_examples),
            run.num_steps,
            run.seconds,
            counts,
        )
        memory.answer = (delivery, *packet)
        memory.last_task = run.task.number
        memory.cycles = cycles
        memory.residual = residual
        memory.learner_state = equipment.durable.state()
        self._keep(memory)
        self._deliver()

    def _deliver(self) -> None:
        """Bring an answer to the controller. It is kept until it was taken or turned down."""
        assert self._memory.answer is not None
        delivery, *packet = self._memory.answer
        try:
            receipt: Receipt | None = self._insisting(
                lambda: self._line.deliver(delivery, pieces(*packet))  # from the start each time
            )
        except ModelError as error:  # it would be no better next time
            receipt = Receipt(False, str(error))
            self._say_failed(delivery.task, str(error), "")
        if receipt is not None:
            taken = "taken" if receipt.taken else f"not taken: {receipt.reason}"
            self._news(f"task {delivery.task}: {delivery.num_steps} steps, {taken}")
            self._memory.answer = None
            self._keep(self._memory)

    def _pulse(self) -> None:
        """Tell of steps while an epoch lasts; what comes of it is heard after the epoch."""
        told: tuple[int | None, int] = (None, 0)
        while not self._stop.wait(max(_SHORTEST_PULSE_SECONDS, (self._lease_seconds or 0.0) / 6)):
            now = (self._at_work, self._with.pulse.num_steps)
            if now[0] is not None and now != told and now[1] > 0:
                try:
                    self._line.progress(now[0], now[1])
                    told = now
                except LineError:
                    continue  # the trainer will find out

    # ---- judging ------------------------------------------------------------------------------

    def _judge_all(self) -> None:
        me, judge = self._with.name, self._with.judge
        while (order := self._to_judge.get()) is not None and not self._stop.is_set():
            counts = None
            try:
                model = self._insisting(self._library.candidate, order)
                if model is None:
                    return
                (request,) = judge.request_counts(model, [me])
                counts = judge.take_counts(request)
            except GoneError as error:
                # Ordered twice, and answered already. To say "nothing counted" now would reach a
                # controller that lost power meanwhile, and our answer with it, in its place.
                self._news(f"evaluation {order.evaluation}: {error}")
                continue
            except ModelError as error:  # it is no good: nobody should wait for us
                self._news(f"evaluation {order.evaluation}: {error}")
            except MetisError:
                raise  # the federation does not want us
            except Exception as error:
                self._news(f"evaluation {order.evaluation}: {type(error).__name__}: {error}")
            try:
                self._insisting(self._line.score, order.evaluation, counts)
            except ModelError as error:  # it does not want what we counted
                self._news(f"evaluation {order.evaluation} was refused: {error}")


def _packed(
    codec: Codec, trained: Vector, base: Vector, residual: Vector | None
) -> tuple[list[Piece], Vector | None]:
    """Return the parts of a packet, and what it leaves out. A whole model is not copied for it."""
    if isinstance(codec, Dense):
        return codec.parts(trained), None
    packet, left_out = codec.encode(trained, base, residual)
    return [packet], left_out
