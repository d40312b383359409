"""Commands that are killed, or whose server dies or has no room: run again, they complete.

Commands on a fleet record each thing that they do, so these are the moments.
"""

from __future__ import annotations

import shutil
import signal
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from shardctl.hosts import accounts
from tests.fixtures.fleets.fleet import PHOTOS
from tests.fixtures.fleets.pooled import leads, offered
from tests.fixtures.fleets.retired import Pruned
from tests.fixtures.fleets.verify import verify
from tests.fixtures.moves.harm import small_disk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.servers.postgres import StartServer

pytestmark = pytest.mark.fault

HARM = """
import itertools, os, shardctl.hosts.files, shardctl.pgbouncer.console, shardctl.state.events
whole, calls = shardctl.{what}, itertools.count(1)
def broken(*given, **named):
    if next(calls) == {number}:
        os.kill({pid}, {signal:d})
    return whole(*given, **named)
shardctl.{what} = broken
"""
RECORD = "state.events.record"


def nothing(_: PooledFleet) -> None:
    pass


def make_pending(fleet: PooledFleet) -> None:
    fleet.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")


def retire(fleet: PooledFleet) -> None:
    """Leave what a move of shards 2 and 3 to node b has retired on a."""
    Pruned(fleet).retire(2, 3)
    Pruned(fleet).record()


COMMANDS: list[tuple[tuple[str, ...], Callable[[PooledFleet], None]]] = [
    (("init",), nothing),
    (("migrate",), make_pending),
    (("pgbouncer", "apply"), lambda fleet: fleet.raise_map_version()),
    (("read-only", "on", "0-7", "--yes"), nothing),
    (("read-only", "off", "0-7", "--yes"), nothing),
    (("prune", "--now", "--yes"), retire),
]
"""Commands in the order in which a fleet begins, and what gives each something to do."""


@pytest.fixture
def mortal(new_fleet_pooled: PooledFleet, pg_server: StartServer) -> Iterator[PooledFleet]:
    """Give a fleet on which nothing has run, with a server b that a test may kill."""
    new_fleet_pooled.shards = {"a": "0-1", "b": "2-7"}
    new_fleet_pooled.servers = {"a": new_fleet_pooled.servers["a"], "b": pg_server()}
    yield new_fleet_pooled
    if not new_fleet_pooled.servers["b"].server.running():
        new_fleet_pooled.servers["b"].start()


def run_again(fleet: PooledFleet, *words: str) -> None:
    done = fleet.here(*words)
    assert done.returncode == 0, (words, done.stderr)


def assert_completed(fleet: PooledFleet) -> None:
    """See that all is as it should be, and that nothing is left of any command."""
    assert offered(fleet.pg_bouncer) == leads(fleet)
    assert fleet.plan().changes() == []
    assert Pruned(fleet).left() == []
    found = [one for one in verify(fleet) if one.check not in ("settings", "poolers")]
    assert [one.code for one in found if one.severity != "note"] == []


@pytest.mark.parametrize(
    ("what", "number"),
    [(RECORD, 1), (RECORD, 2), ("hosts.files.write", 1), ("pgbouncer.console.Console.reload", 1)],
)
def test_a_command_that_is_killed_is_completed_by_the_next(
    mortal: PooledFleet, what: str, number: int
) -> None:
    killed = 0
    for words, begin in COMMANDS:
        begin(mortal)
        harm = HARM.format(what=what, number=number, pid="os.getpid()", signal=signal.SIGKILL)
        done = mortal.patched(harm, *words)
        assert done.returncode in (0, -signal.SIGKILL), (words, done.stderr)
        killed += done.returncode != 0
        run_again(mortal, *words)
    assert killed >= (len(COMMANDS) if (what, number) == (RECORD, 1) else 1)
    assert_completed(mortal)


def test_a_server_that_dies_is_named_and_the_next_command_completes(mortal: PooledFleet) -> None:
    for words, begin in COMMANDS[:-1]:
        begin(mortal)
        running = mortal.servers["b"].server.process()
        assert running is not None
        harm = HARM.format(what=RECORD, number=1, pid=running.pid, signal=signal.SIGQUIT)
        done = mortal.patched(harm, *words)
        # At the last of its records, a command is about to have done all.
        assert done.returncode in ((1, 3) if words == ("init",) else (0, 1, 3)), done.stderr
        assert done.returncode == 0 or "node b" in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr
        mortal.servers["b"].start()
        run_again(mortal, *words)
    assert_completed(mortal)


def test_a_full_disk_is_said_and_the_next_init_completes(
    new_fleet: Fleet, session_directory: Path
) -> None:
    """All of the database but the shared catalogs lies in a tablespace on the small disk."""
    new_fleet.count, new_fleet.shards = 400, {"a": "0-199", "b": "200-399"}
    new_fleet.migration("0001_photos.sql", PHOTOS)
    space = sql.Identifier(f"{new_fleet.database}_small")
    place = session_directory / "small disk"
    place.mkdir()
    with small_disk(place, "12m") as make_large, new_fleet.servers["b"].connect() as session:
        if (account := accounts.server_account(None)) is not None:
            shutil.chown(place, account)
        for statement in (
            sql.SQL("CREATE TABLESPACE {} LOCATION {}").format(space, str(place)),
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 TABLESPACE {}").format(
                sql.Identifier(new_fleet.database), space
            ),
        ):
            session.execute(statement)
        try:
            done = new_fleet.here("init")
            assert done.returncode == 3, done.stderr
            assert "Traceback" not in done.stderr
            make_large()
            again = new_fleet.here("init")
            assert again.returncode == 0, again.stderr
            assert new_fleet.plan().changes() == []
        finally:
            new_fleet.drop()
            session.execute(sql.SQL("DROP TABLESPACE {}").format(space))
