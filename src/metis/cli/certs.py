"""Verbs about certificates: who may take part in a live federation, and as what."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from metis.cli.common import AsJson, complain, console, tell
from metis.core.errors import IdentityError, RunError

if TYPE_CHECKING:
    from metis.certs.certificates import Role
    from metis.certs.revocation import Entry, Listing

commands = typer.Typer(
    help="Certificates: who may take part in a live federation, and as what.", no_args_is_help=True
)

Site = Annotated[str, typer.Argument(metavar="SITE", help="The site's name, such as site-a.")]
Authority = Annotated[Path, typer.Option("--ca", metavar="DIR", help="The authority's directory.")]

STYLES = {"valid": "green", "requested": "cyan", "revoked": "red", "foreign": "red"}


@commands.command(epilog='Example:  metis certs init ca --name "Heart consortium"')
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new directory.")],
    name: Annotated[str, typer.Option(help="Whose authority it is.")] = "Consortium",
    days: Annotated[int, typer.Option(min=1, max=36_500, help="It is valid for so long.")] = 3650,
) -> None:
    """Make a certificate authority, on a machine that the sites trust."""
    from metis.certs import authority
    from metis.certs.certificates import fingerprint

    made = authority.create(directory, name, now(), days)
    tell(f"authority {name!r} in {directory}, valid until {_day(made.not_valid_after_utc)}")
    tell(f"key fingerprint: {fingerprint(made.public_key())}")
    tell(f"  {authority.CA_KEY}    stays here, backed up: whoever has it can admit anybody")
    tell(f"  {authority.CA_CERTIFICATE}    goes to every site and to the controller")
    tell(f"  {authority.CRL}   goes to the controller, again after every revocation")


@commands.command(epilog="Example:  metis certs request hub --out certs --host hub.example.org")
def request(
    site: Site,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the site keeps its key and certificate.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(metavar="HOST", help="For a controller: a name or address that is dialled."),
    ] = None,
) -> None:
    """Make a key that stays on this machine, and a request to certify it."""
    from metis.certs import authority

    made = authority.request(out, site, tuple(host or ()))
    tell(f"key:         {out / f'{site}.key'}   never leaves this machine")
    tell(f"request:     {out / f'{site}.csr'}   send it to the keeper of the authority")
    tell(f"fingerprint: {made.fingerprint}   read it out to them by phone")


@commands.command(
    epilog="Examples:  metis certs issue site-a --csr site-a.csr --ca ca   |   "
    "metis certs issue hub --csr hub.csr --ca ca --role controller"
)
def issue(
    site: Site,
    csr: Annotated[Path, typer.Option(metavar="FILE", help="The request that the site made.")],
    ca: Authority,
    role: Annotated[
        str | None,
        typer.Option(
            metavar="ROLE",
            help="learner, controller or operator (who may stop a federation); default learner, "
            "or what it was before.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[int, typer.Option(min=1, max=36_500, help="It is valid for so long.")] = 365,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the certificate here.")
    ] = None,
    renew: Annotated[
        bool, typer.Option("--renew", help="The site has a valid certificate; make another.")
    ] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(metavar="HEX", help="What the site read out; refuse any other key."),
    ] = None,
) -> None:
    """Certify a site's request: it is in order, and for this very name."""
    from metis.certs import authority
    from metis.certs.certificates import check_role, serial_text
    from metis.certs.files import write_public

    chosen: Role | None = None if role is None else check_role(role, site)
    if out is not None:
        _check_target(out)
    made = authority.issue(
        ca, site, csr, now(), role=chosen, days=days, renew=renew, read_out=fingerprint
    )
    if out is not None:
        write_public(out, made.pem)
    tell(f"{made.name} is certified as {made.role} until {_day(made.valid_until)}")
    tell(f"certificate: {out or made.path}   send it to the site, with {authority.CA_CERTIFICATE}")
    tell(f"serial:      {serial_text(made.serial)}")
    if made.hosts:
        tell(f"hosts:       {', '.join(made.hosts)}")
    matched = "as it was read out" if fingerprint else "the site must have read out the same"
    tell(f"fingerprint: {made.fingerprint}   {matched}")
    if not fingerprint:
        tell(f"             if it did not: metis certs revoke {site} --ca {ca}")


@commands.command(epilog="Example:  metis certs revoke site-b --ca ca")
def revoke(site: Site, ca: Authority) -> None:
    """Revoke all certificates of a site, and sign the revocation list again."""
    from metis.certs import authority
    from metis.certs.certificates import moment, serial_text

    done = authority.revoke(ca, site, now())
    if not done.serials:
        tell(f"{site} was revoked already, on {moment(done.when)}; nothing changed")
    else:
        tell(f"revoked {site}: serial {', '.join(map(serial_text, done.serials))}")
    tell(f"copy {done.crl} (list number {done.crl_number}) to the controller, in its --certs")


@commands.command(epilog="Example:  metis certs show ca --json")
def show(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="DIR|FILE", help="An authority, the files of a site, a certificate, a request."
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show certificates: of whom, as what, until when, and whether they count."""
    from metis.certs.revocation import listing

    found = listing(path, now())
    if as_json:
        console.print_json(json.dumps(_as_json(found)))
        return
    console.print(_table(found))
    for note in found.notes:
        complain("[yellow]note:[/] ", note)


def _as_json(found: Listing) -> dict[str, object]:
    return {
        "certificates": [
            {
                "name": entry.name,
                "role": entry.role or None,
                "serial": entry.serial or None,
                "valid_from": entry.valid_from and entry.valid_from.isoformat(),
                "valid_until": entry.valid_until and entry.valid_until.isoformat(),
                "state": entry.state,
                "fingerprint": entry.fingerprint or None,
                "hosts": entry.hosts,
                "file": str(entry.file),
            }
            for entry in found.entries
        ],
        "crl_number": found.crl_number,
        "notes": found.notes,
    }


def _table(found: Listing) -> Table:
    number = found.crl_number
    caption = None if number is None else f"by revocation list number {number}"
    table = Table(
        box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=caption, caption_justify="left"
    )
    table.add_column("name, serial, hosts", overflow="fold")
    for heading in ("role", "valid", "state", "key fingerprint"):
        table.add_column(heading, no_wrap=True)
    for entry in found.entries:
        table.add_row(*_cells(entry))
    return table


def _cells(entry: Entry) -> list[Text]:
    name = Text(entry.name, style="bold")
    for line in (entry.serial, *entry.hosts):
        name.append(f"\n{line}" if line else "", style="not bold")
    dates = (entry.valid_from, entry.valid_until)
    valid = "\n".join(_day(when) for when in dates if when is not None)
    halves = f"{entry.fingerprint[:19]}\n{entry.fingerprint[20:]}"
    state = Text(entry.state, style=STYLES.get(entry.state, "yellow"))
    return [name, Text(entry.role), Text(valid), state, Text(halves)]


def _check_target(path: Path) -> None:
    """A certificate may replace a certificate: nothing else, and least of all a key."""
    from metis.certs.certificates import load_certificate
    from metis.certs.files import read

    if not path.parent.is_dir():
        raise RunError(f"cannot write {path}: its directory is not there")
    if path.exists():
        try:
            load_certificate(read(path))
        except IdentityError:
            raise RunError(f"cannot write {path}: what is there is no certificate") from None


def now() -> datetime:
    """The one place where this command line looks at the clock."""
    return datetime.now(UTC)


def _day(when: datetime) -> str:
    return f"{when:%Y-%m-%d}"
