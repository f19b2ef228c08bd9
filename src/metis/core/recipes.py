"""What a federation is made of. A recipe is a sentence: this community, weighting and pacing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from metis.core.community import Buffer, Community
from metis.core.errors import ConfigError
from metis.core.local_run import Trigger
from metis.core.pacing import Pacing
from metis.core.server_step import Stepped
from metis.core.types import Spans
from metis.core.weighting import Weighting

#: What the controller and the learners call of each part.
_CONTRACTS = {
    "community": ("fold", "drop", "model", "reject"),
    "weighting": ("judged_by", "weigh"),
    "pacing": ("rounds", "sample", "epochs_of_slowest", "publishes", "release"),
    "trigger": ("needs_loss", "certain_epochs", "__call__"),
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a federation is made of, and what its learners are asked to do."""

    community: Community
    weighting: Weighting
    pacing: Pacing
    adaptive: bool = False  # learners follow validation cycles instead of a fixed epoch count
    holds_out: bool = False  # learners keep part of their data for validation
    proximal: float = 0.0
    trigger: Trigger | None = None  # when a learner offers its model; None: as the config says

    def __post_init__(self) -> None:
        for name, methods in _CONTRACTS.items():
            part = getattr(self, name)
            lacking = [one for one in methods if not hasattr(part, one)]
            if lacking and not (part is None and name == "trigger"):
                raise ConfigError(
                    f"the {name} of a recipe must have {', '.join(methods)}; "
                    f"{part!r} has no {lacking[0]}"
                )
        if self.needs_scores and not self.holds_out:
            raise ConfigError(
                "a recipe whose weighting or trigger looks at validation examples must have "
                "holds_out=True, so that learners keep some"
            )

    @property
    def needs_loss(self) -> bool:
        """Whether learners follow their validation loss while they train."""
        return self.adaptive if self.trigger is None else self.trigger.needs_loss

    @property
    def needs_scores(self) -> bool:
        """Whether learners must hold validation examples."""
        return self.needs_loss or self.weighting.judged_by != "nobody"


def with_buffers(community: Community, buffers: Spans) -> Community:
    """Return a fresh community that averages these parts of a model and never steps them.

    They are the parts that are learned and not trained, such as batch-norm statistics.
    """
    if isinstance(community, Stepped):
        inner = with_buffers(community.community, buffers)
        return replace(community, community=inner, buffers=buffers)
    return replace(community, buffers=buffers) if isinstance(community, Buffer) else community
