"""A streamed move: shards go to a node that serves others, while clients write."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.errors import ShardctlError
from shardctl.fanout import Silent
from shardctl.moves import (
    arrivals,
    conclusion,
    doctor,
    held_wal,
    plan,
    prune,
    service,
    stream,
    wal,
)
from shardctl.moves.methods import METHODS
from shardctl.moves.plan import Options
from shardctl.moves.refusals import TargetUnfit
from shardctl.moves.steps import indexes, reserve, stream_reserve, subscribe
from shardctl.moves.stopped import MoveStopped
from shardctl.provision import fleet
from shardctl.state import lock
from shardctl.state.journal import MoveState
from shardctl.state.progress import Kept
from tests.fixtures.moves.own import lose
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.moves.context import MoveContext
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.step import Step
    from tests.fixtures.moves.own import Lab


def planned(lab: Lab, shards: list[int], to: str, **options: Any) -> MovePlan:
    given = {"max_pause_s": 5.0, "retain_s": 0.0, **options}
    return service.plan(lab.topology, shards, to, Options(**given), method=plan.STREAM)


def replace_step(patch: pytest.MonkeyPatch, step: Step, run: Callable[[MoveContext], None]) -> None:
    """Let streamed moves do something else, or more, in one of their steps."""
    streams = METHODS[plan.STREAM]
    steps = [replace(one, run=run) if one is step else one for one in streams.steps]
    patch.setitem(METHODS, plan.STREAM, replace(streams, steps=steps))


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


def test_the_journals_know_where_the_targets_own_changes_begin(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slot on the target has both: what the stream brought, and what clients wrote."""
    run = subscribe.STEP.run

    def watched(context: MoveContext) -> None:
        run(context)
        with fleet_own.connect("b") as session:
            session.execute("CREATE PUBLICATION theirs FOR TABLE shard2.photos")
        fleet_own.ask("b", "SELECT pg_create_logical_replication_slot('theirs', 'pgoutput')")
        for _ in range(5):
            fleet_own.put(2)

    replace_step(monkeypatch, subscribe.STEP, watched)
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    try:
        for _ in range(5):
            fleet_own.put(2)
        own: list[str] = []
        streamed: list[str] = []
        changes = fleet_own.ask(
            "b",
            "SELECT lsn::text, data FROM pg_logical_slot_peek_binary_changes('theirs', NULL, NULL,"
            " 'proto_version', '1', 'publication_names', 'theirs')",
        )
        came = False
        for lsn, change in changes:
            kind = change[:1]
            came = kind == b"O" or (came and kind != b"B")
            if kind == b"C":
                (streamed if came else own).append(lsn)
        assert (len(streamed), len(own)) == (5, 5)
        for node in "ab":
            [ordered] = fleet_own.ask(
                node,
                f"SELECT '{streamed[-1]}'::pg_lsn < l AND l < '{own[0]}'::pg_lsn FROM (SELECT"
                " (report->>'reverse_from')::pg_lsn FROM shardctl.move) AS found (l)",
            )
            assert ordered == (True,)
    finally:
        fleet_own.ask("b", "SELECT pg_drop_replication_slot('theirs')")
        with fleet_own.connect("b") as session:
            session.execute("DROP PUBLICATION theirs")


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

    row = fleet_own.put(2)
    with monkeypatch.context() as patched:
        replace_step(patched, subscribe.STEP, promoted)
        with pytest.raises(MoveStopped) as caught:
            fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert isinstance(caught.value.error, stream.TargetPromoted)
    fleet_own.resume()
    assert (row,) in fleet_own.ask("b", "SELECT id FROM shard2.photos")
    assert fleet_own.copy("b").proof == "compared"
    assert left(fleet_own) == []


def fill(lab: Lab, megabytes: int) -> None:
    """Write WAL on node a that belongs to no moved shard."""
    with lab.connect("a") as session:
        session.execute(
            "CREATE TABLE filled AS SELECT repeat('x', 1000) FROM generate_series(1, %s)",
            [megabytes * 1000],
        )
        session.execute("DROP TABLE filled")


def progress(lab: Lab) -> dict[str, Any]:
    """Give what `moves show -o json` has of a copy."""
    return lab.entry().copied() or {}


def test_the_operator_sees_the_wal_that_is_held_back_and_hears_of_its_limit(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, Any] = {}
    run = indexes.STEP.run

    def look(context: MoveContext) -> None:
        with held_wal.shown(context) as shown:
            shown.expect("b", "making indexes", 0)
            wait_for(lambda: progress(fleet_own).get("wal_bytes"))
            assert not fleet_own.notices
            fill(fleet_own, 20)
            wait_for(lambda: fleet_own.notices)
            wait_for(lambda: progress(fleet_own)["wal_left_s"])
            seen.update(progress(fleet_own))
        run(context)

    replace_step(monkeypatch, indexes.STEP, look)
    fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=32 << 20))
    assert seen["wal_limit_bytes"] == 32 << 20
    assert 16 << 20 < seen["wal_bytes"] < 32 << 20
    assert (seen["phase"], seen["lag_bytes"]) == ("making indexes", None)
    [warning] = [one for one in fleet_own.notices if "max_wal" in one]
    assert re.search(r"more than half of its limit of 32 MB \(max_wal\); at this rate", warning)


def test_the_lag_of_a_stream_is_shown_until_it_has_caught_up(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = arrivals.wait_for
    seen: list[dict[str, Any]] = []

    def lag(context: MoveContext, attempt: int, what: str, **how: Any) -> None:
        monkeypatch.setattr(arrivals, "wait_for", wait)
        name = context.plan.slot
        active = "SELECT active FROM pg_replication_slots"
        with fleet_own.connect("b", autocommit=True) as there:
            # One that is starting, or has not heard of it yet, would receive what is written.
            wait_for(lambda: fleet_own.ask("a", active) == [(True,)])
            there.execute(f"ALTER SUBSCRIPTION {name} DISABLE".encode())
            wait_for(lambda: fleet_own.ask("a", active) == [(False,)])
            fill(fleet_own, 8)
            wait_for(lambda: (progress(fleet_own).get("lag_bytes") or 0) > 8_000_000)
            seen.append(progress(fleet_own))
            there.execute(f"ALTER SUBSCRIPTION {name} ENABLE".encode())
        wait(context, attempt, what, **how)
        wait_for(lambda: progress(fleet_own)["lag_bytes"] < 1_000_000)
        seen.append(progress(fleet_own))

    monkeypatch.setattr(arrivals, "wait_for", lag)
    fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=64 << 20))
    assert [one["phase"] for one in seen] == ["catching up"] * 2
    assert seen[0]["wal_bytes"] >= seen[0]["lag_bytes"]
    assert service.read(fleet_own.topology).newest().copied() is None


def test_a_copy_ends_at_once_when_its_slot_was_dropped_at_the_limit(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this rate it would take two minutes more, for nothing."""
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE TABLE shard2.wide AS SELECT n AS id, repeat(md5(n::text), 30) AS body"
            " FROM generate_series(1, 4000) AS n"
        )
        session.execute("ALTER TABLE shard2.wide ADD PRIMARY KEY (id)")
    expect = Kept.advance

    def exceed(kept: Kept, key: str, done: int = 1) -> None:
        monkeypatch.setattr(Kept, "advance", expect)
        fill(fleet_own, 10)
        expect(kept, key, done)

    monkeypatch.setattr(Kept, "advance", exceed)
    began = time.monotonic()
    with pytest.raises(wal.WalLimitReached):
        fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=8 << 20, max_rate="32k"))
    assert time.monotonic() - began < 60
    assert fleet_own.copy("a").state is MoveState.aborted
    assert left(fleet_own) == []


def test_an_index_build_ends_when_its_slot_was_dropped_at_the_limit(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = fleet_own.server("b").port
    with fleet_own.connect("a") as session:
        session.execute(
            "CREATE FUNCTION shard2.slow(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS"
            f" $$ BEGIN IF pg_catalog.current_setting('port') = '{port}' THEN"
            " PERFORM pg_catalog.pg_sleep(120); END IF; RETURN n; END $$".encode()
        )
        session.execute("CREATE INDEX ON shard2.photos (shard2.slow(id))")
    fleet_own.put(2)
    expect = Kept.expect

    def exceed(kept: Kept, key: str, phase: str, total: int, unit: str = "") -> None:
        expect(kept, key, phase, total, unit)
        if phase == "making indexes":
            fill(fleet_own, 10)

    monkeypatch.setattr(Kept, "expect", exceed)
    began = time.monotonic()
    with pytest.raises(wal.WalLimitReached):
        fleet_own.start(planned(fleet_own, [2, 3], "b", max_wal_bytes=8 << 20))
    assert time.monotonic() - began < 60
    assert "shard2" not in fleet_own.schemas("b")
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
    monkeypatch.setattr(arrivals, "_LOOK_S", 0.2)
    monkeypatch.setattr(subscribe, "_SECONDS", 5.0)

    def collide(context: MoveContext) -> None:
        with fleet_own.connect("b") as session:
            session.execute("INSERT INTO shard2.photos (id, user_id) VALUES (-7, 1)")
        run(context)
        fleet_own.ask("a", "INSERT INTO shard2.photos (id, user_id) VALUES (-7, 2) RETURNING id")

    replace_step(monkeypatch, indexes.STEP, collide)
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    assert isinstance(caught.value.error, arrivals.MarkNotSeen)
    fleet_own.abort()
    assert left(fleet_own) == []


def test_a_move_is_taken_back_though_its_target_is_destroyed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    monkeypatch.undo()
    fleet_own.server("b").stop(mode="immediate")
    with pytest.raises(ShardctlError):
        fleet_own.abort()
    fleet_own.abort(target_destroyed=True)
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.put(2)
    for query in (
        "SELECT slot_name FROM pg_replication_slots",
        "SELECT pubname FROM pg_publication",
    ):
        assert fleet_own.ask("a", query) == []


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
