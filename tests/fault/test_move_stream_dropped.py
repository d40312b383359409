"""What operators drop of a stream by hand: it is named, and no row is applied twice or missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.moves import marks
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from tests.fixtures.moves import reversals
from tests.fixtures.moves.beside import assert_clean, run, start
from tests.fixtures.moves.stream_moves import left
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

TABLES = ("bare", "keyed")
COUNTS = "SELECT count(*), count(DISTINCT n) FROM shard2."
ABORT = "run `shardctl moves abort` to undo it; it cannot be resumed"


@pytest.fixture
def fleet_bare(fleet_own: Lab) -> Lab:
    """Give a fleet with tables in a moved shard whose rows have a key, and have none."""
    run(
        fleet_own, "a",
        "CREATE TABLE shard2.bare (n bigint)",
        "ALTER TABLE shard2.bare REPLICA IDENTITY FULL",
        "CREATE TABLE shard2.keyed (n bigint PRIMARY KEY)",
    )  # fmt: skip
    return fleet_own


def stream_rows(fleet: Lab, source: str, target: str) -> None:
    """Write rows that the target applies at once, and confirms a while later."""
    [(before, _)] = fleet.ask(source, f"{COUNTS}keyed")
    for table in TABLES:
        values = f"SELECT generate_series({before + 1}, {before + 50})"
        run(fleet, source, f"INSERT INTO shard2.{table} {values}")
    wait_for(lambda: fleet.ask(target, f"{COUNTS}keyed") == [(before + 50, before + 50)])


def assert_once(fleet: Lab, owner: str, rows: int) -> None:
    """See that the owner has each row once."""
    for table in TABLES:
        assert fleet.ask(owner, COUNTS + table) == [(rows, rows)]


def drop(fleet: Lab, source: str = "a", target: str = "b") -> tuple[str, str]:
    """Drop the subscription as an operator does; give its name and its connection string."""
    stream_rows(fleet, source, target)
    with fleet.connect(target) as session:
        [(name, conninfo)] = session.execute("SELECT subname, subconninfo FROM pg_subscription")
        for change in ("ALTER {} DISABLE", "ALTER {} SET (slot_name = NONE)", "DROP {}"):
            _execute(session, change.replace("{}", "SUBSCRIPTION {name}"), name)
    return name, conninfo


def make_again(fleet: Lab) -> None:
    """Drop it, and make it by hand on the same slot, which applies rows again."""
    name, conninfo = drop(fleet)
    with fleet.connect("b") as session:
        _execute(
            session,
            "CREATE SUBSCRIPTION {name} CONNECTION {conninfo} PUBLICATION {name} WITH"
            " (copy_data = false, create_slot = false, slot_name = {name})",
            name,
            conninfo,
        )


def drop_publication(fleet: Lab) -> None:
    with fleet.connect("a") as session:
        [(name,)] = session.execute("SELECT pubname FROM pg_publication")
        _execute(session, "DROP PUBLICATION {name}", name)


def _execute(
    session: psycopg.Connection[Any], statement: str, name: str, conninfo: str = ""
) -> None:
    given = {"name": sql.Identifier(name), "conninfo": sql.Literal(conninfo)}
    session.execute(sql.SQL(statement).format(**given))


def stops(fleet: Lab, *codes: str, **beside: Callable[[], object]) -> MoveStopped:
    """See that a move stops for one of these reasons, and clients are served by the source."""
    with pytest.raises(MoveStopped) as caught:
        start(fleet, **beside)
    assert caught.value.error.code in codes, caught.value.error
    assert fleet.leads("shard2") == "a"
    return caught.value


@pytest.mark.parametrize("step", ["rehearse", "cutover"])
@pytest.mark.parametrize("harm", [drop, make_again])
def test_a_subscription_dropped_by_hand_is_named_and_the_copy_made_again(
    fleet_bare: Lab, step: str, harm: Callable[[Lab], object]
) -> None:
    stopped = stops(fleet_bare, "subscription_gone", **{step: lambda: harm(fleet_bare)})
    assert "was dropped after it had begun to follow node a" in stopped.error.message
    assert "shardctl copies the shards again" in stopped.error.hint
    before = len(fleet_bare.notices)
    fleet_bare.resume()
    assert "cannot go on from its copy" in "".join(fleet_bare.notices[before:])
    assert fleet_bare.copy("b").proof == "compared"
    assert_once(fleet_bare, "b", 50)
    assert_clean(fleet_bare, "b")


def test_a_publication_dropped_by_hand_is_named_and_the_copy_made_again(fleet_bare: Lab) -> None:
    def harm() -> None:
        stream_rows(fleet_bare, "a", "b")
        drop_publication(fleet_bare)

    stopped = stops(fleet_bare, "publication_gone", rehearse=harm)
    assert stopped.error.message.startswith("node a: publication shardctl_")
    assert "shardctl copies the shards again" in stopped.error.hint
    fleet_bare.resume()
    assert_once(fleet_bare, "b", 50)
    assert_clean(fleet_bare, "b")


def test_marks_deleted_by_hand_are_no_promotion(fleet_bare: Lab) -> None:
    stopped = stops(
        fleet_bare,
        "copy_unknown",
        cutover=lambda: run(fleet_bare, "b", "DELETE FROM shardctl.stream"),
    )
    assert "promoted" not in stopped.error.message
    fleet_bare.resume()
    assert_clean(fleet_bare, "b")


def test_a_process_that_ends_before_its_subscription_follows_goes_on_with_it(
    fleet_bare: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = moved_and_written(fleet_bare)
    begin = marks.begin

    def ends(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(marks, "begin", ends)
    with pytest.raises(MoveStopped):
        reversals.reverse(fleet_bare, there)
    monkeypatch.setattr(marks, "begin", begin)
    fleet_bare.resume()
    assert_once(fleet_bare, "a", 50)
    assert left(fleet_bare) == []


@pytest.mark.parametrize("harm", ["by hand", "undo"])
def test_a_reverse_that_has_lost_its_subscription_is_refused_and_aborted(
    fleet_bare: Lab, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    """It has no copy to make again, and would apply twice what it has applied."""
    there = moved_and_written(fleet_bare)
    run_step = follow.STREAM_STEP.run

    def lose(context: Any) -> None:
        run_step(context)
        if harm == "by hand":
            drop(fleet_bare, "b", "a")
        else:  # an abort that ends behind this
            stream_rows(fleet_bare, "b", "a")
            follow.STREAM_STEP.undo(context)  # type: ignore[misc]  # it has one
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        reversals.replace_step(patched, follow.STREAM_STEP, lose)
        with pytest.raises(MoveStopped):
            reversals.reverse(fleet_bare, there)
    with pytest.raises(ShardctlError) as caught:
        fleet_bare.resume()
    error, stopped = caught.value.parts()
    assert (error.code, stopped.hint) == ("subscription_gone", ABORT)
    assert "shardctl move-shards" in error.hint
    fleet_bare.abort()
    assert_once(fleet_bare, "b", 100)
    assert left(fleet_bare) == []


def moved_and_written(fleet: Lab) -> str:
    """Move the shards such that it can be reversed, and write rows there; give the move."""
    there = reversals.moved(fleet).move.id
    for table in TABLES:
        run(fleet, "b", f"INSERT INTO shard2.{table} SELECT generate_series(1, 50)")
    return there
