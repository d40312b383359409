"""The poolers during a cutover: what is held, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import plan as planning
from shardctl.moves.paused_poolers import PausedPooler, PausedPoolers, PauseFailed, PauseLost
from shardctl.pgbouncer.console import Console, resume_command
from tests.fixtures.moves.own import TWO, Lab
from tests.fixtures.servers.postgres import free_run, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def lab(session_directory: Path, nodes_of: Callable[..., Path]) -> Iterator[Lab]:
    """Give one fleet to all tests of this file, which leave it as it was."""
    made = Lab(session_directory / "paused", free_run(5), nodes_of(**TWO))
    made.directory.mkdir()
    made.make()
    made.up()
    yield made
    made.end()


@pytest.fixture
def fleet(lab: Lab) -> Iterator[Lab]:
    """Give it with a pooler that is connected to no node, and keeps its file."""
    (pooler,) = lab.topology.poolers.values()
    before = pooler.databases_file.read_text()
    with Console(pooler, lab.topology.database, purpose="test") as console:
        console.execute("RECONNECT")
        wait_for(lambda: not console.servers())
    yield lab
    pooler.databases_file.write_text(before)


def pauses(fleet: Lab) -> PausedPoolers:
    """Give the pauses of a move of shards 0 and 1, which nobody has used, to node c."""
    return PausedPoolers(fleet.topology, fleet.plan([0, 1], "c"), purpose="shardctl test")


def test_a_file_that_cannot_be_replaced_is_written_before_clients_go_on(
    fleet: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "after", lambda before, _: before)  # no server c is there
    with pauses(fleet) as at_work:
        (paused,) = at_work.all
        put_in_place = PausedPooler.put_in_place

        def while_paused(one: PausedPooler) -> None:
            at_work.require_held()
            put_in_place(one)

        monkeypatch.setattr(PausedPooler, "put_in_place", while_paused)
        at_work.open()
        at_work.stage()
        paused.staged.unlink()  # as mv over a connection that breaks, or a guard, leaves it
        paused.pooler.databases_file.write_text("")
        at_work.hold(seconds=5)
        at_work.route()
        assert at_work.await_served() == []
        assert paused.pooler.databases_file.read_text() == paused.text
        newer = paused.text.replace("; map version: 2", "; map version: 3")
        paused.pooler.databases_file.write_text(newer)
        paused.write()  # as a process that comes late
        assert paused.pooler.databases_file.read_text() == newer != paused.text
    assert fleet.put(0) > 0


def test_a_pause_that_a_guard_has_ended_is_noticed(fleet: Lab) -> None:
    with pauses(fleet) as at_work:
        at_work.open()
        at_work.hold(seconds=5)
        at_work.all[0].consoles[0].execute(resume_command("shard0"))
        with pytest.raises(PauseLost):
            at_work.require_held()
        at_work.let_go()


def test_while_a_transaction_goes_on_nothing_is_paused(fleet: Lab) -> None:
    with pauses(fleet) as at_work, fleet.alias("shard0") as client:
        client.execute("SELECT")
        at_work.open()
        with pytest.raises(PauseFailed):
            at_work.hold(seconds=0.1)
        client.rollback()
        at_work.let_go()
    assert fleet.put(0) > 0
