"""What other commands know of a move that can be reversed, and how that ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.checks import status as statuses
from shardctl.checks.verify import verify
from shardctl.errors import Refused, ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import doctor, prune, reverse_kept, service
from shardctl.state import lock
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import entry, moved, reverse, state
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def found(lab: Lab) -> list[tuple[str, str | None]]:
    every = verify(lab.topology, ["leftovers"], deep=False, progress=Silent()).findings
    return [(one.code, one.object) for one in every]


def prunable(lab: Lab) -> list[str | None]:
    purpose = lock.purpose("prune")
    one = prune.plan(
        lab.topology,
        service.read(lab.topology),
        accept_unconfirmed=False,
        now=True,
        purpose=purpose,
    )
    return [retired.why_not for retired in one]


def test_verify_status_doctor_and_prune_know_it(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    move = there.move.id
    assert found(fleet_own) == []
    shown = statuses.observe(fleet_own.topology, sample_s=0, progress=Silent()).as_json()["moves"]
    assert [(one["id"], one["state"], one["can"]) for one in shown] == [
        (move, "done", ["reverse", "finish"])
    ]
    assert shown[0]["reverse"]["state"] == "open"
    assert list(doctor.left(doctor.look(fleet_own.topology, purpose="test"))) == []
    assert all("moves finish" in str(why) for why in prunable(fleet_own))
    assert len(prunable(fleet_own)) == 2
    reverse_kept.finish(fleet_own.topology, there)
    assert prunable(fleet_own) == [None, None]
    assert found(fleet_own) == []
    assert statuses.observe(fleet_own.topology, sample_s=0, progress=Silent()).unclosed == ()


def test_the_next_move_of_its_shards_wants_that_it_is_given_up(fleet_own: Lab) -> None:
    there = moved(fleet_own)
    other = fleet_own.plan([3], "a")
    with pytest.raises(ShardctlError) as caught:
        service.preflight(fleet_own.topology, other)
    assert "reverse_open" in [one.code for one in caught.value.parts()]
    assert "--finish-reverse" in " ".join(one.hint for one in caught.value.parts())
    willing = fleet_own.plan([3], "a", finish_reverse=True)
    facts = service.preflight(fleet_own.topology, willing)
    assert facts.reversible == (there.move.id,)
    reverse_kept.finish_each(fleet_own.topology, facts.reversible)
    assert state(fleet_own, there.move.id) == "finished"
    fleet_own.start(willing)
    assert fleet_own.leads("shard3") == "a"


def test_it_ends_when_its_time_is_over_though_nobody_looks(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.bare (n bigint)")
    there = moved(fleet_own, keep_reverse_s=2.0, identity_full=True)
    wait_for(lambda: not fleet_own.ask("b", "SELECT FROM pg_replication_slots"), seconds=30)
    # Each node counts from the move's end in its own journal.
    wait_for(lambda: state(fleet_own, there.move.id) == "expired")
    assert entry(fleet_own, there.move.id).can() == ["finish"]
    assert ("reverse_over", there.move.id) in found(fleet_own)
    with pytest.raises(Refused, match="expired"):
        reverse(fleet_own, there.move.id)
    assert prunable(fleet_own) == [None, None]
    # Its tables still have what they were lent, which another move would keep.
    fleet_own.ask("b", "DELETE FROM shard2.bare RETURNING 1")
    with pytest.raises(ShardctlError) as caught:
        service.preflight(fleet_own.topology, fleet_own.plan([2], "a"))
    assert "identity_left" in [one.code for one in caught.value.parts()]
    reverse_kept.finish(fleet_own.topology, entry(fleet_own, there.move.id))
    assert left(fleet_own) == []
    lent = "SELECT relreplident::text FROM pg_class WHERE oid = 'shard2.bare'::regclass"
    assert fleet_own.ask("b", lent) == [("d",)]
