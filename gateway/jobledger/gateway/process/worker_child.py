"""The child *worker* as its gateway sees it, and its settings for webhooks."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from jobledger.gateway.hooks.addresses import networks
from jobledger.gateway.process.children import child, messages
from jobledger.gateway.process.messages import Setup
from jobledger.workers.processes.messages import Ready


class WebhookHost(msgspec.Struct, frozen=True, kw_only=True):
    """The settings for webhooks of the gateway's own worker."""

    allow_targets: tuple[str, ...] = ()  #: networks that deliveries may go to, beside the public internet
    key_file: Path | None = None  #: file of the key that unseals secrets

    def __post_init__(self) -> None:
        """Refuse texts that are no networks before anything is started. Raises: ConfigurationError."""
        networks(self.allow_targets)


class WorkerChild:
    """The child *worker*."""

    def __init__(self, setup: Setup, hosting: WebhookHost) -> None:
        key_file = "" if hosting.key_file is None else str(hosting.key_file.absolute())
        self._setup = msgspec.structs.replace(setup, allow_targets=hosting.allow_targets, key_file=key_file)

    async def run(self) -> None:
        """Keep one child, until it ends. Raises: ChildEndedError, OSError."""
        async with child("worker", self._setup) as running:
            async for message in messages(running):
                if isinstance(message, Ready):
                    logging.getLogger("jobledger.gateway.process").debug(
                        "the gateway's own worker takes jobs"
                    )
