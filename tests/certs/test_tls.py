"""The certificates at work: TLS between two sockets, as gRPC has it, and as openssl sees them."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from metis.certs import authority
from metis.certs.certificates import ROLES, host, load_key, load_request, new_certificate
from metis.certs.credentials import Credentials
from metis.core.errors import IdentityError
from tests.certs.consortium import NOW, Consortium, days

# ---- Python's ssl -----------------------------------------------------------------------------


def context(folder: Path, serves: bool) -> ssl.SSLContext:
    """Return TLS with the files of an endpoint: both sides show who they are."""
    name = folder.name
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if serves else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF | ssl.VERIFY_X509_STRICT
    made.load_verify_locations(folder / "ca.crt")
    made.load_verify_locations(folder / "crl.pem")
    made.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return made


def dial(served_by: Path, dialled_by: Path, at: str = "localhost") -> str:
    """Send a line over TLS from one endpoint to another; return what came back, or all refusals.

    The server answers with the name that it reads out of the certificate it was shown.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(20)
        answer = pool.submit(_serve, listener, context(served_by, serves=True), served_by)
        try:
            with (
                socket.create_connection(listener.getsockname(), timeout=20) as plain,
                context(dialled_by, serves=False).wrap_socket(plain, server_hostname=at) as line,
            ):
                line.sendall(b"hello\n")
                heard = line.recv(100).decode()
        except (ssl.SSLError, ConnectionError) as error:
            heard = f"learner: {error}"
        return f"{answer.result()}; {heard}".removeprefix("; ")


def _serve(listener: socket.socket, tls: ssl.SSLContext, folder: Path) -> str:
    """Answer one caller; return why not, or nothing."""
    plain, _ = listener.accept()
    plain.settimeout(20)
    try:
        with plain, tls.wrap_socket(plain, server_side=True) as line:
            assert line.recv(100) == b"hello\n"
            shown = ssl.DER_cert_to_PEM_cert(line.getpeercert(binary_form=True) or b"")
            caller = Credentials(folder, NOW).identity_of(shown, NOW)
            line.sendall(f"hello {caller.name}, a {caller.role}".encode())
    except ssl.SSLError as error:
        return f"controller: {error}"
    except ConnectionError:
        return ""  # the caller hung up, and says why
    return ""


def test_both_sides_prove_who_they_are(ours: Consortium) -> None:
    hub, site = ours.admit("hub", "controller"), ours.admit("site-a")

    assert dial(hub, site) == "hello site-a, a learner"
    assert dial(hub, site, at="127.0.0.1") == "hello site-a, a learner"


def test_a_caller_of_another_authority_is_refused(ours: Consortium, theirs: Consortium) -> None:
    hub, stranger = ours.admit("hub", "controller"), theirs.admit("site-a")
    for file in ("ca.crt", "crl.pem"):  # which trusts our controller, and hopes
        shutil.copy(hub / file, stranger)

    assert "controller: [SSL: CERTIFICATE_VERIFY_FAILED]" in dial(hub, stranger)


def test_a_controller_of_another_authority_is_refused(ours: Consortium, theirs: Consortium) -> None:
    impostor, site = theirs.admit("hub", "controller"), ours.admit("site-a")

    assert "learner: [SSL: CERTIFICATE_VERIFY_FAILED]" in dial(impostor, site)


def test_a_controller_is_not_believed_to_be_another_host(ours: Consortium) -> None:
    hub, site = ours.admit("hub", "controller"), ours.admit("site-a")

    assert "Hostname mismatch" in dial(hub, site, at="bank.example.org")


def test_a_learner_cannot_serve_and_a_controller_cannot_dial(ours: Consortium) -> None:
    hub, a, b = ours.admit("hub", "controller"), ours.admit("site-a"), ours.admit("site-b")

    assert "unsuitable certificate purpose" in dial(a, b)
    assert "unsuitable certificate purpose" in dial(hub, hub)


def test_tls_itself_refuses_a_revoked_caller(ours: Consortium) -> None:
    hub, site = ours.admit("hub", "controller"), ours.admit("site-a")
    authority.revoke(ours.directory, "site-a", NOW)
    shutil.copy(ours.directory / "crl.pem", hub)

    assert "certificate revoked" in dial(hub, site)


def test_tls_itself_refuses_an_expired_caller(ours: Consortium) -> None:
    hub = ours.admit("hub", "controller")
    site = ours.admit("site-a", now=NOW - days(20), valid_days=10)

    assert "certificate has expired" in dial(hub, site)


# ---- openssl ----------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl on this machine")
def test_openssl_reads_the_same_out_of_our_files(ours: Consortium) -> None:
    hub, a, b = ours.admit("hub", "controller"), ours.admit("site-a"), ours.admit("site-b")
    authority.revoke(ours.directory, "site-b", NOW)

    def verify(folder: Path, purpose: str) -> str:
        command = ["openssl", "verify", "-x509_strict", "-crl_check", "-purpose", purpose]
        command += ["-CAfile", "ca.crt", "-CRLfile", "crl.pem", str(folder / f"{folder.name}.crt")]
        done = subprocess.run(
            command, cwd=ours.directory, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    assert verify(hub, "sslserver").endswith("hub.crt: OK\n")
    assert verify(a, "sslclient").endswith("site-a.crt: OK\n")
    assert "certificate revoked" in verify(b, "sslclient")
    assert "unsuitable certificate purpose" in verify(a, "sslserver")
    assert "unsuitable certificate purpose" in verify(hub, "sslclient")


# ---- gRPC -------------------------------------------------------------------------------------


@contextmanager
def listening(folder: Path) -> Iterator[int]:
    """Serve one method that answers with the caller's identity; yield the port."""
    grpc = pytest.importorskip("grpc")
    credentials = Credentials(folder, NOW, name=folder.name)

    def answer(request: bytes, call: object) -> bytes:
        shown = call.auth_context()["x509_pem_cert"][0]  # type: ignore[attr-defined]
        try:
            caller = credentials.identity_of(shown, NOW)
        except IdentityError as error:
            call.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))  # type: ignore[attr-defined]
        return f"{caller.name}, a {caller.role}".encode()

    server = grpc.server(ThreadPoolExecutor(2))
    method = grpc.unary_unary_rpc_method_handler(answer)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", {"who": method}),))
    tls = grpc.ssl_server_credentials(
        [(credentials.key_pem, credentials.certificate_pem)],
        root_certificates=credentials.ca_pem,
        require_client_auth=True,
    )
    port = server.add_secure_port("127.0.0.1:0", tls)
    server.start()
    try:
        yield port
    finally:
        stopped = server.stop(0)
        assert isinstance(stopped, threading.Event)
        stopped.wait(20)


def ask(port: int, folder: Path, at: str = "localhost") -> str:
    """Return what the server calls us, or why the call was refused."""
    grpc = pytest.importorskip("grpc")
    name = folder.name
    tls = grpc.ssl_channel_credentials(
        *((folder / file).read_bytes() for file in ("ca.crt", f"{name}.key", f"{name}.crt"))
    )
    options = [("grpc.ssl_target_name_override", at), ("grpc.enable_retries", 0)]
    with grpc.secure_channel(f"127.0.0.1:{port}", tls, options) as channel:
        try:
            return str(channel.unary_unary("/t/who")(b"", timeout=20), "ascii")
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"


def test_grpc_tells_the_controller_who_calls(ours: Consortium) -> None:
    hub, site = ours.admit("hub", "controller"), ours.admit("site-a")

    with listening(hub) as port:
        assert ask(port, site) == "site-a, a learner"
        assert ask(port, ours.admit("boss", "operator")) == "boss, a operator"


def test_grpc_lets_a_revoked_caller_as_far_as_the_controller_who_refuses_it(
    ours: Consortium,
) -> None:
    hub, site = ours.admit("hub", "controller"), ours.admit("site-b")

    with listening(hub) as port:
        assert ask(port, site) == "site-b, a learner"
        authority.revoke(ours.directory, "site-b", NOW)
        shutil.copy(ours.directory / "crl.pem", hub)
        assert ask(port, site).startswith("UNAUTHENTICATED: certificate of site-b was revoked on")


def test_grpc_refuses_strangers_and_wrong_roles(ours: Consortium, theirs: Consortium) -> None:
    hub, site, stranger = (
        ours.admit("hub", "controller"),
        ours.admit("site-a"),
        theirs.admit("site-x"),
    )
    shutil.copy(hub / "ca.crt", stranger)

    with listening(hub) as port:
        assert ask(port, stranger).startswith("UNAVAILABLE")
        assert ask(port, hub).startswith("UNAVAILABLE")  # a controller does not dial
        assert ask(port, site, at="bank.example.org").startswith("UNAVAILABLE")


def test_grpc_refuses_a_learner_that_serves_even_with_a_host_in_its_certificate(
    ours: Consortium,
) -> None:
    site, other = ours.admit("site-a"), ours.admit("site-b")
    request = replace(load_request((site / "site-a.csr").read_bytes()), hosts=(host("localhost"),))
    ca_key = load_key((ours.directory / "ca.key").read_bytes())
    answers = []
    for role in ROLES:
        made = new_certificate(request, role, ours.ca, ca_key, 99, NOW, 9)
        (site / "site-a.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
        with listening(site) as port:
            answers.append(ask(port, other).partition(":")[0])

    assert dict(zip(ROLES, answers, strict=True)) == {
        "learner": "UNAVAILABLE",
        "controller": "site-b, a learner",
        "operator": "UNAVAILABLE",
    }
