"""The plan of a scatter, answered by hand: how much it asks at once, and for how long."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from shardctl.ids.layout import Layout
from shardctl.router import statements
from shardctl.router.known import Known
from shardctl.router.places import Places
from shardctl.router.requests import Answer, Execute, Hold, On, Release, Reserve, Rows, Together
from shardctl.router.scatter import CHUNK, Scatter
from shardctl.state.map import Map
from shardctl.topology.model import NodeName
from shardctl.topology.names import SchemaPattern

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.router.requests import Plan

A, B = map(NodeName, "ab")
INT8 = 20


class Reserved:
    """Places for all that was wanted."""

    refused: ClassVar[dict[NodeName, str]] = {}


class World:
    """Nodes whose every statement gives the same rows, a piece at a time."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.statements: list[bytes] = []
        self.reserved: list[dict[NodeName, int]] = []
        self.held: set[int] = set()
        self.most_held = 0
        self.most_at_once = 0
        self._left: dict[int, int] = {}

    def handed_out(self, plan: Plan[Any]) -> Iterator[int]:
        """Carry the plan out; give how many rows come at a time."""
        try:
            request = next(plan)
            while True:
                if isinstance(request, Rows):
                    yield len(request.rows)
                    request = next(plan)
                else:
                    request = plan.send(self._perform(request))
        except StopIteration:
            return

    def _run(self, plan: Plan[Any]) -> Any:
        try:
            request = next(plan)
            while True:
                request = plan.send(self._perform(request))
        except StopIteration as done:
            return done.value

    def _perform(self, request: Any) -> Any:  # noqa: PLR0911  # one for each request
        match request:
            case Together():
                self.most_at_once = max(self.most_at_once, request.width)
                return [self._run(plan) for plan in request.plans]
            case Reserve():
                self.reserved.append(dict(request.wanted))
                return Reserved()
            case Hold():
                number = len(self._left)
                self._left[number] = self.rows
                self.held.add(number)
                self.most_held = max(self.most_held, len(self.held))
                return number
            case Release():
                return self.held.discard(request.held)  # a Reserved is not among them
            case Execute():
                self.statements.append(request.statement)
                return self._answer(self.rows)
            case On() if request.statement.startswith(b"FETCH"):
                given = min(CHUNK, self._left[request.held])
                self._left[request.held] -= given
                return self._answer(given)
            case On():
                self.statements.append(request.statement)
                whole = request.statement.startswith((b"(SELECT", b"SELECT"))
                return self._answer(self.rows if whole else 0)
        raise AssertionError(request)

    def _answer(self, count: int) -> Answer:
        return Answer([(number,) for number in range(count)], count, (INT8,))


def asked(shards: int, order: str | None, limit: int | None, width: int = 3) -> Scatter:
    known = Known(0.0)
    pattern, owners = SchemaPattern.parse("shard{id}"), tuple([A] * shards + [B])
    known.begin(Map(1, "test", pattern, Layout(), owners), Places({}, {}, None))
    gathering = statements.Gathering("photos", ("id",), None, statements.orders(order), limit)
    return Scatter(known, gathering, {}, width, None, partial=False)


@pytest.fixture(autouse=True)
def two_shards_a_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.router.plans.SHARDS_A_STATEMENT", 2)


def test_a_small_answer_is_one_statement_for_so_many_shards_and_holds_nothing() -> None:
    world = World(30)
    assert list(world.handed_out(asked(5, "id", 30).plan())) == [30]
    # Nodes come by turns, so that none waits for all of another's.
    assert [one.count(b"FROM") for one in world.statements] == [2, 1, 2, 1]
    assert world.most_held == 0
    assert world.most_at_once == 3


def test_rows_in_order_come_in_pieces_from_all_at_once() -> None:
    world = World(2 * CHUNK + 1)
    pieces = list(world.handed_out(asked(5, "id", None).plan()))
    assert sum(pieces) == 4 * (2 * CHUNK + 1)
    assert max(pieces) <= 4 * CHUNK
    assert (world.most_held, world.held) == (4, set())
    assert world.reserved == [{A: 3, B: 1}]


def test_rows_in_no_order_hold_no_more_connections_than_are_asked_at_once() -> None:
    world = World(CHUNK + 1)
    pieces = list(world.handed_out(asked(9, None, None).plan()))
    assert sum(pieces) == 6 * (CHUNK + 1)
    assert (world.most_held, world.held) == (3, set())
    assert world.reserved == [{A: 2, B: 1}, {A: 3}]


def test_a_limit_ends_the_asking() -> None:
    world = World(CHUNK)
    assert sum(world.handed_out(asked(40, None, CHUNK + 5).plan())) == CHUNK + 5
    declared = [one for one in world.statements if one.startswith(b"DECLARE")]
    assert len(declared) == 3


def test_time_that_is_left_is_the_servers_limit_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardctl.router.scatter.time.monotonic", lambda: 100.0)
    one = asked(1, "id", 5)
    timed = Scatter(one.known, one.asked, {}, 3, 102.5, partial=False)
    world = World(5)
    assert sum(world.handed_out(timed.plan())) == 5
    assert world.statements[0] == b"BEGIN; SET LOCAL statement_timeout TO 2500"


def test_the_servers_limit_is_set_anew_with_every_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    now = itertools.count(100)
    monkeypatch.setattr("shardctl.router.scatter.time.monotonic", lambda: float(next(now)))
    one = asked(1, None, None)
    timed = Scatter(one.known, one.asked, {}, 1, 160, partial=False)
    world = World(2 * CHUNK + 1)
    assert sum(world.handed_out(timed.plan())) == 2 * (2 * CHUNK + 1)
    limits = [int(one.split()[-1]) for one in world.statements if b"statement_timeout" in one]
    assert len(limits) == 6
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) == 6
