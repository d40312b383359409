"""Nodes that cannot be read: left out and named, and the rest is done if the others agree."""

from __future__ import annotations

import json
import socket
import threading
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.pooled import PooledFleet, leads, offered
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from tests.fixtures.fleets.fleet import Fleet

LIKES = "0002_likes.sql"


@pytest.fixture
def pending(fleet_8: Fleet) -> Fleet:
    """Give a fleet in which one migration is pending everywhere."""
    fleet_8.migration(LIKES, "CREATE TABLE likes (id bigint DEFAULT next_id());")
    return fleet_8


def away(one: Fleet, *nodes: str) -> AbstractContextManager[None]:
    """Let nodes be at ports on which nothing listens."""
    return one.at_ports(**dict(zip(nodes, free_ports(len(nodes)), strict=True)))


def migrated(one: Fleet, node: str, shard: int) -> bool:
    return one.query(node, f"SELECT to_regclass('shard{shard}.likes') IS NOT NULL") == [(True,)]


def open_move(one: Fleet, node: str, *, source: str, target: str, state: str) -> None:
    one.execute(
        node,
        "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired,"
        f" plan, who) VALUES ('5f3a9c1e', '{state}', 'clone', '{source}', '{target}', '{{4}}',"
        " '{shard4}', '{shard4__retired_5f3a9c1e}', '{}', 'a test')",
    )


def left_out(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [one["node"] for one in json.loads(done.stdout)["left_out"]]


def test_migrate_does_what_it_can_and_the_rest_later(pending: Fleet) -> None:
    with away(pending, "b"):
        shown = pending.here("migrate", "--dry-run", "-o", "json")
        assert not migrated(pending, "a", 0)
        done = pending.here("migrate")
    assert (shown.returncode, done.returncode) == (3, 3), done.stderr
    assert left_out(shown) == ["b"]
    assert [change["node"] for change in json.loads(shown.stdout)["changes"]] == ["a"]
    for told in (shown.stderr, done.stderr):
        assert "shardctl: node b was skipped: Connection refused" in told
    assert migrated(pending, "a", 0)
    assert not migrated(pending, "b", 4)
    rest = pending.here("migrate", "-o", "json")
    assert rest.returncode == 0, rest.stderr
    assert [change["node"] for change in json.loads(rest.stdout)["changes"]] == ["b"]
    assert migrated(pending, "b", 7)


@pytest.mark.parametrize("arguments", [("migrate",), ("init",), ("pgbouncer", "apply")])
def test_all_or_nothing_is_strict(fleet_pooled: PooledFleet, arguments: tuple[str, ...]) -> None:
    fleet_pooled.migration(LIKES, "CREATE TABLE likes (id bigint DEFAULT next_id());")
    fleet_pooled.pg_bouncer.databases_file.unlink()
    with away(fleet_pooled, "b"):
        for dry in ((), ("--dry-run",)):
            done = fleet_pooled.here(*arguments, "--all-or-nothing", *dry)
            assert done.returncode == 1, done.stderr
            assert "127.0.0.1" in done.stderr
            assert "left out" not in done.stderr
    assert not migrated(fleet_pooled, "a", 0)
    assert not fleet_pooled.pg_bouncer.databases_file.exists()


def test_pgbouncer_apply_writes_what_the_others_prove(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    pooler.databases_file.unlink()
    with away(fleet_pooled, "b"):
        shown = fleet_pooled.here("pgbouncer", "apply", "--dry-run", "-o", "json")
        assert not pooler.databases_file.exists()
        done = fleet_pooled.here("pgbouncer", "apply")
        assert (shown.returncode, done.returncode) == (3, 3), done.stderr
        assert left_out(shown) == ["b"]
        assert offered(pooler) == leads(fleet_pooled)
        compared = fleet_pooled.here("pgbouncer", "diff")
    assert compared.returncode == 0, compared.stderr
    assert "note: node b was skipped" in compared.stderr


def test_a_map_that_only_the_absent_nodes_have_is_seen_in_the_poolers_file(
    fleet_pooled: PooledFleet,
) -> None:
    """Version 2 was applied, and the one node that can be read still has version 1."""
    pooler = fleet_pooled.pg_bouncer
    fleet_pooled.raise_map_version()
    assert fleet_pooled.here("pgbouncer", "apply").returncode == 0
    newer = pooler.databases_file.read_text()
    fleet_pooled.execute("a", "UPDATE shardctl.cluster SET map_version = 1")
    with away(fleet_pooled, "b"):
        for arguments in (("apply",), ("apply", "--force"), ("apply", "--force", "--dry-run")):
            done = fleet_pooled.here("pgbouncer", *arguments)
            assert done.returncode == 1, done.stderr
        assert "--force" in done.stderr
        assert fleet_pooled.here("init").returncode == 1
    assert pooler.databases_file.read_text() == newer


@pytest.fixture
def silent() -> Iterator[tuple[int, list[socket.socket]]]:
    """Give the port of a listener that takes connections and never answers, and those it took."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def take() -> None:
            while True:
                try:
                    taken.append(listener.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=take)
        thread.start()
        yield listener.getsockname()[1], taken
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in taken:
        one.close()


def test_a_node_that_dies_between_plan_and_locks(
    pending: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shardctl.provision import fleet

    whole = fleet.carry_out

    def dies(*given: object) -> object:
        with pending.servers["b"].connect() as session:
            session.execute(f"ALTER DATABASE {pending.database} ALLOW_CONNECTIONS false".encode())
        return whole(*given)  # type: ignore[arg-type]  # as they were given

    monkeypatch.setattr(fleet, "carry_out", dies)
    done = pending.here("migrate")
    assert done.returncode == 1
    assert "127.0.0.1" in done.stderr
    assert not migrated(pending, "a", 0)
    monkeypatch.undo()
    done = pending.here("migrate")
    assert done.returncode == 3, done.stderr
    assert migrated(pending, "a", 0)
