"""The settings of a codec."""

from __future__ import annotations

from dataclasses import dataclass

from metis.codecs.packet import NUMBERS
from metis.core.keys import key

CODECS = tuple(NUMBERS)
SHORTEST = "auto"  # coding


@dataclass(frozen=True, slots=True)
class CodecSettings:
    """Which codec, and how much of a model it keeps."""

    codec: str = key(
        "dense",
        "dense is exact; the others pack what has changed since a base",
        choices=CODECS,
        shared=True,
    )
    sparsity: float = key(
        0.01, "p of stc and sstc: the share of weights that is kept", low=0, high=1, shared=True
    )
    kernels: float = key(
        0.125,
        "f of sstc: the share of convolution kernels that is kept",
        low=0,
        high=1,
        shared=True,
    )
    sparsity_of: str = key(
        "all",
        "p of all weights, or of those that sstc's kernels leave",
        choices=("all", "kept"),
        shared=True,
    )
    coding: str = key(
        SHORTEST,
        "of indices: the shorter of golomb and deflate, or one of them, or the paper's fixed width",
        choices=(SHORTEST, "golomb", "deflate", "fixed"),
        shared=True,
    )
    error_feedback: bool = key(False, "add what a packet left out to the next one", shared=True)

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
