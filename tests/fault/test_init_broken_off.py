"""`init` killed, interrupted, or its servers killed: run again, it completes."""

from __future__ import annotations

import contextlib
import os
import pwd
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.hosts import accounts
from tests.fixtures.fleets.fleet import PHOTOS, Fleet, command_line
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.servers.postgres import PgServer, StartServer

pytestmark = pytest.mark.fault

SHARDS = 400


@pytest.fixture
def large(new_fleet: Fleet) -> Fleet:
    """Give a fleet of so many shards that there is time to break its init off."""
    new_fleet.count = SHARDS
    new_fleet.shards = {"a": f"0-{SHARDS // 2 - 1}", "b": f"{SHARDS // 2}-{SHARDS - 1}"}
    new_fleet.migration("0001_photos.sql", PHOTOS)
    new_fleet.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")
    return new_fleet


def made(one: Fleet, node: str) -> int:
    """Count the node's schemas of shards; -1 while there is no database."""
    with one.servers[node].connect() as connection:
        if (
            connection.execute(
                "SELECT FROM pg_database WHERE datname = %s", (one.database,)
            ).fetchone()
            is None
        ):
            return -1
    [(count,)] = one.query(node, "SELECT count(*) FROM pg_namespace WHERE nspname ~ '^shard[0-9]'")
    return int(count)


@contextlib.contextmanager
def start(one: Fleet) -> Iterator[subprocess.Popen[str]]:
    """Run the command, which ends with the block."""
    one.write()
    started = subprocess.Popen(
        command_line(one.file, "init"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(one.directory / "state")},
    )
    with ended(started) as process:
        yield process


def assert_completed(one: Fleet) -> None:
    """Check that all is there exactly once, and that nothing is left to do."""
    assert one.plan().changes() == []
    for node in "ab":
        assert made(one, node) == SHARDS // 2
        [counts] = one.query(
            node,
            "SELECT (SELECT count(*) FROM shardctl.map),"
            " (SELECT count(*) FROM shardctl.migration),"
            " (SELECT count(*) FROM pg_class WHERE relname = 'photos' AND relkind = 'r')",
        )
        assert counts == (SHARDS, SHARDS, SHARDS // 2)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9])
def test_init_killed_at_any_moment_is_completed_by_the_next(large: Fleet, share: float) -> None:
    with start(large) as running:
        wait_for(lambda: made(large, "a") >= share * SHARDS / 2 or running.poll() is not None)
    done = large.shardctl("init")
    assert done.returncode == 0, done.stderr
    assert_completed(large)


@pytest.fixture
def mortal(large: Fleet, pg_server: StartServer) -> Iterator[Fleet]:
    """Give the large fleet with a server b that a test may kill."""
    large.servers = {"a": large.servers["a"], "b": pg_server()}
    yield large
    if not large.servers["b"].server.running():
        large.servers["b"].start()


def test_a_server_killed_during_init_is_named_and_the_next_init_completes(mortal: Fleet) -> None:
    with start(mortal) as running:
        wait_for(lambda: made(mortal, "b") >= 10)
        mortal.servers["b"].stop("immediate")
        _, told = running.communicate(timeout=60)
    assert running.returncode == 3
    assert "node b: " in told
    assert "Traceback" not in told
    mortal.servers["b"].start()
    assert mortal.here("init").returncode == 0
    assert_completed(mortal)


@pytest.fixture
def small_disk(session_directory: Path) -> Iterator[Path]:
    """Give a directory on a file system of 12 MB, which only root can mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system to fill")
    path = Path(tempfile.mkdtemp(dir=session_directory))
    owner = pwd.getpwnam(str(accounts.server_account(None))).pw_uid
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=12m,mode=0700,uid={owner}", "tmpfs", str(path)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S607


def test_a_full_disk_is_said_and_the_next_init_completes(
    large: Fleet, small_disk: Path, two_servers: dict[str, PgServer]
) -> None:
    b = two_servers["b"]
    space = sql.Identifier(f"{large.database}_small")
    # All of the database but the shared catalogs lies in a tablespace on the small disk.
    with b.connect() as connection:
        connection.execute(
            sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(space, sql.Literal(str(small_disk)))
        )
    try:
        with b.connect() as connection:
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE template0 TABLESPACE {}").format(
                    sql.Identifier(large.database), space
                )
            )
        done = large.here("init")
        assert done.returncode == 3, done.stderr
        assert "Traceback" not in done.stderr
        subprocess.run(["mount", "-o", "remount,size=400m", str(small_disk)], check=True)  # noqa: S607
        again = large.here("init")
        assert again.returncode == 0, again.stderr
        assert_completed(large)
    finally:
        large.drop()
        with b.connect() as connection:
            connection.execute(sql.SQL("DROP TABLESPACE {}").format(space))
