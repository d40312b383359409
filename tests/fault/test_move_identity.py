"""Tables without a replica identity: a move lends them one, and puts back what they had."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import Incomplete
from shardctl.postgres.logical import identities
from tests.fixtures.moves import streamed
from tests.fixtures.moves.stopping import finish
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

OWN, LENT = ["d", "n"], ["f", "f"]


@pytest.fixture
def bare(fleet_stream: MovingFleet) -> MovingFleet:
    """Give a fleet with two such tables, whose moves may lend."""
    for statement in (
        "CREATE TABLE shard2.bare (n bigint)",
        "CREATE TABLE shard3.bare (n bigint PRIMARY KEY)",
        "ALTER TABLE shard3.bare REPLICA IDENTITY NOTHING",
    ):
        fleet_stream.ask("a", statement)
    fleet_stream.choice = dataclasses.replace(fleet_stream.choice, identity_full=True)
    return fleet_stream


def had(fleet: MovingFleet) -> list[Any]:
    """Give what the tables have on their owner."""
    query = (
        "SELECT relreplident::text FROM pg_class WHERE relname = 'bare'"
        " AND relnamespace::regnamespace::text IN ('shard2', 'shard3') ORDER BY relnamespace"
    )
    return [found for (found,) in fleet.ask(fleet.owner, query)]


def killed(fleet: MovingFleet, verb: str, point: str, *, first: str = "") -> None:
    """Kill a process at work on a move at a point, and as if it had got to the `first` table."""
    mover = fleet.mover(verb, point)
    mover.at(point)
    if first:
        fleet.ask(fleet.owner, f"ALTER TABLE shard2.bare REPLICA IDENTITY {first}")
    mover.kill()
    wait_for(lambda: not fleet.is_locked())


@pytest.mark.parametrize(
    ("point", "first", "verb"),
    [
        (streamed.LEND, "", "abort"),
        (streamed.LEND, "FULL", "abort"),
        (streamed.LEND, "FULL", "resume"),
        (streamed.REST, "", "abort"),
        ("step retire run", "", "resume"),
    ],
)
def test_a_move_that_is_killed_gives_back_what_it_lent(
    bare: MovingFleet, point: str, first: str, verb: str
) -> None:
    killed(bare, "start", point, first=first)
    killed(bare, verb, streamed.TAKE_BACK, first="DEFAULT")
    finish(bare, verb)
    assert bare.owner == ("a" if verb == "abort" else streamed.TARGET)
    assert had(bare) == OWN
    assert streamed.left(bare) == []


@pytest.mark.parametrize("point", ["step cutover run", "step retire run"])
def test_the_end_of_a_reverse_gives_back_what_the_move_lent(bare: MovingFleet, point: str) -> None:
    bare.choice = dataclasses.replace(bare.choice, keep_reverse_s=3600.0)
    mover = bare.mover("start")
    assert mover.end(seconds=120) == 0, mover.said
    assert had(bare) == LENT
    killed(bare, "reverse", point)
    verb = "abort" if point == "step cutover run" else "resume"
    killed(bare, verb, streamed.TAKE_BACK, first="DEFAULT")
    ended = bare.mover(verb)
    assert ended.end(seconds=120) == 0, ended.said
    assert bare.owner == (streamed.TARGET if verb == "abort" else "a")
    assert had(bare) == OWN
    assert streamed.left(bare) == []


def test_who_holds_a_table_is_named(bare: MovingFleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "_PATIENCE_S", 0.0)
    given = {"user": "postgres"}
    with bare.log_in("a", **given) as session, bare.log_in("a", **given, autocommit=False) as reads:
        tables = identities.missing(session, ["shard2", "shard3"])
        reads.execute("SELECT FROM shard2.bare")
        with pytest.raises(Incomplete) as caught:
            identities.lend(session, tables)
        assert caught.value.code == "identity_blocked"
        assert "shard2.bare: its replica identity could not be changed" in caught.value.message
        assert f"session {reads.info.backend_pid}" in caught.value.message
        assert had(bare) == ["d", "f"]
        reads.rollback()
        identities.lend(session, tables)
        assert had(bare) == LENT
        identities.take_back(session, tables)
        assert had(bare) == OWN
