"""Structure: shards whose tables, indexes, grants and the like differ from the majority's."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks import migrations
from shardctl.checks.check import ERROR, NOTE, Check, Rule, Rules
from shardctl.checks.structure_groups import OF_THINGS, Group, Thing, compare, finding
from shardctl.ids import generator
from shardctl.postgres import patient, queries
from shardctl.state import keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from shardctl.checks.check import Finding, Place, View
    from shardctl.topology.model import ShardId

QUERIES = queries.load("shardctl.checks", "structure.sql")
MOST_DETAILED = 50
"""Of so many different structures a node, the details are read; beyond, all is different."""

RULES = Rules(
    "structure",
    {
        **OF_THINGS.of,
        "unlike": Rule(
            ERROR,
            f"more than {MOST_DETAILED} different structures on one node",
            "the same structure in all shards",
            "fix the other findings, then run verify again: it shows the rest",
        ),
        "not_compared": Rule(
            NOTE,
            "on PostgreSQL {major}: compared with each other only",
            "PostgreSQL {usual}, as most shards have",
            "nothing during an upgrade: each version writes definitions its own way",
        ),
    },
)

_EMPTY = "empty"
_GENERATOR = [generator.COUNTER, generator.REGISTER]


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
    Servers of two major versions write one definition differently.
    """
    details: dict[str, Sequence[Thing]] = {}
    digests: dict[ShardId, str] = {}
    majors: dict[ShardId, int] = {}
    files: dict[ShardId, set[str]] = {}
    for node, seen in view.seen.items():
        details |= seen.details
        digests |= seen.digests
        majors |= dict.fromkeys(seen.digests, view.basics[node].version_number // 10_000)
        for file, shards in seen.ran.items():
            for shard in shards:
                files.setdefault(shard, set()).add(file)
    alike: dict[tuple[int, frozenset[str]], dict[str, list[ShardId]]] = {}
    for shard, digest in sorted(digests.items()):
        of_same = alike.setdefault((majors[shard], frozenset(files.get(shard, ()))), {})
        of_same.setdefault(digest, []).append(shard)
    for of_same in alike.values():
        groups = [
            Group(tuple(found), {thing.key: thing for thing in details[digest]})
            for digest, found in of_same.items()
            if digest in details
        ]
        for difference in compare(groups):
            yield finding(view.topology, difference)
        unlike = sorted(
            shard for digest, found in of_same.items() if digest not in details for shard in found
        )
        if unlike:
            yield RULES.finding("unlike", shards=unlike)
    yield from _not_compared(majors)


def _not_compared(majors: Mapping[ShardId, int]) -> Iterator[Finding]:
    """Say which shards were not compared with most, because their servers are newer or older."""
    if not majors:
        return
    usual, *others = sorted(Counter(majors.values()).items(), key=lambda item: (-item[1], item[0]))
    for major, _ in others:
        shards = sorted(shard for shard, its in majors.items() if its == major)
        yield RULES.finding("not_compared", shards=shards, major=major, usual=usual[0])


CHECK = Check(
    RULES, "every shard has the same tables, columns, indexes, constraints, grants", judge, look
)
