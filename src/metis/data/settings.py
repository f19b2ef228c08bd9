"""The settings of a partition."""

from __future__ import annotations

from dataclasses import dataclass

from metis.core.errors import ConfigError
from metis.core.keys import key, mapping
from metis.data.partition import CLASS_RULES, SIZES


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """How the examples of a dataset are divided among learners."""

    sizes: str = key(
        "powerlaw",
        "examples per learner: equal, 1.2^-k, k^-exponent or exponent^-k",
        choices=SIZES,
        shared=True,
    )
    classes: int | str = key(
        3,
        'classes per learner: "iid", a number, a list "8,4,3x8", "dirichlet", "shards", "natural"',
        shared=True,
    )
    exponent: float = key(1.5, "of powerlaw and geometric sizes", low=0.01, high=100, shared=True)
    alpha: float = key(
        0.5, "of the Dirichlet distribution; smaller is more skewed", above=0, shared=True
    )
    shards: int = key(2, "shards per learner", low=1, high=1_000_000, shared=True)
    class_rule: str = key(
        "fullest",
        "which classes a number stands for: those with most examples left, or k, k+1, ... in turn",
        choices=CLASS_RULES,
        shared=True,
    )
    wrong_labels: dict[str, float] = mapping(
        "share of a learner's examples with a wrong label, such as {learner-01 = 0.5}", shared=True
    )
    mistake: str = key(
        "next",
        "what a wrong label is: the next class's, one mistake again and again, or any other's",
        choices=("next", "random"),
        shared=True,
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
