"""Plans, answered by hand: what is asked of which node, and what is never asked twice."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import errors

from shardctl.ids.layout import Layout
from shardctl.router import plans
from shardctl.router.errors import AnotherCluster, MapWentBack, NotOpen, ShardMoved
from shardctl.router.fence import Look, look, met, reread
from shardctl.router.known import Known
from shardctl.router.places import Places
from shardctl.router.requests import Alone, Answer, Ask, Execute, First, Together, Wait
from shardctl.state.map import Map, NodeMap
from shardctl.topology.model import NodeName, ShardId
from shardctl.topology.names import SchemaPattern

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.router.requests import Plan

A, B, C = map(NodeName, "abc")
FIRST = Map(1, "test", SchemaPattern.parse("shard{id}"), Layout(), (A, A, B, B))
MOVED = replace(FIRST, version=2, owners=(A, C, B, B))


def known(first: Map = FIRST, *, patience_s: float = 0.0) -> Known:
    made = Known(patience_s)
    made.begin(first, Places({}, {A: {"port": 1}, B: {"port": 2}, C: {"port": 3}}, None))
    return made


INT4, INT8, TEXT = 23, 20, 25
_now = [100.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass where a plan waits, and nowhere else."""
    monkeypatch.setattr("shardctl.router.fence.time.monotonic", lambda: _now[0])


class World:
    """Nodes that have schemas and maps, and note what they are asked."""

    def __init__(self, maps: dict[NodeName, Map], live: dict[NodeName, set[str]]) -> None:
        self.maps = maps
        self.live = live
        self.executed: list[tuple[NodeName, bytes]] = []
        self.asked: list[NodeName] = []
        self.waits = 0
        self.pauses: list[float] = []
        self.after_wait: Callable[[], None] = lambda: None

    def run(self, plan: Plan[Any]) -> Any:
        """Carry a plan out."""
        try:
            request = next(plan)
            while True:
                try:
                    answer = self._perform(request)
                except Exception as error:  # noqa: BLE001  # the plan raises it, or knows better
                    request = plan.throw(error)
                else:
                    request = plan.send(answer)
        except StopIteration as done:
            return done.value

    def outcome(self, plan: Plan[Any]) -> Any:
        try:
            return self.run(plan)
        except Exception as error:  # noqa: BLE001  # as of the faces
            return error

    def _perform(self, request: Any) -> Any:
        match request:
            case Alone():
                return self.run(request.plan)
            case Together() | First():
                return [self.outcome(plan) for plan in request.plans]
            case Wait():
                self.waits += 1
                self.pauses.append(request.seconds)
                _now[0] += request.seconds
                return self.after_wait()
            case Ask():
                (node,) = (n for n, port in zip((A, B, C), "123", strict=True)
                           if f"port={port}" in request.conninfo)  # fmt: skip
                self.asked.append(node)
                if node not in self.maps:
                    raise errors.ConnectionTimeout
                return Answer([_row(node, self.maps[node])], 1)
            case Execute():
                return self._execute(request)
        raise AssertionError(request)

    def _execute(self, request: Execute) -> Answer:
        live = self.live[request.node]
        if b"pg_namespace" in request.statement:
            assert request.parameters is not None
            wanted = request.parameters[0]  # type: ignore[index]  # a list
            return Answer([(schema,) for schema in wanted if schema in live], 0)
        self.executed.append((request.node, request.statement))
        named = [f"shard{n}" for n in range(4) if b'"shard%d"' % n in request.statement]
        if any(schema not in live for schema in named) or b"missing" in request.statement:
            raise errors.UndefinedTable
        return Answer([(request.node,)], 1)


def _row(node: NodeName, found: Map) -> tuple[Any, ...]:
    layout = found.layout
    return (
        found.version, node, "app", found.cluster, len(found.owners), str(found.pattern),
        layout.epoch_ms, layout.tick_ms, layout.time_bits, layout.shard_bits,
        layout.sequence_bits, list(range(len(found.owners))), list(found.owners),
    )  # fmt: skip


def settled() -> World:
    """Nodes of which each has what the first map says."""
    return World({A: FIRST, B: FIRST}, {A: {"shard0", "shard1"}, B: {"shard2", "shard3"}, C: set()})


def shard_1_moved() -> World:
    """Nodes after a move whose target alone says so."""
    return World(
        {A: FIRST, B: FIRST, C: MOVED}, {A: {"shard0"}, B: {"shard2", "shard3"}, C: {"shard1"}}
    )


def select(found: Known, key: int, table: str = "photos") -> Plan[Any]:
    return plans.select(found, "id", table, key, None, None, None, None)


def test_a_statement_goes_to_the_owner_once() -> None:
    world = settled()
    assert world.run(select(known(), 6)) == [("b",)]
    assert world.executed == [(B, b'SELECT "id" FROM "shard2"."photos"')]
    assert world.asked == []


def test_a_statement_is_repeated_where_its_shard_has_moved_to() -> None:
    world, found = shard_1_moved(), known()
    assert world.run(select(found, 1)) == [("c",)]
    assert [node for node, _ in world.executed] == [A, C]
    assert (found.map, found.reads, found.repeated) == (MOVED, 1, 1)
    # The owners are asked first, and who owns nothing only when they do not know.
    assert world.asked == [A, B, C]
    assert world.run(select(found, 1)) == [("c",)]
    assert [node for node, _ in world.executed] == [A, C, C]


def test_a_missing_table_stays_the_applications_error() -> None:
    world, found = settled(), known(patience_s=60)
    with pytest.raises(errors.UndefinedTable):
        world.run(select(found, 1, "missing"))
    # Once more, as the shard may have been away for a moment only, and nowhere else.
    assert [node for node, _ in world.executed] == [A, A]
    assert (world.asked, world.waits, found.repeated) == ([], 0, 0)


def test_a_missing_table_is_not_looked_for_where_a_shard_has_moved_to_more_than_once() -> None:
    world = shard_1_moved()
    with pytest.raises(errors.UndefinedTable):
        world.run(select(known(), 1, "missing"))
    assert [node for node, _ in world.executed] == [A, C]


def test_a_fence_without_a_newer_map_stays_an_error_when_patience_is_over() -> None:
    world = shard_1_moved()
    del world.maps[C]
    found = known(patience_s=0.05)
    with pytest.raises(errors.UndefinedTable):
        world.run(select(found, 1))
    assert len(world.executed) == 1
    assert found.map == FIRST


def test_a_fenced_shard_is_waited_for_until_a_map_says_where_it_went() -> None:
    world = shard_1_moved()
    newest = world.maps.pop(C)

    def claim() -> None:
        if world.waits == 3:
            world.maps[A] = newest

    world.after_wait = claim
    assert world.run(select(known(patience_s=60), 1)) == [("c",)]
    assert world.waits == 3


def test_a_shard_that_is_back_where_it_was_is_asked_there_again() -> None:
    world, found = settled(), known(patience_s=60)
    world.live[A].remove("shard1")

    def undo() -> None:
        if world.waits == 3:
            world.live[A].add("shard1")

    world.after_wait = undo
    assert world.run(select(found, 1)) == [("a",)]
    assert [node for node, _ in world.executed] == [A, A]
    assert (world.waits, found.map, found.repeated) == (3, FIRST, 1)


def test_a_shard_that_was_back_before_anybody_looked_is_asked_again() -> None:
    world, found = settled(), known()
    plan = select(found, 1)
    next(plan)
    look = plan.throw(errors.UndefinedTable())
    assert isinstance(look, Execute)
    assert b"pg_namespace" in look.statement
    again = plan.send(Answer([("shard1",)], 1))
    assert isinstance(again, Execute)
    assert (again.node, again.statement) == (A, b'SELECT "id" FROM "shard1"."photos"')
    assert world.asked == []


def test_every_shard_of_a_statement_is_waited_for() -> None:
    world = shard_1_moved()
    world.live[A].remove("shard0")

    def undo() -> None:
        world.live[A].add("shard0")

    world.after_wait = undo
    plan = look(known(patience_s=60), A, [ShardId(0), ShardId(1)])
    assert world.run(plan) is Look.SETTLED
    assert world.waits == 1


def test_a_shard_whose_neighbour_has_moved_is_waited_for_too() -> None:
    world, found = shard_1_moved(), known(patience_s=60)
    world.live[A].remove("shard0")
    world.after_wait = lambda: world.live[A].add("shard0")
    found.adopt(MOVED)  # by somebody else
    assert world.run(look(found, A, [ShardId(0), ShardId(1)])) is Look.SETTLED
    assert world.waits == 1


def test_a_node_that_is_gone_is_not_missed_where_a_map_says_who_has_the_shard() -> None:
    world, found = shard_1_moved(), known(patience_s=60)
    plan = look(found, A, [ShardId(1)])
    standing = next(plan)
    assert isinstance(standing, Execute)
    alone = plan.throw(errors.AdminShutdown())
    assert isinstance(alone, Alone)
    world.run(alone.plan)
    with pytest.raises(StopIteration) as done:
        plan.send(None)
    assert done.value.value is Look.SETTLED


def test_questions_for_the_map_become_rarer_until_patience_is_over() -> None:
    world = shard_1_moved()
    del world.maps[C]
    assert world.run(look(known(patience_s=2.0), A, [ShardId(1)])) is Look.AWAY
    assert world.pauses[0] == pytest.approx(0.01)
    assert world.pauses[:-1] == sorted(world.pauses[:-1])
    assert max(world.pauses) == pytest.approx(0.2)
    assert sum(world.pauses) == pytest.approx(2.0)
    assert world.asked.count(A) == len(world.pauses) + 1


def test_the_answer_to_a_question_is_everybodys_who_wanted_it_before() -> None:
    world, found = shard_1_moved(), known()
    del world.maps[C]
    waiting = [look(found, A, [ShardId(1)]) for _ in range(5)]
    alone = []
    for plan in waiting:
        next(plan)
        alone.append(plan.send(Answer([("shard0",)], 1)))
    for request in alone:
        assert isinstance(request, Alone)
        world.run(request.plan)
    assert world.asked == [A, B, C]


def test_a_map_that_somebody_else_has_read_meanwhile_is_enough() -> None:
    world, found = shard_1_moved(), known()
    plan = select(found, 1)
    next(plan)
    found.adopt(MOVED)
    request = plan.throw(errors.UndefinedTable())
    assert isinstance(request, Execute)
    assert request.node == C
    assert world.asked == []


def test_a_map_that_goes_backwards_is_refused() -> None:
    world, found = settled(), known(MOVED)
    world.run(reread(found))  # node c may have a newer one, and the others were away
    assert found.map == MOVED
    world.maps[C] = FIRST
    with pytest.raises(MapWentBack, match="version 1, but version 2 was read before") as caught:
        world.run(reread(found))
    assert (caught.value.known, caught.value.found) == (2, 1)
    found.adopt(FIRST)
    assert found.map == MOVED


def test_another_clusters_map_is_refused() -> None:
    world = settled()
    world.maps[B] = replace(MOVED, cluster="other")
    with pytest.raises(AnotherCluster, match="node b belongs to cluster other"):
        world.run(reread(known()))


def test_a_clone_that_tells_its_sources_name_is_not_heard() -> None:
    told = NodeMap(A, "app", MOVED)
    assert told.node == A
    world, found = settled(), known()
    world.maps[C] = MOVED
    plan = reread(found)
    first = next(plan)
    assert isinstance(first, First)
    rows = Answer([_row(C, MOVED)], 1)
    asking = first.plans[0]
    next(asking)
    with pytest.raises(StopIteration) as done:
        asking.send(rows)  # node a was asked, and says that it is c
    assert done.value.value is None


def test_a_transaction_that_met_the_fence_tells_that_the_shard_has_moved() -> None:
    world, found = shard_1_moved(), known()
    with pytest.raises(ShardMoved, match="shard 1 has moved from node a to node c") as caught:
        world.run(plans.after_transaction(found, 1, A))  # type: ignore[arg-type]  # a shard
    assert (caught.value.source, caught.value.target) == (A, C)
    world = settled()
    assert world.run(plans.after_transaction(known(), 1, A)) is None  # type: ignore[arg-type]  # same
    world = settled()
    world.live[A].remove("shard1")
    world.after_wait = lambda: world.live[A].add("shard1")
    with pytest.raises(ShardMoved, match="shard 1 was fenced on node a by a move, which"):
        world.run(plans.after_transaction(known(patience_s=60), ShardId(1), A))


def test_the_fences_error_is_recognised_in_what_others_made_of_it() -> None:
    wrapped = RuntimeError("as an ORM says it")
    wrapped.__cause__ = errors.InvalidSchemaName()
    assert met(wrapped)
    assert met(errors.UndefinedFunction())
    wrapped.__cause__ = errors.DivisionByZero()
    assert not met(wrapped)
    assert not met(None)


def test_rows_of_many_shards_are_one_statement_a_node_and_in_the_order_asked_for() -> None:
    asked: dict[NodeName, Execute] = {}

    class Answering(World):
        def _execute(self, request: Execute) -> Answer:
            asked[request.node] = request
            rows = [(0, 10, "ten"), (1, 11, "eleven")] if request.node == A else [(0, 10, "b")]
            return Answer(rows, len(rows), (INT4, INT8, TEXT))

    world = Answering({}, {})
    wanted = [(0, 10), (2, 10), (1, 11), (0, 99), (0, 10)]
    found = world.run(plans.fetch_many(known(), ["caption"], "photos", wanted, "id", 8))
    assert found == [("ten",), ("b",), ("eleven",), None, ("ten",)]
    assert asked[A].parameters == [[10, 99], [11]]
    assert asked[B].parameters == [[10]]


def test_rows_of_a_shard_that_has_moved_are_fetched_there_and_the_others_again() -> None:
    asked: list[tuple[NodeName, Any]] = []

    class Answering(World):
        def _execute(self, request: Execute) -> Answer:
            super()._execute(request)
            if b"pg_namespace" in request.statement:
                return super()._execute(request)
            asked.append((request.node, request.parameters))
            rows = [(0, ids[0], request.node) for ids in request.parameters or ()]
            return Answer(rows, 1, (INT4, INT8, TEXT))

    world = Answering(shard_1_moved().maps, shard_1_moved().live)
    plan = plans.fetch_many(known(), ["caption"], "photos", [(0, 10), (1, 11)], "id", 8)
    assert world.run(plan) == [("a",), ("c",)]
    assert asked == [(A, [[10]]), (C, [[11]])]


def test_nothing_can_be_asked_before_the_first_map_is_read() -> None:
    with pytest.raises(NotOpen, match="has not been read yet"):
        next(select(Known(0.0), 1))
