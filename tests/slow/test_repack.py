"""`repack`: what it chooses and refuses, and that tables are as they were, but smaller."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.fanout import Silent
from shardctl.maintenance import repack
from shardctl.maintenance.repack import Options
from tests.fixtures.fleets.fleet import Fleet, command_line, open_move
from tests.fixtures.fleets.verify import told, verify
from tests.fixtures.processes import ended
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.maintenance.repack import Plan, Repack
    from tests.fixtures.servers.postgres import PgServer

TABLES = """
CREATE TABLE photos (id bigint PRIMARY KEY, user_id bigint NOT NULL, about text);
CREATE INDEX photos_of_user ON photos (user_id, id);
"""
FILL = """
INSERT INTO shard{0}.photos SELECT n, 8000 - n, repeat('x', 200) FROM generate_series(1, 8000) n
    ORDER BY md5(n::text);
DELETE FROM shard{0}.photos WHERE id % 4 <> 0;
"""
LEFT = """
SELECT relname::text FROM pg_class WHERE relnamespace = 'repack'::regnamespace AND relkind = 'r'
UNION ALL SELECT typname::text FROM pg_type
WHERE typnamespace = 'repack'::regnamespace AND typname ~ '^pk_'
UNION ALL SELECT tgname::text FROM pg_trigger WHERE tgname = 'repack_trigger'
"""
"""What of pg_repack's is in a database and not the extension's."""
COPIED = """
SELECT FROM pg_class AS c, pg_index AS i
WHERE c.relnamespace = 'repack'::regnamespace AND c.relname ~ '^table_'
  AND i.indrelid = c.oid AND i.indisvalid
"""
"""Whether pg_repack has made its copy of a table, and waits for old transactions."""
AT_WORK = "SELECT FROM pg_stat_activity WHERE application_name = 'pg_repack'"


class Bloated(Fleet):
    """Two nodes with the extension, and four shards each, `shard0` to `shard3` on a."""

    def bloat(self, shard: int) -> None:
        """Fill the table, and delete three rows of four; ANALYZE knows."""
        node = "a" if shard < 4 else "b"
        self.execute(node, FILL.format(shard))
        self.execute(node, f"VACUUM ANALYZE shard{shard}.photos")

    def size(self, shard: int) -> int:
        ((size,),) = self.query("a", f"SELECT pg_total_relation_size('shard{shard}.photos')")
        return int(size)

    def filenode(self, shard: int) -> int:
        """Give the number of the file in which the table is: another one after a repack."""
        query = f"SELECT pg_relation_filenode('shard{shard}.photos')::bigint"
        ((number,),) = self.query("a", query)
        return int(number)

    def rows(self, shard: int) -> list[Any]:
        return self.query("a", f"SELECT * FROM shard{shard}.photos ORDER BY 1, 2")

    def planned(self, *shards: int, wait_timeout_s: int = 5) -> Plan:
        """Plan a repack."""
        options = Options(
            min_bloat=0.2,
            recent_s=7 * 86_400,
            jobs=1,
            wait_timeout_s=wait_timeout_s,
            terminate=False,
            superuser_check=True,
        )
        topology = self.topology()
        return repack.plan(topology, shards or topology.owners(), options)

    def done(self, plan: Plan) -> Repack:
        return repack.Repack(self.topology(), plan, Silent(), print).carry_out()

    def events(self) -> list[str]:
        query = "SELECT result FROM shardctl.event WHERE command = 'repack' ORDER BY id"
        return [result for (result,) in self.query("a", query)]


@pytest.fixture
def fleet(two_servers: dict[str, PgServer], tmp_path: Path) -> Iterator[Bloated]:
    """Give a fleet whose tables are empty, where the servers have pg_repack."""
    with two_servers["a"].connect() as session:
        query = "SELECT FROM pg_available_extensions WHERE name = 'pg_repack'"
        if not session.execute(query).fetchall():
            pytest.skip("pg_repack is not installed here")
    made = Bloated(tmp_path, two_servers, "repack", "repack")
    made.migration("0001_photos.sql", TABLES)
    made.copy()
    for node in made.servers:
        made.execute(node, "CREATE EXTENSION pg_repack; ANALYZE")
    yield made
    made.drop()


def test_it_gives_space_back_and_changes_no_row(fleet: Bloated) -> None:
    fleet.bloat(2)
    before, rows = fleet.size(2), fleet.rows(2)
    done = fleet.here("repack", "2", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    (told,) = json.loads(done.stdout)["tables"]
    assert fleet.rows(2) == rows
    assert fleet.size(2) < before / 3
    assert (told["state"], told["size_bytes"], told["after_bytes"]) == (
        "repacked", before, fleet.size(2),
    )  # fmt: skip
    # The estimate was made before; it leaves out TOAST and the other forks.
    assert abs(before - fleet.size(2) - told["bloat_bytes"]) < 0.1 * before
    assert fleet.query("a", LEFT) == []
    sizes = f"{before} -> {fleet.size(2)} bytes"
    assert fleet.events() == [
        f"repacked file {fleet.filenode(2)}: shard2.photos, {sizes}",
        "done: 1 of 1 tables",
    ]


def test_a_table_in_use_is_given_up_and_its_user_left_alone(fleet: Bloated) -> None:
    fleet.bloat(0)
    fleet.bloat(5)  # on the other node: here it would wait for the reader's transaction
    file = fleet.filenode(0)
    plan = fleet.planned(wait_timeout_s=1)
    with fleet.connect("a", autocommit=False) as reader:
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
        result = fleet.done(plan)
        reader.execute("SELECT FROM shard0.photos LIMIT 1")
    assert result.error is not None
    assert result.error.exit_code == 3
    assert len(result.left) == 1
    assert [one.full_name for one in result.after] == ["shard5.photos"]
    assert fleet.filenode(0) == file
    assert fleet.query("a", LEFT) == []
    assert fleet.events()[-1] == "unfinished: 0 of 1 tables"
    # It does only the rest.
    assert [one.full_name for one in fleet.planned().of("repack")] == ["shard0.photos"]
    assert fleet.done(fleet.planned()).error is None


_VERSION = """
CREATE OR REPLACE FUNCTION repack.{}() RETURNS text LANGUAGE sql AS $$SELECT 'pg_repack 1.4.7'$$
"""


def test_what_keeps_the_extension_from_its_work_is_refused(fleet: Bloated) -> None:
    fleet.execute("b", "DROP EXTENSION pg_repack")
    with raises_code("extension_missing", match="node b"):
        fleet.planned()
    # Shards of other nodes are none of its business.
    assert fleet.here("repack", "0-3", "--dry-run").returncode == 0
    # What pg_repack refuses itself leaves the table as it was, with its reason.
    fleet.bloat(0)
    fleet.execute("a", _VERSION.format("version"))
    (why,) = fleet.done(fleet.planned(0)).left.values()
    assert "'pg_repack 1.4.7'" in why


def test_a_table_that_pg_repack_cannot_repack_is_left_with_its_reason(fleet: Bloated) -> None:
    fleet.execute("a", "CREATE TABLE shard0.keyless AS SELECT generate_series(1, 9) AS id")
    fleet.execute("a", "CREATE UNLOGGED TABLE shard0.unlogged (id bigint PRIMARY KEY)")
    done = fleet.here("repack", "0", "--min-bloat", "0", "--yes", "-o", "json")
    assert done.returncode == 3, done.stderr
    told = {one["table"]: one["reason"] for one in json.loads(done.stdout)["tables"]}
    assert told["photos"] is None
    assert "primary key" in told["keyless"]
    assert "unlogged" not in told


def test_a_role_that_is_no_superuser_gets_what_pg_repack_prints(fleet: Bloated) -> None:
    fleet.bloat(0)
    fleet.execute("a", "CREATE ROLE plain LOGIN")
    fleet.execute("a", "GRANT pg_read_all_data, pg_read_all_settings TO plain")
    fleet.execute("a", "GRANT USAGE ON SCHEMA repack TO plain")
    fleet.execute("a", f"GRANT CONNECT ON DATABASE {fleet.database} TO plain")
    topology = fleet.topology()
    database = dataclasses.replace(topology.database, user="plain")
    try:
        plain = dataclasses.replace(topology, database=database)
        plan = repack.plan(plain, [0], fleet.planned(0).options)
        (why,) = repack.Repack(plain, plan, Silent(), print).carry_out().left.values()
        assert "must be a superuser" in why
    finally:
        fleet.execute("a", "DROP OWNED BY plain")
        fleet.execute("a", "DROP ROLE plain")


def test_owners_that_are_disputed_and_a_move_that_has_not_ended_are_refused(fleet: Bloated) -> None:
    fleet.bloat(0)
    plan = fleet.planned()
    file = fleet.filenode(0)
    fleet.execute("a", "UPDATE shardctl.map SET node = 'b' WHERE shard = 2")
    with raises_code("owners_disputed", match="shards 2"):
        fleet.planned()
    fleet.execute("a", "UPDATE shardctl.map SET node = 'a' WHERE shard = 2")
    with fleet.connect("a") as session:
        open_move(session, "5f3a9c1e", [2], way=("a", "c"))
    with raises_code("move_unfinished", match="5f3a9c1e"):
        fleet.planned()
    with raises_code("move_unfinished", match="5f3a9c1e"):
        fleet.done(plan)
    fleet.planned(4, 5)  # of node b, which has no part in it
    assert fleet.filenode(0) == file


def test_shardctl_killed_leaves_what_verify_finds(fleet: Bloated) -> None:
    """With an old transaction open, pg_repack stops where everything of its own is there."""
    fleet.bloat(0)
    with fleet.connect("a", autocommit=False) as old:
        old.execute("SELECT 1")
        command = command_line(fleet.write(), "repack", "--yes", "0")
        environment = os.environ | {"XDG_STATE_HOME": str(fleet.directory / "state")}
        with ended(
            subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        ):
            wait_for(lambda: fleet.query("a", COPIED))
            assert verify(fleet, "leftovers") == [], "it is at work"
        # Its output has no reader any more, so it ends when it prints next.
        wait_for(lambda: fleet.query("a", AT_WORK) == [])
        fleet.execute("a", "INSERT INTO shard0.photos VALUES (1000001, 1, 'new')")
        fleet.execute("a", "DELETE FROM shard0.photos WHERE id = 8")
        old.rollback()
    (finding,) = verify(fleet, "leftovers")
    assert told([finding]) == [("leftovers", "repack_left", "a", (0,), "shard0.photos")]
    # Drop what is left as the how-to says, and repeat the command: nothing is lost.
    (why,) = fleet.done(fleet.planned(0)).left.values()
    assert "already has a trigger" in why
    fleet.execute("a", "DROP EXTENSION pg_repack CASCADE; CREATE EXTENSION pg_repack")
    rows, file = fleet.rows(0), fleet.filenode(0)
    done = fleet.here("repack", "0", "--yes")
    assert done.returncode == 0, done.stderr
    assert (fleet.rows(0), fleet.filenode(0) != file) == (rows, True)
    assert verify(fleet, "leftovers") == []
