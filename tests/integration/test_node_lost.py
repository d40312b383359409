"""`node lost`: the shards of a destroyed node get another owner, restored or empty."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

from shardctl.postgres import binaries
from shardctl.topology import loader
from tests.fixtures.fleets.joining import lose

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

PROGRAMS = binaries.find(None, account=None).directory
LOST = ("node", "lost", "b", "--to", "a")


def refused(fleet: Fleet, *arguments: str, code: int = 1) -> str:
    before = fleet.file.read_bytes()
    done = fleet.here_as_written(*arguments, "--yes", "-o", "json")
    assert done.returncode == code, done.stderr
    assert fleet.file.read_bytes() == before
    assert json.loads(done.stdout)["errors"][0]["hint"]
    return done.stderr


def test_shards_are_created_empty_and_the_lost_node_goes(fleet_8: Fleet) -> None:
    assert "so it is not lost" in refused(fleet_8, *LOST)
    lose(fleet_8, "b")
    planned = fleet_8.here_as_written(*LOST, "--dry-run", "-o", "json")
    assert planned.returncode == 0, planned.stderr
    assert "note: shards 4-7 are created empty: their rows are given up" in planned.stderr
    done = fleet_8.here_as_written(*LOST, "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["changes"] == json.loads(planned.stdout)["changes"]
    topology = loader.load(fleet_8.file)
    assert [len(node.shards) for node in topology.nodes.values()] == [8, 0]
    assert fleet_8.query("a", "SELECT DISTINCT node FROM shardctl.map") == [("a",)]
    assert fleet_8.query("a", "SELECT map_version FROM shardctl.cluster") == [(2,)]
    assert fleet_8.query("a", "SELECT count(*) FROM shard7.photos") == [(0,)]
    again = fleet_8.here_as_written(*LOST, "--yes")
    assert again.returncode == 0, again.stderr
    assert "nothing to do: node b owns no shards" in again.stdout
    removed = fleet_8.here_as_written("node", "remove", "b", "--lost", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert list(loader.load(fleet_8.file).nodes) == ["a"]
    assert "nothing to do" in fleet_8.here_as_written("init").stdout
    assert "only node" in refused(fleet_8, "node", "remove", "a")


def test_restored_shards_are_adopted_with_ids_above_all_earlier_ones(fleet_8: Fleet) -> None:
    b, a = fleet_8.servers["b"], fleet_8.servers["a"]
    insert = "INSERT INTO shard5.photos (user_id) VALUES (13) RETURNING id"
    fleet_8.query("b", insert)
    at = ["-h", "127.0.0.1", "-U", "postgres", "-d", fleet_8.database]
    dump = subprocess.run(
        [
            PROGRAMS / "pg_dump",
            *at,
            "-p",
            str(b.port),
            "--schema",
            "shard5",
            "--no-comments",
        ],
        check=True,
        capture_output=True,
    )
    last = fleet_8.query("b", insert)[0][0]  # an id that the dump does not know
    lose(fleet_8, "b")
    subprocess.run(
        [
            PROGRAMS / "psql",
            *at,
            "-p",
            str(a.port),
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-1",
        ],
        check=True,
        capture_output=True,
        input=dump.stdout,
    )
    said = refused(fleet_8, *LOST)
    assert "shard5" in said
    done = fleet_8.here_as_written(*LOST, "--adopt", "--yes")
    assert done.returncode == 0, done.stderr
    assert "note: shards 4,6-7 are created empty" in done.stderr
    assert fleet_8.query("a", "SELECT count(*) FROM shard5.photos") == [(1,)]
    assert fleet_8.query("a", insert)[0][0] > last
    ran = fleet_8.query("a", "SELECT count(*) FROM shardctl.migration WHERE shard = 5")
    assert ran == [(1,)]
    assert "nothing to do" in fleet_8.here_as_written("init").stdout


def test_a_run_that_stopped_half_way_is_finished(fleet_8: Fleet) -> None:
    text = fleet_8.file.read_text()
    lose(fleet_8, "b")
    text = fleet_8.file.read_text().replace("'0-3'", "'0-7'").replace("'4-7'", "none")
    fleet_8.file.write_text(text)  # killed behind the first change
    assert fleet_8.here_as_written("init").returncode == 1
    done = fleet_8.here_as_written(*LOST, "--yes")
    assert done.returncode == 0, done.stderr
    assert fleet_8.query("a", "SELECT DISTINCT node FROM shardctl.map") == [("a",)]
    assert "nothing to do" in fleet_8.here_as_written("init").stdout


def test_bad_names_are_refused(fleet_8: Fleet) -> None:
    assert "unknown node 'x'" in refused(fleet_8, "node", "lost", "x", "--to", "a", code=2)
    assert "unknown node 'x'" in refused(fleet_8, "node", "lost", "a", "--to", "x", code=2)
    assert "cannot replace itself" in refused(fleet_8, "node", "lost", "a", "--to", "a", code=2)
