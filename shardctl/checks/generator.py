"""What makes ids: shared functions, each shard's `next_id()`, its sequences and their grants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.check import ERROR, WARNING, Check, Rule, Rules
from shardctl.ids import generator
from shardctl.ids.layout import Layout
from shardctl.postgres import catalog, patient, queries

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.state.cluster import ClusterRow
    from shardctl.topology.model import NodeName, ShardId, Topology


REGISTER_RULES = Rules(
    "generator",
    {
        "register_ahead": Rule(
            ERROR,
            f"{{blocks}} ahead of {generator.COUNTER}: the counter was set back",
            "the block of the counter",
            "set the counter to the end of the register's block; the next id then starts a new "
            "block: {setval}{more}",
        ),
        "register_behind": Rule(
            WARNING,
            f"{{blocks}} behind {generator.COUNTER}",
            "the block of the counter, or the one before",
            "the next id fixes this; to fix it now, run on the shard's node: SELECT "
            "shardctl.open_block({shard}){more}",
        ),
    },
)


class Held(NamedTuple):
    """What a shard's register and counter hold; None: nothing was ever drawn or written.

    The register was read first, so one that was read during traffic never seems ahead.
    """

    register: int | None
    counter: int | None


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
    """Find registers ahead of their counters, and ones that are far behind.

    One block behind is how it is for a moment while a block is opened, and after a crash,
    when a counter skips up to 32 values; the next id of any session fixes it.
    """
    layout = Layout.of(topology.id)
    distances = {shard: ahead(layout, one) for shard, one in sorted(held.items())}
    before = {shard: blocks for shard, blocks in distances.items() if blocks > 0}
    after = {shard: -blocks for shard, blocks in distances.items() if blocks < -1}
    if before:
        # open_block() would keep ids apart, but draws up to the register's block
        # would still be thrown away, one by one: the end of that block fixes both.
        shard = next(iter(before))
        last = (held[shard].counter or 0) >> layout.sequence_bits
        end = (last + before[shard] + 1 << layout.sequence_bits) - 1
        yield REGISTER_RULES.finding(
            "register_ahead",
            shards=tuple(before),
            object=generator.REGISTER,
            blocks=_blocks(before),
            setval=_setval(topology, shard, end),
            more=_more(before, shard),
        )
    if after:
        shard = next(iter(after))
        yield REGISTER_RULES.finding(
            "register_behind",
            shards=tuple(after),
            object=generator.REGISTER,
            blocks=_blocks(after),
            shard=shard,
            more=_more(after, shard),
        )


def _setval(topology: Topology, shard: ShardId, value: int) -> str:
    counter = f"{generator.quote_identifier(topology.schema(shard))}.{generator.COUNTER}"
    name = generator.quote_literal(counter).strip()
    # Not where ids were drawn in the meantime: that fixes it too, and it must not be set back
    # again.
    return f"SELECT setval({name}, {value}) WHERE nextval({name}) < {value}"


def _blocks(distances: Mapping[ShardId, int]) -> str:
    low, high = min(distances.values()), max(distances.values())
    if low == high:
        return "1 block" if low == 1 else f"{low} blocks"
    return f"{low} to {high} blocks"


def _more(distances: Mapping[ShardId, int], shard: ShardId) -> str:
    if len(distances) == 1:
        return ""
    return f" (for shard {shard}; then `--check generator` shows the command for the next)"


QUERIES = queries.load("shardctl.checks", "generator.sql")

_SEQUENCES = [generator.COUNTER, generator.REGISTER]
_INIT = "run `shardctl init`"
_MADE = "the function that `shardctl init` creates"
_FUNCTION = "the function of shardctl for {generator} ids"
RULES = Rules(
    "generator",
    {
        "function_missing": Rule(ERROR, "absent", _FUNCTION, _INIT),
        "function_differs": Rule(ERROR, "the body differs from shardctl's", _FUNCTION, _INIT),
        "role_missing": Rule(ERROR, "absent", "a role with access to the shards", _INIT),
        "state_not_granted": Rule(ERROR, "lacks {lacks}", "granted", _INIT),
        "next_id_missing": Rule(ERROR, "absent", _MADE, _INIT),
        "next_id_differs": Rule(ERROR, "the body differs from shardctl's", _MADE, _INIT),
        "other_shard": Rule(
            ERROR,
            "makes ids of shard {what}",
            "ids of this shard",
            f"{_INIT}; then search for rows with wrong ids: `shardctl verify --check ids --deep`",
        ),
        "sequence_missing": Rule(ERROR, "absent", "a sequence", f"{_INIT}{{what}}"),
        "sequence_differs": Rule(
            ERROR, "{what}", "the settings that `shardctl init` gives it", "{how}"
        ),
        "not_granted": Rule(ERROR, "{role} lacks {what}", "granted to {role}", _INIT),
        "granted_too_much": Rule(
            ERROR,
            "{role} has {what}",
            "no right to change the sequences that make ids",
            f"{_INIT}: with it, the role can stop this shard's ids for ever",
        ),
        **REGISTER_RULES.of,
    },
)
_NUMBER = re.compile(r"shardctl\.next_id\(.*,\s*(\d+)\s*\)", re.DOTALL)


_AGAIN = "; run `shardctl verify` again afterwards: the new counter may be behind the register"
_REPEATING = f"{_INIT}: with these settings ids can repeat or run out"
_LOGGED = "run ALTER SEQUENCE ... SET LOGGED: an unlogged sequence restarts after a crash"


class _Fault(NamedTuple):
    """What is wrong in shards alike: a rule's code, the object, and words for the texts."""

    code: str
    name: str
    what: str = ""
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

    `roles` are those that exist; `odd` has, by (schema, sequence), what keeps it from drawing
    one value after the other; `held` are what (register, counter) hold, by schema.
    """

    functions: Mapping[str, str]
    roles: frozenset[str]
    lacks: Sequence[Lack]
    odd: Mapping[tuple[str, str], str]
    held: Mapping[str, Held]


def look(place: Place) -> Seen:
    """Ask five questions, and for the registers as many as the lock table requires."""
    session, shards = place.connection, list(place.shards)
    roles = list(place.topology.database.app_roles)
    wanted: dict[str, object] = {"roles": roles, "schemas": shards, "sequences": _SEQUENCES}
    lacks = [Lack(None, *row) for row in session.execute(QUERIES["lacking_state"], wanted)]
    ungranted = [schema for schema in shards if place.basics.schemas[schema].ungranted]
    if ungranted:
        wanted |= {"schemas": ungranted, "wrapper": generator.WRAPPER}
        wanted |= {"register": generator.REGISTER}
        lacks += [Lack(*row) for row in session.execute(QUERIES["lacking"], wanted)]
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
            rows = session.execute(
                QUERIES["registers"],
                {
                    "registers": [pairs[schema][0] for schema in chunk],
                    "counters": [pairs[schema][1] for schema in chunk],
                },
            )
            held |= {s: Held(*row) for s, row in zip(chunk, rows, strict=True)}
    return Seen(
        functions=catalog.read_functions(session),
        roles=frozenset(role for (role,) in session.execute(QUERIES["roles"], {"roles": roles})),
        lacks=lacks,
        odd=odd,
        held=held,
    )


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Find what differs on nodes, then what differs in shards, grouped over all nodes."""
    topology = view.topology
    wanted = generator.bodies(
        generator.render(
            topology.id, topology.id.generator, topology.shard_count, topology.key_rule
        )
    )
    for name, seen in view.seen.items():
        state = view.basics[name].state
        if state is not None:
            yield from _functions(topology, name, wanted, _as_made(state, seen.functions, wanted))
        yield from _roles(topology, name, seen)
    found: dict[_Fault, list[ShardId]] = {}
    held: dict[ShardId, Held] = {}
    for name, seen in view.seen.items():
        basics = view.basics[name]
        shards = basics.live(topology, topology.nodes[name])
        for schema, shard in shards.items():
            there = basics.schemas[schema]
            for key in _of_sequences(seen, schema, counter=there.counter, register=there.register):
                found.setdefault(key, []).append(shard)
            if wrapper := _of_wrapper(schema, shard, there.wrapper):
                found.setdefault(wrapper, []).append(shard)
        for key, schemas in _of_grants(topology, seen).items():
            found.setdefault(key, []).extend(shards[schema] for schema in schemas)
        held |= {shards[schema]: one for schema, one in seen.held.items()}
    for (code, thing, what, role), numbers in sorted(found.items()):
        how = _LOGGED if "UNLOGGED" in what else _REPEATING
        yield RULES.finding(
            code, shards=sorted(numbers), object=thing or None, what=what, role=role, how=how
        )
    yield from judge_registers(topology, held)


def _as_made(
    state: ClusterRow, there: Mapping[str, str], wanted: Mapping[str, str]
) -> dict[str, str]:
    """Take functions for right that belong to the layout and generator of the node's own row.

    Where that is not the topology's, `identity` reports it.
    """
    if there == wanted:
        return dict(there)
    own = generator.bodies(
        generator.render(state, state.generator, state.shard_count, state.key_rule)
    )
    return {
        name: wanted.get(name, body) if body == own.get(name) else body
        for name, body in there.items()
    }


def _functions(
    topology: Topology, node: NodeName, wanted: Mapping[str, str], there: Mapping[str, str]
) -> Iterator[Finding]:
    """Compare the shared functions with the template."""
    missing = generator.names(one for one in wanted if one not in there)
    other = generator.names(one for one, body in wanted.items() if there.get(one, body) != body)
    for code, names in (("function_missing", missing), ("function_differs", other)):
        if names:
            yield RULES.finding(
                code,
                node=node,
                object=", ".join(f"shardctl.{name}" for name in names),
                generator=topology.id.generator,
            )


def _roles(topology: Topology, node: NodeName, seen: Seen) -> Iterator[Finding]:
    for role in topology.database.app_roles:
        lacks = [
            f"{k.privilege} on {k.object}" for k in seen.lacks if (k.schema, k.role) == (None, role)
        ]
        if role not in seen.roles or lacks:
            code = "state_not_granted" if role in seen.roles else "role_missing"
            yield RULES.finding(code, node=node, object=role, lacks=", ".join(lacks))


def _of_sequences(seen: Seen, schema: str, *, counter: bool, register: bool) -> Iterator[_Fault]:
    for name, there in ((generator.COUNTER, counter), (generator.REGISTER, register)):
        if not there:
            yield _Fault("sequence_missing", name, _AGAIN if name == generator.COUNTER else "")
        elif oddity := seen.odd.get((schema, name)):
            yield _Fault("sequence_differs", name, oddity)


def _of_wrapper(schema: str, shard: ShardId, body: str | None) -> _Fault | None:
    name = f"{generator.WRAPPER}()"
    if body is None:
        return _Fault("next_id_missing", name)
    if body == generator.wrapper_body(schema, shard):
        return None
    number = _NUMBER.search(body)
    if number is not None and int(number[1]) != shard:
        return _Fault("other_shard", name, number[1])
    return _Fault("next_id_differs", name)


def _of_grants(topology: Topology, seen: Seen) -> dict[_Fault, list[str]]:
    """Group what roles lack in shards, or have too much: one finding for a role and all of it."""
    lacks: dict[tuple[str, str, bool], list[Lack]] = {}
    for lack in seen.lacks:
        if lack.schema is not None and lack.role in topology.database.app_roles:
            lacks.setdefault((lack.schema, lack.role, lack.excess), []).append(lack)
    groups: dict[_Fault, list[str]] = {}
    for (schema, role, excess), of_role in lacks.items():
        objects = list(dict.fromkeys(lack.object for lack in of_role))
        lacking = "; ".join(
            f"{', '.join(k.privilege for k in of_role if k.object == one)} on {one}"
            for one in objects
        )
        name = objects[0] if len(objects) == 1 else ""
        code = "granted_too_much" if excess else "not_granted"
        groups.setdefault(_Fault(code, name, lacking, role), []).append(schema)
    return groups


CHECK = Check(
    RULES,
    "every shard generates its own ids with shardctl's functions, for all application roles",
    judge,
    look,
)
