"""The reason of a failed connection in our words: what happened, at which server, what to do."""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any, Final, Literal

import nats.errors

from jobledger.ledger.model.errors import ConfigurationError
from jobledger.ledger.nats.access import Access, named

#: Kinds of failures: a server that `refused` exists, a `silent` one may exist, and nobody is there when `away`.
Kind = Literal["refused", "silent", "away"]
_KINDS: Final[tuple[Kind, ...]] = ("refused", "silent", "away")

#: OpenSSL's numbers of errors of a certificate.
_NOT_YET: Final = 9
_EXPIRED: Final = 10
_REVOKED: Final = 23
_OTHER_NAME: Final = (62, 64)


class ConnectFailedError(nats.errors.Error):
    """One attempt at one server failed; a subclass of nats-py's error, so that nats-py goes on with the next server."""

    def __init__(self, sentence: str, kind: Kind = "refused") -> None:
        self.kind = kind
        super().__init__(sentence)


def most_telling(failures: list[ConnectFailedError]) -> ConnectFailedError | None:
    """Return the failure that helps a person most; of equal ones the first."""
    return min(failures, key=lambda each: _KINDS.index(each.kind), default=None)


def failure(
    error: Exception, server: str, host: str, access: Access, info: dict[str, Any]
) -> ConnectFailedError:
    """Return the failure behind an exception of an attempt. `server`: its address without credentials; `info`: its own."""
    if isinstance(error, ConnectFailedError):
        return error
    if isinstance(error, ConfigurationError):
        return ConnectFailedError(str(error))
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectFailedError(f"{server} {_certificate(error, host)}")
    text = str(error).lower()
    if "authorization" in text or "authentication" in text:
        return ConnectFailedError(refused_login(server, access))
    if access.tls_cert and info.get("tls_verify") and isinstance(error, ssl.SSLError | ConnectionError):
        return ConnectFailedError(
            f"{server} refused the client certificate {access.tls_cert}: it must not have expired, "
            "and must be signed by who the server trusts"
        )
    if isinstance(error, ssl.SSLError):
        return ConnectFailedError(f"{server} and this client cannot agree on TLS: {error.reason or error}")
    return _without_tls(error, server, text)


def _without_tls(error: Exception, server: str, text: str) -> ConnectFailedError:
    if isinstance(error, TimeoutError):
        return ConnectFailedError(
            f"{server} did not answer in time: is it a nats-server, and is it well? (`jobledger doctor`)",
            "silent",
        )
    if isinstance(error, OSError) and "refused" in f"{type(error).__name__} {text}".lower():
        return ConnectFailedError(f"no server answers at {server}", "away")
    if isinstance(error, socket.gaierror):
        return ConnectFailedError(
            f"the host of {server} is not known: check its name, and the name service", "silent"
        )
    if "info message" in text:
        return ConnectFailedError(f"{server} does not speak as a nats-server does: is the port right?")
    if "maximum connections" in text:
        return ConnectFailedError(
            f"{server} takes no more clients: raise max_connections in its configuration"
        )
    return ConnectFailedError(f"cannot connect to {server}: {str(error) or type(error).__name__}", "silent")


def refused_login(server: str, access: Access) -> str:
    """Return the sentence on a server that refuses our login."""
    with contextlib.suppress(ConfigurationError):  # a missing file was reported before
        ended = access.signer().expired_at if access.creds else None
        if ended is not None:
            return f"{server} refused the credentials: those in {access.told()} expired at {ended:%Y-%m-%d %H:%M} UTC"
    what = access.told() or "user and password, or token, of the URL; or give creds, nkey, user or token"
    return f"{server} refused the credentials: check {what}, and that the server knows this user"


def _certificate(error: ssl.SSLCertVerificationError, host: str) -> str:
    """Return the fault of a server's certificate, as the words after "nats://host:port "."""
    code = error.verify_code
    if code == _EXPIRED:
        return "shows a certificate that has expired: renew it on the server"
    if code == _NOT_YET:
        return "shows a certificate whose time has not come: check the clock of this machine, then the certificate"
    if code == _REVOKED:
        return "shows a certificate that was revoked: renew it on the server"
    if code in _OTHER_NAME:
        return f"shows a certificate for other names than {host}: use one of its names in the URL, or renew it for this one"
    return f"shows a certificate that nobody we trust has signed ({error.verify_message}): name its CA with {named('tls_ca')}"


def check_tls(server: str, access: Access, info: dict[str, Any], *, wanted: bool, given: bool) -> None:
    """Refuse a server whose TLS does not fit our settings, before anything is sent to it.

    `wanted`: TLS was asked for; `given`: the application passed a context of its own, which may hold a certificate.

    Raises: ConnectFailedError.
    """
    if wanted and not (info.get("tls_required") or info.get("tls_available")):
        raise ConnectFailedError(
            f"{server} does not offer TLS, and nothing is sent to it without: configure tls on the server, "
            "or use nats:// and no tls_ca, tls_cert or tls_key"
        )
    if info.get("tls_verify") and not (access.tls_cert or given):
        raise ConnectFailedError(
            f"{server} lets in only clients with a certificate: name yours with {named('tls_cert')} and {named('tls_key')}"
        )
