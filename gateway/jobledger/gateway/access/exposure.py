"""Rules for the address of a gateway: beyond this machine it needs a log-in, and https. Pure."""

from __future__ import annotations

from jobledger.ledger.model.errors import ConfigurationError


def may_listen(*, is_loopback: bool, has_login: bool, tls: bool, behind_proxy: bool) -> None:
    """Refuse an address that would let in everybody, or show keys to whoever listens in.

    `has_login`: there is a key that can be used, or a proxy or a provider says who people are. `behind_proxy`: a proxy in
    front of the gateway speaks https with the clients.

    Raises: ConfigurationError, one sentence.
    """
    if is_loopback and not behind_proxy:
        return
    if not has_login:
        raise ConfigurationError(
            "without a key everybody who reaches this address could do everything: make one with "
            "`jobledger keys create NAME --role admin`, or listen on 127.0.0.1 without a proxy"
        )
    if not (tls or behind_proxy):
        raise ConfigurationError(
            "beyond this machine keys must not be sent in the clear: give --https-cert and --https-key, or "
            "--behind-proxy ADDRESSES where a proxy speaks https with the clients"
        )
