"""Runs from start to end: a new one, an interrupted one, several as one."""

from __future__ import annotations

import json
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metis.config import Config, dump, load
from metis.core.errors import ConfigError, RunError
from metis.core.recipes import Recipe
from metis.data.dataset import Dataset
from metis.journal.file import Listener, read_journal
from metis.journal.paths import CONFIG, INITIAL, JOURNAL, SUMMARY, UPDATES
from metis.simulation.build import Federation, build_simulation
from metis.simulation.session import Result, Session
from metis.simulation.signals import stop_requests
from metis.storage.atomic import write_bytes
from metis.storage.pack import check_packable
from metis.storage.weights import save_safetensors
from metis.training.engines.choose import SharedEngines
from metis.training.threads import num_threads

if TYPE_CHECKING:
    from torch import nn


def run(
    config: Config,
    out: Path | None = None,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    recipe: Recipe | None = None,
    listeners: tuple[Listener, ...] = (),
    stop: threading.Event | None = None,
) -> Result:
    """Run a federation in virtual time; write it to `out` if given, which must hold no run yet.

    It stops when `stop` is set. Without `stop` it catches Ctrl-C and SIGTERM itself.
    """
    if out is None and config.output.latest_models == "disk":
        raise ConfigError("output.latest_models = 'disk': the run needs a directory (--out)")
    federation = build_simulation(config, model, data, recipe=recipe)
    if out is not None:
        _claim(out, federation)
    return _see_through(Session(federation, out, listeners), resumed=False, stop=stop)


def resume(
    directory: Path,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    recipe: Recipe | None = None,
    listeners: tuple[Listener, ...] = (),
    stop: threading.Event | None = None,
) -> Result:
    """Go on with an interrupted run; the end is the one it would have had. `stop` as in `run`."""
    if not (directory / CONFIG).is_file():
        raise RunError(f"{directory} holds no run: there is no {CONFIG} in it")
    if (directory / SUMMARY).exists():
        raise RunError(f"the run in {directory} is finished; see {directory / SUMMARY}")
    federation = build_simulation(load(directory / CONFIG), model, data, recipe=recipe)
    return _go_on(federation, directory, listeners, stop)


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that is under way, or one that is finished."""

    session: Session | None
    summary: dict[str, Any]


def run_or_resume(
    config: Config,
    out: Path,
    listeners: tuple[Listener, ...] = (),
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Return the summary of a run: of a finished one, or after its rest, or from the start.

    A run that is there already must be of the same config. `stop` is as in `run`.
    """
    if not (out / CONFIG).is_file():
        return run(config, out, listeners=listeners, stop=stop).summary
    federation = build_simulation(config)
    finished = _finished(federation, out)
    if finished is not None:
        federation.learners.close()
        return finished
    return _go_on(federation, out, listeners, stop).summary


def open_run(
    config: Config,
    out: Path,
    listeners: tuple[Listener, ...],
    dataset: Dataset,
    shared: SharedEngines,
) -> Opened:
    """The same for one of several runs that are to be computed together: begun, not made."""
    federation = build_simulation(config, loaded=dataset, shared=shared)
    begun = (out / CONFIG).is_file()
    if begun:
        finished = _finished(federation, out)
        if finished is not None:
            federation.learners.close()
            return Opened(None, finished)
        _check_same(federation, out)
    else:
        _claim(out, federation)
    session = Session(federation, out, listeners)
    session.open(resumed=begun)
    return Opened(session, {})


def _finished(federation: Federation, out: Path) -> dict[str, Any] | None:
    """Return the summary of the run that is there, if it is over."""
    if load(out / CONFIG) != federation.config:
        raise RunError(f"{out} holds a run of another config; choose another directory")
    if not (out / SUMMARY).is_file():
        return None
    summary: dict[str, Any] = json.loads((out / SUMMARY).read_text(encoding="utf-8"))
    return summary


def _go_on(
    federation: Federation,
    directory: Path,
    listeners: tuple[Listener, ...],
    stop: threading.Event | None,
) -> Result:
    _check_same(federation, directory)
    return _see_through(Session(federation, directory, listeners), resumed=True, stop=stop)


def _check_same(federation: Federation, directory: Path) -> None:
    """Raise RunError unless the run in a directory was begun with what is at hand now."""
    header = json.loads(json.dumps(federation.header))
    began = header
    if (directory / JOURNAL).exists():  # not if it was killed before the first record
        began = next(read_journal(directory / JOURNAL), header)
    for what, now in header.items():
        # Notes decide nothing: why another engine was not used is not asked once one is settled.
        if not what.endswith("_note") and began.get(what) != now:
            raise RunError(
                f"{directory} was begun with another {what}: "
                "pass the same model, data and recipe as then, and leave its config, and the file "
                "of its policy, as they were"
            )


def _check_durable(federation: Federation) -> None:
    """Raise ConfigError if a checkpoint could not hold the parts of the recipe."""
    controller = federation.controller
    parts = [controller.community, controller.weighting, controller.pacing]
    try:
        check_packable([*parts, *federation.plan.triggers.values()], federation.names)
    except TypeError as error:
        raise ConfigError(
            f"policy: {error}; a part of a recipe must be a dataclass of plain values and arrays, "
            "or have state() and restore(state), so that an interrupted run can go on"
        ) from None


def _claim(out: Path, federation: Federation) -> None:
    _check_durable(federation)
    if (out / JOURNAL).exists():
        raise RunError(
            f"{out} already holds a run; choose another directory, or go on with it: "
            f"metis run --resume {out}"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if federation.config.output.keep_updates:
            (out / UPDATES).mkdir(exist_ok=True)
            start = federation.controller.current.weights
            save_safetensors(out / INITIAL, start, federation.layout)
        # Last and whole: a directory with a config can be resumed.
        write_bytes(out / CONFIG, dump(federation.config).encode())
    except OSError as error:
        raise RunError(f"cannot write to {out}: {error.strerror}") from None


def _see_through(session: Session, resumed: bool, stop: threading.Event | None) -> Result:
    """Open a session, take it to its end and close it, whatever happens."""
    requests = stop_requests() if stop is None else nullcontext(stop)
    try:
        with requests as asked, num_threads(session.config.threads or 1):
            session.open(resumed)
            while session.step():
                if asked.is_set():
                    raise session.interrupted()
    finally:
        session.close()
    return session.result()
