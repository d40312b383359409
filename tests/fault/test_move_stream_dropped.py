"""What operators drop of a stream by hand: it is named, and no row is applied twice or missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.moves.steps import follow
from shardctl.moves.stopped import MoveStopped
from tests.fixtures.moves import stream_moves as reversals
from tests.fixtures.moves.own import run
from tests.fixtures.moves.stream_moves import assert_clean, fails
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.fixtures.moves.own import Lab

pytestmark = pytest.mark.fault

TABLES = ("bare", "keyed")
COUNTS = "SELECT count(*), count(DISTINCT n) FROM shard2."


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
    """See that the owner has each row once, and that nothing is left."""
    for table in TABLES:
        assert fleet.ask(owner, COUNTS + table) == [(rows, rows)]
    assert_clean(fleet, owner)


def drop(fleet: Lab, source: str = "a", target: str = "b") -> tuple[str, str]:
    """Drop the subscription as an operator does; give its name and its connection string."""
    stream_rows(fleet, source, target)
    [(name, conninfo)] = fleet.ask(target, "SELECT subname, subconninfo FROM pg_subscription")
    for change in ("ALTER {} DISABLE", "ALTER {} SET (slot_name = NONE)", "DROP {}"):
        run(fleet, target, change.replace("{}", f"SUBSCRIPTION {name}"))
    return name, conninfo


def make_again(fleet: Lab) -> None:
    """Drop it, and make it by hand on the same slot, which applies rows again."""
    name, conninfo = drop(fleet)
    said = conninfo.replace("'", "''")
    made = f"CREATE SUBSCRIPTION {name} CONNECTION '{said}' PUBLICATION {name}"
    run(fleet, "b", f"{made} WITH (copy_data = false, create_slot = false, slot_name = {name})")


def stops(fleet: Lab, code: str, **beside: Callable[[], object]) -> None:
    """See that a move stops for this reason, and clients are served by the source."""
    error = fails(fleet, **beside)
    assert error.code == code, error
    assert fleet.leads("shard2") == "a"


@pytest.mark.parametrize("step", ["rehearse", "cutover"])
@pytest.mark.parametrize("harm", [drop, make_again])
def test_a_subscription_dropped_by_hand_is_named_and_the_copy_made_again(
    fleet_bare: Lab, step: str, harm: Callable[[Lab], object]
) -> None:
    stops(fleet_bare, "subscription_gone", **{step: lambda: harm(fleet_bare)})
    fleet_bare.resume()
    assert fleet_bare.copy("b").proof == "compared"
    assert_once(fleet_bare, "b", 50)


def test_a_publication_dropped_by_hand_is_named_and_the_copy_made_again(fleet_bare: Lab) -> None:
    def harm() -> None:
        stream_rows(fleet_bare, "a", "b")
        [(name,)] = fleet_bare.ask("a", "SELECT pubname FROM pg_publication")
        run(fleet_bare, "a", f"DROP PUBLICATION {name}")

    stops(fleet_bare, "publication_gone", rehearse=harm)
    fleet_bare.resume()
    assert_once(fleet_bare, "b", 50)


def test_marks_deleted_by_hand_are_no_promotion(fleet_bare: Lab) -> None:
    harm = partial(run, fleet_bare, "b", "DELETE FROM shardctl.stream")
    stops(fleet_bare, "copy_unknown", cutover=harm)
    fleet_bare.resume()
    assert_clean(fleet_bare, "b")


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
    assert caught.value.parts()[0].code == "subscription_gone"
    fleet_bare.abort()
    assert_once(fleet_bare, "b", 100)


def moved_and_written(fleet: Lab) -> str:
    """Move the shards such that it can be reversed, and write rows there; give the move."""
    there = reversals.moved(fleet).move.id
    for table in TABLES:
        run(fleet, "b", f"INSERT INTO shard2.{table} SELECT generate_series(1, 50)")
    return there
