"""One cell of a table: which federation it is, and where its run lies."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from metis import paper
from metis.config import Config, dump, load
from metis_papers.generated import generated_file

CLUSTERS = ("homogeneous", "heterogeneous")
LEARNERS = 10
SCALES = ("full", "short", "smoke")


@dataclass(frozen=True, slots=True)
class Domain:
    """What is learned, by which network, at which speed."""

    name: str  # of the paper's data: its step times are taken
    model: str
    data: str = ""  # a source or the path of an .npz; default: the paper's own
    train: Mapping[str, float] = field(default_factory=dict)  # where the data's advice is not it

    @property
    def source(self) -> str:
        return self.data or self.name


@dataclass(frozen=True, slots=True)
class Row:
    """How a federation's examples are divided: a line of a table."""

    sizes: str  # of learners' shares: uniform, skewed, powerlaw or geometric
    classes: int | str  # that a learner holds: a number, iid, or natural (by their writers)
    data: str = ""  # whose division it is, where the rows of a table are of different data

    def __str__(self) -> str:
        return self.data or f"{self.sizes}-{self.classes}"

    @property
    def is_uniform(self) -> bool:
        return self.sizes == "uniform"

    @property
    def is_power_law(self) -> bool:
        """Whether its sizes are a power law, by either reading of the paper's."""
        return self.sizes in ("powerlaw", "geometric")

    @property
    def of_the_paper(self) -> Row:
        """The paper's row that it stands for: there are two readings of the power law."""
        return replace(self, sizes="powerlaw") if self.is_power_law else self

    @property
    def place(self) -> tuple[int, int]:
        """Where it stands in a table: the more alike learners are, the earlier."""
        order = ("uniform", "skewed", "powerlaw", "geometric")
        first = order.index(self.sizes) if self.sizes in order and not self.data else len(order)
        return first, -self.classes if isinstance(self.classes, int) else -1000


def rows(*names: str) -> tuple[Row, ...]:
    """Return rows by the names that the command line has for them: powerlaw-3, uniform-iid."""
    found = []
    for name in names:
        sizes, _, classes = name.partition("-")
        assert re.fullmatch(r"iid|\d+", classes), name
        found.append(Row(sizes, classes if classes == "iid" else int(classes)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Horizon:
    """When a cell ends: after this many rounds, or virtual seconds."""

    rounds: int | None = None
    seconds: float | None = None

    def __str__(self) -> str:
        return f"{self.rounds} rounds" if self.rounds is not None else f"{self.seconds:,.10g} s"


@dataclass(frozen=True, slots=True)
class Setting:
    """How the user wants it made: where, how long, by which machine."""

    out: Path
    scale: str = "full"
    device: str = "cpu"
    precision: str | None = None  # instead of the default
    jobs: int = 1
    mps: bool = False  # cells compute at once on a GPU, see `metis_papers.mps`
    seeds: tuple[int, ...] = (paper.SEED,)
    rounds: int | None = None  # instead of the scale's
    seconds: float | None = None
    stop_after: float | None = None  # real seconds
    restart: bool = False

    @property
    def side_by_side(self) -> bool:
        """Whether each cell has a process of its own: on a GPU, and where there are several."""
        return self.jobs > 1 or self.device == "cuda"

    def horizon(self, whole: Horizon) -> Horizon:
        """Return a horizon at this scale: a tenth when short, just enough to run when smoke."""
        shrink = {"full": 1.0, "short": 0.1}
        if whole.rounds is not None:
            if self.rounds is not None:
                return Horizon(rounds=self.rounds)
            rounds = 2 if self.scale == "smoke" else round(whole.rounds * shrink[self.scale])
            return Horizon(rounds=max(rounds, 1))
        if self.seconds is not None:
            return Horizon(seconds=self.seconds)
        assert whole.seconds is not None
        return Horizon(
            seconds=100.0 if self.scale == "smoke" else whole.seconds * shrink[self.scale]
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a table or figure."""

    study: str
    cluster: str
    row: Row
    policy: str
    seed: int
    scale: str
    horizon: Horizon
    config: Config
    variant: str = ""  # its name, where its policy alone does not tell it from its neighbours

    @property
    def name(self) -> str:
        return name_of(self.study, self.cluster, self.row, self.variant or self.policy, self.seed)

    def directory(self, out: Path) -> Path:
        return out / self.name

    def as_json(self) -> dict[str, Any]:
        """Return it as plain values, for the process that will run it."""
        return {
            "study": self.study,
            "cluster": self.cluster,
            "row": asdict(self.row),
            "policy": self.policy,
            "seed": self.seed,
            "scale": self.scale,
            "horizon": asdict(self.horizon),
            "variant": self.variant,
            "config": dump(self.config),
        }


def name_of(study: str, cluster: str, row: Row, variant: str, seed: int) -> str:
    """Return a cell's name, which is also its folder. It has the seed, unless it is the papers'."""
    seeded = variant if seed == paper.SEED else f"{variant}-seed{seed}"
    return f"{study}/{cluster}/{row}/{seeded}"


def cell_from_json(values: dict[str, Any], config: Config) -> Cell:
    """Return the cell that `as_json` describes, with its config read back."""
    return Cell(
        study=values["study"],
        cluster=values["cluster"],
        row=Row(**values["row"]),
        policy=values["policy"],
        seed=values["seed"],
        scale=values["scale"],
        horizon=Horizon(**values["horizon"]),
        config=config,
        variant=values["variant"],
    )


def federated_cell(
    setting: Setting,
    study: str,
    domain: Domain,
    cluster: str,
    row: Row,
    policy: str,
    seed: int,
    whole: Horizon,
    *,
    variant: str = "",
    groups: Mapping[str, Mapping[str, float]] | None = None,
    validation: Mapping[str, Any] | None = None,
    partition: Mapping[str, Any] | None = None,
    train: Mapping[str, Any] | None = None,
) -> Cell:
    """Return a cell of the Metis paper: ten learners, cost profile `paper`.

    The last four say what is not as in the paper's table.
    """
    horizon = setting.horizon(whole)
    fast, slow = paper.STEP_SECONDS[domain.name]
    speeds = {"fast": fast} if cluster == "homogeneous" else {"fast": fast, "slow": slow}
    more: dict[str, Any] = {}
    model: dict[str, Any] = {"name": domain.model}
    training: dict[str, Any] = {**domain.train, **(train or {})}
    source = domain.source
    if setting.scale == "smoke":
        source = str(generated_file(setting.out / "generated", domain.name))
        more |= {"engine": "loop", "threads": 1}
        training |= {"epochs": 1, "max_epochs": 2, "burn_in_epochs": 0}
        if domain.model == "resnet50_cifar":
            model["options"] = {"num_blocks": 1}
    if setting.device == "cpu" and setting.jobs > 1:
        more["threads"] = 1
    if setting.precision is not None:
        more["precision"] = setting.precision
    config = load(
        None,
        policy=policy,
        learners=LEARNERS,
        seed=seed,
        device=setting.device,
        data={"name": source},
        model=model,
        partition={"sizes": row.sizes, "classes": row.classes, **(partition or {})},
        groups={
            name: {"seconds_per_step": step, **(groups or {}).get(name, {})}
            for name, step in speeds.items()
        },
        train=training,
        validation=dict(validation or {}),
        costs={"profile": "paper"},
        horizon={
            key: value
            for key, value in (("versions", horizon.rounds), ("seconds", horizon.seconds))
            if value is not None
        },
        **more,
    )
    return Cell(study, cluster, row, policy, seed, setting.scale, horizon, config, variant)
