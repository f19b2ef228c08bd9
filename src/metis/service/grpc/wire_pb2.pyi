from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Nothing(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CharterText(_message.Message):
    __slots__ = ("protocol", "config", "layout", "num_classes", "federation")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    config: str
    layout: str
    num_classes: int
    federation: str
    def __init__(self, protocol: _Optional[int] = ..., config: _Optional[str] = ..., layout: _Optional[str] = ..., num_classes: _Optional[int] = ..., federation: _Optional[str] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "layout", "config", "num_examples", "steps_per_epoch", "group", "holds", "instance", "num_held_out", "steps_per_full_epoch")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    CONFIG_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    NUM_HELD_OUT_FIELD_NUMBER: _ClassVar[int]
    STEPS_PER_FULL_EPOCH_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    layout: str
    config: str
    num_examples: int
    steps_per_epoch: int
    group: str
    holds: Range
    instance: str
    num_held_out: int
    steps_per_full_epoch: int
    def __init__(self, protocol: _Optional[int] = ..., layout: _Optional[str] = ..., config: _Optional[str] = ..., num_examples: _Optional[int] = ..., steps_per_epoch: _Optional[int] = ..., group: _Optional[str] = ..., holds: _Optional[_Union[Range, _Mapping]] = ..., instance: _Optional[str] = ..., num_held_out: _Optional[int] = ..., steps_per_full_epoch: _Optional[int] = ...) -> None: ...

class Range(_message.Message):
    __slots__ = ("oldest", "newest")
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    oldest: int
    newest: int
    def __init__(self, oldest: _Optional[int] = ..., newest: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("lease_seconds", "committed_steps", "federation", "session")
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    FEDERATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    lease_seconds: float
    committed_steps: int
    federation: str
    session: int
    def __init__(self, lease_seconds: _Optional[float] = ..., committed_steps: _Optional[int] = ..., federation: _Optional[str] = ..., session: _Optional[int] = ...) -> None: ...

class Listener(_message.Message):
    __slots__ = ("session",)
    SESSION_FIELD_NUMBER: _ClassVar[int]
    session: int
    def __init__(self, session: _Optional[int] = ...) -> None: ...

class Item(_message.Message):
    __slots__ = ("snapshot_of_version", "packet_of_version", "update_of_task", "model_of_task")
    SNAPSHOT_OF_VERSION_FIELD_NUMBER: _ClassVar[int]
    PACKET_OF_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_OF_TASK_FIELD_NUMBER: _ClassVar[int]
    MODEL_OF_TASK_FIELD_NUMBER: _ClassVar[int]
    snapshot_of_version: int
    packet_of_version: int
    update_of_task: int
    model_of_task: int
    def __init__(self, snapshot_of_version: _Optional[int] = ..., packet_of_version: _Optional[int] = ..., update_of_task: _Optional[int] = ..., model_of_task: _Optional[int] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("train", "evaluate", "refusal", "farewell", "nothing")
    TRAIN_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    FAREWELL_FIELD_NUMBER: _ClassVar[int]
    NOTHING_FIELD_NUMBER: _ClassVar[int]
    train: TrainOrder
    evaluate: EvaluateOrder
    refusal: Refusal
    farewell: Farewell
    nothing: Nothing
    def __init__(self, train: _Optional[_Union[TrainOrder, _Mapping]] = ..., evaluate: _Optional[_Union[EvaluateOrder, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., farewell: _Optional[_Union[Farewell, _Mapping]] = ..., nothing: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class TrainOrder(_message.Message):
    __slots__ = ("task", "version", "committed_steps", "max_steps", "ordinal", "items", "rate_factor", "all_examples")
    TASK_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    MAX_STEPS_FIELD_NUMBER: _ClassVar[int]
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    RATE_FACTOR_FIELD_NUMBER: _ClassVar[int]
    ALL_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    task: int
    version: int
    committed_steps: int
    max_steps: int
    ordinal: int
    items: _containers.RepeatedCompositeFieldContainer[Item]
    rate_factor: float
    all_examples: bool
    def __init__(self, task: _Optional[int] = ..., version: _Optional[int] = ..., committed_steps: _Optional[int] = ..., max_steps: _Optional[int] = ..., ordinal: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ..., rate_factor: _Optional[float] = ..., all_examples: _Optional[bool] = ...) -> None: ...

class EvaluateOrder(_message.Message):
    __slots__ = ("evaluation", "task", "base_version", "items")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    task: int
    base_version: int
    items: _containers.RepeatedCompositeFieldContainer[Item]
    def __init__(self, evaluation: _Optional[int] = ..., task: _Optional[int] = ..., base_version: _Optional[int] = ..., items: _Optional[_Iterable[_Union[Item, _Mapping]]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("task", "reason")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    task: int
    reason: str
    def __init__(self, task: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Farewell(_message.Message):
    __slots__ = ("reason", "over")
    REASON_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    reason: str
    over: bool
    def __init__(self, reason: _Optional[str] = ..., over: _Optional[bool] = ...) -> None: ...

class ProgressReport(_message.Message):
    __slots__ = ("task", "num_steps")
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    task: int
    num_steps: int
    def __init__(self, task: _Optional[int] = ..., num_steps: _Optional[int] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("committed_steps", "is_open")
    COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    IS_OPEN_FIELD_NUMBER: _ClassVar[int]
    committed_steps: int
    is_open: bool
    def __init__(self, committed_steps: _Optional[int] = ..., is_open: _Optional[bool] = ...) -> None: ...

class Chunk(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: bytes
    def __init__(self, content: _Optional[bytes] = ...) -> None: ...

class DeliveryPart(_message.Message):
    __slots__ = ("delivery", "content", "end")
    DELIVERY_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    delivery: Delivery
    content: bytes
    end: Nothing
    def __init__(self, delivery: _Optional[_Union[Delivery, _Mapping]] = ..., content: _Optional[bytes] = ..., end: _Optional[_Union[Nothing, _Mapping]] = ...) -> None: ...

class Delivery(_message.Message):
    __slots__ = ("task", "base_version", "num_examples", "num_steps", "seconds", "counts")
    TASK_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    task: int
    base_version: int
    num_examples: int
    num_steps: int
    seconds: float
    counts: Counts
    def __init__(self, task: _Optional[int] = ..., base_version: _Optional[int] = ..., num_examples: _Optional[int] = ..., num_steps: _Optional[int] = ..., seconds: _Optional[float] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("taken", "reason")
    TAKEN_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    taken: bool
    reason: str
    def __init__(self, taken: _Optional[bool] = ..., reason: _Optional[str] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("task", "reason", "traceback")
    TASK_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    task: int
    reason: str
    traceback: str
    def __init__(self, task: _Optional[int] = ..., reason: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class ScoreReport(_message.Message):
    __slots__ = ("evaluation", "counts")
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    evaluation: int
    counts: Counts
    def __init__(self, evaluation: _Optional[int] = ..., counts: _Optional[_Union[Counts, _Mapping]] = ...) -> None: ...

class Counts(_message.Message):
    __slots__ = ("classes", "errors")
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    ERRORS_FIELD_NUMBER: _ClassVar[int]
    classes: ClassCounts
    errors: ErrorSums
    def __init__(self, classes: _Optional[_Union[ClassCounts, _Mapping]] = ..., errors: _Optional[_Union[ErrorSums, _Mapping]] = ...) -> None: ...

class ClassCounts(_message.Message):
    __slots__ = ("num_classes", "cells", "counts")
    NUM_CLASSES_FIELD_NUMBER: _ClassVar[int]
    CELLS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    num_classes: int
    cells: _containers.RepeatedScalarFieldContainer[int]
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, num_classes: _Optional[int] = ..., cells: _Optional[_Iterable[int]] = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class ErrorSums(_message.Message):
    __slots__ = ("num_examples", "squared_error", "absolute_error", "target", "target_squared")
    NUM_EXAMPLES_FIELD_NUMBER: _ClassVar[int]
    SQUARED_ERROR_FIELD_NUMBER: _ClassVar[int]
    ABSOLUTE_ERROR_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    TARGET_SQUARED_FIELD_NUMBER: _ClassVar[int]
    num_examples: int
    squared_error: float
    absolute_error: float
    target: float
    target_squared: float
    def __init__(self, num_examples: _Optional[int] = ..., squared_error: _Optional[float] = ..., absolute_error: _Optional[float] = ..., target: _Optional[float] = ..., target_squared: _Optional[float] = ...) -> None: ...

class Leaving(_message.Message):
    __slots__ = ("withdraw",)
    WITHDRAW_FIELD_NUMBER: _ClassVar[int]
    withdraw: bool
    def __init__(self, withdraw: _Optional[bool] = ...) -> None: ...

class StopOrder(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class Overview(_message.Message):
    __slots__ = ("policy", "version", "max_versions", "committed_steps", "seconds", "queued", "evaluations", "over", "members")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_STEPS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    EVALUATIONS_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    policy: str
    version: int
    max_versions: int
    committed_steps: int
    seconds: float
    queued: int
    evaluations: int
    over: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    def __init__(self, policy: _Optional[str] = ..., version: _Optional[int] = ..., max_versions: _Optional[int] = ..., committed_steps: _Optional[int] = ..., seconds: _Optional[float] = ..., queued: _Optional[int] = ..., evaluations: _Optional[int] = ..., over: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "group", "state", "task", "num_steps", "num_updates", "seconds_silent")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_UPDATES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_SILENT_FIELD_NUMBER: _ClassVar[int]
    name: str
    group: str
    state: str
    task: int
    num_steps: int
    num_updates: int
    seconds_silent: float
    def __init__(self, name: _Optional[str] = ..., group: _Optional[str] = ..., state: _Optional[str] = ..., task: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_updates: _Optional[int] = ..., seconds_silent: _Optional[float] = ...) -> None: ...
