"""Servers that do not let everybody in: TLS with certificates made here, nkeys, credentials files, rights."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import ipaddress
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import nkeys  # type: ignore[import-untyped] # a library without types
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.limits import LIMIT_S

#: One for all: a server that is reloaded refuses an operator whose words differ.
_ISSUED_AT = int(time.time()) - 60
_READY = re.compile(r"Listening for client connections on \S+:(\d+)")


class Pair(NamedTuple):
    """Files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates; `ca` is the file with its own."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        self._folder = folder
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._count = 0
        now = datetime.now(UTC)
        self._certificate = (
            _certificate(
                name, name, self._key.public_key(), now - timedelta(days=1), now + timedelta(days=30)
            )
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca = self._write(f"{name}.pem", self._certificate.public_bytes(serialization.Encoding.PEM))
        self.key = self._write(f"{name}.key", _private(self._key))

    def _write(self, name: str, content: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(content)
        return path

    def issue(self, *names: str, days: int = 10) -> Pair:
        """Sign a certificate for host names or addresses; with negative `days` it has expired."""
        self._count += 1
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        built = _certificate(
            f"c{self._count}",
            self._name,
            key.public_key(),
            now - timedelta(days=20),
            now + timedelta(days=days),
        )
        if names:
            built = built.add_extension(
                x509.SubjectAlternativeName([_name(each) for each in names]), critical=False
            )
        stem = f"{self._name}-{self._count}"
        signed = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        return Pair(self._write(f"{stem}.pem", signed), self._write(f"{stem}.key", _private(key)))


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    form = serialization.PrivateFormat.PKCS8
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _certificate(
    subject: str, issuer: str, key: ec.EllipticCurvePublicKey, since: datetime, until: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(since)
        .not_valid_after(until)
    )


def _name(text: str) -> x509.GeneralName:
    with contextlib.suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(text))
    return x509.DNSName(text)


def tls(pair: Pair, ca: Path | None = None) -> str:
    """Return the block of a server's configuration; with `ca` it wants certificates of clients."""
    verify = f'ca_file: "{ca}", verify: true' if ca is not None else ""
    return f'tls {{ cert_file: "{pair.cert}", key_file: "{pair.key}", timeout: 5, {verify} }}\n'


class Key(NamedTuple):
    """An nkey: what it is called, and the seed that proves it."""

    public: str
    seed: bytes

    def sign(self, data: bytes) -> bytes:
        return bytes(nkeys.from_seed(bytearray(self.seed)).sign(data))


def new_key(kind: int = nkeys.PREFIX_BYTE_USER) -> Key:
    seed = nkeys.encode_seed(os.urandom(32), kind)
    public: Any = nkeys.from_seed(bytearray(seed)).public_key
    return Key(public.decode(), seed)


class Operator:
    """Who signs accounts and users, so that a server knows them by their credentials files alone."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._operator = new_key(nkeys.PREFIX_BYTE_OPERATOR)
        self._account = new_key(nkeys.PREFIX_BYTE_ACCOUNT)
        self._system = new_key(nkeys.PREFIX_BYTE_ACCOUNT)

    def configuration(self, revoked: Key | None = None) -> str:
        """Return what a server needs to know; `revoked`: a user whose credentials hold no more."""
        limits: dict[str, Any] = dict.fromkeys(
            ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1
        )
        limits |= {"wildcards": True, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
        gone = {} if revoked is None else {"revocations": {revoked.public: int(time.time())}}
        account = self._signed(self._account.public, "A", {"type": "account", "limits": limits, **gone})
        system = self._signed(self._system.public, "SYS", {"type": "account", "limits": {}})
        operator = {"type": "operator", "system_account": self._system.public}
        return (
            f"operator: {self._signed(self._operator.public, 'O', operator)}\n"
            f"system_account: {self._system.public}\nresolver: MEMORY\n"
            f"resolver_preload: {{ {self._account.public}: {account}, {self._system.public}: {system} }}\n"
        )

    def user(self, user: Key, *, expires_s: int = 0) -> Path:
        """Write a credentials file; with `expires_s` it expires that many seconds from now, or expired before if negative."""
        claims = {"exp": int(time.time()) + expires_s} if expires_s else {}
        body = {"type": "user", "issuer_account": self._account.public, "subs": -1, "data": -1, "payload": -1}
        jwt = _jwt(self._account, user.public, "U", {**body, "version": 2}, claims)
        path = self._folder / f"{user.public[:8]}.creds"
        path.write_text(
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed.decode()}\n------END USER NKEY SEED------\n"
        )
        return path

    def _signed(self, subject: str, name: str, body: dict[str, Any]) -> str:
        return _jwt(self._operator, subject, name, {**body, "version": 2}, {})


def _jwt(issuer: Key, subject: str, name: str, body: dict[str, Any], claims: dict[str, Any]) -> str:
    told = {
        "jti": "",
        "iat": _ISSUED_AT,
        "iss": issuer.public,
        "name": name,
        "sub": subject,
        "nats": body,
        **claims,
    }
    told["jti"] = base64.b32encode(hashlib.sha256(json.dumps(told).encode()).digest()).decode().rstrip("=")
    text = b".".join(
        _base64(json.dumps(each).encode()) for each in ({"typ": "JWT", "alg": "ed25519-nkey"}, told)
    )
    return f"{text.decode()}.{_base64(issuer.sign(text)).decode()}"


def _base64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


class Secured:
    """A nats-server with a configuration of the test's own."""

    def __init__(self, binary: str, folder: Path, configuration: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self.port = -1
        self.child: subprocess.Popen[bytes] | None = None
        self._binary = binary
        self.write(configuration)

    def write(self, configuration: str) -> None:
        """Replace the configuration; it counts from the next start or reload on."""
        text = (
            f'server_name: "s"\nlisten: "127.0.0.1:{self.port}"\n'
            f'jetstream {{ store_dir: "{self._folder}", max_file_store: 2GB, max_memory_store: 64MB }}\n'
        )
        (self._folder / "server.conf").write_text(text + configuration)

    def start(self) -> None:
        log = self._folder / "server.log"
        log.unlink(missing_ok=True)
        self.child = subprocess.Popen([self._binary, "-c", self._folder / "server.conf", "-l", log])
        until = time.monotonic() + LIMIT_S
        while not (log.exists() and b"Server is ready" in log.read_bytes()):
            assert self.child.poll() is None, "the server refuses its configuration: see stderr"
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.01)
        found = _READY.search(log.read_text())
        assert found is not None
        self.port = int(found[1])

    def reload(self, configuration: str) -> None:
        """Let the running server read another configuration."""
        assert self.child is not None
        self.write(configuration)
        self.child.send_signal(signal.SIGHUP)

    def freeze(self) -> None:
        """Stop it as SIGSTOP does; on return none of its threads runs."""
        assert self.child is not None
        self.child.send_signal(signal.SIGSTOP)
        threads, until = Path(f"/proc/{self.child.pid}/task"), time.monotonic() + LIMIT_S
        while any(_state(thread) != "T" for thread in threads.iterdir()):
            assert time.monotonic() < until, "the server does not stop"
            time.sleep(0.001)

    def stop(self) -> None:
        if self.child is not None:
            self.child.kill()
            self.child.wait(LIMIT_S)

    def url(self, scheme: str = "nats", host: str = "127.0.0.1") -> str:
        return f"{scheme}://{host}:{self.port}"


def _state(thread: Path) -> str:
    """Return the letter of a thread's state, as proc(5) has it."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


@contextlib.contextmanager
def secured(binary: str, folder: Path, configuration: str) -> Generator[Secured]:
    """Run a server for the length of the block."""
    server = Secured(binary, folder, configuration)
    try:
        server.start()
        yield server
    finally:
        server.stop()
