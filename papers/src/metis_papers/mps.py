"""NVIDIA's MPS: processes on one GPU compute at once; without it they take turns."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from metis.core.errors import RunError

PIPES = "CUDA_MPS_PIPE_DIRECTORY"  # by this variable programs find the daemon
_LOGS = "CUDA_MPS_LOG_DIRECTORY"
_CONTROL = "nvidia-cuda-mps-control"
_PIPE = "control"  # a daemon's, in its folder
_SECONDS = 60.0  # to start, and to end once all programs have left


@contextmanager
def computing_at_once(tell: Callable[[str], None]) -> Iterator[dict[str, str]]:
    """Give the environment in which programs compute at once on a GPU.

    A daemon is started for it and ended behind it; one that the user has already is taken. Raises
    RunError where there is none to start; of one that does not end we only `tell`, since what was
    computed is there. A program that a signal kills at work on the GPU may spoil what the others
    compute there: NVIDIA promises nothing then, which is why it must be asked for.
    """
    theirs = os.environ.get(PIPES)
    if theirs:
        if not (Path(theirs) / _PIPE).exists():
            raise RunError(f"--mps: {PIPES} is {theirs}, but no daemon listens there; start one")
        yield dict(os.environ)
        return
    program = shutil.which(_CONTROL)
    if program is None:
        raise RunError(f"--mps: there is no {_CONTROL} here; it comes with NVIDIA's driver")
    with tempfile.TemporaryDirectory(prefix="metis-mps-", ignore_cleanup_errors=True) as folder:
        environment = {**os.environ, PIPES: folder, _LOGS: folder}
        _control([program, "-d"], environment, Path(folder))
        try:
            yield environment
        finally:
            try:
                _control([program], environment, Path(folder), b"quit\n")
            except RunError as error:
                tell(f"{error}; it may still be there")


def _control(
    command: list[str], environment: dict[str, str], folder: Path, said: bytes = b""
) -> None:
    # Into a file: the daemon holds its output open for as long as it lives.
    with (folder / "said").open("w+b") as output:
        try:
            subprocess.run(
                command,
                input=said,
                env=environment,
                stdout=output,
                stderr=output,
                timeout=_SECONDS,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            output.seek(0)
            answer = output.read().decode(errors="replace").strip()
            reason = f"{error} {answer}".strip()
            raise RunError(f"--mps: NVIDIA's daemon failed: {reason}") from None
