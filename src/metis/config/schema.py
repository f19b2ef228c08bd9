"""The configuration of a run: frozen dataclasses, every key documented where it is declared.

A key whose default is None is filled in from the data source, the policy or the paper when the
run is set up; the resolved file in the run's directory then holds the value that was used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from metis import paper
from metis.config.keys import key, table
from metis.core.community import CachedAverage
from metis.core.errors import ConfigError, unknown
from metis.core.recipes import POLICIES, Settings
from metis.core.schedules import SHAPES
from metis.core.scores import CLASS_SCORES, ERROR_SCORES

DEFAULT_LEARNERS = 10
DEFAULT_SECONDS = 300.0

#: See `learn.engines` and `learn.training`, which this file must not import: they need torch.
ENGINES = ("auto", "loop", "stack", "processes", "graphs")
PRECISIONS = ("float32", "tf32", "bf16")

LAST_BATCHES = ("fill", "short", "drop")

#: See `codecs.packet`.
CODECS = ("dense", "float16", "bfloat16", "int8", "stc", "sstc")

#: Stands for a model or dataset that was passed in Python and cannot be named in a file.
PASSED = "passed in Python"


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
    options: dict[str, bool | int | float | tuple[int, ...]] = field(
        default_factory=dict, metadata={"doc": "of a model of the zoo, such as {lrn = false}"}
    )


@dataclass(frozen=True, slots=True)
class Partition:
    sizes: str = key(
        "powerlaw",
        "examples per learner: equal, 1.2^-k, k^-exponent or exponent^-k",
        choices=("uniform", "skewed", "powerlaw", "geometric"),
    )
    classes: int | str = key(
        3,
        'classes per learner: "iid", a number, a list "8,4,3x8", "dirichlet", "shards", "natural"',
    )
    exponent: float = key(1.5, "of powerlaw and geometric sizes", low=0.01, high=100)
    alpha: float = key(0.5, "of the Dirichlet distribution; smaller is more skewed", above=0)
    shards: int = key(2, "shards per learner", low=1, high=1_000_000)
    class_rule: str = key(
        "fullest",
        "which classes a number stands for: those with most examples left, or k, k+1, ... in turn",
        choices=("fullest", "in-turn"),
    )
    wrong_labels: dict[str, float] = field(
        default_factory=dict,
        metadata={
            "doc": "share of a learner's examples with a wrong label, such as {learner-01 = 0.5}"
        },
    )
    mistake: str = key(
        "next",
        "what a wrong label is: the next class's, one mistake again and again, or any other's",
        choices=("next", "random"),
    )

    def __post_init__(self) -> None:
        for learner, share in self.wrong_labels.items():
            if not 0 <= share <= 1:
                raise ConfigError(
                    f"partition.wrong_labels.{learner} = {share}: must be at least 0 and at most 1"
                )

    def mistakes_in_words(self) -> list[str]:
        """Return whose labels are wrong, and how many of them; nothing where none are."""
        wrong = self.wrong_labels
        alike = {share: [one for one in wrong if wrong[one] == share] for share in wrong.values()}
        return [
            f"{100 * share:g} % of the labels of {', '.join(names)} wrong ({self.mistake})"
            for share, names in alike.items()
            if share
        ]


@dataclass(frozen=True, slots=True)
class Group:
    """A device class. Everything left out follows from `costs.profile` and the data source."""

    learners: int | None = key(
        None, "how many learners are of this class; default: an even share", low=1
    )
    seconds_per_step: float | None = key(None, "virtual seconds per mini-batch", above=0)
    seconds_per_evaluated_example: float | None = key(
        None, "virtual seconds per scored example", low=0
    )
    request_overhead_seconds: float | None = key(
        None, "virtual seconds added to each update", low=0
    )
    latency_seconds: float = key(0.0, "of its link, one way", low=0)
    bandwidth_bytes_per_second: float | None = key(
        None, "of its link, each way; default: no limit", above=0
    )
    vc_tomb: int | None = key(None, "tombstones tolerated in a validation cycle", low=0)
    vc_loss: float | None = key(
        None, "improvement of the validation loss that is too small, in percent", low=0
    )


@dataclass(frozen=True, slots=True)
class Train:
    GONE: ClassVar[Mapping[str, str]] = {
        "drop_last": 'write train.last_batch = "drop" for true, "short" for false'
    }

    epochs: int = key(4, "local epochs per task where they are fixed (uf)", low=1)
    max_epochs: int = key(
        100, "an adaptive learner offers its model at the latest after so many", low=1
    )
    burn_in_epochs: int = key(2, "epochs of a validation cycle before tombstones count", low=0)
    offer: str = key(
        "latest",
        "which model of its validation cycle an adaptive learner offers: its latest, as the paper "
        "has it, or that of least loss",
        choices=("latest", "best"),
    )
    batch_size: int | None = key(None, "default: what suits the data", low=1)
    last_batch: str = key(
        "fill",
        "an epoch's last mini-batch that is not full: fill it up with the epoch's first examples, "
        "keep it short (a tiny one can spoil a model), or drop it",
        choices=LAST_BATCHES,
    )
    shuffle_buffer: int | None = key(
        None,
        "examples come class by class through a shuffle buffer of so many; default: all shuffled",
        low=1,
    )
    learning_rate: float | None = key(None, "default: what suits the data", above=0)
    momentum: float | None = key(None, "default: what suits the data", low=0, high=1)
    keep_momentum: bool = key(False, "carry optimizer state over from task to task")
    batch_norm_statistics: str = key(
        "shared",
        "running statistics: the federation's mean, or each learner's own to train and judge with",
        choices=("shared", "local"),
    )
    optimizer: str = key("sgd", "any optimizer of torch.optim")
    optimizer_options: dict[str, bool | int | float | tuple[float, ...]] = field(
        default_factory=dict, metadata={"doc": "further arguments of the optimizer"}
    )
    schedule: str = key(
        "constant",
        "learning rate over community versions; plateau: it falls when DVW's scores stop rising",
        choices=(*SHAPES, "plateau"),
    )
    schedule_versions: int = key(
        100,
        "length of a step, of the cosine, of one decay, or of a plateau that is waited for",
        low=1,
    )
    schedule_factor: float = key(0.1, "what a step or decay multiplies the rate by", above=0)
    schedule_improvement: float = key(
        0.001, "plateau: a score must pass the best by more than this share of it", low=0
    )
    schedule_floor: float = key(
        0.001, "plateau: the rate never falls below this share of itself", above=0, high=1
    )
    weight_decay: float | None = key(None, "default: what suits the data", low=0)
    weight_decay_on: tuple[str, ...] | None = key(
        None, "parameter names, * allowed; default: all weights"
    )
    proximal: float | None = key(None, "rho of the proximal term; default: the policy's", low=0)
    clip_norm: float | None = key(None, "clip the gradient's norm", above=0)
    lease_seconds: float = key(
        3600.0, "a learner that shows no progress for so long is given up", above=0
    )


@dataclass(frozen=True, slots=True)
class Validation:
    fraction: float = key(
        0.05, "of each learner's examples, held out where the policy needs it", low=0, high=0.9
    )
    stratified: bool = key(True, "hold out the same share of every class")
    metric: str | None = key(
        None,
        "score of DVW; default micro_f1, or inverse_mse for regression",
        choices=(*CLASS_SCORES, *ERROR_SCORES),
    )
    self_score: str = key(
        "include", "whether a learner's own counts join the pool", choices=("include", "exclude")
    )
    release_last: int | None = key(
        None,
        "in so many last versions of horizon.versions learners train on held-out examples, too, "
        "and keep the weights that they have",
        low=1,
    )
    deadline_seconds: float = key(
        600.0, "a judge that has not answered by then is left out", above=0
    )


@dataclass(frozen=True, slots=True)
class RecipeTable:
    sample: int | None = key(
        None, "learners drawn per round, or at work at once; default: all", low=1
    )
    min_learners: int | None = key(
        None, "the run begins when so many have joined; default: all", low=1
    )
    mixing_rate: float = key(0.5, "FedAsync's alpha", above=0, high=1)
    staleness_exponent: float = key(0.5, "a of FedAsync+Poly and FedBuff", low=0)
    proximal: float = key(0.005, "rho of FedAsync and FedProx", low=0)
    buffer_size: int = key(5, "FedBuff makes a version every so many updates (K)", low=1)
    server_rate: float | None = key(
        None,
        "of FedBuff and FedAvgM, default 1; of FedAdagrad, FedAdam and FedYogi, default 0.01",
        above=0,
    )
    server_momentum: float = key(0.9, "of FedAvgM", low=0, high=1)
    epochs_of_slowest: float = key(
        1.0, "SemiSync's time budget, in epochs of the slowest (lambda)", above=0, high=10_000
    )
    repair_every: int = key(10_000, "commits between full recomputations of the cached sum", low=1)


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
class Codec:
    codec: str = key(
        "dense", "dense is exact; the others pack what has changed since a base", choices=CODECS
    )
    sparsity: float = key(
        0.01, "p of stc and sstc: the share of weights that is kept", low=0, high=1
    )
    kernels: float = key(
        0.125, "f of sstc: the share of convolution kernels that is kept", low=0, high=1
    )
    sparsity_of: str = key(
        "all", "p of all weights, or of those that sstc's kernels leave", choices=("all", "kept")
    )
    coding: str = key(
        "auto",
        "of indices: the shorter of golomb and deflate, or one of them, or the paper's fixed width",
        choices=("auto", "golomb", "deflate", "fixed"),
    )
    error_feedback: bool = key(False, "add what a packet left out to the next one")

    def in_words(self) -> str:
        """Return what matters of it, such as `sstc p=0.01 f=0.125`."""
        words = [self.codec]
        if self.codec in ("stc", "sstc"):
            words.append(f"p={self.sparsity:g}")
        if self.codec == "sstc":
            words.append(f"f={self.kernels:g}")
            words += ["of kept"] if self.sparsity_of == "kept" else []
        if self.codec != "dense" and self.error_feedback:
            words.append("with feedback")
        return " ".join(words)


@dataclass(frozen=True, slots=True)
class Costs:
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
class Live:
    calls_per_second: float = key(
        200.0, "that one learner may make of a controller, for a while twice as many", above=0
    )
    calls_at_once: int = key(8, "that one learner may have under way", low=4, high=1000)


@dataclass(frozen=True, slots=True)
class Config:
    policy: str = key("async-dvw-adaptive", "one of `metis policies`")
    learners: int = key(DEFAULT_LEARNERS, "how many take part", low=1, high=1_000_000)
    seed: int = key(paper.SEED, "same seed, same bytes", low=0, high=2**63 - 1)
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
    partition: Partition = table(Partition, "who holds what")
    groups: dict[str, Group] = field(
        default_factory=lambda: {"fast": Group(), "slow": Group()},
        metadata={"doc": "device classes; naming any replaces both defaults"},
    )
    train: Train = table(Train, "how a learner trains")
    validation: Validation = table(Validation, "the distributed validation set (DVW)")
    recipe: RecipeTable = table(RecipeTable, "the numbers a policy leaves open")
    horizon: Horizon = table(
        Horizon, "when to stop, whichever comes first; default: 300 virtual seconds"
    )
    upload: Codec = table(Codec, "how updates are packed; see docs/packets.md")
    download: Codec = table(Codec, "how community models are packed")
    costs: Costs = table(Costs, "what things cost in virtual time")
    incidents: tuple[Incident, ...] = field(
        default=(),
        metadata={
            "doc": "joins, departures, crashes and stragglers, for example",
            "example": Incident(100.0, "learner-03", "slow", 5.0),
        },
    )
    output: Output = table(Output, "what is written")
    live: Live = table(Live, "of a controller that is a service; see docs/deploy.md")

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ConfigError(f"policy: {unknown('policy', self.policy, POLICIES)}")
        community = POLICIES[self.policy].recipe(Settings()).community
        if self.output.latest_models == "disk" and not isinstance(community, CachedAverage):
            raise ConfigError(
                f"output.latest_models = 'disk': {self.policy} keeps no latest models; "
                "policies with a cached average do (see `metis policies`)"
            )
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
