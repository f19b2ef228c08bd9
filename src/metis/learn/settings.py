"""The settings of training, and the names they choose from. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from metis.core.keys import check_limits, key, mapping
from metis.core.schedules import SHAPES

#: How learners are computed; see `learn.engines`.
ENGINES = ("auto", "loop", "stack", "processes", "graphs")

#: float32 throughout; float32 whose products a GPU may round to 10 bits first; or bfloat16 where
#: torch's autocast allows for it, on a CPU too. Weights and updates are float32 in any case.
PRECISIONS = ("float32", "tf32", "bf16")

#: How an epoch's last mini-batch that is not full is treated; see `learn.epochs`.
LAST_BATCHES = ("fill", "short", "drop")


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How every learner trains. A key that is left open is None until the run is set up."""

    GONE: ClassVar[Mapping[str, str]] = {
        "drop_last": 'write train.last_batch = "drop" for true, "short" for false'
    }

    epochs: int = key(4, "local epochs per task where they are fixed (uf)", low=1, shared=True)
    max_epochs: int = key(
        100, "an adaptive learner offers its model at the latest after so many", low=1, shared=True
    )
    burn_in_epochs: int = key(
        2, "epochs of a validation cycle before tombstones count", low=0, shared=True
    )
    offer: str = key(
        "latest",
        "which model of its validation cycle an adaptive learner offers: its latest, as the paper "
        "has it, or that of least loss",
        choices=("latest", "best"),
        shared=True,
    )
    batch_size: int = key(None, "default: what suits the data", low=1, shared=True)
    last_batch: str = key(
        "fill",
        "an epoch's last mini-batch that is not full: fill it up with the epoch's first examples, "
        "keep it short (a tiny one can spoil a model), or drop it",
        choices=LAST_BATCHES,
        shared=True,
    )
    shuffle_buffer: int | None = key(
        None,
        "examples come class by class through a shuffle buffer of so many; default: all shuffled",
        low=1,
        shared=True,
    )
    learning_rate: float = key(None, "default: what suits the data", above=0, shared=True)
    momentum: float = key(None, "default: what suits the data", low=0, below=1, shared=True)
    keep_momentum: bool = key(False, "carry optimizer state over from task to task", shared=True)
    batch_norm_statistics: str = key(
        "shared",
        "running statistics: the federation's mean, or each learner's own to train and judge with",
        choices=("shared", "local"),
        shared=True,
    )
    optimizer: str = key("sgd", "any optimizer of torch.optim", shared=True)
    optimizer_options: dict[str, bool | int | float | tuple[float, ...]] = mapping(
        "further arguments of the optimizer", shared=True
    )
    schedule: str = key(
        "constant",
        "learning rate over community versions; plateau: it falls when DVW's scores stop rising",
        choices=(*SHAPES, "plateau"),
        shared=True,
    )
    schedule_versions: int = key(
        100,
        "length of a step, of the cosine, of one decay, or of a plateau that is waited for",
        low=1,
        shared=True,
    )
    schedule_factor: float = key(
        0.1, "what a step or decay multiplies the rate by", above=0, shared=True
    )
    schedule_improvement: float = key(
        0.001,
        "plateau: a score must pass the best by more than this share of it",
        low=0,
        shared=True,
    )
    schedule_floor: float = key(
        0.001,
        "plateau: the rate never falls below this share of itself",
        above=0,
        high=1,
        shared=True,
    )
    weight_decay: float = key(None, "default: what suits the data", low=0, shared=True)
    weight_decay_on: tuple[str, ...] = key(
        None, "parameter names, * allowed; default: all weights", shared=True
    )
    proximal: float = key(
        None, "rho of the proximal term; default: the policy's", low=0, shared=True
    )
    clip_norm: float | None = key(None, "clip the gradient's norm", above=0, shared=True)
    lease_seconds: float = key(
        3600.0, "a learner that shows no progress for so long is given up", above=0, shared=True
    )

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def offers_best(self) -> bool:
        """Whether the model of least validation loss is offered, where losses are wanted."""
        return self.offer == "best"

    @property
    def local_statistics(self) -> bool:
        """Whether a learner keeps its batch-norm running statistics to itself."""
        return self.batch_norm_statistics == "local"
