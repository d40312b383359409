"""What makes ids: shared functions, each shard's `next_id()`, its sequences and their grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, QUERIES, Check, Rule, Rules
from shardctl.ids import generator
from shardctl.postgres import catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import Schema
    from shardctl.topology.model import NodeName, ShardId


_INIT = "run `shardctl init`"
RULES = Rules(
    "generator",
    {
        "function_differs": Rule(
            ERROR, "missing, or changed", "the function of shardctl for {generator} ids", _INIT
        ),
        "next_id_differs": Rule(
            ERROR,
            "{what}",
            "the function that `shardctl init` creates",
            f"{_INIT}; then search for ids of other shards: `shardctl verify --check ids --deep`",
        ),
        "sequence_differs": Rule(
            ERROR,
            "{what}",
            "the sequence that `shardctl init` creates",
            f"{_INIT}: ids can repeat or run out; then bring a new counter to its register "
            "(docs/ids.md). An unlogged sequence restarts after a crash: ALTER SEQUENCE ... SET "
            "LOGGED",
        ),
        "grants_differ": Rule(ERROR, "{what}", "the rights that `shardctl init` grants", _INIT),
    },
)


@dataclass(frozen=True, slots=True)
class Seen:
    """What makes ids on one node, as far as `Basics` does not show.

    `ungranted` are roles that lack a right to the database or to schema shardctl; `unlogged` are
    schemas where a crash lets the counter or the register start again.
    """

    functions: Mapping[str, str]
    ungranted: Sequence[str]
    unlogged: frozenset[str] = frozenset()


def look(place: Place) -> Seen:
    """Ask three questions."""
    session = place.connection
    found = session.execute(QUERIES["unlogged"], [[generator.COUNTER, generator.REGISTER]])
    unlogged = frozenset(schema for (schema,) in found)
    ungranted = catalog.read_ungranted(session, place.topology.database.app_roles)
    return Seen(catalog.read_functions(session), ungranted, unlogged)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what differs on nodes, then what differs in shards, grouped over all nodes."""
    topology = view.topology
    wanted = generator.bodies(
        generator.render(
            topology.id, topology.id.generator, topology.shard_count, topology.key_rule
        )
    )
    found: dict[tuple[str, str, str], list[ShardId]] = {}
    for name, seen in view.seen.items():
        yield from _functions(view, name, wanted)
        for role in seen.ungranted:
            what = "the role is missing, or lacks a right to the database or to schema shardctl"
            yield RULES.finding("grants_differ", node=name, object=role, what=what)
        basics = view.basics[name]
        for schema, shard in basics.live(topology, topology.nodes[name]).items():
            right, unlogged = generator.wrapper_body(schema, shard), schema in seen.unlogged
            for fault in _of_shard(basics.schemas[schema], right, unlogged=unlogged):
                found.setdefault(fault, []).append(shard)
    for (code, thing, what), numbers in sorted(found.items()):
        yield RULES.finding(code, shards=sorted(numbers), object=thing, what=what)


def _of_shard(there: Schema, wrapper: str, *, unlogged: bool) -> Iterator[tuple[str, str, str]]:
    """Give code, object and what is wrong of each fault of a shard's generator."""
    for name, present in ((generator.COUNTER, there.counter), (generator.REGISTER, there.register)):
        if not present:
            yield "sequence_differs", name, "absent"
    if there.unfit or unlogged:
        names = f"{generator.COUNTER}, {generator.REGISTER}"
        yield "sequence_differs", names, "one has other parameters, or is unlogged"
    if there.wrapper != wrapper:
        what = "absent" if there.wrapper is None else "the body differs from shardctl's"
        yield "next_id_differs", f"{generator.WRAPPER}()", what
    whole = there.counter and there.register and there.wrapper is not None
    for role in there.ungranted if whole else ():
        yield "grants_differ", role, "the role lacks a right, or may set a sequence that makes ids"


def _functions(view: View[Seen], node: NodeName, wanted: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the shared functions with the template.

    Not on a node of another layout or generator, which `identity` reports.
    """
    topology, state = view.topology, view.basics[node].state
    if state is None or state.differences(topology) or state.generator != topology.id.generator:
        return
    there = view.seen[node].functions
    names = generator.names(one for one, body in wanted.items() if there.get(one) != body)
    if names:
        yield RULES.finding(
            "function_differs",
            node=node,
            object=", ".join(f"shardctl.{name}" for name in names),
            generator=topology.id.generator,
        )


CHECK = Check(
    RULES,
    "every shard generates its own ids with shardctl's functions, for all application roles",
    judge,
    look,
)
