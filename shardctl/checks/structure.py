"""Structure: shards whose tables, indexes, grants and the like differ from the majority's."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks import migrations
from shardctl.checks.check import ERROR, WARNING, Check, Rule, Rules
from shardctl.ids import generator
from shardctl.ids.generator import quote_identifier
from shardctl.postgres import patient, queries
from shardctl.state import keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.topology.model import ShardId, Topology


QUERIES = queries.load("shardctl.checks", "structure.sql")
MOST_DETAILED = 50
"""Of so many different structures a node, the details are read; beyond, all is different."""

_HARMLESS = {"index_extra", "sequence_extra", "table_extra", "view_extra"}
"""What changes no statement that works in the other shards."""
_HINTS = {
    "missing": "create it there as expected: `pg_dump --schema-only --table='{model}'` on node "
    "{where} shows its definition; what was in it is in a backup",
    "extra": "drop it there, rename it back, or write a migration that creates it in all shards "
    "(`shardctl migrate`)",
    "differs": "alter it there as expected: `pg_dump --schema-only --table='{model}'` on node "
    "{where} shows its definition",
}

_KINDS = ("index", "sequence", "table", "view", "column", "constraint", "trigger")
_CODES = [f"{kind}_{change}" for kind in _KINDS for change in _HINTS]
_CODES += ["owner_differs", "grant_differs"]

RULES = Rules(
    "structure",
    {
        **{
            code: Rule(
                WARNING if code in _HARMLESS else ERROR,
                "{actual}",
                "{expected}",
                _HINTS[code.rpartition("_")[2]],
            )
            for code in _CODES
        },
        "unlike": Rule(
            ERROR,
            f"more than {MOST_DETAILED} different structures on one node",
            "the same structure in all shards",
            "fix the other findings, then run verify again: it shows the rest",
        ),
    },
)

_EMPTY = "empty"
_GENERATOR = [generator.COUNTER, generator.REGISTER]
RELATIONS = frozenset({"table", "view", "sequence"})


Key = tuple[str, str, str]
"""Kind, relation and name of a thing; the name is the relation's own where it is one."""


class Thing(NamedTuple):
    """A table, column, index, grant...: what a shard holds, in the words of SQL.

    `core` is the part of a column on which indexes and constraints rest (its type), and says
    `index` of a constraint that has one. `needs` names what it rests on.
    """

    kind: str
    relation: str
    name: str
    core: str
    description: str
    needs: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Group:
    """Shards (ascending) that hold the same things."""

    shards: tuple[ShardId, ...]
    things: Mapping[Key, Thing]

    def has(self, relation: str) -> bool:
        """Return whether a table, view or sequence of this name exists."""
        return any((kind, relation, relation) in self.things for kind in RELATIONS)


def compare(topology: Topology, groups: Sequence[Group]) -> Iterator[Finding]:
    """Find what differs from the majority of shards, each fault once.

    What is asked of each thing is how most of those shards have it that have its table. A
    tie goes to the lowest shard's group.
    """
    found: list[dict[Key, tuple[Thing | None, ShardId]]] = [{} for _ in groups]
    for key in sorted({key for group in groups for key in group.things}):
        voters = [
            (number, group)
            for number, group in enumerate(groups)
            if key[0] in RELATIONS or group.has(key[1])
        ]
        expected, model = _majority(key, [group for _, group in voters])
        for number, group in voters:
            if _said(group.things.get(key)) != _said(expected):
                found[number][key] = (expected, model)
    merged: dict[tuple[Key, str | None, str | None], list[tuple[int, ShardId]]] = defaultdict(list)
    for number, (group, differing) in enumerate(zip(groups, found, strict=True)):
        broken = {
            name
            for key, (expected, _) in differing.items()
            for name in _breaks(group.things.get(key), expected)
        }
        for key, (expected, model) in differing.items():
            actual = group.things.get(key)
            if not broken & _needs(actual, expected):
                merged[key, _said(actual), _said(expected)].append((number, model))
    for (key, actually, wanted), where in sorted(merged.items(), key=lambda item: item[0][0]):
        shards = sorted(shard for number, _ in where for shard in groups[number].shards)
        yield _finding(topology, key, actually, wanted, shards=shards, model=where[0][1])


def _said(thing: Thing | None) -> str | None:
    return None if thing is None else thing.description


def _majority(key: Key, groups: Iterable[Group]) -> tuple[Thing | None, ShardId]:
    """Give the thing as most shards have it, and the lowest of those."""
    votes: dict[str | None, list[Group]] = {}
    for group in groups:
        votes.setdefault(_said(group.things.get(key)), []).append(group)
    usual = max(
        votes.values(),
        key=lambda of: (sum(len(g.shards) for g in of), -min(g.shards[0] for g in of)),
    )
    return usual[0].things.get(key), min(group.shards[0] for group in usual)


def _breaks(actual: Thing | None, expected: Thing | None) -> set[str]:
    """Name what else cannot be as it should when this differs."""
    thing = actual or expected
    if thing is None:  # pragma: no cover  # a difference has one or the other
        raise AssertionError
    there = actual is None or expected is None
    if thing.kind in RELATIONS:
        return {f"relation:{thing.name}"} if there else set()
    if thing.kind == "column":
        name = f"{thing.relation}.{thing.name}"
        other_type = actual and expected and actual.core != expected.core
        broken = {f"any:{name}"}
        return broken | {f"column:{name}"} if there or other_type else broken
    if thing.kind == "owner":
        return {f"owner:{thing.relation}"}
    if thing.core == "index" or thing.kind == "index":
        return {f"index:{thing.name}"} if there else set()
    return set()


def _needs(actual: Thing | None, expected: Thing | None) -> set[str]:
    """Name what explains this difference if it is broken."""
    needs: set[str] = set()
    itself = ""
    for thing in (actual, expected):
        if thing is None:
            continue
        needs |= thing.needs
        if thing.kind not in RELATIONS:
            needs.add(f"relation:{thing.relation}")
        if thing.kind == "sequence":
            # Its column's own finding reports a default that no longer draws from it.
            needs |= {name.replace("column:", "any:", 1) for name in thing.needs}
        elif thing.kind == "owner":
            # A sequence follows the table whose column owns it.
            needs |= {name.replace("relation:", "owner:", 1) for name in thing.needs}
        elif thing.kind == "grant":
            # An owner needs none, and what was granted to one goes with the table.
            needs |= {f"owner:{thing.relation}", f"column:{thing.relation}.{thing.name}"}
        elif thing.kind == "column":
            itself = f"column:{thing.relation}.{thing.name}"
    return needs - {itself}


def _finding(
    topology: Topology,
    key: Key,
    actual: str | None,
    expected: str | None,
    *,
    shards: Sequence[ShardId],
    model: ShardId,
) -> Finding:
    """Name which shards differ, in what, and how to fix it; `model` has it as most do."""
    kind, relation, name = key
    if kind in {"grant", "owner"}:
        change = "differs"
    elif actual is None:
        change = "missing"
    else:
        change = "extra" if expected is None else "differs"
    # A relation or index by its name, and parts of a table with the table's.
    whole = kind in RELATIONS or kind == "index" or not name
    return RULES.finding(
        f"{kind}_{change}",
        shards=shards,
        object=name or relation if whole else f"{relation}.{name}",
        actual=" ".join((actual or "absent").split()),
        expected=" ".join((expected or "absent").split()),
        model=f"{quote_identifier(topology.schema(model))}.{quote_identifier(relation)}",
        where=topology.owners()[model],
    )


class Seen(NamedTuple):
    """The digest of every shard's structure, what is behind the digests, and what ran."""

    digests: Mapping[ShardId, str]
    details: Mapping[str, Sequence[Thing]]
    ran: migrations.Ran


def look(place: Place) -> Seen:
    """Let the server reduce each shard to a digest, and read one shard of each in detail.

    Five questions; more where shards have so many views that the lock table would not bear
    writing them all down at once.
    """
    schemas = list(place.shards)
    digests = dict.fromkeys(place.shards.values(), _EMPTY)
    for chunk in patient.chunks(schemas, _chunk(place, schemas)):
        statement = QUERIES["digests"].format(objects=QUERIES["objects"])
        wanted = _wanted(place, chunk)
        for schema, digest in place.connection.execute(statement, wanted):
            digests[place.shards[schema]] = digest
    first: dict[str, ShardId] = {}
    for shard, digest in sorted(digests.items()):
        first.setdefault(digest, shard)
    usual = [digest for digest, _ in Counter(digests.values()).most_common()]
    chosen = sorted(usual, key=lambda d: d == _EMPTY)[:MOST_DETAILED]
    details = _details(place, {place.topology.schema(first[d]): d for d in chosen if d != _EMPTY})
    return Seen(digests, {_EMPTY: (), **details}, migrations.look(place))


def _wanted(place: Place, schemas: list[str]) -> dict[str, object]:
    return {
        "schemas": schemas,
        "shards": [place.shards[schema] for schema in schemas],
        "generator": _GENERATOR,
        "key_check": keys.CHECK,
    }


def _chunk(place: Place, schemas: list[str]) -> int:
    """Give the number of schemas whose views can be written down in one statement."""
    (locks,) = queries.one(place.connection, QUERIES["view_locks"], {"schemas": schemas})
    if not locks:
        return len(schemas)
    return max(1, len(schemas) * patient.lockable(place.connection) // int(locks))


def _details(place: Place, wanted: Mapping[str, str]) -> dict[str, tuple[Thing, ...]]:
    """Read all that schemas hold; `wanted` is their digests by schema."""
    rows = place.connection.execute(
        QUERIES["details"].format(objects=QUERIES["objects"]),
        _wanted(place, list(wanted)),
    ).fetchall()
    depends: dict[tuple[int, int], set[str]] = {}
    oids = [oid for _, _, oid, *_ in rows if oid]
    for catalog, oid, is_index, relation, column in place.connection.execute(
        QUERIES["dependencies"], {"oids": oids}
    ):
        needs = depends.setdefault((catalog, oid), set())
        needs.add(f"index:{relation}" if is_index else f"relation:{relation}")
        if column:
            needs.add(f"column:{relation}.{column}")
    found: dict[str, list[Thing]] = {}
    for schema, catalog, oid, kind, relation, name, core, description in rows:
        rests_on = frozenset(depends.get((catalog, oid), ()))
        thing = Thing(kind, relation, name, core, description, rests_on)
        found.setdefault(wanted[schema], []).append(thing)
    return {digest: tuple(things) for digest, things in found.items()}


def judge(view: View[Seen]) -> Iterator[Finding]:
    """Compare the shards that ran the same migrations, on servers of one major version.

    A shard that ran other migrations than most is `migrations`' finding, which has the cause.
    Servers of two major versions write one definition differently; `connection` names them.
    """
    details: dict[str, Sequence[Thing]] = {}
    digests: dict[ShardId, str] = {}
    majors: dict[ShardId, int] = {}
    files: dict[ShardId, set[str]] = {}
    for node, seen in view.seen.items():
        details |= seen.details
        digests |= seen.digests
        majors |= dict.fromkeys(seen.digests, view.basics[node].major)
        for file, shards in seen.ran.items():
            for shard in shards:
                files.setdefault(shard, set()).add(file)
    alike: dict[tuple[int, frozenset[str]], dict[str, list[ShardId]]] = {}
    for shard, digest in sorted(digests.items()):
        of_same = alike.setdefault((majors[shard], frozenset(files.get(shard, ()))), {})
        of_same.setdefault(digest, []).append(shard)
    for of_same in alike.values():
        groups = [
            Group(tuple(found), {thing[:3]: thing for thing in details[digest]})
            for digest, found in of_same.items()
            if digest in details
        ]
        yield from compare(view.topology, groups)
        unlike = sorted(
            shard for digest, found in of_same.items() if digest not in details for shard in found
        )
        if unlike:
            yield RULES.finding("unlike", shards=unlike)


CHECK = Check(
    RULES, "every shard has the same tables, columns, indexes, constraints, grants", judge, look
)
