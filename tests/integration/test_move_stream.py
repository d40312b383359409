"""A streamed move: shards go to a node that serves others, while clients write."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import (
    claims,
    comparison,
    confirm,
    copy,
    cutover,
    doctor,
    follow,
    plan,
    reverse_kept,
    service,
    stream_claim,
    stream_cutover,
)
from shardctl.moves.context import Use
from shardctl.moves.plan import Options, TargetUnfit
from shardctl.moves.service import MoveStopped
from shardctl.postgres import slots
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.provision import poolers as pooling
from shardctl.state import journal, leash, lock
from shardctl.state.journal import MoveState
from shardctl.topology.model import NodeName
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.proof import left
from tests.fixtures.moves.stream_moves import entry, fill, on_source, replace_step
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from tests.fixtures.moves.own import Lab


def test_shards_go_to_a_node_that_serves(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    put_ids_ahead(fleet_own)
    fill(fleet_own)
    fill_sequences(fleet_own)
    refused = refuse_meanwhile(fleet_own, monkeypatch)
    monkeypatch.setattr(stream_cutover, "_look_closer", lambda _: pytest.fail("it is untouched"))
    differing = compare_others_first(fleet_own, monkeypatch)
    # `verify` runs while clients wait.
    context = fleet_own.move([2, 3], "b", max_pause_s=30.0)
    assert refused == ["25006"]  # closed copies refuse every client until the claim
    assert [*map(len, differing)] == [2]
    lose_a_lock(fleet_own, context)
    assert fleet_own.copy("a").state is fleet_own.copy("b").state is MoveState.done
    assert fleet_own.copy("b").proof == "compared"
    assert {f"shard{n}" for n in range(2, 8)} <= fleet_own.schemas("b")
    assert fleet_own.leads("shard2") == "b"
    first = fleet_own.put(2)
    # The register has come along, or new ids would be below earlier ones, and meet them again.
    assert fleet_own.ask("b", "SELECT count(*), max(id) FROM shard2.photos") == [(2002, first)]
    # Sequences that are near their end go on with the next value.
    insert = "INSERT INTO shard2.few (note) VALUES ('there') RETURNING id::integer"
    assert fleet_own.ask("b", insert) == [(2001,)]
    assert fleet_own.ask("b", "SELECT nextval('shard2.down')") == [(-2001,)]
    assert fleet_own.ask("b", "SELECT nextval('shard2.plenty')") == [(2 + claims.MARGIN + 1,)]
    assert fleet_own.ask("b", "SELECT nextval('shard2.unused')") == [(7,)]
    report = fleet_own.copy("b").report
    assert report is not None
    found = report["rehearsal"]
    assert (found["tables"], found["rows"], found["differing"]) == (4, 7004, [])
    assert (report["tables"], report["rows"]) == (4, 7004)
    assert found["size_bytes"] > 7004 * 30
    assert found["time"] == found["first_time"]
    assert report["predicted_pause_ms"] == found["predicted_pause_ms"] > 0
    assert left(fleet_own) == []
    assert fleet_own.problems() == ["not_generated: b photos"]  # by `put_ids_ahead`
    assert context.timeline.pause_ms is not None


def test_a_schema_that_the_move_has_not_made_survives_its_abort(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when shardctl is killed before the target has the journal."""
    try_methods(fleet_own)
    monkeypatch.setattr(journal, "copy", lose)
    with pytest.raises(ShardctlError):
        fleet_own.move([2, 3], "b")
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


def _fail_over_unfenced(lab: Lab, move: MovePlan) -> None:
    """Leave the source as after a failover to a standby without the fence (`--ignore-standby`)."""
    decided = "SELECT what FROM shardctl.stream WHERE what = 'decision'"
    wait_for(lambda: lab.ask("b", decided))
    with lab.connect("a") as session:
        slots.drop(session, move.slot)
        for live, retired in zip(move.schemas, move.retired, strict=True):
            names = sql.Identifier(retired), sql.Identifier(live)
            session.execute(sql.SQL("ALTER SCHEMA {} RENAME TO {}").format(*names))
        session.execute("DELETE FROM shardctl.stream WHERE attempt > 0")
        session.execute('UPDATE shardctl.stream SET note = \'{"timeline": "another"}\'')
        session.execute("UPDATE shardctl.move SET state = 'reserved', revision = 1")


ACCEPTED = "INSERT INTO shard2.photos (user_id) VALUES (2) RETURNING id"


@pytest.mark.long
def test_a_decision_that_the_source_has_lost_is_not_claimed_when_the_source_was_not_fenced(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_claim, "claim", lose)
    move = fleet_own.plan([2, 3], "b", max_pause_s=30.0)  # no guard fires before the resume
    with pytest.raises(MoveStopped):
        fleet_own.start(move)
    monkeypatch.undo()
    _fail_over_unfenced(fleet_own, move)
    [row] = fleet_own.ask("a", ACCEPTED)
    claimed: list[Any] = []

    def claims(context: MoveContext) -> None:
        claimed.extend(context.session(move.target).execute(stream_claim.serves(context)))
        run(context)

    run = copy.make_tables
    monkeypatch.setattr(copy, "make_tables", claims)  # what copies again begins with it
    fleet_own.resume()
    assert claimed == [(False,)]
    assert fleet_own.leads("shard2") == "b"
    assert row in fleet_own.ask("b", "SELECT id FROM shard2.photos")
    assert fleet_own.problems() == []


@pytest.mark.long
def test_a_source_that_lost_the_fence_of_a_claimed_move_is_closed_and_named(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a guard claims, and shardctl comes back after the failover."""
    claim = stream_claim.claim

    def claim_and_die(context: MoveContext) -> bool:
        claim(context)
        raise NodeLost(context.plan.target, "killed")

    monkeypatch.setattr(stream_claim, "claim", claim_and_die)
    move = fleet_own.plan([2, 3], "b", max_pause_s=30.0)
    with pytest.raises(MoveStopped):
        fleet_own.start(move)
    monkeypatch.undo()
    _fail_over_unfenced(fleet_own, move)
    [(lost,)] = fleet_own.ask("a", ACCEPTED)
    fleet_own.resume()
    assert {"shard2", "shard3"} & fleet_own.schemas("a") == set()
    assert fleet_own.put(2) > lost
    assert fleet_own.copy("a").proof == "forked"  # prune asks the operator
    assert fleet_own.problems() == []


def refuse_meanwhile(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Let a client write to a copy before the claim; give with what that was refused."""
    refused: list[str] = []
    hold = stream_cutover.hold_snapshot

    def write(context: MoveContext) -> None:
        for node in "ab":  # other commands find that this one has the node, and its turn
            with fleet_own.connect(node) as session:
                for holder in (lock.holder(session), lock.held_by(session, lock.CUTOVER)):
                    assert holder is not None
                    assert context.purpose in holder
        with fleet_own.connect("b") as session:
            session.execute("SET session_replication_role = replica")
            try:
                session.execute("INSERT INTO shard2.photos (user_id) VALUES (1)")
            except psycopg.Error as error:
                refused.append(str(error.sqlstate))
            # Nor is it claimed by a decision whose mark has not arrived.
            early = {"attempt": 1 << 20, "state": "promoting", "revision": 1 << 40, "sequences": []}
            assert session.execute(claiming(context, early)).fetchone() == (False,)
        assert {one.partition(":")[0] for one in fleet_own.problems()} <= {"paused"}
        hold(context)

    monkeypatch.setattr(stream_cutover, "hold_snapshot", write)
    return refused


def claiming(context: MoveContext, decision: dict[str, Any]) -> sql.Composed:
    """Compose what lets the target claim by a decision."""
    return stream_claim.QUERIES["claim"].format(
        name=sql.Identifier(stream_claim.function(context.plan.id)),
        decision=sql.Literal(json.dumps(decision)),
    )


def compare_others_first(fleet_own: Lab, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Compare with changed copies on the source first; give the tables that differ, each time."""
    found: list[tuple[str, ...]] = []
    compare = confirm.compare

    def changed(context: MoveContext) -> comparison.Compared | None:
        few = f"{context.plan.retired[0]}.few"
        photos = f"{context.plan.retired[1]}.photos"
        last = f"UPDATE {photos} SET user_id = -user_id WHERE id = (SELECT max(id) FROM {photos})"
        note = f"UPDATE {few} SET note = reverse(note) WHERE id = 1"
        fleet_own.ask("a", note, last)
        with pytest.raises(confirm.CopiesDiffer) as caught:
            compare(context)
        found.append(caught.value.tables)
        fleet_own.ask("a", note, last)
        return compare(context)

    monkeypatch.setattr(confirm, "compare", changed)
    return found


def put_ids_ahead(fleet_own: Lab) -> None:
    """Let the ids of shard 2 be ahead of every clock, as after a clock that was set back."""
    register = "pg_sequence_last_value('shard2.next_id_block')"
    fleet_own.ask("a", f"SELECT setval('shard2.next_id_block', {register} + (1 << 22))")


def fill_sequences(fleet_own: Lab) -> None:
    """Make sequences that are near their end, and one that is not."""
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE TABLE shard2.few (id smallint GENERATED ALWAYS AS IDENTITY"
            " (INCREMENT BY 1000) PRIMARY KEY, note text)"
        )
        session.execute("CREATE SEQUENCE shard2.down AS smallint INCREMENT -1000 NO MINVALUE")
        session.execute("CREATE SEQUENCE shard2.plenty")
        session.execute("CREATE SEQUENCE shard2.unused")
        session.execute("SELECT setval('shard2.unused', 7, false)")
        for _ in range(2):
            session.execute("INSERT INTO shard2.few (note) VALUES ('here')")
            session.execute("SELECT nextval('shard2.down'), nextval('shard2.plenty')")


def test_ddl_that_stops_the_indexes_is_copied_again_by_resume(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copy.make_rest

    def altered(context: MoveContext) -> None:
        with fleet_own.connect("a") as session:
            session.execute("ALTER TABLE shard2.photos ADD note text")
            session.execute("CREATE INDEX noted ON shard2.photos (note)")
        run(context)

    monkeypatch.setattr(copy, "make_rest", altered)
    with pytest.raises(MoveStopped) as caught:
        fleet_own.move([2, 3], "b")
    assert "note" in caught.value.parts()[0].message
    monkeypatch.undo()
    fleet_own.resume()
    assert fleet_own.copy("b").state is MoveState.done
    assert fleet_own.ask("b", "SELECT to_regclass('shard2.noted')::text") == [("shard2.noted",)]


def test_indexes_that_are_broken_off_are_made_again_without_the_rows(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = "SELECT pg_relation_filenode('shard2.photos')"
    fleet_own.ask("a", "CREATE TABLE shard2.bare (n integer)")
    monkeypatch.setattr(copy, "_gather_statistics", lose)
    with pytest.raises(MoveStopped):
        fleet_own.move([2, 3], "b", keep_reverse_s=600.0, identity_full=True)
    monkeypatch.undo()
    for node in "ab":  # as a move between other nodes leaves it
        fleet_own.ask(node, "UPDATE shardctl.cluster SET map_version = 7")
    assert fleet_own.entry().steps[-1].step == "copy"
    copied, last = fleet_own.ask("b", file), fleet_own.put(2)
    fleet_own.resume()
    assert fleet_own.ask("b", file) == copied
    assert (last,) in fleet_own.ask("b", "SELECT id FROM shard2.photos")
    assert fleet_own.copy("b").proof == "compared"
    for node in "ab":
        assert fleet_own.ask(node, "SELECT map_version FROM shardctl.cluster") == [(8,)]
    ended = fleet_own.copy("b").id
    reverse_kept.finish(fleet_own.topology, entry(fleet_own, ended))
    with raises_code("nothing_to_finish"):
        reverse_kept.finish(fleet_own.topology, entry(fleet_own, ended))
    identity = "SELECT relreplident::text FROM pg_class WHERE oid = 'shard2.bare'::regclass"
    assert fleet_own.ask("b", identity) == [("d",)]
    assert left(fleet_own) == []
    assert fleet_own.problems() == []


def try_methods(fleet_own: Lab) -> None:
    """See that a target decides the method, and which options a stream does not have."""
    options = Options(5.0, 0.0)
    for target, method in (("b", "stream"), ("c", "clone")):
        assert service.plan(fleet_own.topology, [2], target, options, method=None).method == method
    with pytest.raises(plan.MoveRefused, match="--duplicate-shared"):
        fleet_own.plan([2], "b", duplicate_shared=True)
    with pytest.raises(plan.MoveRefused, match="--identity"):
        service.plan(
            fleet_own.topology, [2], "c", replace(options, identity_full=True), method="clone"
        )


@pytest.mark.long
def test_an_abort_serves_clients_though_its_target_cannot_be_reached_and_ends_when_it_is_back(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_cutover, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.move([2, 3], "b")
    monkeypatch.undo()
    assert len(on_source(fleet_own)) == 2
    fleet_own.server("b").stop(mode="immediate")
    # On a new timeline the source may have lost its decision: only the target knows.
    ping = "UPDATE shardctl.stream SET note = '{{\"timeline\": \"{}\"}}' WHERE what = 'ping'"
    [(before,)] = fleet_own.ask(
        "a", "SELECT note->>'timeline' FROM shardctl.stream WHERE what = 'ping' LIMIT 1"
    )
    fleet_own.ask("a", ping.format("00000000") + " RETURNING 1")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.abort()
    assert len(on_source(fleet_own)) == 2
    fleet_own.ask("a", ping.format(before) + " RETURNING 1")
    fleet_own.server("a").stop(mode="fast")  # which ends the guard of the slot
    fleet_own.server("a").start()
    for _ in range(2):
        with pytest.raises(MoveStopped) as caught:
            fleet_own.abort()
        assert caught.value.exit_code == 3
        assert isinstance(caught.value.error, NodeUnavailable)
        with fleet_own.connect("a") as source:
            assert leash.is_armed(source, fleet_own.entry().slot)
        assert fleet_own.copy("a").state is MoveState.undone
        assert fleet_own.put(2)
    fleet_own.server("b").start()
    fleet_own.abort()
    assert fleet_own.copy("a").state is fleet_own.copy("b").state is MoveState.aborted
    assert left(fleet_own) == []
    assert fleet_own.problems() == []


@pytest.fixture
def stopped(fleet_own: Lab) -> Lab:
    """Give a fleet with a streamed move that stopped when its rows were copied."""
    with pytest.MonkeyPatch.context() as patch:
        replace_step(patch, follow.STREAM_STEP, lose)
        with pytest.raises(MoveStopped):
            fleet_own.move([2, 3], "b")
    return fleet_own


def put_elsewhere(fleet: Lab, before: str, now: str) -> None:
    """Change the topology, once."""
    text = fleet.file.read_text()
    assert text.count(before) == 1
    fleet.file.write_text(text.replace(before, now))


def fleet_port(fleet: Lab, node: str) -> int:
    return fleet.topology.nodes[NodeName(node)].port


def apply_poolers(fleet: Lab) -> None:
    """Do what `pgbouncer apply` does, when nodes listen elsewhere."""
    topology = fleet.topology
    poolers = list(topology.poolers.values())
    pooling.apply(pooling.plan(topology, poolers, 1, force=False, purpose="test"), Silent())


def test_nodes_at_other_ports_keep_their_move_and_other_servers_do_not(stopped: Lab) -> None:
    ports = {node: fleet_port(stopped, node) for node in "ab"}
    whole = stopped.file.read_text()
    put_elsewhere(stopped, f"port: {ports['b']}", "port: 1")
    put_elsewhere(stopped, f"port: {ports['a']}", f"port: {ports['b']}")
    with raises_code("node_unfit"):
        stopped.resume()
    stopped.file.write_text(whole)
    for node, port in zip("ab", free_ports(2), strict=True):
        stopped.server(node).stop()
        put_elsewhere(stopped, f"port: {ports[node]}", f"port: {port}")
        stopped.server(node).start()
    apply_poolers(stopped)
    stopped.resume()
    assert stopped.copy("a").state is stopped.copy("b").state is MoveState.done
    assert stopped.ask("b", "SELECT count(*) FROM shard2.photos") == [(1,)]
    assert left(stopped) == []


END = "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted"


def lose_a_lock(fleet_own: Lab, context: MoveContext) -> None:
    """See that a process which has lost the target's lock notices that."""
    for node in (context.plan.source, context.plan.target):
        context.lock(node)
    cutover.require_locks(context, context.plan.locked)
    with pytest.raises(lock.NodeLocked), fleet_own.connect("b") as session:
        lock.take(session, "b")
    fleet_own.ask("b", END)
    with pytest.raises(NodeLost):
        cutover.require_locks(context, context.plan.locked)
    context.close()


@pytest.mark.long
@pytest.mark.parametrize("node", ["a", "b"])
def test_a_lock_that_is_lost_behind_the_fence_undoes_the_cutover(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch, node: str
) -> None:
    hold = stream_cutover.hold_snapshot

    def ends(context: MoveContext) -> None:
        hold(context)
        pid = context.sessions[NodeName(node), Use.lock].info.backend_pid
        with fleet_own.connect(node) as session:
            session.execute("SELECT pg_terminate_backend(%s)", [pid])

    monkeypatch.setattr(stream_cutover, "hold_snapshot", ends)
    with pytest.raises(MoveStopped) as caught:
        fleet_own.move([2, 3], "b")
    assert isinstance(caught.value.error, NodeLost)
    monkeypatch.undo()
    assert fleet_own.put(2)
    fleet_own.resume()
    assert fleet_own.copy("b").proof == "compared"
    assert left(fleet_own) == []
