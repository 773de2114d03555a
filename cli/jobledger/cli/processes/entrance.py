"""The log-in of the account that runs a gateway, while the ledger has no keys: an address, and a file for programs.

The address holds the account's key. It is shown on a terminal only: other output is kept in journals that others may
read. A browser gets it in a file, since all accounts of a machine can see the arguments of a process.
"""

from __future__ import annotations

import contextlib
import html
import os
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import msgspec

from jobledger.cli.output import Output
from jobledger.cli.session import data_folder
from jobledger.ledger.access.account import read_account_key
from jobledger.ledger.files import write_whole

#: A page that redirects at once, without a script or a click.
_PAGE: Final = """<!doctype html>
<meta charset="utf-8"><meta name="referrer" content="no-referrer">
<meta http-equiv="refresh" content="0;url={address}"><title>jobledger</title>
<p><a href="{address}">Open the dashboard</a></p>
"""


class Entrance(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The address of a gateway, and the file by which the account logs in; fields as in `--json`."""

    gateway: str  #: address of the gateway
    key_file: str = ""  #: the file with the account's key; "": the gateway takes none

    @property
    def address(self) -> str:
        """The address that a person opens, with the key if stdout is a terminal. Raises: ConfigurationError."""
        return self._whole if self.key_file and sys.stdout.isatty() else self.gateway

    @property
    def command(self) -> str:
        """A command that asks the gateway, as the account, for the account's rights."""
        return f"curl -H {shlex.quote(f'@{self.key_file}')} {self.gateway}/v1/me"

    @property
    def _whole(self) -> str:
        return f"{self.gateway}/login?token={read_account_key(Path(self.key_file))}"

    def say(self, output: Output) -> None:
        """Print how to log in, if that needs the account's key."""
        if self.key_file:
            if self.address != self.gateway:
                output.say(f"in a browser: {self.address}")
            output.say(f"for programs: `{self.command}`")

    @contextlib.contextmanager
    def shown(self, *, browser: bool) -> Generator[None, None, None]:
        """Open the address in a browser if there is a screen; the file for that is deleted after the block."""
        opener = _opener() if browser and self.key_file and sys.stdout.isatty() else None
        if opener is None:
            yield
            return
        page = data_folder() / f"gateway-{os.getpid()}.html"
        try:
            with contextlib.suppress(OSError):  # the address was printed
                write_whole(page, _PAGE.format(address=html.escape(self._whole)).encode())
                _start(opener, page)
            yield
        finally:
            page.unlink(missing_ok=True)


def _opener() -> str | None:
    """Return the program that shows a file on this machine's screen, None without a screen or a program."""
    if sys.platform == "darwin":
        return None if "SSH_CONNECTION" in os.environ else shutil.which("open")
    has_screen = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    return shutil.which("xdg-open") if has_screen else None


def _start(opener: str, page: Path) -> None:
    """Start the program; a thread waits for its end, which may come only when the browser ends."""
    quiet: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen([opener, str(page)], start_new_session=True, **quiet)  # noqa: S603 - the system's own
    threading.Thread(target=process.wait, daemon=True).start()
