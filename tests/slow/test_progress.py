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


def test_a_terminal_shows_what_is_waited_for_and_how_long(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_note.sql", "ALTER TABLE photos ADD note text;\n")
    topology = str(fleet_8.write())
    with fleet_8.connect("a") as holder:
        with holder.transaction():
            holder.execute("LOCK TABLE shard1.photos")
            held = on_terminal(
                "--topology", topology, "migrate", "--yes",
                "--lock-timeout", "2s", "--attempts", "2",
            )  # fmt: skip
        assert re.search(r"a  migrating  +\d/4 shards  waits \d s for a lock", held)
    assert "shardctl: node a" in held


def test_without_a_terminal_lines_come_now_and_then(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_slow.sql", SLOW)
    done = fleet_8.shardctl("migrate", "--yes", "--jobs", "1")
    lines = [line for line in done.stderr.splitlines() if line.startswith("progress: ")]
    assert done.returncode == 0, done.stderr
    assert 2 <= len(lines) <= 4
    assert re.fullmatch(r"progress: a: migrating, [\d]/4 shards.*; b: migrating, .*", lines[0])
    assert lines[-1] == ("progress: a: migrating, 4/4 shards, done; b: migrating, 4/4 shards, done")
    assert "\x1b" not in done.stderr


def test_sql_shows_progress_and_its_rows_are_whole(fleet_8: Fleet) -> None:
    topology = str(fleet_8.write())
    shown = on_terminal("--topology", topology, "sql", "SELECT pg_sleep(0.7)::text", "--jobs", "1")
    assert re.search(r"a  running  +\d/4 shards", shown)
    assert "8 rows from 8 shards on 2 nodes" in shown


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
