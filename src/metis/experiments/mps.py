"""NVIDIA's MPS: processes on one GPU compute at once; without it they take turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from metis.core.errors import RunError

PIPES = "CUDA_MPS_PIPE_DIRECTORY"  # by this variable programs find the daemon
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"
_SECONDS = 60.0  # to start, and to end once all programs have left


@contextmanager
def computing_at_once() -> Iterator[dict[str, str]]:
    """Give the environment in which programs compute at once on a GPU.

    A daemon is started for it and ended behind it; one that the user has already is taken. Raises
    RunError where there is none to start. A program that a signal kills at work on the GPU may
    spoil what the others compute there: NVIDIA promises nothing then, which is why nobody gets
    this unasked.
    """
    if PIPES in os.environ:
        yield dict(os.environ)
        return
    program = shutil.which(_CONTROL)
    if program is None:
        raise RunError(f"--mps: there is no {_CONTROL} here; it comes with NVIDIA's driver")
    with tempfile.TemporaryDirectory(prefix="metis-mps-") as folder:
        environment = {**os.environ, PIPES: folder, _LOGS: folder}
        _control([program, "-d"], environment)
        try:
            yield environment
        finally:
            _control([program], environment, b"quit\n")


def _control(command: list[str], environment: dict[str, str], said: bytes = b"") -> None:
    try:
        # Its output is not waited for: the daemon would hold it open for as long as it lives.
        subprocess.run(
            command,
            input=said,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise RunError(f"--mps: {error}") from None
