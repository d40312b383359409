"""A streamed move: shards go to a node that serves others, while clients write."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import conclusion, doctor, doctor_clear, plan, prune, service, stream
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import Options
from shardctl.moves.refusals import TargetUnfit
from shardctl.moves.step import TargetUncleaned
from shardctl.moves.steps import confirm, indexes, reserve, stream_reserve, subscribe
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres.connection import NodeLost
from shardctl.postgres.logical import subscription
from shardctl.provision import fleet
from shardctl.state import lock
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


def test_a_move_that_stopped_keeps_migrations_out_and_is_taken_back(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    file = fleet_own.directory / "migrations" / "0002_more.sql"
    file.write_text("CREATE TABLE more ();")
    with pytest.raises(ShardctlError) as caught:
        fleet.plan_migrate(fleet_own.topology)
    assert "move_unfinished" in {one.code for one in caught.value.parts()}
    file.unlink()
    assert fleet_own.put(2)
    fleet_own.abort()
    assert fleet_own.copy("a").state is fleet_own.copy("b").state is MoveState.aborted
    assert "shard2" not in fleet_own.schemas("b")
    assert fleet_own.ask("b", "SELECT FROM shardctl.migration WHERE shard = 2") == []
    assert left(fleet_own) == []
    assert fleet_own.problems() == []


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


def test_what_an_operator_grants_and_sets_on_the_new_copy_survives_the_retirement(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = confirm.STEP.run

    def granted(context: MoveContext) -> None:
        with fleet_own.connect("b") as session:
            session.execute("CREATE ROLE analyst")
            session.execute("GRANT USAGE ON SCHEMA shard2 TO analyst")
            session.execute("GRANT CREATE ON SCHEMA shard2 TO app")
            session.execute("REVOKE USAGE ON SCHEMA shard3 FROM app")
            session.execute("ALTER TABLE shard2.photos SET (autovacuum_enabled = false)")
        run(context)

    steps = [
        replace(one, run=granted) if one is confirm.STEP else one
        for one in METHODS[plan.STREAM].steps
    ]
    monkeypatch.setitem(METHODS, plan.STREAM, replace(METHODS[plan.STREAM], steps=steps))
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert fleet_own.copy("b").state is MoveState.done
    for role, schema, right, has in (
        ("analyst", "shard2", "USAGE", True),
        ("app", "shard2", "CREATE", True),
        ("app", "shard2", "USAGE", True),
        ("app", "shard3", "USAGE", False),
    ):
        query = f"SELECT has_schema_privilege('{role}', '{schema}', '{right}')"
        assert fleet_own.ask("b", query) == [(has,)], (role, schema, right)
    options = "SELECT reloptions FROM pg_class WHERE oid = '{}.photos'::regclass"
    assert fleet_own.ask("b", options.format("shard2")) == [(["autovacuum_enabled=false"],)]
    assert fleet_own.ask("b", options.format("shard3")) == [(None,)]
    assert left(fleet_own) == []


def test_prune_drops_what_the_source_has_retired(fleet_own: Lab) -> None:
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    purpose = lock.purpose("prune")
    found = prune.plan(
        fleet_own.topology,
        service.read(fleet_own.topology),
        accept_unconfirmed=False,
        now=True,
        purpose=purpose,
    )
    assert [(one.node, one.shard, one.why_not) for one in found] == [("a", 2, None), ("a", 3, None)]
    prune.carry_out(fleet_own.topology, found, Silent())
    assert fleet_own.schemas("a") == {"shard0", "shard1"}
    assert {f"shard{n}" for n in range(2, 8)} <= fleet_own.schemas("b")


def test_prune_leaves_nothing_of_shards_that_went_and_came_back(fleet_own: Lab) -> None:
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    last = fleet_own.put(2)
    fleet_own.start(planned(fleet_own, [2, 3], "a"))
    found = prune.plan(
        fleet_own.topology,
        service.read(fleet_own.topology),
        accept_unconfirmed=False,
        now=True,
        purpose=lock.purpose("prune"),
    )
    assert [(one.node, one.shard, one.why_not) for one in found] == [
        ("a", 2, None), ("a", 3, None), ("b", 2, None), ("b", 3, None),
    ]  # fmt: skip
    prune.carry_out(fleet_own.topology, found, Silent())
    assert fleet_own.schemas("a") == {f"shard{n}" for n in range(4)}
    assert fleet_own.schemas("b") == {f"shard{n}" for n in range(4, 8)}
    assert (last,) in fleet_own.ask("a", "SELECT id FROM shard2.photos")
    assert fleet_own.problems() == []


def test_sequences_and_ids_go_on_above_all_that_the_source_gave_out(fleet_own: Lab) -> None:
    with fleet_own.connect("a") as session:
        session.execute("CREATE SEQUENCE shard2.down INCREMENT -3 MAXVALUE 100")
        session.execute("SELECT nextval('shard2.down') FROM generate_series(1, 5)")
        session.execute("CREATE SEQUENCE shard2.imported")
        session.execute("SELECT setval('shard2.imported', 100000, false)")
        # More than a bigint holds, times the margin of the claim.
        session.execute("CREATE SEQUENCE shard2.wide INCREMENT 1000000000000000000")
        session.execute("SELECT nextval('shard2.wide')")
    last = fleet_own.put(2)
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert fleet_own.put(2) > last
    [(drawn,)] = fleet_own.ask("b", "SELECT nextval('shard2.down')")
    assert drawn < 100 - 4 * 3
    assert fleet_own.ask("b", "SELECT nextval('shard2.imported')") == [(100_000,)]


def test_a_target_that_was_promoted_since_the_copy_is_copied_to_again(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby of the target may lack rows that the source does not send to it again."""
    run = subscribe.STEP.run

    def promoted(context: MoveContext) -> None:
        run(context)
        with fleet_own.connect("b") as session:
            # What the mark of the copy says after a failover: another timeline than the server's.
            session.execute("""UPDATE shardctl.stream SET note = '{"timeline": "00000000"}'
                               WHERE what = 'copied'""")
            session.execute("ALTER TABLE shard2.photos DISABLE TRIGGER ALL")
            session.execute("DELETE FROM shard2.photos")
            session.execute("ALTER TABLE shard2.photos ENABLE TRIGGER ALL")

    steps = [
        replace(one, run=promoted) if one is subscribe.STEP else one
        for one in METHODS[plan.STREAM].steps
    ]
    row = fleet_own.put(2)
    with monkeypatch.context() as patched:
        patched.setitem(METHODS, plan.STREAM, replace(METHODS[plan.STREAM], steps=steps))
        with pytest.raises(MoveStopped) as caught:
            fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert isinstance(caught.value.error, stream.TargetPromoted)
    fleet_own.resume()
    assert (row,) in fleet_own.ask("b", "SELECT id FROM shard2.photos")
    assert fleet_own.copy("b").proof == "compared"
    assert left(fleet_own) == []


def test_a_target_decides_the_method(fleet_own: Lab) -> None:
    options = Options(5.0, 0.0)
    for target, method in (("b", "stream"), ("c", "clone")):
        decided = service.plan(fleet_own.topology, [2], target, options, method=None)
        assert decided.method == method
    with pytest.raises(plan.MoveRefused, match="--read-only"):
        planned(fleet_own, [2], "b", read_only=True)


def test_a_row_that_someone_put_into_the_copy_stops_the_move_with_its_error(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker fails on it for ever; the move says so before clients wait."""
    run = indexes.STEP.run
    monkeypatch.setattr(stream, "_LOOK_S", 0.2)
    monkeypatch.setattr(subscribe, "_SECONDS", 5.0)

    def collide(context: MoveContext) -> None:
        with fleet_own.connect("b") as session:
            session.execute("INSERT INTO shard2.photos (id, user_id) VALUES (-7, 1)")
        run(context)
        fleet_own.ask("a", "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 2) RETURNING id")

    steps = [
        replace(one, run=collide) if one is indexes.STEP else one
        for one in METHODS[plan.STREAM].steps
    ]
    monkeypatch.setitem(METHODS, plan.STREAM, replace(METHODS[plan.STREAM], steps=steps))
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert isinstance(caught.value.error, stream.MarkNotSeen)
    fleet_own.abort()
    assert left(fleet_own) == []


def test_a_move_is_taken_back_though_its_target_is_destroyed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    with monkeypatch.context() as patched:  # as when the target dies during the abort
        patched.setattr(subscription, "drop", lambda *_: lose_target())
        with pytest.raises(MoveStopped) as caught:
            fleet_own.abort()
    assert any(isinstance(one, TargetUncleaned) for one in caught.value.parts())
    assert [one for one in left(fleet_own) if one[0] == "a" and one[1].startswith("shard")] == []
    fleet_own.server("b").stop(mode="immediate")
    fleet_own.abort(target_destroyed=True)
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.put(2)
    assert on_source(fleet_own) == []
    fleet_own.server("b").start()
    purpose = lock.purpose("moves doctor")
    found = doctor.left(doctor.look(fleet_own.topology, purpose=purpose))
    assert {one.object.kind for one in found} >= {"subscription", "schema", "function", "records"}
    doctor_clear.clear(fleet_own.topology, found, lambda _: None)
    assert left(fleet_own) == []
    assert "shard2" not in fleet_own.schemas("b")


def lose_target() -> None:
    raise NodeLost("b", "cut")


def on_source(lab: Lab) -> list[Any]:
    """Name the slots and publications on the source."""
    slots = "SELECT slot_name FROM pg_replication_slots"
    return lab.ask("a", slots) + lab.ask("a", "SELECT pubname FROM pg_publication")


def test_an_abort_cleans_the_source_though_its_target_cannot_be_reached(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    entry, made = fleet_own.entry(), left(fleet_own)
    assert len(on_source(fleet_own)) == 2
    # Another command that changes the target goes first.
    with lock.held(fleet_own.topology, [fleet_own.topology.nodes["b"].name], command="test"):  # type: ignore[index]  # a NodeName is a str
        with pytest.raises(lock.NodeLocked, match="node b is being changed by shardctl test"):
            service.require_abortable(fleet_own.topology, fleet_own.entry())
        monkeypatch.setattr(service, "_require_free", lambda *_: None)
        with pytest.raises(lock.NodeLocked, match="node b"):
            fleet_own.abort()
        monkeypatch.undo()
    assert left(fleet_own) == made
    fleet_own.server("b").stop(mode="immediate")
    # On a new timeline the source may have lost its decision: only the target knows.
    ping = "UPDATE shardctl.stream SET note = '{{\"timeline\": \"{}\"}}' WHERE what = 'ping'"
    [(before,)] = fleet_own.ask(
        "a", "SELECT note->>'timeline' FROM shardctl.stream WHERE what = 'ping' LIMIT 1"
    )
    fleet_own.ask("a", ping.format("00000000") + " RETURNING 1")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.abort()
    assert not any(isinstance(one, TargetUncleaned) for one in caught.value.parts())
    assert len(on_source(fleet_own)) == 2
    fleet_own.ask("a", ping.format(before) + " RETURNING 1")
    for _ in range(2):
        with pytest.raises(MoveStopped) as caught:
            fleet_own.abort()
        assert caught.value.exit_code == 3
        [told] = [one for one in caught.value.parts() if isinstance(one, TargetUncleaned)]
        assert f"subscription {entry.slot}" in told.message
        assert "copies of shards 2-3" in told.message
        assert "keeps up to" not in caught.value.message  # of WAL
        assert on_source(fleet_own) == []
        assert fleet_own.copy("a").state is MoveState.undone
        assert fleet_own.put(2)
    fleet_own.server("b").start()
    fleet_own.abort()
    assert fleet_own.copy("a").state is fleet_own.copy("b").state is MoveState.aborted
    assert left(fleet_own) == []
    assert fleet_own.problems() == []


def test_a_claimed_move_ends_though_its_source_is_destroyed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conclusion, "spread_map", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    fleet_own.server("a").stop(mode="immediate")
    fleet_own.resume(source_destroyed=True)
    assert fleet_own.copy("b").state.closed
    assert fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT subname FROM pg_subscription") == []
