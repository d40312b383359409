"""Pages about nodes and single shards, command by command, on servers that are killed."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from shardctl.topology import loader
from tests.fixtures.fleets.pooled import offered
from tests.fixtures.fleets.typed import SAFE
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.fleets.typed import Typist
    from tests.fixtures.servers.postgres import StartServer

INSERT = "INSERT INTO {}.photos (user_id) VALUES (13) RETURNING id"

pytestmark = pytest.mark.timeout(600)


def insert(typist: Typist, node: str, shard: str = "shard5") -> int:
    return int(typist.fleet.query(node, INSERT.format(shard))[0][0])


def served(typist: Typist, shard: str = "shard5") -> int:
    """Insert as a client does, by the pooler, and give the id."""
    with typist.fleet.pg_bouncer.connect(shard) as session:
        row = session.execute("INSERT INTO photos (user_id) VALUES (13) RETURNING id").fetchone()
    assert row is not None
    return int(row[0])


def unchanged(typist: Typist) -> None:
    done = typist.fleet.here_as_written("init")
    assert "nothing to do" in done.stdout, done.stdout + done.stderr


def test_a_lost_nodes_standby_takes_over(typist: Typist) -> None:
    standby = typist.copy("b", "10.0.0.4", standby=True)
    standby.start()
    last = insert(typist, "b")
    query = "SELECT count(*) FROM shard5.photos"

    def arrived() -> bool:
        with standby.connect("app") as session:
            return session.execute(query).fetchone() == (2,)

    wait_for(arrived)
    typist.fleet.servers["b"].stop("immediate")
    typist.follow("node-lost.md", "standby")
    typist.edit("node-lost.md", "standby_node")
    typist.follow("node-lost.md", "standby_rest")
    assert offered(typist.fleet.pg_bouncer)["shard5"] == standby.port
    assert served(typist) > last
    unchanged(typist)


def test_a_lost_nodes_backup_is_restored(typist: Typist) -> None:
    backup = typist.copy("b", "10.0.0.5", standby=False)
    last = max(insert(typist, "b") for _ in range(3))  # behind the backup
    typist.fleet.servers["b"].stop("immediate")
    backup.start()
    typist.edit("node-lost.md", "backup_node")
    typist.follow("node-lost.md", "backup")
    assert served(typist) > last
    with backup.connect("app") as session:
        assert session.execute("SELECT count(*) FROM shard5.photos").fetchone() == (2,)
    unchanged(typist)


def test_a_lost_nodes_shards_go_to_another_node(typist: Typist) -> None:
    typist.follow("restore-a-shard.md", "dump")
    last = insert(typist, "b")
    typist.fleet.servers["b"].stop("immediate")
    said = "".join(typist.follow("node-lost.md", "dumps"))
    assert "shards 4,6-7 are created empty" in said
    assert list(loader.load(typist.fleet.file).nodes) == ["a"]
    assert served(typist) > last
    assert served(typist, "shard6")
    assert typist.fleet.query("a", "SELECT count(*) FROM shard5.photos") == [(2,)]
    assert typist.fleet.query("a", "SELECT count(*) FROM shard6.photos") == [(1,)]
    unchanged(typist)


def test_a_node_gets_another_name_while_clients_work(typist: Typist) -> None:
    with clients(typist) as errors:
        typist.follow("rename-a-node.md", "rename")
        assert list(loader.load(typist.fleet.file).nodes) == ["a", "berlin"]
        assert "app_berlin" in offered(typist.fleet.pg_bouncer)
        typist.follow("rename-a-node.md", "keep")
    assert errors == []
    assert list(loader.load(typist.fleet.file).nodes) == ["a", "b"]
    assert "app_berlin" not in offered(typist.fleet.pg_bouncer)
    unchanged(typist)


def test_a_server_comes_and_goes(typist: Typist, pg_server: StartServer) -> None:
    typist.ports["10.0.0.3"] = pg_server(SAFE).port
    before = typist.fleet.file.read_text()
    with clients(typist) as errors:
        typist.follow("add-and-remove-nodes.md", "add")
        assert offered(typist.fleet.pg_bouncer)["app_c"] == typist.ports["10.0.0.3"]
        move = typist.type("shardctl move-shards 0 --to c --dry-run")
        said = typist.follow("add-and-remove-nodes.md", "remove")
    assert errors == []
    assert "stream" in move
    assert "to add it back: `shardctl node add c --host 127.0.0.1" in "".join(said)
    assert typist.fleet.file.read_text() == before


def test_a_drained_node_goes_with_its_reverse_and_its_copies(typist: Typist) -> None:
    fleet = typist.fleet
    moved = fleet.here_as_written("move-shards", "--from", "b", "--all", "--to", "a", "--yes")
    assert moved.returncode == 0, moved.stderr
    remove = ("node", "remove", "b", "--yes")
    refused = fleet.here_as_written(*remove)
    assert refused.returncode == 1
    assert "can be reversed, which needs both nodes" in refused.stderr
    assert "4 retired copies wait there" in refused.stderr
    assert "--finish-reverse" in refused.stderr
    again = fleet.here_as_written(*remove, "--finish-reverse")
    assert again.returncode == 1
    done = fleet.here_as_written(*remove, "--finish-reverse", "--prune")
    assert done.returncode == 0, done.stderr
    assert list(loader.load(fleet.file).nodes) == ["a"]
    left = "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^shard[0-9]'"
    assert fleet.query("b", left) == [(0,)]
    assert fleet.query("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert served(typist)
    unchanged(typist)


def test_one_shard_is_restored_while_clients_use_it(typist: Typist) -> None:
    fleet = typist.fleet
    kept = insert(typist, "b")
    typist.follow("restore-a-shard.md", "dump")
    fleet.migration("0002_likes.sql", "ALTER TABLE photos ADD COLUMN likes integer;")
    assert fleet.here("migrate").returncode == 0
    damaged = max(served(typist) for _ in range(3))
    fleet.execute("b", f"DELETE FROM shard5.photos WHERE id = {kept}")
    with readers(typist) as seen:
        typist.follow("restore-a-shard.md", "look")
        typist.put("restore-a-shard.md", "script", "replace.sql")
        typist.follow("restore-a-shard.md", "replace")
        wait_for(lambda: seen[-1] == 2)
        typist.follow("restore-a-shard.md", "after")
    # The damaged shard had 4 rows, the dump has 2: a client sees the one or the other.
    assert set(seen) == {4, 2}
    assert served(typist) > damaged
    assert fleet.query("b", f"SELECT likes FROM shard5.photos WHERE id = {kept}") == [(None,)]
    unchanged(typist)


@contextmanager
def clients(typist: Typist) -> Iterator[list[str]]:
    """Let a client write to two shards, in new sessions, all the while; give its errors."""
    errors: list[str] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            for shard in ("shard1", "shard5"):
                try:
                    served(typist, shard)
                except psycopg.Error as error:
                    errors.append(str(error))

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield errors
    finally:
        stop.set()
        thread.join()


@contextmanager
def readers(typist: Typist) -> Iterator[list[int]]:
    """Let a client count the rows of a shard, all the while; give what it has seen."""
    seen: list[int] = []
    stop = threading.Event()

    def work() -> None:
        with typist.fleet.pg_bouncer.connect("shard5", autocommit=True) as session:
            while not stop.is_set():
                row = session.execute("SELECT count(*) FROM photos").fetchone()
                assert row is not None
                seen.append(row[0])

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
