"""What `connect` can be told of tables can be told to the processes that run jobs: by option and by variable."""

from __future__ import annotations

from typing import Any

import pytest
import typer

from jobledger.cli.main import program
from jobledger.cli.options import TABLES
from jobledger.cli.processes.supervise import environment_of_child
from jobledger.cli.session import Target
from jobledger.ledger import LedgerConfig


@pytest.mark.parametrize("name", ["worker", "gateway", "up"])
def test_every_setting_of_tables_has_an_option_and_a_variable(name: str) -> None:
    known = {field for field in LedgerConfig.__struct_fields__ if field.startswith("tables_")}
    assert set(TABLES) == known
    whole: Any = typer.main.get_command(program())
    command = whole.commands[name]
    found = {each.name: each.envvar for each in command.params if each.name in known}
    assert found == {
        "tables_at": "JOBLEDGER_TABLES",
        "tables_life_s": "JOBLEDGER_TABLES_LIFE_S",
        "tables_bytes_max": "JOBLEDGER_TABLES_BYTES_MAX",
    }


def test_the_processes_of_a_supervisor_are_told_them() -> None:
    target = Target(url="nats://u:1", tables={"tables_at": "file:///t", "tables_life_s": 60.0})
    told = environment_of_child(target)
    assert (told["JOBLEDGER_TABLES"], told["JOBLEDGER_TABLES_LIFE_S"]) == ("file:///t", "60.0")
