"""`status` against real servers: what it says is what is there."""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.checks.status import observe
from shardctl.checks.status_look import State
from shardctl.fanout import Silent
from shardctl.hosts.local import Local
from tests.fixtures.servers.postgres import SUPERUSER, PgServer, free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.checks.status import Status
    from shardctl.checks.status_look import NodeStatus
    from tests.fixtures.fleets.fleet import Fleet

PHOTOS_OF = "INSERT INTO shard{0}.photos (user_id) SELECT g FROM generate_series(1, {1}) AS g"


def look(one: Fleet, *, sample_s: float = 0) -> dict[str, NodeStatus]:
    seen = observe(one.topology(), sample_s=sample_s, progress=Silent())
    return {node.name: node for node in seen.nodes}


def states(line: str) -> dict[str, str]:
    return {node["name"]: node["state"] for node in json.loads(line)["nodes"]}


def test_a_healthy_fleet_is_told_as_it_is(fleet_8: Fleet) -> None:
    seen = observe(fleet_8.topology(), sample_s=0, progress=Silent())
    version = fleet_8.query("a", "SHOW server_version")[0][0].split()[0]
    [(map_version,)] = fleet_8.query("a", "SELECT map_version FROM shardctl.cluster")
    assert abs((datetime.now(UTC) - seen.time).total_seconds()) < 30
    assert (seen.cluster, seen.map_version) == ("test", map_version)
    for node, shards in zip(seen.nodes, (range(4), range(4, 8)), strict=True):
        assert (node.state, node.role, node.version) == ("up", "primary", version)
        assert (node.owned, tuple(node.sizes)) == (tuple(shards), tuple(shards))
        assert node.error is None
        assert node.uptime_s is not None
        assert node.uptime_s > 0
        [(size,)] = fleet_8.query(node.name, "SELECT pg_database_size(current_database())")
        assert node.size_bytes == pytest.approx(size, rel=0.02)
        assert (node.tps, node.disk, node.retired) == (None, None, ())


def test_a_shards_size_is_that_of_all_its_relations_toast_and_indexes_too(fleet_8: Fleet) -> None:
    fleet_8.execute("b", "ALTER TABLE shard5.photos ADD COLUMN caption text")
    fleet_8.execute("b", "ALTER TABLE shard5.photos ALTER caption SET STORAGE EXTERNAL")
    before = look(fleet_8)["b"].sizes
    fleet_8.execute(
        "b",
        "INSERT INTO shard5.photos (id, user_id, caption)"
        " SELECT g, g, repeat('x', 10000) FROM generate_series(1, 200) AS g",
    )
    after = look(fleet_8)["b"].sizes
    # Every file of the tables and sequences; what is not counted is their small maps.
    [(all_files,)] = fleet_8.query(
        "b",
        "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class"
        " WHERE relnamespace = 'shard5'::regnamespace AND relkind IN ('r', 'S')",
    )
    size = after[fleet_8.topology().nodes["b"].shards[1]]  # type: ignore[index]  # NodeName
    assert size is not None
    assert size > 200 * 10_000
    assert all_files * 0.95 <= size <= all_files
    assert {shard for shard in after if after[shard] != before[shard]} == {5}


def test_sessions_are_those_of_clients_of_the_database_without_our_own(fleet_8: Fleet) -> None:
    def sessions() -> tuple[int | None, int | None]:
        node = look(fleet_8)["a"]
        return node.sessions, node.idle_in_transaction

    wait_for(lambda: sessions() == (0, 0))
    with fleet_8.connect("a"), fleet_8.connect("a", autocommit=False) as busy:
        busy.execute("SELECT 1")
        with fleet_8.servers["a"].connect("postgres"):
            assert sessions() == (2, 1)


def test_a_locked_table_is_not_waited_for_and_the_other_shards_are_measured(
    fleet_8: Fleet,
) -> None:
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("LOCK TABLE shard2.photos IN ACCESS EXCLUSIVE MODE")
        node = look(fleet_8)["a"]
        assert node.state is State.up
        assert [shard for shard, size in node.sizes.items() if size is None] == [2]
    assert None not in look(fleet_8)["a"].sizes.values()


@pytest.fixture
def standby(fleet_8: Fleet, server_directory: Path) -> Iterator[PgServer]:
    """Clone node a's server into a standby with a slot."""
    primary = fleet_8.servers["a"].server
    data = server_directory / "standby" / "data"
    data.parent.mkdir()
    data.parent.chmod(0o777)
    arguments = ["-h", primary.host, "-p", str(primary.port), "-U", SUPERUSER, "-D", str(data)]
    arguments += ["-R", "-C", "-S", "of_standby", "--checkpoint=fast", "--no-sync"]
    Local().run([primary.binaries.program("pg_basebackup"), *arguments], user=primary.account)
    copy = PgServer(
        dataclasses.replace(primary, name="copy", port=free_ports(1)[0], data_directory=data)
    )
    copy.start()
    yield copy
    copy.stop("immediate")
    wait_for(lambda: not slot_is_active(fleet_8))
    fleet_8.execute("a", "SELECT pg_drop_replication_slot('of_standby')")


def slot_is_active(one: Fleet) -> bool:
    return bool(one.query("a", "SELECT active FROM pg_replication_slots")[0][0])


def test_a_standbys_lag_is_told_in_bytes_and_it_says_that_it_is_one(
    fleet_8: Fleet, standby: PgServer
) -> None:
    def lag() -> int | None:
        return look(fleet_8)["a"].standbys[0].lag_bytes

    wait_for(lambda: look(fleet_8)["a"].standbys)
    wait_for(lambda: lag() == 0)
    with standby.connect() as connection:
        connection.execute("SELECT pg_wal_replay_pause()")
    fleet_8.execute("a", PHOTOS_OF.format(0, 2000))
    seen = look(fleet_8)["a"]
    [one], [slot] = seen.standbys, seen.slots
    assert (one.name, one.state) == ("copy", "streaming")
    assert one.lag_bytes is not None
    assert one.lag_bytes > 2000 * 20
    assert (slot.name, slot.active) == ("of_standby", True)
    with standby.connect() as connection:
        connection.execute("SELECT pg_wal_replay_resume()")
    wait_for(lambda: lag() == 0)

    primaries = fleet_8.servers
    fleet_8.servers = {"a": standby, "b": primaries["b"]}
    of_copy = look(fleet_8)["a"]
    fleet_8.servers = primaries
    assert (of_copy.state, of_copy.role, len(of_copy.sizes)) == ("up", "standby", 4)


def test_a_node_that_is_down_is_a_row_and_the_others_are_told(fleet_8: Fleet) -> None:
    with fleet_8.at_ports(b=free_ports(1)[0]):
        seen = look(fleet_8, sample_s=0.01)
        done = fleet_8.here("status", "--sample", "0")
        as_json = fleet_8.here("status", "--sample", "0", "-o", "json")
    assert (seen["a"].state, seen["b"].state) == ("up", "down")
    assert seen["a"].tps is not None
    assert seen["b"].owned == (4, 5, 6, 7)
    assert "refused" in (seen["b"].error or "")
    assert (done.returncode, as_json.returncode) == (1, 1)
    assert any(line.split()[:2] == ["b", "down"] for line in done.stdout.splitlines())
    assert "4-7" in done.stderr
    assert states(as_json.stdout) == {"a": "up", "b": "down"}


def test_before_init_there_is_no_map_and_no_shard(fleet_8: Fleet) -> None:
    for node in "ab":
        fleet_8.execute(node, "DROP SCHEMA shardctl CASCADE")
    seen: Status = observe(fleet_8.topology(), sample_s=0, progress=Silent())
    assert seen.map_version is None
    assert {node.state for node in seen.nodes} == {"up"}
    assert fleet_8.here("status", "--sample", "0").returncode == 0


def test_looking_takes_as_many_questions_for_one_shard_as_for_four(
    fleet_8: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    execute = psycopg.Connection.execute

    def counted(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        asked.append(query)
        return execute(self, query, *arguments, **options)

    fleet_8.shards = {"a": "0-6", "b": "7"}  # what lives where does not matter here
    topology = fleet_8.topology()
    monkeypatch.setattr(psycopg.Connection, "execute", counted)
    numbers = []
    for node in topology.nodes.values():
        asked.clear()
        only = dataclasses.replace(topology, nodes={node.name: node})
        observe(only, sample_s=0, progress=Silent())
        numbers.append(len(asked))
    assert numbers[0] == numbers[1] > 0
