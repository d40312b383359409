"""What makes ids: shared functions, each shard's `next_id()`, its sequences and their grants."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, Check, Rule, Rules
from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, patient, queries

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.topology.model import NodeName, ShardId, Topology


QUERIES = queries.load("shardctl.checks", "generator.sql")

_SEQUENCES = [generator.COUNTER, generator.REGISTER]
_INIT = "run `shardctl init`"
RULES = Rules(
    "generator",
    {
        "function_differs": Rule(
            ERROR, "{what}", "the function of shardctl for {generator} ids", _INIT
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
        "not_granted": Rule(ERROR, "{role} lacks {what}", "granted to {role}", _INIT),
        "granted_too_much": Rule(
            ERROR,
            "{role} has {what}",
            "no right to change the sequences that make ids",
            f"{_INIT}: with it, the role can stop this shard's ids for ever",
        ),
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


class _Fault(NamedTuple):
    """What is wrong in shards alike: a rule's code, the object, and words for the texts."""

    code: str
    name: str
    what: str
    role: str = ""


@dataclass(frozen=True, slots=True)
class Lack:
    """One privilege that a role lacks on an object; `schema` is None where it is the node's.

    Or, as `excess`, one that it must not have.
    """

    schema: str | None
    role: str
    object: str
    privilege: str
    excess: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """What makes ids on one node, as far as `Basics` does not show.

    `odd` has, by (schema, sequence), what keeps it from drawing one value after the other; `held`
    are what (register, counter) hold, by schema.
    """

    functions: Mapping[str, str]
    lacks: Sequence[Lack]
    odd: Mapping[tuple[str, str], str]
    held: Mapping[str, Held]


def look(place: Place) -> Seen:
    """Ask three questions, and for the registers as many as the lock table requires."""
    session, shards = place.connection, list(place.shards)
    wanted: dict[str, object] = {
        "roles": list(place.topology.database.app_roles),
        "schemas": [schema for schema in shards if place.basics.schemas[schema].ungranted],
        "sequences": _SEQUENCES,
        "register": generator.REGISTER,
        "wrapper": generator.WRAPPER,
    }
    lacks = [Lack(*row) for row in session.execute(QUERIES["lacking"], wanted)]
    odd: dict[tuple[str, str], str] = {}
    held: dict[str, Held] = {}
    if place.topology.id.generator == "strict":
        oids: dict[str, dict[str, int]] = {}
        wanted["schemas"] = shards
        for schema, name, oid, oddity in session.execute(QUERIES["sequences"], wanted):
            oids.setdefault(schema, {})[name] = oid
            if oddity:
                odd[schema, name] = oddity
        pairs = {
            schema: (both[generator.REGISTER], both[generator.COUNTER])
            for schema, both in oids.items()
            if len(both) == 2
        }
        for chunk in patient.chunks(pairs, patient.lockable(session) // 2):
            registers, counters = zip(*(pairs[schema] for schema in chunk), strict=True)
            given = {"registers": list(registers), "counters": list(counters)}
            rows = session.execute(QUERIES["registers"], given)
            held |= {s: Held(*row) for s, row in zip(chunk, rows, strict=True)}
    return Seen(catalog.read_functions(session), lacks, odd, held)


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what differs on nodes, then what differs in shards, grouped over all nodes."""
    topology = view.topology
    wanted = generator.bodies(
        generator.render(
            topology.id, topology.id.generator, topology.shard_count, topology.key_rule
        )
    )
    for name, seen in view.seen.items():
        yield from _functions(view, name, wanted)
        for fault in _of_grants(topology, seen, {None}):
            yield RULES.finding(
                fault.code, node=name, object=fault.role, what=fault.what, role=fault.role
            )
    found: dict[_Fault, list[ShardId]] = {}
    held: dict[ShardId, Held] = {}
    for name, seen in view.seen.items():
        basics = view.basics[name]
        shards = basics.live(topology, topology.nodes[name])
        for schema, shard in shards.items():
            there = basics.schemas[schema]
            for key in _of_sequences(seen, schema, counter=there.counter, register=there.register):
                found.setdefault(key, []).append(shard)
            if there.wrapper != generator.wrapper_body(schema, shard):
                what = "absent" if there.wrapper is None else "the body differs from shardctl's"
                key = _Fault("next_id_differs", f"{generator.WRAPPER}()", what)
                found.setdefault(key, []).append(shard)
        for key, schemas in _of_grants(topology, seen, shards).items():
            found.setdefault(key, []).extend(shards[schema] for schema in schemas if schema)
        held |= {shards[schema]: one for schema, one in seen.held.items()}
    for (code, thing, what, role), numbers in sorted(found.items()):
        yield RULES.finding(
            code, shards=sorted(numbers), object=thing or None, what=what, role=role
        )
    yield from judge_registers(topology, held)


def _functions(view: View[Seen], node: NodeName, wanted: Mapping[str, str]) -> Iterator[Finding]:
    """Compare the shared functions with the template.

    Not on a node of another layout or generator, which `identity` reports.
    """
    topology, state = view.topology, view.basics[node].state
    if state is None or state.differences(topology) or state.generator != topology.id.generator:
        return
    there = view.seen[node].functions
    missing = generator.names(one for one in wanted if one not in there)
    other = generator.names(one for one, body in wanted.items() if there.get(one, body) != body)
    for what, names in (("absent", missing), ("the body differs from shardctl's", other)):
        if names:
            yield RULES.finding(
                "function_differs",
                node=node,
                object=", ".join(f"shardctl.{name}" for name in names),
                what=what,
                generator=topology.id.generator,
            )


def _of_sequences(seen: Seen, schema: str, *, counter: bool, register: bool) -> Iterator[_Fault]:
    for name, there in ((generator.COUNTER, counter), (generator.REGISTER, register)):
        if what := seen.odd.get((schema, name)) if there else "absent":
            yield _Fault("sequence_differs", name, what)


def _of_grants(
    topology: Topology, seen: Seen, schemas: Collection[str | None]
) -> dict[_Fault, list[str | None]]:
    """Group what roles lack there, or have too much: one finding for a role and all of it."""
    lacks: dict[tuple[str | None, str, bool], dict[str, list[str]]] = {}
    for lack in seen.lacks:
        if lack.schema in schemas and lack.role in topology.database.app_roles:
            of_role = lacks.setdefault((lack.schema, lack.role, lack.excess), {})
            of_role.setdefault(lack.object, []).append(lack.privilege)
    groups: dict[_Fault, list[str | None]] = {}
    for (schema, role, excess), objects in lacks.items():
        what = "; ".join(f"{', '.join(every)} on {one}" for one, every in objects.items())
        name = next(iter(objects)) if len(objects) == 1 else ""
        code = "granted_too_much" if excess else "not_granted"
        groups.setdefault(_Fault(code, name, what, role), []).append(schema)
    return groups


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
