"""Preflight of a streamed move on a whole fleet: nothing is refused, and nothing is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import plan, service
from shardctl.moves.plan import Options
from shardctl.moves.preflight import check as preflight
from shardctl.moves.preflight.subject import Context
from tests.fixtures.refusals import by_code

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.own import Lab

LEFT = (
    "SELECT subname::text FROM pg_subscription UNION ALL SELECT roname FROM pg_replication_origin"
)


def planned(fleet: Lab, **options: Any) -> MovePlan:
    given = {"max_pause_s": 5.0, "retain_s": 0.0, **options}
    return service.plan(fleet.topology, [2, 3], "b", Options(**given), method=plan.STREAM)


def test_a_fleet_is_fit_for_a_stream(fleet_own: Lab) -> None:
    decided = planned(fleet_own)
    facts = preflight.check(fleet_own.topology, decided, purpose="test")
    assert facts.source_bytes == sum(facts.sizes.values()) > 0
    assert (facts.disk_free_bytes or 0) > 0
    assert facts.max_wal_bytes is not None
    looked = preflight.look(Context(fleet_own.topology, decided, "test"))
    assert by_code(preflight.judge(looked)) == {}
    assert looked.unknown == []
    assert "pg_hba.conf" not in "\n".join(facts.notes)
    for node in "ab":
        assert fleet_own.ask(node, LEFT) == []
    assert preflight.again(fleet_own.topology, decided, "cutover", purpose="test") == []

    with fleet_own.connect("a") as session:
        session.execute("CREATE TABLE shard2.bare (id bigint)")
        session.execute("CREATE SEQUENCE shard3.own")
        session.execute("CREATE UNLOGGED TABLE shard3.fast (id bigint PRIMARY KEY)")
    with fleet_own.connect("b") as session:
        session.execute("CREATE SCHEMA shard3")
        session.execute("ALTER ROLE app SET default_transaction_read_only = on")
    with pytest.raises(ShardctlError) as caught:
        preflight.check(fleet_own.topology, decided, purpose="test")
    told = by_code(caught.value.parts())
    assert set(told) == {"no_replica_identity", "unlogged", "schema_in_the_way", "role_settings"}
    assert "default_transaction_read_only" in told["role_settings"]
    [again] = preflight.again(fleet_own.topology, decided, "cutover", purpose="test")
    assert again.code == "unlogged"

    fleet_own.server("b").stop()
    with pytest.raises(ShardctlError) as caught:
        preflight.check(fleet_own.topology, decided, purpose="test")
    assert "node_unavailable" in {part.code for part in caught.value.parts()}
