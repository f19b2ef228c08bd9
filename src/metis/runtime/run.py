"""Runs from start to end: a new one, an interrupted one, several as one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metis.config import Config, dump, load
from metis.core.errors import ConfigError, RunError
from metis.core.recipes import Recipe
from metis.data.dataset import Dataset
from metis.learn.engines import Shared
from metis.learn.threads import num_threads
from metis.runtime.assemble import Federation, assemble
from metis.runtime.files import CONFIG, INITIAL, JOURNAL, SUMMARY, UPDATES
from metis.runtime.journal import Listener, read_journal
from metis.runtime.session import Result, Session
from metis.runtime.signals import stop_requests
from metis.store.atomic import write_bytes
from metis.store.pack import check_packable
from metis.store.weights import save_safetensors

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
) -> Result:
    """Run a federation in virtual time; write it to `out` if given, which must hold no run yet."""
    if out is None and config.output.latest_models == "disk":
        raise ConfigError("output.latest_models = 'disk': the run needs a directory (--out)")
    federation = assemble(config, model, data, recipe=recipe)
    if out is not None:
        _claim(out, federation)
    return _see_through(Session(federation, out, listeners), resumed=False)


def resume(
    directory: Path,
    *,
    model: nn.Module | None = None,
    data: Dataset | None = None,
    recipe: Recipe | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Result:
    """Go on with an interrupted run; the end is the one it would have had."""
    if not (directory / CONFIG).is_file():
        raise RunError(f"{directory} holds no run: there is no {CONFIG} in it")
    if (directory / SUMMARY).exists():
        raise RunError(f"the run in {directory} is finished; see {directory / SUMMARY}")
    federation = assemble(load(directory / CONFIG), model, data, recipe=recipe)
    return _go_on(federation, directory, listeners)


@dataclass(frozen=True, slots=True)
class Opened:
    """A run that is under way, or one that is finished."""

    session: Session | None
    summary: dict[str, Any]


def run_or_resume(
    config: Config, out: Path, listeners: tuple[Listener, ...] = ()
) -> dict[str, Any]:
    """Return a run's summary: as it is there, or after going on with it, or from the start.

    What is there must have been made by the same config.
    """
    if not (out / CONFIG).is_file():
        return run(config, out, listeners=listeners).summary
    federation = assemble(config)
    finished = _finished(federation, out)
    if finished is not None:
        federation.learners.close()
        return finished
    return _go_on(federation, out, listeners).summary


def open_run(
    config: Config,
    out: Path,
    listeners: tuple[Listener, ...],
    dataset: Dataset,
    shared: Shared,
) -> Opened:
    """The same for one of several runs that are to be computed together: begun, not made."""
    federation = assemble(config, loaded=dataset, shared=shared)
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


def _go_on(federation: Federation, directory: Path, listeners: tuple[Listener, ...]) -> Result:
    _check_same(federation, directory)
    return _see_through(Session(federation, directory, listeners), resumed=True)


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


def _see_through(session: Session, resumed: bool) -> Result:
    """Open a session, take it to its end and close it, whatever happens."""
    try:
        with stop_requests() as stop, num_threads(session.config.threads or 1):
            session.open(resumed)
            while session.step():
                if stop.is_set():
                    raise session.interrupted()
    finally:
        session.close()
    return session.result()
