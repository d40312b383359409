"""Commands that are killed, or whose pooler refuses what they wrote: run again, they complete."""

from __future__ import annotations

import dataclasses
import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.files import BACKUP
from tests.fixtures.fleets.pooled import leads, offered, refused
from tests.fixtures.fleets.retired import Pruned
from tests.fixtures.fleets.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.fleets.pooled import PooledFleet

KILLED = """
import os, shardctl.state.events
def record(*given, **named):
    os.kill(os.getpid(), 9)
shardctl.state.events.record = record
"""
"""Commands on a fleet record each thing that they do."""


def make_pending(fleet: PooledFleet) -> None:
    fleet.migration("0002_likes.sql", "CREATE TABLE likes (id bigint DEFAULT next_id());")


def retire(fleet: PooledFleet) -> None:
    """Leave what a move of shards 2 and 3 to node b has retired on a."""
    Pruned(fleet).retire(2, 3)
    Pruned(fleet).record()


COMMANDS: list[tuple[str, Callable[[PooledFleet], object]]] = [
    ("init", lambda _: None),
    ("migrate", make_pending),
    ("pgbouncer apply", lambda fleet: fleet.raise_map_version()),
    ("read-only on 0-7 --yes", lambda _: None),
    ("read-only off 0-7 --yes", lambda _: None),
    ("prune --now --yes", retire),
]
"""Commands in the order in which a fleet begins, and what gives each something to do."""


@pytest.fixture
def fleet(fleet_unapplied: PooledFleet) -> Iterator[PooledFleet]:
    """Give a fleet with a pooler, on which `init` has not run: neither databases nor aliases."""
    made = dataclasses.replace(fleet_unapplied, database="broken_off", role="broken_off")
    yield made
    made.drop()


def test_a_command_that_is_killed_is_completed_by_the_next(fleet: PooledFleet) -> None:
    fleet.shards = {"a": "0-1", "b": "2-7"}
    for command, begin in COMMANDS:
        begin(fleet)
        assert fleet.patched(KILLED, *command.split()).returncode == -signal.SIGKILL, command
        done = fleet.here(*command.split())
        assert done.returncode == 0, (command, done.stderr)
    assert offered(fleet.pg_bouncer) == leads(fleet)
    assert fleet.plan().changes() == []
    assert Pruned(fleet).left() == []
    found = [one for one in verify(fleet) if one.check not in ("settings", "poolers")]
    assert [one.code for one in found if one.severity != "note"] == []


def test_a_configuration_that_the_pooler_rejects_leaves_the_aliases_before(
    fleet_pooled: PooledFleet,
) -> None:
    pooler = fleet_pooled.pg_bouncer
    text, file = pooler.config.read_text(), pooler.databases_file.read_text()
    events = fleet_pooled.events()
    included = text.rindex("%include")
    pooler.config.write_text(f"{text[:included]}no setting at all\n{text[included:]}")
    fleet_pooled.raise_map_version()
    fleet_pooled.change(aliases=("node",))
    with pooler.connect("shard1") as client:
        assert str(pooler.config) in refused(fleet_pooled, code=3)
        assert client.execute("SELECT count(*) FROM photos").fetchone() == (0,)
    assert offered(pooler) == leads(fleet_pooled)
    backup = pooler.databases_file.with_name(pooler.databases_file.name + BACKUP)
    assert not backup.exists()  # it is what was put back
    assert fleet_pooled.events() == events
    assert pooler.databases_file.read_text() == file
    pooler.config.write_text(text)
    done = fleet_pooled.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    assert offered(pooler) == leads(fleet_pooled, shards=False)
