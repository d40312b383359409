"""What makes ids: shared functions, each shard's `next_id()`, its sequences and their grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, QUERIES, Check, Rule, Rules
from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, patient

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.postgres.catalog import Schema
    from shardctl.topology.model import NodeName, ShardId, Topology


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
            f"{_INIT}: ids can repeat or run out; then `shardctl verify` again. An unlogged "
            "sequence restarts after a crash: ALTER SEQUENCE ... SET LOGGED",
        ),
        "grants_differ": Rule(ERROR, "{what}", "the rights that `shardctl init` grants", _INIT),
        "register_ahead": Rule(
            ERROR,
            f"up to {{blocks}} blocks ahead of {generator.COUNTER}: the counter was set back",
            "the block of the counter",
            "set the counters to the ends of the registers' blocks, of shard {shard} by: {setval}",
        ),
    },
)


class Held(NamedTuple):
    """What a shard's register and counter hold; None: nothing was ever drawn or written.

    The register was read first, so one that was read during traffic never seems ahead.
    """

    register: int | None
    counter: int | None
    unlogged: bool = False
    """Whether one of them starts again after a crash."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What makes ids on one node, as far as `Basics` does not show.

    `ungranted` are roles that lack a right to the database or to schema shardctl; `held` is what
    registers and counters hold, by schema.
    """

    functions: Mapping[str, str]
    ungranted: Sequence[str]
    held: Mapping[str, Held]


def look(place: Place) -> Seen:
    """Ask two questions, and for the registers as many as the lock table requires."""
    session = place.connection
    held: dict[str, Held] = {}
    if place.topology.id.generator == "strict":
        names = {"counter": generator.COUNTER, "register": generator.REGISTER}
        for chunk in patient.chunks(list(place.shards), patient.lockable(session) // 2):
            rows = session.execute(QUERIES["registers"], {**names, "schemas": chunk})
            held |= {schema: Held(*row) for schema, *row in rows}
    ungranted = catalog.read_ungranted(session, place.topology.database.app_roles)
    return Seen(catalog.read_functions(session), ungranted, held)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what differs on nodes, then what differs in shards, grouped over all nodes."""
    topology = view.topology
    wanted = generator.bodies(
        generator.render(
            topology.id, topology.id.generator, topology.shard_count, topology.key_rule
        )
    )
    found: dict[tuple[str, str, str], list[ShardId]] = {}
    held: dict[ShardId, Held] = {}
    for name, seen in view.seen.items():
        yield from _functions(view, name, wanted)
        for role in seen.ungranted:
            what = "the role is missing, or lacks a right to the database or to schema shardctl"
            yield RULES.finding("grants_differ", node=name, object=role, what=what)
        basics = view.basics[name]
        for schema, shard in basics.live(topology, topology.nodes[name]).items():
            if schema in seen.held:
                held[shard] = seen.held[schema]
            right = generator.wrapper_body(schema, shard)
            for fault in _of_shard(basics.schemas[schema], held.get(shard), right):
                found.setdefault(fault, []).append(shard)
    for (code, thing, what), numbers in sorted(found.items()):
        yield RULES.finding(code, shards=sorted(numbers), object=thing, what=what)
    yield from judge_registers(topology, held)


def _of_shard(there: Schema, held: Held | None, wrapper: str) -> Iterator[tuple[str, str, str]]:
    """Give code, object and what is wrong of each fault of a shard's generator."""
    for name, present in ((generator.COUNTER, there.counter), (generator.REGISTER, there.register)):
        if not present:
            yield "sequence_differs", name, "absent"
    if there.unfit or (held is not None and held.unlogged):
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


def ahead(layout: Layout, held: Held) -> int:
    """Count the blocks by which the register is ahead of its counter; negative: behind.

    Block numbers wrap around, as in the template: up to half of them lie ahead.

    >>> ahead(Layout(), Held(register=5 << 40, counter=3 << 10))
    2
    >>> ahead(Layout(), Held(register=None, counter=1030))
    -2
    """
    bits = layout.usable_time_bits
    mask = (1 << 63 - bits) - 1
    block = (held.counter or 0) >> layout.sequence_bits
    if held.register is None:
        return 0 if held.counter is None else -block - 1
    behind = (block - (held.register >> bits)) & mask
    return -behind if behind <= mask // 2 else mask + 1 - behind


def judge_registers(topology: Topology, held: Mapping[ShardId, Held]) -> Iterator[Finding]:
    """Find registers ahead of their counters; the next id of any session fixes one behind."""
    layout = Layout.of(topology.id)
    found = {shard: ahead(layout, one) for shard, one in sorted(held.items())}
    before = {shard: blocks for shard, blocks in found.items() if blocks > 0}
    if before:
        # open_block() would keep ids apart, but draws up to the register's block
        # would still be thrown away, one by one: the end of that block fixes both.
        shard = next(iter(before))
        last = (held[shard].counter or 0) >> layout.sequence_bits
        end = (last + before[shard] + 1 << layout.sequence_bits) - 1
        counter = f"{generator.quote_identifier(topology.schema(shard))}.{generator.COUNTER}"
        name = generator.quote_literal(counter).strip()
        yield RULES.finding(
            "register_ahead",
            shards=tuple(before),
            object=generator.REGISTER,
            blocks=max(before.values()),
            shard=shard,
            # Not where ids were drawn in the meantime: that fixes it too, and it must not be set
            # back again.
            setval=f"SELECT setval({name}, {end}) WHERE nextval({name}) < {end}",
        )


CHECK = Check(
    RULES,
    "every shard generates its own ids with shardctl's functions, for all application roles",
    judge,
    look,
)
