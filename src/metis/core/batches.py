"""How many mini-batches an epoch has, and how many examples they hold."""

from __future__ import annotations


def steps_of_epoch(num_examples: int, batch_size: int, last_batch: str) -> int:
    """Return the number of mini-batches in an epoch over `num_examples`.

    An epoch without a full mini-batch keeps its only one, whatever `train.last_batch` says.
    """
    num_full, rest = divmod(num_examples, batch_size)
    is_left_out = last_batch == "drop" and num_full > 0
    return num_full if rest == 0 or is_left_out else num_full + 1


def places_of_epoch(num_examples: int, batch_size: int, last_batch: str, no_single: bool) -> int:
    """Return how many examples the mini-batches of an epoch hold together.

    `no_single`: a mini-batch of one example gets a second one, which batch-norm needs.
    """
    if num_examples >= batch_size and last_batch != "short":
        return steps_of_epoch(num_examples, batch_size, last_batch) * batch_size
    is_single = no_single and batch_size > 1 and num_examples % batch_size == 1
    return num_examples + is_single


def samples_of_epoch(num_examples: int, batch_size: int, last_batch: str, no_single: bool) -> int:
    """Return how many examples an epoch counts as trained on, filled places included."""
    if last_batch == "short":
        return num_examples
    return places_of_epoch(num_examples, batch_size, last_batch, no_single)
