"""Progress of commands, on a terminal and without one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from tests.fixtures.terminal import in_turn, on_terminal
from tests.integration.test_move_progress import begin

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

SLOW = "ALTER TABLE photos ADD note text;\nSELECT pg_sleep(0.7);\n"


def test_a_terminal_shows_phase_and_count_of_each_node(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_slow.sql", SLOW)
    shown = on_terminal("--topology", str(fleet_8.write()), "migrate", "--yes", "--jobs", "1")
    for node in "ab":
        assert re.search(rf"{node}  migrating  +\d/4 shards", shown)
    assert "done: 8 shards on 2 nodes" in shown


@pytest.mark.parametrize("width", [60, 100, 160])
def test_answers_and_plans_are_whole_in_a_terminal(fleet_8: Fleet, width: int) -> None:
    found: list[str] = []
    fleet_8.migration("0002_a_migration_with_a_long_name_for_a_column.sql", "SELECT 1;\n")
    with fleet_8.connect("a") as session:
        begin(session, [0, 2])
        topology = str(fleet_8.write())
        commands = ("migrate --dry-run", "status --sample 0", "moves list", "moves show")
        for shown in in_turn(topology, commands, width=width):
            assert shown.strip()
            assert "…" not in shown
            assert max(map(cell_len, re.split(r"[\r\n]+", shown))) <= width
            found.append("".join(shown.split()))
    assert len(found) == len(commands)
    assert "0002_a_migration_with_a_long_name_for_a_column.sql" in found[0]
