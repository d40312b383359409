"""Moves between nodes: there and back, with a node away, a clock behind, a rival, a stale plan."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from typing import Any

import pytest

from shardctl.access import fence
from shardctl.errors import Interrupted
from shardctl.fanout import Silent
from shardctl.moves import gates, handover, preflight
from shardctl.moves.gates_refusals import RouteFailed
from shardctl.moves.preflight_refusals import TargetUnfit
from shardctl.moves.stopped import MoveStopped
from shardctl.moves.world import World
from shardctl.postgres import clone as clones
from shardctl.postgres import copying
from shardctl.postgres.connection import NodeLost
from shardctl.provision import maps
from shardctl.state import journal
from shardctl.state.journal import MoveState, MoveUnderWay
from tests.fixtures.lab import Lab, messages


def test_resume_serves_the_clients_even_when_the_source_is_gone(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise NodeLost("c", "cut")

    monkeypatch.setattr(handover, "conclude", lost)
    assert lab.stopped([2, 3], "c").state is MoveState.claimed
    monkeypatch.undo()
    source = lab.server("a")
    source.stop(mode="immediate")
    with pytest.raises(MoveStopped) as caught:
        lab.resume()
    assert caught.value.exit_code == 3
    assert "node a" in messages(caught.value)
    assert "without node a" in "".join(lab.notices)
    lab.put(2)
    assert lab.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    source.start()
    lab.resume()
    assert lab.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert {lab.copy("a").state, lab.copy("c").state} == {MoveState.unconfirmed}
    assert lab.problems() == []


def test_shards_go_there_and_back_and_every_node_learns_of_it(lab: Lab) -> None:
    lab.put(0)
    lab.move([0, 1, 2, 3], "c")
    assert lab.topology.nodes["a"].shards == ()  # type: ignore[index]  # a NodeName is a str
    assert lab.leads("shard0") == "c"
    assert lab.leads("app_a") == "a"
    lab.move([6, 7], "d")
    # a owns nothing, and its map is asked all the same
    assert lab.ask("a", "SELECT node FROM shardctl.map WHERE shard = 7") == [("d",)]
    identity = lab.ask("a", "SELECT identity FROM shardctl.cluster")
    lab.move([0, 1, 2, 3], "a")
    assert lab.leads("shard0") == "a"
    assert lab.ask("a", "SELECT identity FROM shardctl.cluster") != identity
    assert lab.ask("a", "SELECT count(*) FROM shard0.photos") == [(1,)]
    assert lab.left() == set()
    assert lab.problems() == []


def test_an_aborted_move_brings_the_old_server_of_its_target_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.move([0, 1, 2, 3], "c")
    before = lab.schemas("a"), lab.ask("a", "SELECT identity FROM shardctl.cluster")

    def refuse(*_: Any, **__: Any) -> None:
        raise fence.FenceRefused("c", "for this test")

    monkeypatch.setattr(fence, "put_up", refuse)
    lab.stopped([0, 1, 2, 3], "a")
    assert lab.left() != set()
    lab.abort()
    assert (lab.schemas("a"), lab.ask("a", "SELECT identity FROM shardctl.cluster")) == before
    assert lab.left() == set()
    lab.put(2)
    assert lab.problems() == []


def test_a_server_that_got_data_after_the_plan_was_made_is_not_moved_aside(lab: Lab) -> None:
    lab.move([0, 1, 2, 3], "c")
    plan = lab.plan([0, 1, 2, 3], "a")
    with lab.connect("a") as session:
        session.execute("CREATE TABLE public.precious AS SELECT 1 AS n")
    with pytest.raises(MoveStopped, match="not finished"):
        lab.start(plan)
    assert lab.ask("a", "SELECT n FROM public.precious") == [(1,)]
    lab.abort()
    assert lab.ask("a", "SELECT n FROM public.precious") == [(1,)]


def test_a_map_that_changed_while_the_plan_was_shown_is_refused(lab: Lab) -> None:
    plan = lab.plan([2, 3], "c")
    lab.move([6, 7], "d")
    with pytest.raises(maps.MapChanged) as caught:
        lab.start(plan)
    assert caught.value.exit_code == 1
    assert lab.ask("a", "SELECT count(*) FROM shardctl.move") == [(0,)]


def test_of_two_moves_that_begin_at_the_same_moment_one_goes_back(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = lab.plan([2, 3], "c")
    rival = lab.plan([6, 7], "d")
    row = {k: getattr(rival, k) for k in ("source", "target", "shards", "schemas", "retired")}
    open_move = journal.open_move

    def both(session: Any, **given: Any) -> None:
        open_move(session, **given)
        with lab.connect("b") as other:
            open_move(other, move=rival.id, method="clone", plan=rival.as_json(), **row)

    monkeypatch.setattr(journal, "open_move", both)
    with pytest.raises(MoveUnderWay) as caught:
        lab.start(plan)
    assert caught.value.exit_code == 1
    assert lab.copy("a").state is MoveState.aborted
    assert lab.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]


def test_the_poolers_file_keeps_its_owner_and_mode(lab: Lab) -> None:
    file = lab.directory / "p1" / "pgbouncer.databases.ini"
    if os.geteuid() == 0:
        shutil.chown(file, "postgres", "postgres")
    file.chmod(0o640)
    before = file.stat()
    lab.move([2, 3], "c")
    after = file.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid,
    )  # fmt: skip
    assert lab.leads("shard2") == "c"


def test_a_process_that_was_stopped_for_long_brings_no_old_map_back(lab: Lab) -> None:
    world = lab.move([2, 3], "c")
    lab.move([2, 3], "d")
    with contextlib.closing(world):
        handover.spread_map(world)
    for node in "abd":
        assert lab.ask(node, "SELECT node FROM shardctl.map WHERE shard = 2") == [("d",)]


def test_ids_lie_above_earlier_ones_though_the_targets_clock_is_behind(lab: Lab) -> None:
    first = lab.put(2)
    mark_drained = journal.mark_drained

    def ahead(session: Any, move: str, **named: Any) -> str | None:
        """Let the source's clock have been a minute ahead when it was drained."""
        done = mark_drained(session, move, **named)
        session.execute("UPDATE shardctl.move SET drained_at = drained_at + '1 minute'")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "mark_drained", ahead)
        lab.move([2, 3], "c")
    ((at,),) = lab.ask("c", "SELECT drained_at FROM shardctl.move")
    second, third = lab.put(2), lab.put(2)
    assert first < second < third
    ((above,),) = lab.ask("c", f"SELECT shardctl.id_time({second}) > '{at}'")
    assert above


def test_a_classic_generator_waits_until_the_targets_clock_has_passed_the_sources(
    bare_lab: Lab,
) -> None:
    bare_lab.generator = "classic"
    bare_lab.write()
    bare_lab.init()
    first = bare_lab.put(2)
    mark_drained = journal.mark_drained

    def ahead(session: Any, move: str, **named: Any) -> str | None:
        done = mark_drained(session, move, **named)
        session.execute("UPDATE shardctl.move SET drained_at = drained_at + '1 second'")
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(journal, "mark_drained", ahead)
        bare_lab.move([2, 3], "c")
    ((passed,),) = bare_lab.ask("c", "SELECT changed > drained_at FROM shardctl.move")
    assert passed
    assert first < bare_lab.put(2)


def test_a_lock_whose_holder_died_without_a_word_is_given_up_by_the_server(lab: Lab) -> None:
    topology = lab.topology
    plan = lab.plan([2, 3], "c")
    world = World(topology, plan, Silent(), "test")
    try:
        world.lock(plan.source)
        session = world.session(plan.source, "lock")
        assert session.execute("SHOW tcp_user_timeout").fetchone() == ("60000",)
        assert session.execute("SHOW tcp_keepalives_idle").fetchone() == ("30",)
    finally:
        world.close()


def test_ctrl_c_while_the_copy_is_made_says_how_to_go_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    tell = copying._Watcher.tell

    def interrupted(self: Any) -> None:
        tell(self)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(copying._Watcher, "tell", interrupted)
    error = lab.stopped([2, 3], "c", max_rate="1M")
    assert error.exit_code == Interrupted.exit_code
    assert "`shardctl moves resume`" in error.hint
    assert "`shardctl moves abort`" in error.hint
    assert not (lab.directory / "nodes" / "c").exists()
    lab.abort()
    assert lab.left() == set()
    assert lab.copy("a").state is MoveState.aborted
    assert lab.ask("a", "SELECT command FROM shardctl.event WHERE result LIKE 'move %'") == [
        ("moves abort",)
    ]


def test_a_pooler_that_is_not_routed_is_served_by_its_guard_and_all_others_are_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> None:
        raise RouteFailed("p1", ["for this test"])

    monkeypatch.setattr(gates.Gates, "route", refuse)
    error = lab.stopped([2, 3], "c", max_pause_s=3.0)
    assert error.state is MoveState.claimed
    assert lab.ask("a", "SELECT count(*) FROM pg_replication_slots") == [(0,)]
    assert lab.ask("b", "SELECT node FROM shardctl.map WHERE shard = 2") == [("c",)]
    lab.put(2)  # waits for the guard
    assert lab.leads("shard2") == "c"
    lab.resume()
    assert lab.left() == set()


def test_a_server_with_the_only_copies_of_an_unconfirmed_move_is_not_moved_aside(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "hold_snapshot", lambda _: None)
    lab.move([0, 1, 2, 3], "c")
    assert lab.copy("a").state is MoveState.unconfirmed
    plan = lab.plan([0, 1, 2, 3], "a")
    with pytest.raises(TargetUnfit, match="unconfirmed"):
        preflight.check(lab.topology, plan, purpose="test")
    with pytest.raises(MoveStopped) as caught:
        lab.start(plan)
    assert "unconfirmed" in messages(caught.value)
    assert len(lab.schemas("a")) == 4


def test_a_topology_that_changed_meanwhile_is_not_edited_and_the_values_are_told(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    promote = handover.promote

    def edited(*given: Any, **named: Any) -> None:
        lab.file.write_text(lab.file.read_text() + "move: {retain: 1h}  # mine\n")
        promote(*given, **named)

    monkeypatch.setattr(handover, "promote", edited)
    error = lab.stopped([2, 3], "c")
    assert error.state is MoveState.routed
    told = "\n".join(e.hint for e in error.parts())
    assert "nodes.a.shards: 0-1" in told
    assert "nodes.c.shards: 2-3" in told
    lab.put(2)
    text = lab.file.read_text().replace("shards: 0-3", "shards: 0-1")
    before, here, after = text.partition("  c: {")
    lab.file.write_text(before + here + after.replace("shards: none", "shards: 2-3", 1))
    monkeypatch.undo()
    lab.resume()
    assert lab.copy("a").state is MoveState.done, "its rows were compared before it stopped"
    assert lab.file.read_text().endswith("# mine\n")
    assert lab.problems() == []


def test_a_target_that_cannot_open_up_by_itself_is_opened_before_anybody_is_led_there(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clones, "OPENING_ONCE", "exit 1")
    spans = [name for name, _ in lab.move([2, 3], "c").timeline.spans]
    assert spans.index("claim") < spans.index("open") < spans.index("route")
    assert lab.leads("shard2") == "c"
    lab.put(2)
    assert lab.problems() == []
