"""A server or pooler that ends, hangs, or cannot write, while shards move."""

from __future__ import annotations

import dataclasses
import signal
import time
from typing import TYPE_CHECKING

import pytest

from shardctl.access import fence
from shardctl.state.journal import MoveState
from tests.fixtures.harming import (
    cut,
    frozen,
    immutable,
    kill,
    processes,
    retry_soon,
    small_disk,
)
from tests.fixtures.moving import add_pooler, finish
from tests.fixtures.proving import prove
from tests.fixtures.servers import wait_for
from tests.fixtures.writing import FENCE, SERVED_S, Clients

if TYPE_CHECKING:
    from tests.fixtures.moving import MovingFleet
    from tests.fixtures.pooled import AddPooler

pytestmark = pytest.mark.fault

UNDOABLE = {state.value for state in MoveState if state.undoable}
CONNECTION_LOST = ""
"""The SQLSTATE of an error of libpq's own."""
ANSWER_S = 3.0
"""How long a guard waits for an answer of a target that hangs."""


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step follow run", "abort"),
        ("span pause begin", "resume"),
        ("span promote begin", "resume"),
        ("span slot begin", "resume"),
    ],
)
def test_a_source_that_is_killed_and_is_back_when_the_move_has_stopped(
    moving: MovingFleet, point: str, verb: str
) -> None:
    server = moving.servers["a"].server
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        assert mover.end() == 3, mover.said
        assert moving.paused() == [] or moving.guards()
        if verb == "resume" and point in {"span promote begin", "span slot begin"}:
            clients.wait_served({2, 3})
        server.start()
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span fence begin", "resume"),
        ("span drain begin", "abort"),
        ("span replay begin", "resume"),
        ("span decide begin", "abort"),
    ],
)
def test_a_source_that_is_killed_and_is_soon_back_has_no_fence(
    moving: MovingFleet, point: str, verb: str
) -> None:
    server = moving.servers["a"].server
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(server.data_directory)
        mover.go()
        server.start()
        assert mover.end() == 3, mover.said
        assert moving.state() == "undone"
        clients.wait_served()
        assert moving.guards() == []
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("step follow run +6", "resume"),
        ("span pause begin", "abort"),
        ("span replay begin", "resume"),
        ("span snapshot end", "abort"),
        ("span decide begin", "resume"),
        ("span promote begin", "resume"),
        ("span claim begin", "resume"),
        ("span settings begin", "resume"),
        ("span map begin", "resume"),
    ],
)
def test_a_target_that_is_killed(moving: MovingFleet, point: str, verb: str) -> None:
    retry_soon(moving)
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        kill(moving.place)
        mover.go()
        mover.end()
        clients.wait_served({0})
        if verb == "abort" or moving.state() in {"reserved", "undone"}:
            clients.wait_served()
            assert clients.errors() == []
        finish(moving, verb)
        clients.wait_served()
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    ("point", "verb"),
    [
        ("span stage files begin", "resume"),
        ("span pause begin", "abort"),
        ("span fence begin", "resume"),
        ("span snapshot end", "abort"),
        ("span decide begin", "resume"),
        ("span promote begin", "resume"),
        ("span route begin +2", "resume"),
    ],
)
def test_a_pooler_that_is_killed_beside_one_that_lives(
    moving: MovingFleet, pooler_for: AddPooler, point: str, verb: str
) -> None:
    dying = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        dying.signal(signal.SIGKILL)
        wait_for(lambda: dying.server.running() is None)
        mover.go()
        assert mover.end() != 0
        clients.wait_served()
        dying.start()
        finish(moving, verb)
        clients.wait_served()
    assert clients.errors() == [], "of the other pooler"
    assert moving.owner == ("a" if verb == "abort" else "c")
    prove(moving, clients)


@pytest.mark.parametrize(
    "point",
    [
        "span pause begin",
        "span fence begin",
        "span snapshot end",
        "span decide begin",
        "span claim begin",
        "span route begin",
    ],
)
def test_the_only_pooler_that_is_killed_and_started_again_at_once(
    moving: MovingFleet, point: str
) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        moving.pg_bouncer.signal(signal.SIGKILL)
        wait_for(lambda: moving.pg_bouncer.server.running() is None)
        moving.pg_bouncer.start()
        mover.go()
        assert mover.end() == 3, mover.said
        clients.wait_served()
        finish(moving, "resume")
        clients.wait_served()
    # What it had paused goes on, and finds the fence until that is lifted or the guard routes.
    assert clients.codes() <= FENCE | {CONNECTION_LOST}, clients.errors()
    assert moving.owner == "c"
    prove(moving, clients)


@pytest.mark.parametrize("point", ["span fence begin", "span mark begin", "span map begin"])
def test_a_source_that_hangs(moving: MovingFleet, point: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen(processes(moving.servers["a"].server.data_directory)):
            mover.go()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S)
            if point == "span map begin":
                clients.wait_served({2, 3})
        if mover.end() != 0:
            finish(moving, "resume")
        clients.wait_served()
    if point == "span fence begin":
        assert {line.split(":")[0] for line in mover.said} & {"FenceTooLate", "NotAtCutover"}
    # A guard in a source that hangs lifts no fence before its clients go on, too.
    assert clients.codes() <= (FENCE if point == "span mark begin" else set()), clients.errors()
    prove(moving, clients)


def test_a_source_that_comes_to_its_fence_too_late(moving: MovingFleet) -> None:
    point = "span fence begin"
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        before = moving.journal()
        assert before is not None
        too_late = time.monotonic() - 0.1
        with moving.log_in("a", user="postgres") as session, pytest.raises(fence.FenceTooLate):
            fence.put_up(session, "a", before.id, revision=before.revision, deadline=too_late)
        assert moving.journal() == before
        mover.go()
        if mover.end() != 0:
            finish(moving, "resume")
    assert clients.errors() == []
    prove(moving, clients)


@pytest.mark.parametrize(
    ("point", "verb"), [("span replay begin", "abort"), ("span claim begin", "resume")]
)
def test_a_target_that_hangs(moving: MovingFleet, point: str, verb: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen(processes(moving.place)):
            mover.go()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S + ANSWER_S)
            clients.wait_served({0} if verb == "resume" else {0, 2, 3})
        if mover.end() != 0:
            finish(moving, verb)
        clients.wait_served()
    assert clients.codes() <= (FENCE if verb == "resume" else set()), clients.errors()
    prove(moving, clients)


@pytest.mark.parametrize(
    "point", ["span pause begin", "span fence begin", "span decide begin", "span route begin"]
)
def test_a_pooler_that_hangs_beside_one_that_does_not(
    moving: MovingFleet, pooler_for: AddPooler, point: str
) -> None:
    hanging = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        with frozen([hanging.pid]):
            mover.go()
            clients.wait_served()
        if mover.end() != 0:
            finish(moving, "resume")
        clients.wait_served()
    assert clients.errors() == [], "of the other pooler"
    assert clients.gap() < SERVED_S
    prove(moving, clients)


@pytest.mark.parametrize("node", ["a", "c"])
@pytest.mark.parametrize(
    "point", ["span pause begin", "span mark begin", "span decide begin", "span claim begin"]
)
def test_connections_that_break_off(moving: MovingFleet, point: str, node: str) -> None:
    with Clients(moving) as clients:
        mover = moving.mover("start", point)
        mover.at(point)
        cut(moving, node)
        mover.go()
        code = mover.end()
        clients.wait_served({0})
        if code != 0:
            finish(moving, "abort" if moving.state() in UNDOABLE else "resume")
        clients.wait_served()
    assert clients.gap() < SERVED_S
    prove(moving, clients)


def test_a_staged_file_that_cannot_be_written(moving: MovingFleet, pooler_for: AddPooler) -> None:
    pooler = add_pooler(moving, pooler_for, "p2")
    staged = pooler.databases_file.with_name(f"{pooler.databases_file.name}.staged")
    with Clients(moving) as clients:
        staged.mkdir()
        mover = moving.mover("start")
        assert mover.end() == 3, mover.said
        assert any(str(staged) in line for line in mover.said), mover.said
        assert moving.state() == "undone"
        staged.rmdir()
        finish(moving, "abort")
    assert clients.errors() == []
    assert clients.gap() < 1
    prove(moving, clients)


def test_a_file_of_aliases_that_cannot_be_replaced(
    moving: MovingFleet, pooler_for: AddPooler
) -> None:
    pooler = add_pooler(moving, pooler_for, "p2")
    with Clients(moving) as clients:
        mover = moving.mover("start", "span route begin")
        mover.at()
        with immutable(pooler.databases_file):
            mover.go()
            assert mover.end() == 3, mover.said
            clients.wait_served()
            wait_for(lambda: moving.paused() == [], seconds=SERVED_S)
        finish(moving, "resume")
    assert clients.errors() == [], "of the other pooler"
    prove(moving, clients)


@pytest.mark.parametrize("verb", ["resume", "abort"])
def test_a_target_whose_disk_is_full_during_the_copy(moving: MovingFleet, verb: str) -> None:
    folder = moving.place.parent / "disk"
    folder.mkdir()
    moving.place = folder / "c"
    moving.file.unlink()
    with small_disk(folder, "24m") as make_large, Clients(moving) as clients:
        mover = moving.mover("start")
        assert mover.end() == 3, mover.said
        assert any("CopyFailed" in line for line in mover.said), mover.said
        make_large()
        finish(moving, verb)
        clients.wait_served()
        assert clients.errors() == []
        prove(moving, clients)
        if verb == "resume":
            dataclasses.replace(moving.servers["a"].server, data_directory=moving.place).stop()
