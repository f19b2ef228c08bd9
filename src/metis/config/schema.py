"""The configuration of a run: frozen dataclasses, every key documented where it is declared.

Settings of a class are declared beside that class, and nested here.

A key whose default is None is filled in from the data source, the policy or the paper when the
run is set up; the resolved file in the run's directory then holds the value that was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from metis import paper
from metis.codecs.settings import CodecSettings
from metis.config.keys import table
from metis.core.errors import ConfigError, unknown
from metis.core.keys import key, mapping
from metis.core.policies import POLICIES
from metis.core.settings import RecipeSettings, ValidationSettings
from metis.data.settings import PartitionSettings
from metis.learn.settings import ENGINES, PRECISIONS, TrainSettings
from metis.live.settings import CallLimits

DEFAULT_LEARNERS = 10
DEFAULT_SECONDS = 300.0

#: Stands for a model, dataset or recipe that was passed in Python and cannot be named in a file.
PASSED = "passed in Python"


def is_file(name: str) -> bool:
    """Whether a name is `file.py:function`."""
    return name.rpartition(":")[0].endswith(".py")


@dataclass(frozen=True, slots=True)
class Data:
    name: str = key(
        "digits", "a source of `metis data list`, a path to an .npz, or file.py:function"
    )
    directory: str | None = key(
        None, "where prepared datasets lie; default $METIS_DATA or ~/.cache/metis"
    )


@dataclass(frozen=True, slots=True)
class Model:
    name: str | None = key(
        None, "a model of the zoo, or file.py:function; default: what suits the data"
    )
    initial: str | None = key(
        None, "start from these weights (.safetensors) instead of random ones"
    )
    options: dict[str, bool | int | float | tuple[int, ...]] = mapping(
        "of a model of the zoo, such as {lrn = false}"
    )


@dataclass(frozen=True, slots=True)
class Group:
    """A device class: its speed, its link, its validation cycles.

    A key that is left open is None until the run is set up: it follows from `costs.profile` and the
    data source.
    """

    learners: int | None = key(
        None, "how many learners are of this class; default: an even share", low=1, shared=True
    )
    seconds_per_step: float = key(None, "virtual seconds per mini-batch", above=0)
    seconds_per_evaluated_example: float = key(None, "virtual seconds per scored example", low=0)
    request_overhead_seconds: float = key(None, "virtual seconds added to each update", low=0)
    latency_seconds: float = key(0.0, "of its link, one way", low=0)
    bandwidth_bytes_per_second: float | None = key(
        None, "of its link, each way; default: no limit", above=0
    )
    vc_tomb: int = key(None, "tombstones tolerated in a validation cycle", low=0, shared=True)
    vc_loss: float = key(
        None, "improvement of the validation loss that is too small, in percent", low=0, shared=True
    )

    def transfer_seconds(self, num_bytes: int) -> float:
        """Return how long a message of this length takes over the link, one way."""
        if self.bandwidth_bytes_per_second is None:
            return self.latency_seconds
        return self.latency_seconds + num_bytes / self.bandwidth_bytes_per_second


@dataclass(frozen=True, slots=True)
class Horizon:
    versions: int | None = key(None, "stop after so many community models", low=1)
    seconds: float | None = key(
        None, "stop after so many virtual seconds; 300 if neither is given", above=0
    )
    test_every: int | None = key(
        None, "versions between tests; default: 1 with rounds, else the number of learners", low=1
    )

    def limits(self) -> tuple[float | None, int | None]:
        """Return seconds and versions, one of them at least."""
        if self.seconds is None and self.versions is None:
            return DEFAULT_SECONDS, None
        return self.seconds, self.versions


@dataclass(frozen=True, slots=True)
class CostSettings:
    profile: str = key(
        "default",
        "paper adds 44 s to each request, as in the authors' cluster",
        choices=("default", "paper"),
    )


@dataclass(frozen=True, slots=True)
class Incident:
    """Something that happens to a learner at a virtual moment."""

    at_seconds: float = key(0.0, "virtual time", low=0)
    learner: str = key("", "its name, such as learner-03")
    kind: str = key(
        "crash",
        "join (it is not there before), leave, withdraw, crash, restart, slow",
        choices=("join", "leave", "withdraw", "crash", "restart", "slow"),
    )
    factor: float = key(1.0, "slow: from now on everything takes so many times as long", above=0)


def late_learners(incidents: Sequence[Incident]) -> set[str]:
    """Return who is not there from the start: those to whom the first that happens is a join."""
    first: dict[str, str] = {}
    for incident in sorted(incidents, key=lambda i: i.at_seconds):
        if incident.kind != "slow":
            first.setdefault(incident.learner, incident.kind)
    return {learner for learner, kind in first.items() if kind == "join"}


@dataclass(frozen=True, slots=True)
class Output:
    keep_updates: bool = key(
        False, "keep every update on disk, so that `metis replay` can verify the run"
    )
    latest_models: str = key(
        "memory",
        "where the async policies keep each learner's latest model",
        choices=("memory", "disk"),
    )
    checkpoint_seconds: float = key(
        60.0, "real seconds between checkpoints; 0: only when interrupted", low=0
    )


@dataclass(frozen=True, slots=True)
class Config:
    policy: str = key(
        "async-dvw-adaptive", "one of `metis policies`, or file.py:function", shared=True
    )
    learners: int = key(DEFAULT_LEARNERS, "how many take part", low=1, high=1_000_000, shared=True)
    seed: int = key(paper.SEED, "same seed, same bytes", low=0, high=2**63 - 1, shared=True)
    device: str = key("cpu", "where to compute", choices=("cpu", "cuda"))
    engine: str = key(
        "auto",
        "how learners are computed: one by one, stacked, side by side; see docs/performance.md",
        choices=ENGINES,
    )
    threads: int | None = key(
        None,
        "cores to compute with; default: all, but 1 for a stack and on a GPU",
        low=1,
        high=1024,
    )
    precision: str = key(
        "tf32", "of products on a GPU; bf16: autocast, on a CPU too", choices=PRECISIONS
    )
    memory_gib: float = key(
        8.0, "what learners that are computed together may take at once", above=0
    )
    data: Data = table(Data, "what is learned")
    model: Model = table(Model, "by which model")
    partition: PartitionSettings = table(PartitionSettings, "who holds what")
    groups: dict[str, Group] = field(
        default_factory=lambda: {"fast": Group(), "slow": Group()},
        metadata={"doc": "device classes; naming any replaces both defaults"},
    )
    train: TrainSettings = table(TrainSettings, "how a learner trains")
    validation: ValidationSettings = table(
        ValidationSettings, "the distributed validation set (DVW)"
    )
    recipe: RecipeSettings = table(RecipeSettings, "the numbers a policy leaves open")
    horizon: Horizon = table(
        Horizon, "when to stop, whichever comes first; default: 300 virtual seconds"
    )
    upload: CodecSettings = table(CodecSettings, "how updates are packed; see docs/packets.md")
    download: CodecSettings = table(CodecSettings, "how community models are packed")
    costs: CostSettings = table(CostSettings, "what things cost in virtual time")
    incidents: tuple[Incident, ...] = field(
        default=(),
        metadata={
            "doc": "joins, departures, crashes and stragglers, for example",
            "example": Incident(100.0, "learner-03", "slow", 5.0),
        },
    )
    output: Output = table(Output, "what is written")
    live: CallLimits = table(CallLimits, "of a controller that is a service; see docs/deploy.md")

    def __post_init__(self) -> None:
        if not self.has_own_policy and self.policy not in POLICIES:
            raise ConfigError(f"policy: {unknown('policy', self.policy, POLICIES)}")
        if not self.groups:
            raise ConfigError("groups: at least one is needed, such as [groups.fast]")
        stated = [g.learners for g in self.groups.values() if g.learners is not None]
        if len(stated) == len(self.groups) and sum(stated) != self.learners:
            raise ConfigError(
                f"groups hold {sum(stated)} learners together, but learners = {self.learners}"
            )
        if len(self.groups) > self.learners:
            raise ConfigError(
                f"{len(self.groups)} groups for {self.learners} learners: each needs at least one"
            )
        self.group_sizes()
        for name in ("sample", "min_learners"):
            if (getattr(self.recipe, name) or 0) > self.learners:
                raise ConfigError(
                    f"recipe.{name} = {getattr(self.recipe, name)}: "
                    f"there are only {self.learners} learners"
                )
        named = [(f"incidents[{n}].learner", one.learner) for n, one in enumerate(self.incidents)]
        named += [("partition.wrong_labels", learner) for learner in self.partition.wrong_labels]
        names = set(self.learner_names()) if named else set()
        for where, learner in named:
            if learner not in names:
                raise ConfigError(
                    f"{where}: there is no {learner!r}; "
                    f"learners are called {min(names)} to {max(names)}"
                )

    @property
    def has_own_policy(self) -> bool:
        """Whether the policy is the user's own recipe, in a file or passed in Python."""
        return self.policy == PASSED or is_file(self.policy)

    @property
    def policy_label(self) -> str:
        """The policy in a word: `mine-recipe` for `somewhere/mine.py:recipe`."""
        if is_file(self.policy):
            path, _, function = self.policy.rpartition(":")
            return f"{Path(path).stem}-{function}"
        return "own-recipe" if self.policy == PASSED else self.policy

    def learner_names(self) -> list[str]:
        """Return learner-01, learner-02, ... with as many digits as are needed to sort them."""
        digits = max(2, len(str(self.learners)))
        return [f"learner-{i:0{digits}d}" for i in range(1, self.learners + 1)]

    def group_sizes(self) -> dict[str, int]:
        """Return how many learners each group has; those not stated share the rest evenly."""
        rest = self.learners - sum(g.learners or 0 for g in self.groups.values())
        open_groups = [name for name, g in self.groups.items() if g.learners is None]
        if rest < len(open_groups):
            raise ConfigError(
                f"groups: of {self.learners} learners {max(rest, 0)} are left for "
                f"{', '.join(open_groups)}; each needs at least one"
            )
        sizes = {}
        for name, group in self.groups.items():
            if group.learners is not None:
                sizes[name] = group.learners
            else:
                position = open_groups.index(name)
                sizes[name] = rest // len(open_groups) + (position < rest % len(open_groups))
        return sizes
