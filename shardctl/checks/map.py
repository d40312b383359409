"""Where shards live: missing, twice, astray, retired; and whether all maps agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import leftovers
from shardctl.checks.check import ERROR, NOTE, WARNING, Check, Rule, Rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Finding, View
    from shardctl.topology.model import NodeName, ShardId

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
        "map_differs": Rule(
            ERROR,
            "shardctl.map: {listed}",
            "the owners in the topology",
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
            "check it, then drop it by hand: `shardctl prune` keeps what no move has retired",
        ),
        "table_shadowed": Rule(
            ERROR,
            "table {object}",
            "no table of this name in a schema behind the shards' on the search_path",
            "rename or drop it: statements for a shard that has moved would use this table",
        ),
    },
)


def judge(view: View[None]) -> Iterator[Finding]:
    """Compare the topology with the schemas that live, and with every node's map."""
    # Of an unfinished move, nodes and file do not agree on these yet.
    between = {shard for move in view.moves if move.changing_hands for shard in move.move.shards}
    yield from _shards(view, between)
    yield from _maps(view, between)
    for name, basics in view.basics.items():
        for schema in leftovers.retired_schemas(basics, known=False):
            yield RULES.finding("retired_schema", node=name, object=schema)
        for schema, table in basics.shadows:
            yield RULES.finding("table_shadowed", node=name, object=f"{schema}.{table}")


def _shards(view: View[None], between: set[int]) -> Iterator[Finding]:
    lives: dict[int | None, list[NodeName]] = {}
    for name, basics in view.basics.items():
        for schema in basics.schemas:
            lives.setdefault(view.topology.schema_pattern.shard(schema), []).append(name)
    # Where unfinished streamed moves have closed copies under the shards' own names.
    copied = {
        (entry.move.target, shard)
        for entry in view.moves
        if entry.open and entry.move.streams
        for shard in entry.move.shards
    }
    found: dict[tuple[str, NodeName, NodeName], list[ShardId]] = {}
    for shard, owner in view.topology.owners().items():
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


def _maps(view: View[None], between: set[int]) -> Iterator[Finding]:
    owners = view.topology.owners()
    states = {name: b.state for name, b in view.basics.items() if b.state is not None}
    newest = max((state.map_version for state in states.values()), default=0)
    for name, state in states.items():
        there = view.basics[name].map
        wrong = [s for s in owners if there.get(s) != owners[s] and s not in between]
        if 0 < state.map_version < newest:  # it is right about the node's own shards
            wrong = [s for s in wrong if name in (there.get(s), owners[s])]
        extra = [s for s in there if s not in owners]
        if wrong or extra:
            listed = sorted({f"node {there[s]}" if s in there else "no row" for s in wrong})
            yield RULES.finding(
                "map_differs",
                node=name,
                shards=sorted([*wrong, *extra]),
                listed=", ".join(listed) or "shards that are not in the topology",
            )
        elif state.map_version < newest and not between:
            yield RULES.finding(
                "map_version",
                node=name,
                object="shardctl.map",
                version=state.map_version,
                newest=newest,
            )


CHECK = Check(RULES, "every shard exists on its node only, and all maps agree", judge)
