"""What others do to a stream by hand: it is named, and no row is applied twice or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.errors import Incomplete, ShardctlError
from shardctl.moves import follow
from shardctl.moves.service import MoveStopped
from shardctl.postgres.logical import publication
from tests.fixtures.moves import stream_moves
from tests.fixtures.moves.proof import assert_clean
from tests.fixtures.moves.stream_moves import fails
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from tests.fixtures.moves.own import Lab

COUNTS = "SELECT count(*), count(DISTINCT n) FROM shard2.bare"


@pytest.fixture
def fleet_bare(fleet_own: Lab) -> Lab:
    """Give a fleet with a table in a moved shard whose rows have no key: one may be there twice."""
    fleet_own.ask("a", "CREATE TABLE shard2.bare (n bigint)")
    fleet_own.ask("a", "ALTER TABLE shard2.bare REPLICA IDENTITY FULL")
    return fleet_own


def stream_rows(fleet: Lab, source: str = "a", target: str = "b") -> None:
    """Write rows that the target applies at once, and confirms a while later."""
    fleet.ask(source, "INSERT INTO shard2.bare SELECT generate_series(1, 50)")
    wait_for(lambda: fleet.ask(target, COUNTS) == [(50, 50)])


def drop(fleet: Lab, target: str = "b") -> tuple[str, str]:
    """Drop the subscription as an operator does; give its name and its connection string."""
    [(name, conninfo)] = fleet.ask(target, "SELECT subname, subconninfo FROM pg_subscription")
    for change in ("ALTER {} DISABLE", "ALTER {} SET (slot_name = NONE)", "DROP {}"):
        fleet.ask(target, change.replace("{}", f"SUBSCRIPTION {name}"))
    return name, conninfo


def make_again(fleet: Lab) -> None:
    """Drop it, and make it by hand on the same slot, which applies rows again."""
    name, conninfo = drop(fleet)
    said = conninfo.replace("'", "''")
    made = f"CREATE SUBSCRIPTION {name} CONNECTION '{said}' PUBLICATION {name}"
    fleet.ask("b", f"{made} WITH (copy_data = false, create_slot = false, slot_name = {name})")


def drop_publication(fleet: Lab) -> None:
    [(name,)] = fleet.ask("a", "SELECT pubname FROM pg_publication")
    fleet.ask("a", f"DROP PUBLICATION {name}")


def delete_marks(fleet: Lab) -> None:
    fleet.ask("b", "DELETE FROM shardctl.stream")


@pytest.mark.parametrize(
    ("step", "harm", "code"),
    [
        ("rehearse", drop, "subscription_gone"),
        ("cutover", make_again, "subscription_gone"),
        ("rehearse", drop_publication, "publication_gone"),
        ("cutover", delete_marks, "copy_unknown"),
    ],
)
def test_what_is_dropped_by_hand_is_named_and_the_copy_made_again(
    fleet_bare: Lab, step: str, harm: Callable[[Lab], object], code: str
) -> None:
    def beside() -> None:
        stream_rows(fleet_bare)
        harm(fleet_bare)

    assert fails(fleet_bare, **{step: beside}).code == code
    assert fleet_bare.leads("shard2") == "a"
    fleet_bare.resume()
    assert fleet_bare.ask("b", COUNTS) == [(50, 50)]
    assert_clean(fleet_bare, "b")


def test_a_reverse_that_has_lost_its_subscription_is_refused_and_aborted(fleet_bare: Lab) -> None:
    """It has no copy to make again, and would apply twice what it has applied."""
    there = stream_moves.moved(fleet_bare).move.id

    def lose(context: MoveContext) -> None:
        follow.STREAM_STEP.run(context)
        stream_rows(fleet_bare, "b", "a")
        drop(fleet_bare, "a")
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        stream_moves.replace_step(patched, follow.STREAM_STEP, lose)
        with pytest.raises(MoveStopped):
            stream_moves.reverse(fleet_bare, there)
    with pytest.raises(ShardctlError) as caught:
        fleet_bare.resume()
    assert caught.value.parts()[0].code == "subscription_gone"
    fleet_bare.abort()
    assert fleet_bare.ask("b", COUNTS) == [(50, 50)]
    assert_clean(fleet_bare, "b")


def test_who_keeps_a_replica_identity_from_being_lent_is_named(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "_PATIENCE_S", 0.0)
    fleet_own.ask("a", "CREATE TABLE shard2.bare (n bigint)")
    identity = "SELECT relreplident::text FROM pg_class WHERE relname = 'bare'"
    with fleet_own.connect("a") as session, fleet_own.connect("a", autocommit=False) as reads:
        tables = publication.missing_identities(session, ["shard2", "shard3"])
        reads.execute("SELECT FROM shard2.bare")
        with pytest.raises(Incomplete, match=rf"session {reads.info.backend_pid}\b") as caught:
            publication.lend_identities(session, tables)
        assert caught.value.code == "identity_blocked"
        assert fleet_own.ask("a", identity) == [("d",)]
        reads.rollback()
        publication.lend_identities(session, tables)
        assert fleet_own.ask("a", identity) == [("f",)]
        publication.take_identities_back(session, tables)
    assert fleet_own.ask("a", identity) == [("d",)]
