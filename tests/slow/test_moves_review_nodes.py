"""Moves between nodes: there and back, with a node away, a clock behind, a rival, a stale plan."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import Any

import pytest

from shardctl.errors import Interrupted, Problems
from shardctl.fanout import Silent
from shardctl.moves import attempt, conclusion, paused_poolers, promotion, service
from shardctl.moves.context import Use
from shardctl.moves.paused_pooler import RouteFailed
from shardctl.moves.preflight import check as preflight
from shardctl.moves.stopped import MoveStopped
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.connection import NodeLost
from shardctl.state import journal
from shardctl.state.journal import MoveState, MoveUnderWay
from tests.fixtures.moves.own import Lab, messages
from tests.fixtures.refusals import raises_code


def test_resume_serves_the_clients_even_when_the_source_is_gone(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NodeLost("c", "cut")

    monkeypatch.setattr(attempt, "conclude", lost)
    assert fleet_own.stopped([2, 3], "c").state is MoveState.claimed
    monkeypatch.undo()
    source = fleet_own.server("a")
    source.stop(mode="immediate")
    with pytest.raises(MoveStopped) as caught:
        fleet_own.resume()
    assert caught.value.exit_code == 3
    assert "node a" in messages(caught.value)
    assert "without node a" in "".join(fleet_own.notices)
    fleet_own.put(2)
    assert fleet_own.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    source.start()
    fleet_own.resume()
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert {fleet_own.copy("a").state, fleet_own.copy("c").state} == {MoveState.unconfirmed}
    assert fleet_own.problems() == []


def test_shards_go_there_and_back_and_every_node_learns_of_it(fleet_own: Lab) -> None:
    fleet_own.put(0)
    fleet_own.move([0, 1, 2, 3], "c")
    assert fleet_own.topology.nodes["a"].shards == ()  # type: ignore[index]  # a NodeName is a str
    assert fleet_own.leads("shard0") == "c"
    assert fleet_own.leads("app_a") == "a"
    fleet_own.move([6, 7], "d")
    # a owns nothing, and its map is asked all the same
    assert fleet_own.ask("a", "SELECT node FROM shardctl.map WHERE shard = 7") == [("d",)]
    identity = fleet_own.ask("a", "SELECT identity FROM shardctl.cluster")
    with pytest.raises(Problems) as refused:
        preflight.check(fleet_own.topology, fleet_own.plan([0, 1, 2, 3], "a"), purpose="test")
    assert {one.code for one in refused.value.parts()} == {"port_taken", "directory_not_empty"}
    fleet_own.server("a").stop()
    shutil.rmtree(fleet_own.server("a").data_directory)
    fleet_own.move([0, 1, 2, 3], "a")
    assert fleet_own.leads("shard0") == "a"
    assert fleet_own.ask("a", "SELECT identity FROM shardctl.cluster") != identity
    assert fleet_own.ask("a", "SELECT count(*) FROM shard0.photos") == [(1,)]
    assert fleet_own.left() == set()
    assert fleet_own.problems() == []


def test_a_map_that_changed_while_the_plan_was_shown_is_refused(fleet_own: Lab) -> None:
    plan = fleet_own.plan([2, 3], "c")
    fleet_own.move([6, 7], "d")
    with raises_code("map_changed") as caught:
        fleet_own.start(plan)
    assert caught.value.exit_code == 1
    assert fleet_own.ask("a", "SELECT count(*) FROM shardctl.move") == [(0,)]


def test_of_two_moves_that_begin_at_the_same_moment_one_goes_back(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = fleet_own.plan([2, 3], "c")
    rival = fleet_own.plan([6, 7], "d")
    row = {k: getattr(rival, k) for k in ("source", "target", "shards", "schemas", "retired")}
    open_move = journal.open_move

    def both(session: Any, **given: Any) -> None:
        open_move(session, **given)
        with fleet_own.connect("b") as other:
            open_move(other, move=rival.id, method="clone", plan=rival.as_json(), **row)

    monkeypatch.setattr(journal, "open_move", both)
    with pytest.raises(MoveUnderWay) as caught:
        fleet_own.start(plan)
    assert caught.value.exit_code == 1
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_the_poolers_file_keeps_its_owner_and_mode(fleet_own: Lab) -> None:
    file = fleet_own.directory / "p1" / "pgbouncer.databases.ini"
    if os.geteuid() == 0:
        shutil.chown(file, "postgres", "postgres")
    file.chmod(0o640)
    before = file.stat()
    fleet_own.move([2, 3], "c")
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    assert fleet_own.leads("shard2") == "c"


def test_a_process_that_was_stopped_for_long_brings_no_old_map_back(fleet_own: Lab) -> None:
    world = fleet_own.move([2, 3], "c")
    fleet_own.move([2, 3], "d")
    with contextlib.closing(world):
        conclusion.spread_map(world)
    for node in "abd":
        assert fleet_own.ask(node, "SELECT node FROM shardctl.map WHERE shard = 2") == [("d",)]


def test_ids_lie_above_earlier_ones_though_the_targets_clock_is_behind(fleet_own: Lab) -> None:
    first = fleet_own.put(2)
    mark_drained = journal.mark_drained

    def ahead(session: Any, move: str, **named: Any) -> str | None:
        """Let the source's clock have been a minute ahead when it was drained."""
        done = mark_drained(session, move, **named)
        session.execute("UPDATE shardctl.move SET drained_at = drained_at + '1 minute'")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "mark_drained", ahead)
        fleet_own.move([2, 3], "c")
    ((at,),) = fleet_own.ask("c", "SELECT drained_at FROM shardctl.move")
    second, third = fleet_own.put(2), fleet_own.put(2)
    assert first < second < third
    ((above,),) = fleet_own.ask("c", f"SELECT shardctl.id_time({second}) > '{at}'")
    assert above


def test_a_classic_generator_waits_until_the_targets_clock_has_passed_the_sources(
    fleet_own_bare: Lab,
) -> None:
    fleet_own_bare.generator = "classic"
    fleet_own_bare.write()
    fleet_own_bare.init()
    first = fleet_own_bare.put(2)
    mark_drained = journal.mark_drained

    def ahead(session: Any, move: str, **named: Any) -> str | None:
        done = mark_drained(session, move, **named)
        session.execute("UPDATE shardctl.move SET drained_at = drained_at + '1 second'")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "mark_drained", ahead)
        fleet_own_bare.move([2, 3], "c")
    ((passed,),) = fleet_own_bare.ask("c", "SELECT changed > drained_at FROM shardctl.move")
    assert passed
    assert first < fleet_own_bare.put(2)


def test_a_lock_whose_holder_died_without_a_word_is_given_up_by_the_server(fleet_own: Lab) -> None:
    topology = fleet_own.topology
    plan = fleet_own.plan([2, 3], "c")
    world = service.at_work(topology, plan, Silent())
    try:
        world.lock(plan.source)
        session = world.session(plan.source, Use.lock)
        assert session.execute("SHOW tcp_user_timeout").fetchone() == ("60000",)
        assert session.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)
    finally:
        world.close()


def test_ctrl_c_while_the_copy_is_made_says_how_to_go_on(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    sends = copying._Watcher.sends

    def interrupted(self: Any) -> bool:
        os.kill(os.getpid(), signal.SIGINT)
        return sends(self)

    monkeypatch.setattr(copying._Watcher, "sends", interrupted)
    error = fleet_own.stopped([2, 3], "c", max_rate="1M")
    assert error.exit_code == Interrupted.exit_code
    assert "`shardctl moves resume`" in error.hint
    assert "`shardctl moves abort`" in error.hint
    assert not (fleet_own.directory / "nodes" / "c").exists()
    fleet_own.abort()
    assert fleet_own.left() == set()
    assert fleet_own.copy("a").state is MoveState.aborted
    assert fleet_own.ask("a", "SELECT command FROM shardctl.event WHERE result LIKE 'move %'") == [
        ("moves abort",)
    ]


def test_a_pooler_that_is_not_routed_is_served_by_its_guard_and_all_others_are_told(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise RouteFailed("p1", ["for this test"])

    monkeypatch.setattr(paused_poolers.PausedPoolers, "route", refuse)
    error = fleet_own.stopped([2, 3], "c", max_pause_s=3.0)
    assert error.state is MoveState.claimed
    assert fleet_own.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert fleet_own.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    fleet_own.put(2)  # waits for the guard
    assert fleet_own.leads("shard2") == "c"
    fleet_own.resume()
    assert fleet_own.left() == set()


def test_a_topology_that_changed_meanwhile_is_not_edited_and_the_values_are_told(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote = promotion.take_over

    def edited(*given: Any, **named: Any) -> None:
        fleet_own.file.write_text(fleet_own.file.read_text() + "move: {retain: 1h}  # mine\n")
        promote(*given, **named)

    monkeypatch.setattr(promotion, "take_over", edited)
    error = fleet_own.stopped([2, 3], "c")
    assert error.state is MoveState.routed
    told = "\n".join(e.hint for e in error.parts())
    assert "nodes.a.shards: 0-1" in told
    assert "nodes.c.shards: 2-3" in told
    fleet_own.put(2)
    text = fleet_own.file.read_text().replace("shards: 0-3", "shards: 0-1")
    before, here, after = text.partition("  c: {")
    fleet_own.file.write_text(before + here + after.replace("shards: none", "shards: 2-3", 1))
    monkeypatch.undo()
    fleet_own.resume()
    assert fleet_own.copy("a").state is MoveState.done, "its rows were compared before it stopped"
    assert fleet_own.file.read_text().endswith("# mine\n")
    assert fleet_own.problems() == []


def test_a_target_that_cannot_open_up_by_itself_is_opened_before_anybody_is_led_there(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "OPENING_ONCE", "exit 1")
    spans = [name for name, _ in fleet_own.move([2, 3], "c").timeline.spans]
    assert spans.index("claim") < spans.index("open") < spans.index("route")
    assert fleet_own.leads("shard2") == "c"
    fleet_own.put(2)
    assert fleet_own.problems() == []
