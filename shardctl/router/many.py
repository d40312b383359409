"""Plans of reads of many shards at once: one statement a node, for rows by their ids or keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from shardctl.router import fence, idents, refusals, rows, statements
from shardctl.router.fence import Look
from shardctl.router.plans import SHARDS_A_STATEMENT, parts
from shardctl.router.requests import Execute, Together
from shardctl.topology.keys import shard_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardctl.router.known import Known
    from shardctl.router.requests import Answer, Parameters, Plan, Row
    from shardctl.router.rows import Factory
    from shardctl.router.statements import Names, Order, Where
    from shardctl.topology.handles import NodeName, ShardId
    from shardctl.topology.keys import Key


class _Question(NamedTuple):
    """What is asked of some shards at once, wherever they are."""

    call: str
    table: str
    compose: Callable[[Sequence[ShardId]], tuple[bytes, Parameters]]


def fetch_many(
    known: Known,
    fields: Names,
    table: str,
    wanted: Sequence[tuple[Key, Any]],
    id_field: str,
    width: int,
    factory: Factory | None = None,
) -> Plan[list[Any]]:
    """Read rows by key and id; the result has a row or None for each, in the order asked for.

    Raises IdsUnlike.
    """
    terms = statements.terms(fields)
    ids: dict[ShardId, dict[Any, None]] = {}
    count = len(known.map.owners)
    asked = [(shard_of(key, count), number) for key, number in wanted]
    for shard, number in asked:
        ids.setdefault(shard, {})[number] = None

    def compose(shards: Sequence[ShardId]) -> tuple[bytes, Parameters]:
        schemas = [known.schemas[shard] for shard in shards]
        text = statements.fetch(schemas, table, terms, id_field)
        return text, [list(ids[shard]) for shard in shards]

    question = _Question("fetch_many", table, compose)
    units = [(node, part) for node, shards in known.by_node(ids).items() for part in parts(shards)]
    plans = [_asked(known, node, part, question) for node, part in units]
    found: dict[tuple[ShardId, Any], Row] = {}
    make: Callable[[Sequence[Any]], Any] = tuple
    for shards, answer in (yield from _all(plans, width)):
        here = {(shards[row[0]], row[1]): row[2:] for row in answer.rows}
        idents.require_alike(id_field, answer.types[1], {s: ids[s] for s in shards}, here)
        found |= here
        make = rows.maker(factory or known.row_factory, answer, 2)
    if factory or known.row_factory:
        return [make((None, None, *found[one])) if one in found else None for one in asked]
    return [found.get(one) for one in asked]


def select_many(
    known: Known,
    fields: Names,
    table: str,
    keys: Iterable[Key],
    key_field: str,
    where: Where | None,
    parameters: Parameters,
    order_by: str | Order | Sequence[str | Order] | None,
    limit: int | None,
    width: int,
    factory: Factory | None = None,
) -> Plan[list[list[Any]]]:
    """Read the rows of many keys; the result has a list for each, in the order of the keys.

    Raises IdsUnlike.
    """
    text, named = statements.bound(statements.condition(where, parameters), parameters)
    gathering = statements.Gathering(
        table,
        (key_field, *statements.terms(fields)),
        text,
        statements.orders(order_by),
        statements.number(limit),
    )
    listed = list(keys)
    count = len(known.map.owners)
    asked = [shard_of(key, count) for key in listed]
    # A key that is given twice is asked once.
    numbers = {key: number for number, key in enumerate(listed)}
    shards = {number: asked[number] for number in numbers.values()}
    by_shard: dict[ShardId, dict[Key, None]] = {}
    for number, shard in shards.items():
        by_shard.setdefault(shard, {})[listed[number]] = None
    result: dict[int, list[Any]] = {number: [] for number in numbers.values()}
    plans = [
        _asked(known, node, list(unit), _by_keys(known, gathering, unit, listed, named))
        for node, unit in _units(known, shards)
    ]
    for part, answer in (yield from _all(plans, width)):
        make = rows.maker(factory or known.row_factory, answer, 2)
        idents.require_alike(
            key_field,
            answer.types[1],
            {shard: by_shard[shard] for shard in part},
            {(shards[row[0]], row[1]) for row in answer.rows},
        )
        for row in answer.rows:
            result[row[0]].append(make(row))
    return [result[numbers[key]] for key in listed]


def _by_keys(
    known: Known,
    gathering: statements.Gathering,
    unit: Mapping[ShardId, Sequence[int]],
    keys: Sequence[Key],
    named: Mapping[str, Any],
) -> _Question:
    """Give the question for some keys, which are numbered."""

    def compose(shards: Sequence[ShardId]) -> tuple[bytes, Parameters]:
        asked = [(known.schemas[shard], number) for shard in shards for number in unit[shard]]
        values = {statements.key_name(number): keys[number] for _, number in asked}
        return statements.of_keys(asked, gathering), {**named, **values}

    return _Question("select_many", gathering.table, compose)


def _units(
    known: Known, shards: Mapping[int, ShardId]
) -> list[tuple[NodeName, dict[ShardId, list[int]]]]:
    """Split numbered keys into those of one statement each: of one node, and not too many."""
    by_shard: dict[ShardId, list[int]] = {}
    for number, shard in shards.items():
        by_shard.setdefault(shard, []).append(number)
    units = []
    for node, owned in known.by_node(by_shard).items():
        flat = [(shard, number) for shard in owned for number in by_shard[shard]]
        for first in range(0, len(flat), SHARDS_A_STATEMENT):
            unit: dict[ShardId, list[int]] = {}
            for shard, number in flat[first : first + SHARDS_A_STATEMENT]:
                unit.setdefault(shard, []).append(number)
            units.append((node, unit))
    return units


def _all(
    plans: Sequence[Plan[list[tuple[Sequence[ShardId], Answer]]]], width: int
) -> Plan[list[tuple[Sequence[ShardId], Answer]]]:
    """Ask all nodes at once; the result is which shards each answer is of."""
    outcomes = yield Together(plans, width)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
    return [answer for outcome in outcomes for answer in outcome]


def _asked(
    known: Known, node: NodeName, shards: Sequence[ShardId], question: _Question
) -> Plan[list[tuple[Sequence[ShardId], Answer]]]:
    """Ask one node; where shards were missing there, the nodes that have them then."""
    with known.span(question.call, question.table, shards) as span:
        span.node = node
        statement, given = question.compose(shards)
        try:
            request = Execute(node, statement, given, types=True)
            return [(shards, (yield from refusals.read(known, request, span)))]
        except fence.ERRORS:
            if (yield from fence.look(known, node, shards)) is Look.AWAY:
                raise
        span.count()
        answers: list[tuple[Sequence[ShardId], Answer]] = []
        for owner, part in known.by_node(shards).items():
            span.node = owner
            statement, given = question.compose(part)
            request = Execute(owner, statement, given, types=True)
            answers.append((part, (yield from refusals.read(known, request, span))))
        known.count_repeated()
        return answers
