"""The authors' constants, from their paper and their public experiment scripts."""

from __future__ import annotations

SEED = 1990

#: Seconds per mini-batch on the virtual clock, (fast, slow), by data source.
STEP_SECONDS = {
    "cifar10": (0.030, 0.300),
    "cifar100": (0.060, 2.000),
    "emnist_byclass": (0.050, 0.800),
}
#: For all other data we take CIFAR-10's: a slow learner is ten times slower than a fast one.
DEFAULT_STEP_SECONDS = STEP_SECONDS["cifar10"]

#: A scored example costs a third of a trained one.
EVALUATION_TO_TRAINING = 1.0 / 3.0

#: Sessions, transfers and the rest of a request in the authors' cluster: 200 rounds took about
#: 10,000 s although training alone needs 6 s a round.
REQUEST_OVERHEAD_SECONDS = 44.0

#: Validation cycles: (VC_tomb fast, VC_tomb slow, VC_loss fast, VC_loss slow), in percent.
_CYCLES = {
    ("uniform", "iid"): (4, 2, 0.0, 1.0),
    ("uniform", "non-iid"): (4, 2, 3.0, 3.0),
    ("skewed", "iid"): (4, 2, 0.0, 1.0),
    ("skewed", "non-iid"): (6, 1, 3.0, 3.0),
    ("powerlaw", "iid"): (4, 2, 0.0, 1.0),
    ("powerlaw", "non-iid"): (4, 2, 1.0, 1.0),
    ("powerlaw", "few"): (4, 1, 3.0, 1.0),
}


def validation_cycle(
    sizes: str, classes: int | str, num_classes: int, group: str
) -> tuple[int, float]:
    """Return (VC_tomb, VC_loss in percent) for a device group under a data distribution.

    The authors gave them for CIFAR-10 only. Other data takes the CIFAR-10 row of the same
    distribution; power law Non-IID(3) stands for "at most three tenths of the classes". A group
    that is not called slow counts as fast.
    """
    rows = "powerlaw" if sizes == "geometric" else sizes
    if classes in ("iid", "natural") or num_classes == 0:
        spread = "iid"
    else:
        counts = [int(n.split("x")[0]) for n in str(classes).split(",") if n[:1].isdigit()]
        few = bool(counts) and min(counts) <= 0.3 * num_classes
        spread = "few" if rows == "powerlaw" and few else "non-iid"
    tomb_fast, tomb_slow, loss_fast, loss_slow = _CYCLES[rows, spread]
    return (tomb_slow, loss_slow) if group == "slow" else (tomb_fast, loss_fast)
