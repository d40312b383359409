"""A streamed move: shards go to a node that serves others, while clients write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.moves import doctor, plan, service, stream
from shardctl.moves.plan import Options
from shardctl.moves.refusals import TargetUnfit
from shardctl.moves.steps import reserve, stream_reserve
from shardctl.moves.stopped import MoveStopped
from shardctl.state.journal import MoveState
from tests.fixtures.moves.own import lose

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.own import Lab


def planned(lab: Lab, shards: list[int], to: str, **options: Any) -> MovePlan:
    given = {"max_pause_s": 5.0, "retain_s": 0.0, **options}
    return service.plan(lab.topology, shards, to, Options(**given), method=plan.STREAM)


def left(lab: Lab) -> list[Any]:
    """Name what a move has made on the nodes and has not removed."""
    found: list[Any] = []
    for node in "ab":
        for query in (
            "SELECT slot_name::text FROM pg_replication_slots",
            "SELECT pubname::text FROM pg_publication",
            "SELECT subname::text FROM pg_subscription",
            "SELECT roname::text FROM pg_replication_origin",
            "SELECT proname::text FROM pg_proc WHERE proname LIKE 'shardctl~_%' ESCAPE '~'",
            "SELECT what FROM shardctl.stream",
            "SELECT move FROM shardctl.stream_copy",
            "SELECT tgrelid::regclass::text FROM pg_trigger WHERE tgname LIKE 'shardctl%'",
        ):
            found += [(node, *row) for row in lab.ask(node, query)]
    return found


def test_shards_go_to_a_node_that_serves(fleet_own: Lab) -> None:
    context = fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert fleet_own.copy("a").state is fleet_own.copy("b").state is MoveState.done
    assert fleet_own.copy("b").proof == "compared"
    assert {f"shard{n}" for n in range(2, 8)} <= fleet_own.schemas("b")
    assert fleet_own.leads("shard2") == "b"
    first = fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT count(*), max(id) FROM shard2.photos") == [(2, first)]
    assert left(fleet_own) == []
    assert fleet_own.problems() == []
    assert context.timeline.pause_ms is not None
    assert not [one for one in fleet_own.notices if "lacks this change" in one]


def test_a_schema_that_the_move_has_not_made_survives_its_abort(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when shardctl is killed before the target has the journal."""
    monkeypatch.setattr(stream_reserve, "_require_absent", lose)
    monkeypatch.setattr(reserve, "close", lambda _: None)
    with pytest.raises(ShardctlError):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    with fleet_own.connect("b") as session:
        session.execute("CREATE SCHEMA shard2")
        session.execute("CREATE TABLE shard2.restored (id bigint)")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.resume()
    assert isinstance(caught.value.error, TargetUnfit)
    fleet_own.abort()
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.ask("b", "SELECT to_regclass('shard2.restored') IS NOT NULL") == [(True,)]
    assert doctor.left(doctor.look(fleet_own.topology, purpose="test")) == []


def test_closed_copies_refuse_every_client_until_the_claim(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []
    hold = stream.hold_snapshot

    def write(context: MoveContext) -> None:
        with fleet_own.connect("b") as session:
            session.execute("SET session_replication_role = replica")
            try:
                session.execute("INSERT INTO shard2.photos (user_id) VALUES (1)")
            except psycopg.Error as error:
                refused.append(str(error.sqlstate))
        hold(context)

    monkeypatch.setattr(stream, "hold_snapshot", write)
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert refused == ["25006"]
    assert fleet_own.put(2)


def test_a_target_decides_the_method(fleet_own: Lab) -> None:
    options = Options(5.0, 0.0)
    for target, method in (("b", "stream"), ("c", "clone")):
        decided = service.plan(fleet_own.topology, [2], target, options, method=None)
        assert decided.method == method
    with pytest.raises(plan.MoveRefused, match="--read-only"):
        planned(fleet_own, [2], "b", read_only=True)
