"""Where shards live: missing, twice, astray, retired; and whether all maps agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import leftovers
from shardctl.checks.check import ERROR, NOTE, WARNING, Check, Rule, Rules
from shardctl.meter import listed
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Finding, View

RULES = Rules(
    "map",
    {
        "shard_missing": Rule(
            ERROR,
            "no live schema",
            "a live schema on {owner}",
            "if `shardctl status` shows a retired schema of it, rename that; otherwise restore it "
            "from a backup, or run `shardctl init` if it never existed",
        ),
        "shard_misplaced": Rule(
            ERROR,
            "live on {node} only",
            "live on {owner}",
            "use the newest topology file; a schema may have been moved by hand",
        ),
        "shard_twice": Rule(
            ERROR,
            "live on {node} too",
            "live on {owner} only",
            "check that the owner has all data of this copy, then drop the copy",
        ),
        "stray_schema": Rule(
            WARNING,
            "schema {strays}",
            "only shards 0-{last}",
            "find out what the schema is for, then drop or rename it",
        ),
        "map_differs": Rule(
            ERROR,
            "shardctl.map: {listed}",
            "the topology: {owners}",
            "use the newest topology file: `shardctl moves list` names the moves",
        ),
        "map_version": Rule(
            WARNING,
            "version {version}",
            "version {newest}, as other nodes have",
            "the node was away while shards moved between other nodes: run `shardctl init`",
        ),
        "retired_schema": Rule(
            NOTE,
            "a schema with the name of a retired one",
            "nothing after `shardctl prune`",
            "no move in the node's journal retired it, so `shardctl prune` keeps it: check it, "
            "then drop it by hand",
        ),
        "table_shadowed": Rule(
            ERROR,
            "table {object}",
            "no table of this name in a schema behind the shards' on the search_path",
            "rename or drop it: after a shard has moved, statements for that shard would use this "
            "table",
        ),
    },
)


def judge(view: View[None]) -> Iterator[Finding]:
    """Compare the topology with the schemas that live, and with every node's map."""
    yield from _shards(view)
    yield from _strays(view)
    yield from _maps(view)
    for name, basics in view.basics.items():
        for schema in leftovers.retired_schemas(basics, known=False):
            yield RULES.finding("retired_schema", node=name, object=schema)
        for schema, table in basics.shadows:
            yield RULES.finding("table_shadowed", node=name, object=f"{schema}.{table}")


def _shards(view: View[None]) -> Iterator[Finding]:
    owners = view.topology.owners()
    lives = _lives(view)
    between, copied = _changing_hands(view), _being_copied(view)
    found: dict[tuple[str, NodeName, NodeName], list[ShardId]] = {}
    for shard, owner in owners.items():
        if shard in between:
            continue
        places = lives.get(shard, [])
        if not places and owner in view.basics:
            found.setdefault(("shard_missing", owner, owner), []).append(shard)
        for other in places:
            if other != owner and (other, shard) not in copied:
                # An owner that cannot be looked at may well have its shard.
                twice = owner in places or owner not in view.basics
                code = "shard_twice" if twice else "shard_misplaced"
                found.setdefault((code, other, owner), []).append(shard)
    for (code, node, owner), shards in sorted(found.items()):
        yield RULES.finding(code, node=node, shards=sorted(shards), owner=owner)


def _being_copied(view: View[None]) -> set[tuple[NodeName, int]]:
    """Return where unfinished streamed moves have closed copies under the shards' own names."""
    return {
        (NodeName(entry.move.target), shard)
        for entry in view.moves
        if entry.open and entry.move.streams
        for shard in entry.move.shards
    }


def _lives(view: View[None]) -> dict[int, list[NodeName]]:
    """Return on which nodes each shard has a live schema."""
    lives: dict[int, list[NodeName]] = {}
    for name, basics in view.basics.items():
        for schema in basics.schemas:
            shard = view.topology.schema_pattern.shard(schema)
            if shard is not None:
                lives.setdefault(shard, []).append(name)
    return lives


def _strays(view: View[None]) -> Iterator[Finding]:
    count, lives = view.topology.shard_count, _lives(view)
    for name in view.basics:
        numbers = sorted(n for n, places in lives.items() if n >= count and name in places)
        if strays := [view.topology.schema(ShardId(number)) for number in numbers]:
            yield RULES.finding(
                "stray_schema", node=name, object=strays[0], strays=listed(strays), last=count - 1
            )


def _maps(view: View[None]) -> Iterator[Finding]:
    owners = view.topology.owners()
    states = {name: b.state for name, b in view.basics.items() if b.state is not None}
    newest = max((state.map_version for state in states.values()), default=0)
    between = _changing_hands(view)
    for name, state in states.items():
        there = view.basics[name].map
        wrong = [s for s in owners if there.get(s) != owners[s] and s not in between]
        if 0 < state.map_version < newest:  # it is right about the node's own shards
            wrong = [s for s in wrong if name in (there.get(s), owners[s])]
        extra = [s for s in there if s not in owners]
        if wrong or extra:
            listed = sorted({f"node {there[s]}" if s in there else "no row" for s in wrong})
            wanted = sorted({f"node {owners[s]}" for s in wrong})
            yield RULES.finding(
                "map_differs",
                node=name,
                shards=sorted([*wrong, *extra]),
                listed=", ".join(listed) or "shards that are not in the topology",
                owners=", ".join(wanted) or "no such shards",
            )
        elif state.map_version < newest and not between:
            yield RULES.finding(
                "map_version",
                node=name,
                object="shardctl.map",
                version=state.map_version,
                newest=newest,
            )


def _changing_hands(view: View[None]) -> set[int]:
    """Give the shards of an unfinished move on which nodes and file do not agree yet."""
    return {shard for move in view.moves if move.changing_hands for shard in move.move.shards}


CHECK = Check(RULES, "every shard exists on its node only, and all maps agree", judge)
