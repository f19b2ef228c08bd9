"""Verbs of a federation in real time: its controller, its learners, how it stands, its end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from metis.cli.common import (
    AsJson,
    ConfigFile,
    Overrides,
    Quiet,
    chosen_config,
    complain,
    console,
    tell,
)
from metis.core.errors import ConfigError, IdentityError, Interrupted, LineError

if TYPE_CHECKING:
    from metis.deploy.learner import Call
    from metis.live.overview import Overview
    from metis.transport.dial import Operator

commands = typer.Typer()

ConfigOption = Annotated[
    Path | None, typer.Option("--config", metavar="FED.toml", help="What the federation agrees on.")
]
Certs = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Key, certificate and ca.crt: see `metis certs`."),
]
Plain = Annotated[
    bool, typer.Option("--plain", help="No certificates: plain text, on this machine only.")
]
Address = Annotated[str, typer.Argument(metavar="HOST:PORT", help="Of the controller.")]
Name = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose certificate to use, if there are several."),
]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@commands.command(
    epilog="Examples:  metis controller --config fed.toml --listen 0.0.0.0:7400 --state state "
    "--certs certs   |   metis controller --config fed.toml --plain"
)
def controller(
    config: ConfigOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where learners dial in; port 0: any.")
    ] = "127.0.0.1:7400",
    state: Annotated[
        Path, typer.Option(metavar="DIR", help="All that must outlive a crash.")
    ] = Path("state"),
    certs: Certs = None,
    plain: Plain = False,
    initial: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The first model, made by `metis model init`."),
    ] = None,
    set_: Overrides = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer Prometheus there.")
    ] = None,
    log: Annotated[str, typer.Option(metavar="STYLE", help="Lines as text or json.")] = "text",
    log_level: Annotated[
        str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")
    ] = "info",
    reflection: Annotated[
        bool, typer.Option("--reflection", help="Describe the gRPC services to whoever asks.")
    ] = False,
    linger: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="When it is over, wait for learners that are away."
        ),
    ] = 60.0,
) -> None:
    """Keep a federation: wait for learners, combine their models, survive."""
    from contextlib import ExitStack

    from metis.deploy.controller import Front, check_certificates, run_controller
    from metis.deploy.found import found
    from metis.live.logs import Log
    from metis.runtime.journal import Listener
    from metis.runtime.signals import stop_requests
    from metis.store.claim import claimed

    chosen = chosen_config(config, set_)
    _check_plain(certs, plain, listen)
    if certs is not None:
        check_certificates(certs)
    listeners: list[Listener] = [Log(sys.stderr, log, log_level)]
    synced: Callable[[float], None] | None = None
    with ExitStack() as stack:
        if metrics is not None:
            from metis.live.metrics import Metrics, serve

            numbers = Metrics()
            stop_metrics, port = serve(numbers, metrics)
            stack.callback(stop_metrics)
            listeners.append(numbers)
            synced = numbers.observe_sync
            complain("metrics: ", f"http://{metrics.rpartition(':')[0]}:{port}/metrics")
        stack.enter_context(claimed(state))
        stop = stack.enter_context(stop_requests())
        service = found(state, chosen, initial, tuple(listeners))
        service.journal.on_sync = synced

        def ready(port: int) -> None:
            host = listen.rpartition(":")[0]
            how = "plain text, this machine only" if certs is None else "mutual TLS"
            tell(f"listening on {host}:{port} ({how}); state in {state}")

        front = Front(listen, certs, reflection, linger)
        reason = run_controller(state, service, chosen, front, stop, ready)
    version = service.ledger.controller.current.version
    tell(f"stopped at version {version}: {reason}; the model is {state / 'model.safetensors'}")


@commands.command(
    epilog="Examples:  metis learner --controller hub.example.org:7400 --certs certs "
    "--app site.py:make_learner   |   "
    "metis learner --controller 127.0.0.1:7400 --name learner-01 --plain --config fed.toml"
)
def learner(
    controller: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the controller listens.")
    ],
    name: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="Of this site; default: what the certificate says."),
    ] = None,
    certs: Certs = None,
    plain: Plain = False,
    app: Annotated[
        str | None,
        typer.Option(metavar="FILE.py:FUNCTION", help="Returns a metis.Learner: model and data."),
    ] = None,
    config: ConfigOption = None,
    set_: Overrides = None,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="What must outlive a crash; default: site-NAME."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda.")] = None,
    share_tracebacks: Annotated[
        bool,
        typer.Option(
            "--share-tracebacks",
            help="Show the controller where training failed. Tracebacks may quote your data.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
) -> None:
    """Attend a federation: dial its controller, train and judge as it asks, come back if cut."""
    from metis.deploy.learner import Call, Work, credentials_for, leave_for_good, run_learner
    from metis.runtime.signals import stop_requests
    from metis.store.claim import claimed
    from metis.training.threads import num_threads

    if (app is None) == (config is None):
        raise ConfigError("a learner needs --app or --config, one of them")
    _check_plain(certs, plain, controller)
    own = None if config is None else chosen_config(config, set_, device=device)
    call = Call(controller, name, certs)
    me, _ = credentials_for(call)
    directory = state or Path(f"site-{me}")

    def news(sentence: str) -> None:
        if not quiet:
            tell(f"{me}: {sentence}")

    threads = 1 if own is None or own.threads is None else own.threads
    signals: list[int] = []
    with claimed(directory), stop_requests(signals) as stop, num_threads(threads):
        farewell = run_learner(
            call, Work(own, app, device), directory, stop, news, share_tracebacks
        )
    if farewell is not None:
        news(f"over: {farewell.reason}")
    elif signal.SIGINT in signals:  # somebody sits here and does not want to go on
        try:
            leave_for_good(call, withdraw=False)
            news("left; whatever it was training is lost, what it delivered stays")
        except LineError:
            news("left, but the controller could not be told: it waits for the lease to end")
    else:
        news("stopped; started again before its lease ends, it goes on with the same task")


@commands.command(
    epilog="Examples:  metis up --learners 10   |   metis up fed.toml --out runs/live"
)
def up(
    config: ConfigFile = None,
    learners: Annotated[int | None, typer.Option(help="How many take part.")] = None,
    set_: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where everything goes; to go on, the same.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Try a live federation on this machine: a controller, and a process for each learner."""
    from metis.cli.runs import fresh
    from metis.deploy.local import run_local
    from metis.report.live import LiveView
    from metis.runtime.signals import stop_requests
    from metis.store.claim import claimed

    chosen = chosen_config(config, set_, learners=learners)
    if chosen.horizon.versions is None and chosen.horizon.seconds is None:
        rounds = 10 * chosen.learners
        chosen = replace(chosen, horizon=replace(chosen.horizon, versions=rounds))
        complain("[yellow]note:[/] ", f"no horizon is set, so it ends after {rounds} versions")
    directory = out or fresh(Path("runs") / "live")
    view = LiveView(chosen.horizon.seconds, chosen.horizon.versions, console)
    with claimed(directory), stop_requests() as stop:
        if quiet:
            reason = run_local(chosen, directory, lambda record: None, stop)
        else:
            with view:
                reason = run_local(chosen, directory, view, stop)
    if reason is None:
        raise Interrupted(f"stopped; go on with: metis up --out {directory} (and the same config)")
    tell(f"over: {reason}; the model is {directory / 'state' / 'model.safetensors'}")


@commands.command(epilog="Example:  metis status 127.0.0.1:7400 --plain")
def status(
    address: Address,
    certs: Certs = None,
    plain: Plain = False,
    name: Name = None,
    as_json: AsJson = False,
) -> None:
    """Show how a federation stands: its version, its learners, what they do."""
    operator, _ = _operator(address, certs, plain, name)
    found = operator.status()
    operator.close()
    if as_json:
        console.print_json(json.dumps(asdict(found)))
        return
    console.print(_heading(found))
    console.print(_members(found))


@commands.command(epilog="Example:  metis stop 127.0.0.1:7400 --plain --reason maintenance")
def stop(
    address: Address,
    certs: Certs = None,
    plain: Plain = False,
    name: Name = None,
    reason: Annotated[str, typer.Option(help="Told to everybody, and kept.")] = "",
) -> None:
    """Stop a controller: what is under way is taken, all is saved, learners wait for its return."""
    operator, _ = _operator(address, certs, plain, name)
    operator.stop(reason)
    operator.close()
    tell(f"{address} is being stopped; start it again with the same --state to go on")


@commands.command(epilog="Example:  metis leave hub.example.org:7400 --certs certs --withdraw")
def leave(
    address: Address,
    certs: Certs = None,
    plain: Plain = False,
    name: Name = None,
    withdraw: Annotated[
        bool, typer.Option("--withdraw", help="Take this site's contribution back, too.")
    ] = False,
) -> None:
    """Leave a federation for good: nobody waits for this site any more."""
    from metis.deploy.learner import leave_for_good

    if plain and name is None:
        raise IdentityError("--name: without certificates a site must say who it is")
    me = leave_for_good(_call(address, certs, plain, name), withdraw)
    tell(f"{me} has left{' and withdrawn its model' if withdraw else ''}")


def _call(address: str, certs: Path | None, plain: bool, name: str | None) -> Call:
    from metis.deploy.learner import Call

    _check_plain(certs, plain, address)
    return Call(address, name or ("operator" if certs is None else None), certs)


def _operator(
    address: str, certs: Path | None, plain: bool, name: str | None
) -> tuple[Operator, str]:
    from metis.deploy.learner import credentials_for
    from metis.transport.dial import Operator

    me, credentials = credentials_for(_call(address, certs, plain, name))
    return Operator(address, me, credentials), me


def _check_plain(certs: Path | None, plain: bool, address: str) -> None:
    """Plain text must be asked for, is for this machine alone, and says so."""
    if (certs is None) != plain:
        raise IdentityError(
            "--certs DIR names the certificates to use (see `metis certs`); "
            "--plain goes without, on this machine only: give one of them"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise ConfigError(f"{address!r} is no address: expected HOST:PORT, such as 127.0.0.1:7400")
    if plain and host.strip("[]") not in _LOOPBACK:
        raise ConfigError(f"{address}: --plain is for this machine alone: use 127.0.0.1")
    if plain:
        complain(
            "[bold yellow]warning:[/] ",
            "plain text: no certificates, names are believed; everybody on this machine can "
            "read along and take part",
        )


def _heading(found: Overview) -> Text:
    of = "" if found.max_versions is None else f" of {found.max_versions}"
    ended = "" if found.over is None else f", over: {found.over}"
    return Text.assemble(
        (found.policy, "bold"),
        f": version {found.version}{of}, "
        f"{found.committed_steps:,} steps, up {found.seconds:,.0f} s{ended}; "
        f"{found.queued} updates wait for {found.evaluations} scores",
    )


def _members(found: Overview) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("learner", "group", "state"):
        table.add_column(heading)
    for heading in ("task", "steps", "updates", "heard"):
        table.add_column(heading, justify="right")
    for one in found.members:
        heard = "-" if one.seconds_silent is None else f"{one.seconds_silent:,.0f} s ago"
        task = "-" if one.task is None else str(one.task)
        cells = (one.name, one.group, one.state, task, f"{one.num_steps:,}", f"{one.num_updates}")
        table.add_row(*map(Text, cells), heard)  # Text: markup in what a site says is not obeyed
    return table
