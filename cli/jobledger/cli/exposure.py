"""The address where a process shows its metrics, from the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from jobledger.cli.errors import UsageError

if TYPE_CHECKING:
    from prometheus_client.registry import Collector

    from jobledger.ledger.metrics.server import Health, MetricsServer

LOOPBACK: Final = "127.0.0.1"
_PORT_MAX: Final = 65535


class Exposure(msgspec.Struct, frozen=True, kw_only=True):
    """Port, address and token of `/metrics`; without a port there is no such page."""

    port: int | None = None
    host: str = LOOPBACK
    token_file: Path | None = None

    def check(self, processes: int) -> None:
        """Refuse a port that leaves no room for this many processes.

        Raises: UsageError.
        """
        if self.port is not None and self.port + processes - 1 > _PORT_MAX:
            message = (
                f"--metrics-port {self.port}: {processes} processes need {processes} ports from there on"
            )
            raise UsageError(message)

    def variables(self, place: int) -> dict[str, str]:
        """Return the variables that give the worker process at `place`, from 0 on, its own port."""
        if self.port is None:
            return {}
        found = {
            "JOBLEDGER_METRICS_PORT": str(self.port + place if self.port else 0),
            "JOBLEDGER_METRICS_HOST": self.host,
        }
        return (
            found
            if self.token_file is None
            else {**found, "JOBLEDGER_METRICS_TOKEN_FILE": str(self.token_file)}
        )

    def server(self, collected: Collector, health: Health) -> MetricsServer:
        """Return the server, listening; it answers for the length of a `with` block.

        Raises: ConfigurationError, PortInUseError.
        """
        # Imported here, so that a process without metrics does not load it.
        from jobledger.ledger.metrics.server import MetricsServer, read_token  # noqa: PLC0415

        assert self.port is not None, "somebody asked for metrics"
        token = None if self.token_file is None else read_token(self.token_file)
        return MetricsServer(collected, health, host=self.host, port=self.port, token=token)
