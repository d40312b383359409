"""The proof that a node is empty and nothing needs it, before `node remove` takes it out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.errors import Refused, ShardctlError
from shardctl.meter import listed, sentences
from shardctl.moves import doctor
from shardctl.nodes import line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.moves.doctor import Fleet
    from shardctl.moves.prune_drop import Retired
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import NodeName, Topology


@dataclass(frozen=True, slots=True)
class Allowed:
    """What the operator lets `node remove` do first, or asserts."""

    finish_reverse: bool = False
    prune: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """What the fleet is like; `retired` are the copies that wait on the node.

    A lost node is not in `fleet.nodes`, and neither is one without the cluster's database.
    """

    fleet: Fleet
    retired: Sequence[Retired]

    def reverses(self, node: NodeName, *, lost: bool) -> list[Entry]:
        """List moves from or to the node that can be reversed.

        A move to a lost node cannot: the slot for that was there.
        """
        return [
            entry
            for entry in self.fleet.ledger.entries
            if entry.reverse is not None and entry.reverse.state == "open"
            if node in ((entry.move.source,) if lost else (entry.move.source, entry.move.target))
        ]


def require_owns_nothing(topology: Topology, node: NodeName) -> None:
    """See in the file that a node may be removed at all; raises last_node, node_not_empty."""
    if len(topology.nodes) == 1:
        raise Refused(
            "last_node",
            f"node {node} is the only node of the topology",
            hint="add another node first (`shardctl node add`)",
        )
    if shards := topology.nodes[node].shards:
        raise not_empty(node, f"it owns shards {line.shards(shards)}")


def not_empty(node: NodeName, what: str, *, hint: str = "") -> Refused:
    """Report a node that has something, which is named."""
    return Refused(
        "node_not_empty",
        f"node {node} is not empty: {what}",
        hint=hint
        or f"run `shardctl move-shards --from {node} --all --to NODE` first; if its server is "
        f"destroyed, `shardctl node lost {node} --to NODE` (docs/howto/node-lost.md)",
    )


def missing(
    topology: Topology, node: NodeName, facts: Facts, allowed: Allowed
) -> Iterator[ShardctlError]:
    """Find what the proof lacks; pure."""
    yield from _moves(node, facts)
    if not allowed.finish_reverse:
        yield from map(_reverse, facts.reverses(node, lost=allowed.lost))
    if allowed.lost:
        return
    seen = facts.fleet.nodes.get(node)
    live = sorted(
        shard for shard in topology.owners() if seen and topology.schema(shard) in seen.live
    )
    if live:
        yield not_empty(
            node,
            f"it has live schemas of shards {line.shards(live)}, which other nodes own",
            hint="check what they contain, then drop them; `shardctl verify` shows them, too",
        )
    finished = {entry.move.id for entry in facts.reverses(node, lost=False)}
    yield from _retired(node, facts.retired, allowed, finished)
    if left := [one for one in doctor.left(facts.fleet) if one.node == node]:
        names = [f"{one.object.kind} {one.object.name}" for one in left]
        yield not_empty(
            node,
            f"moves have left {listed(names)}",
            hint="run `shardctl moves doctor`, which clears them",
        )


def _moves(node: NodeName, facts: Facts) -> Iterator[ShardctlError]:
    for entry in facts.fleet.ledger.entries:
        move = entry.move
        if entry.open and node in (move.source, move.target):
            yield Refused(
                "move_unfinished",
                f"move {move.id} of shards {line.shards(move.shards)} from node {move.source} to "
                f"node {move.target} is unfinished",
                hint=f"run `shardctl moves resume {move.id}` or `shardctl moves abort {move.id}`",
            )


def _reverse(entry: Entry) -> Refused:
    move = entry.move
    return Refused(
        "reverse_open",
        f"move {move.id} of shards {line.shards(move.shards)} from node {move.source} to node "
        f"{move.target} can be reversed, which needs both nodes",
        hint=f"run `shardctl moves finish {move.id}`, or give --finish-reverse",
    )


def _retired(
    node: NodeName, retired: Sequence[Retired], allowed: Allowed, finished: set[str]
) -> Iterator[ShardctlError]:
    """Find copies that `prune` would have to drop first, or may not drop."""
    if not retired:
        return
    if not allowed.prune:
        count = f"{len(retired):,} retired {'copy waits' if len(retired) == 1 else 'copies wait'}"
        yield not_empty(
            node,
            f"{count} there for `shardctl prune`",
            hint="run `shardctl prune` when their time is over, or give --prune, which drops them "
            "now",
        )
        return
    kept = [
        f"{one.schema}: {one.why_not}"
        for one in retired
        if one.why_not is not None and not (allowed.finish_reverse and one.move in finished)
    ]
    if kept:
        yield not_empty(
            node,
            f"retired copies cannot be dropped: {sentences(kept)}",
            hint="run `shardctl prune --dry-run` to see all of them and why",
        )
