"""The address that a gateway listens on: its socket, and the certificate that it shows there."""

from __future__ import annotations

import contextlib
import ipaddress
import resource
import socket
import ssl
from pathlib import Path
from typing import Final

from jobledger.ledger.files import refuse_unfit
from jobledger.ledger.model.errors import ConfigurationError, PortInUseError

BACKLOG: Final = 2_048
FILES_MAX: Final = 1 << 16  #: the most files that a process needs


def listen(host: str, port: int, *, is_shared: bool = False, option: str = "--port") -> socket.socket:
    """Return a socket that listens on an address; port 0 takes a free one.

    `is_shared`: other processes of ours bind it, too, and it does not listen yet. `option`: the one that names another
    port.

    Raises: ConfigurationError for a wrong address, PortInUseError.
    """
    family, address = _address(host, port)
    found = socket.socket(family, socket.SOCK_STREAM)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        found.bind(address)
        if not is_shared:  # until a socket listens, others can bind the same port
            found.listen(BACKLOG)
    except OSError as error:
        found.close()
        message = (
            f"{host} port {port} cannot be listened on ({error.strerror}): choose another one with {option}"
        )
        raise PortInUseError(message) from error
    return found


def raise_file_limit() -> int:
    """Let this process open as many files as it is allowed to (a connection is a file); return their number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(hard, FILES_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return FILES_MAX if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):  # some systems have a lower limit than they report
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def inherited(descriptor: int) -> socket.socket:
    """Return the socket on which the process that started this one listens. Raises: ConfigurationError."""
    try:
        found = socket.socket(fileno=descriptor)
    except OSError as error:
        message = f"{descriptor} is no socket: only the command that starts a gateway can give one"
        raise ConfigurationError(message) from error
    found.set_inheritable(False)  # our own child processes must not keep the port
    return found


def _address(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{host!r} is no address to listen on: {error}") from error
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def is_loopback(bound: socket.socket) -> bool:
    """Return whether only this machine reaches a socket."""
    return ipaddress.ip_address(str(bound.getsockname()[0]).partition("%")[0]).is_loopback


def url_of(bound: socket.socket, *, https: bool) -> str:
    """Return the URL of a socket for a browser."""
    host, port = bound.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if https else 'http'}://{shown}:{port}"


def check_certificate(certificate: Path, key: Path | None) -> None:
    """Refuse files that are no certificate and its key. Raises: ConfigurationError."""
    try:
        for each in (certificate, key):
            if each is not None:
                refuse_unfit(
                    each, links=True
                )  # OpenSSL would wait for the other end of a pipe, and ignore signals
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:  # SSLError is an OSError, but with less to say
        what = f"{certificate}" if key is None else f"{certificate} and {key}"
        raise ConfigurationError(f"{what} are no certificate and its key, in PEM: {error}") from error
