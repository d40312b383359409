"""A journal that was dropped by hand, and the slot of a move that only it knew."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.moves.stopping import MovingFleet as MovedFleet

SLOT = "shardctl_5f3a9c1e"
TABLES = [
    f"shardctl.{table}"
    for table in ("event", "move", "move_progress", "move_step", "stream", "stream_copy")
]


@pytest.fixture
def orphaned(fleet_spares: MovedFleet) -> Iterator[MovedFleet]:
    """Give a fleet whose node a has a move's slot and no journal."""
    fleet_spares.execute("a", f"SELECT pg_create_physical_replication_slot('{SLOT}', true)")
    fleet_spares.execute("a", f"DROP TABLE {', '.join(TABLES)}")
    yield fleet_spares
    fleet_spares.execute(
        "a", "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
    )


@pytest.mark.long
def test_verify_names_slot_and_tables_and_another_node_has_them(orphaned: MovedFleet) -> None:
    found = {(f.code, f.object): f for f in verify(orphaned) if f.check == "leftovers"}
    assert set(found) == {("slot_inactive", SLOT), *(("table_missing", table) for table in TABLES)}
    assert str(SLOT) in found["slot_inactive", SLOT].hint
    assert orphaned.here("move-shards", "2-3", "--to", "c", "--dry-run").returncode == 1
    left_out = orphaned.here("init", "--without-poolers", "--dry-run")
    assert left_out.returncode == 3
    assert "shardctl.move" in left_out.stderr

    servers, program = orphaned.servers, orphaned.servers["b"].server.binaries.program
    at = [f"host=127.0.0.1 port={servers[n].port} user={servers[n].user} dbname={orphaned.database}"
          for n in "ba"]  # fmt: skip
    dump = [program("pg_dump"), "--schema-only", "--no-owner", *(f"--table={t}" for t in TABLES)]
    made = subprocess.run([*dump, at[0]], capture_output=True, check=True).stdout
    psql = [program("psql"), "--single-transaction", "--set=ON_ERROR_STOP=1", "--quiet", at[1]]
    subprocess.run(psql, input=made, check=True)
    assert {f.code for f in verify(orphaned) if f.check == "leftovers"} == {"slot_inactive"}
    assert orphaned.here("init", "--dry-run", "--without-poolers").returncode == 0
    indexes = "SELECT indexname FROM pg_indexes WHERE tablename = 'move' ORDER BY 1"
    assert orphaned.query("a", indexes) == orphaned.query("b", indexes)


def test_a_command_that_looks_for_a_move_says_that_the_journal_is_missing(
    orphaned: MovedFleet,
) -> None:
    for words in (["resume"], ["abort", "--yes"]):
        done = orphaned.here("moves", *words)
        assert done.returncode == 2
        assert "shardctl.move" in done.stderr
