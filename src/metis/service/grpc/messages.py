"""The values of `metis.service.connection` as messages, and back. The only place that knows both.

What comes off the wire is checked here as far as its form goes; ModelError says what is wrong.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from metis.core.errors import ModelError
from metis.core.types import ClassCounts, Counts, ErrorSums, LearnerId, Profile
from metis.service.connection import (
    Delivery,
    EndOfOrders,
    EvaluateOrder,
    FederationInfo,
    Hello,
    ModelOf,
    ModelRef,
    Order,
    PacketOf,
    Refusal,
    SnapshotOf,
    TrainOrder,
    UpdateOf,
)
from metis.service.grpc import wire_pb2 as wire
from metis.service.status import Member, Overview

_INSTANCE_CHARACTERS = 64
#: Stands for sums that are no numbers, of a model that diverged, say. Nobody can have counted it,
#: so the controller does not pool it; and unlike them it can be written down as JSON.
_NO_SUMS = ErrorSums(-1, 0.0, 0.0, 0.0, 0.0)
_LARGEST_NUMBER = 10**15  # of a version or a task


def charter_message(charter: FederationInfo) -> wire.CharterText:
    return wire.CharterText(
        protocol=charter.protocol,
        config=charter.config,
        layout=charter.layout,
        num_classes=charter.num_classes,
        federation=charter.federation,
    )


def charter_of(message: wire.CharterText) -> FederationInfo:
    return FederationInfo(
        message.protocol,
        message.config,
        message.layout,
        message.num_classes,
        message.federation,
    )


def overview_message(overview: Overview) -> wire.Overview:
    fields = {f.name: getattr(overview, f.name) for f in dataclasses.fields(overview)}
    fields["members"] = [wire.Member(**dataclasses.asdict(m)) for m in overview.members]
    return wire.Overview(**fields)


def overview_of(message: wire.Overview) -> Overview:
    members = tuple(
        Member(
            m.name,
            m.group,
            m.state,
            m.task if m.HasField("task") else None,
            m.num_steps,
            m.num_updates,
            m.seconds_silent if m.HasField("seconds_silent") else None,
        )
        for m in message.members
    )
    return Overview(
        message.policy,
        message.version,
        message.max_versions if message.HasField("max_versions") else None,
        message.committed_steps,
        message.seconds,
        message.queued,
        message.evaluations,
        message.over if message.HasField("over") else None,
        members,
    )


def hello_message(hello: Hello) -> wire.Hello:
    message = wire.Hello(
        protocol=hello.protocol,
        layout=hello.layout,
        config=hello.config,
        num_examples=hello.profile.num_examples,
        steps_per_epoch=hello.profile.steps_per_epoch,
        group=hello.profile.group,
        num_held_out=hello.profile.num_held_out,
        steps_per_full_epoch=hello.profile.steps_per_full_epoch,
        instance=hello.instance,
    )
    if hello.holds is not None:
        message.holds.oldest, message.holds.newest = hello.holds
    return message


def hello_of(message: wire.Hello, learner: LearnerId) -> Hello:
    """Return what a site says of itself; its name is the one it has proved to have."""
    holds = None
    if message.HasField("holds"):
        holds = (message.holds.oldest, message.holds.newest)
    profile = Profile(
        learner,
        message.num_examples,
        message.steps_per_epoch,
        message.group,
        message.num_held_out,
        message.steps_per_full_epoch if message.HasField("steps_per_full_epoch") else None,
    )
    instance = message.instance[:_INSTANCE_CHARACTERS]
    return Hello(message.protocol, message.layout, message.config, profile, holds, instance)


def item_message(item: ModelRef) -> wire.Item:
    match item:
        case SnapshotOf(version):
            return wire.Item(snapshot_of_version=version)
        case PacketOf(version):
            return wire.Item(packet_of_version=version)
        case UpdateOf(task):
            return wire.Item(update_of_task=task)
        case ModelOf(task):
            return wire.Item(model_of_task=task)


def item_of(message: wire.Item) -> ModelRef:
    what = message.WhichOneof("what")
    if what is not None and getattr(message, what) > _LARGEST_NUMBER:
        raise ModelError(f"there is no {what.replace('_', ' ')} {getattr(message, what)}")
    match what:
        case "snapshot_of_version":
            return SnapshotOf(message.snapshot_of_version)
        case "packet_of_version":
            return PacketOf(message.packet_of_version)
        case "update_of_task":
            return UpdateOf(message.update_of_task)
        case "model_of_task":
            return ModelOf(message.model_of_task)
    raise ModelError("the item that is wanted has no name that is known here")


def order_message(order: Order | None) -> wire.Order:
    match order:
        case None:
            return wire.Order(nothing=wire.Nothing())
        case TrainOrder():
            return wire.Order(
                train=wire.TrainOrder(
                    task=order.task,
                    version=order.version,
                    committed_steps=order.committed_steps,
                    max_steps=order.max_steps,
                    ordinal=order.ordinal,
                    rate_factor=order.rate_factor,
                    all_examples=order.all_examples,
                    items=[item_message(item) for item in order.items],
                )
            )
        case EvaluateOrder():
            return wire.Order(
                evaluate=wire.EvaluateOrder(
                    evaluation=order.evaluation,
                    task=order.task,
                    base_version=order.base_version,
                    items=[item_message(item) for item in order.items],
                )
            )
        case Refusal(task, reason):
            return wire.Order(refusal=wire.Refusal(task=task, reason=reason))
        case EndOfOrders(reason, over):
            return wire.Order(farewell=wire.Farewell(reason=reason, over=over))


def order_of(message: wire.Order) -> Order | None:
    """Return an order; None for a sign of life, and for what this version does not know."""
    match message.WhichOneof("what"):
        case "train":
            train = message.train
            return TrainOrder(
                train.task,
                train.version,
                train.committed_steps,
                train.max_steps if train.HasField("max_steps") else None,
                train.ordinal,
                _factor(train.rate_factor),
                train.all_examples,
                tuple(item_of(item) for item in train.items),
            )
        case "evaluate":
            evaluate = message.evaluate
            return EvaluateOrder(
                evaluate.evaluation,
                evaluate.task,
                evaluate.base_version,
                tuple(item_of(item) for item in evaluate.items),
            )
        case "refusal":
            return Refusal(message.refusal.task, message.refusal.reason)
        case "farewell":
            return EndOfOrders(message.farewell.reason, message.farewell.over)
    return None


def _factor(sent: float) -> float:
    if not 0.0 < sent < math.inf:
        raise ModelError(f"a task came with a learning rate's factor of {sent}: it must be above 0")
    return sent


def delivery_message(delivery: Delivery) -> wire.Delivery:
    message = wire.Delivery(
        task=delivery.task,
        base_version=delivery.base_version,
        num_examples=delivery.num_examples,
        num_steps=delivery.num_steps,
        seconds=delivery.seconds,
    )
    if delivery.counts is not None:
        message.counts.CopyFrom(counts_message(delivery.counts))
    return message


def delivery_of(message: wire.Delivery, num_classes: int) -> Delivery:
    return Delivery(
        message.task,
        message.base_version,
        message.num_examples,
        message.num_steps,
        message.seconds if 0.0 <= message.seconds < math.inf else 0.0,  # JSON has no others
        counts_of(message.counts, num_classes) if message.HasField("counts") else None,
    )


def counts_message(counts: Counts) -> wire.Counts:
    if isinstance(counts, ClassCounts):
        flat = counts.matrix.ravel()
        cells = np.flatnonzero(flat)
        return wire.Counts(
            classes=wire.ClassCounts(
                num_classes=len(counts.matrix), cells=cells.tolist(), counts=flat[cells].tolist()
            )
        )
    return wire.Counts(
        errors=wire.ErrorSums(
            num_examples=counts.num_examples,
            squared_error=counts.squared_error,
            absolute_error=counts.absolute_error,
            target=counts.target,
            target_squared=counts.target_squared,
        )
    )


def counts_of(message: wire.Counts, num_classes: int) -> Counts | None:
    """Return counts. ModelError if a matrix is not one, or not one of so many classes.

    Few bytes can speak of a large matrix, so nothing is made before that is known.
    """
    kind = message.WhichOneof("kind")
    if kind is None:
        return None
    if kind == "errors":
        errors = message.errors
        sums = (errors.squared_error, errors.absolute_error, errors.target, errors.target_squared)
        if not all(map(math.isfinite, sums)):
            return _NO_SUMS
        return ErrorSums(
            errors.num_examples,
            errors.squared_error,
            errors.absolute_error,
            errors.target,
            errors.target_squared,
        )
    classes = message.classes
    size = classes.num_classes**2
    if classes.num_classes != num_classes:
        raise ModelError(
            f"a confusion matrix of {classes.num_classes} classes came to a federation that has "
            f"{num_classes}"
        )
    if len(classes.cells) != len(classes.counts) or any(cell >= size for cell in classes.cells):
        raise ModelError("a confusion matrix has cells that it cannot have")
    if any(count >= 1 << 62 for count in classes.counts):
        raise ModelError("a confusion matrix counts more than there can be")
    flat = np.zeros(size, dtype=np.int64)
    flat[list(classes.cells)] = list(classes.counts)
    return ClassCounts(flat.reshape(classes.num_classes, classes.num_classes))
