"""A federation in a state directory: founded once, taken up again ever after. Needs no torch."""

from __future__ import annotations

from pathlib import Path

from metis.codecs.choose import codec_of
from metis.config import Config, dump, load
from metis.core.errors import ConfigError, RunError
from metis.core.types import Layout, Snapshot, Vector, digest
from metis.live.agree import agreed, differences, digest_of
from metis.live.desk import Terms
from metis.live.host import begin_or_go_on
from metis.live.service import Service
from metis.runtime.compose import (
    check,
    controller_of,
    known_of,
    recipe_of,
    release_from,
    with_metric,
)
from metis.runtime.files import CONFIG, INITIAL
from metis.runtime.journal import Listener, Record
from metis.runtime.records import RunRecord, as_fields
from metis.store.atomic import write_bytes
from metis.store.weights import read_first, save_first


def found(
    directory: Path,
    config: Config,
    initial: Path | None = None,
    listeners: tuple[Listener, ...] = (),
) -> Service:
    """Return the service of a federation, with all that it ever acknowledged.

    A directory that holds one already must have been founded with the same config; `initial` is
    then not needed.
    """
    text = agreed(config)
    check(config, recipe_of(config))
    fresh = not (directory / CONFIG).exists()
    if not fresh:
        weights, layout, num_classes = read_first(directory / INITIAL)
        config = with_metric(config, num_classes)
        before = load(directory / CONFIG)
        if release_from(config) != release_from(before):
            raise RunError(
                f"{directory} was founded with horizon.versions = {before.horizon.versions} and "
                f"validation.release_last = {before.validation.release_last}, from which follows "
                "when held-out examples are released: leave both as they were"
            )
        differing = differences(agreed(config), agreed(before))
        if differing:
            there = differing[0].replace("at the controller", f"in {directory}")
            raise RunError(f"{directory} was founded with another config: {there}")
    else:
        weights, layout, num_classes = _first_model(config, initial)
        config = with_metric(config, num_classes)
    controller = controller_of(config, Snapshot(0, weights), layout, num_classes)
    if fresh:
        directory.mkdir(parents=True, exist_ok=True)
        save_first(directory / INITIAL, weights, layout, num_classes)
        # Last and whole: a directory with a config can be taken up again.
        write_bytes(directory / CONFIG, dump(config).encode())
    terms = Terms(
        layout=layout,
        config=digest_of(text),
        upload=codec_of(config.upload, layout),
        lease_seconds=config.train.lease_seconds,
        deadline_seconds=config.validation.deadline_seconds,
        max_versions=config.horizon.versions,
        max_seconds=config.horizon.seconds,
        keep_updates=config.output.keep_updates,
        latest_models=config.output.latest_models,
        checkpoint_seconds=config.output.checkpoint_seconds,
        policy=config.policy,
        config_text=text,
        num_classes=num_classes,
    )
    header = _header(config, weights, layout, num_classes)
    return begin_or_go_on(directory, terms, controller, header, listeners)


def _first_model(config: Config, initial: Path | None) -> tuple[Vector, Layout, int]:
    """Return the model that all begin with: from a file, or made here if torch is there."""
    if initial is not None:
        return read_first(initial)
    try:
        from metis.deploy.first import first_model
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--initial: {error.name} is not installed here, so the first model must come from a "
            "file; make it elsewhere with: metis model init fed.toml --out initial.safetensors"
        ) from None
    return first_model(config)


def _header(config: Config, weights: Vector, layout: Layout, num_classes: int) -> Record:
    header = RunRecord(
        **known_of(config, layout, num_classes, digest(weights), recipe_of(config)),
        live=True,
        dataset="the learners' own data",
        partition="as it is",
        learners=[],
    )
    return as_fields(header)
