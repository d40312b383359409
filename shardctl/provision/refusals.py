"""Why the fleet must not be changed: ownership, foreign schemas, changed files, shadows; pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Refused, ShardctlError
from shardctl.meter import listed
from shardctl.state import ledger
from shardctl.topology import ranges
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from shardctl.postgres.catalog import Intruder
    from shardctl.provision.observe import Observed, Said
    from shardctl.state.journal import Move
    from shardctl.state.ledger import Entry
    from shardctl.state.migrations import Migration
    from shardctl.topology.model import ShardId, Topology


class OwnershipDiffers(ShardctlError):
    """The map in the databases gives shards to other nodes than the topology does."""

    def __init__(self, witness: NodeName, node: str, wanted: str, shards: Sequence[int]) -> None:
        super().__init__(
            f"the map on node {witness} gives shards {ranges.of(shards)} to {node}, "
            f"the topology gives them to {wanted}",
            hint="use the newest topology file, or run `shardctl topology pull`: the databases "
            "decide which node owns a shard, and editing the file does not move shards",
        )
        self.shards = tuple(shards)


def schema_in_the_way(node: NodeName, what: str, schemas: Sequence[str], *, hint: str) -> Refused:
    """Report schemas with the names of shards that shardctl would create."""
    what = f"node {node}: {what}: {listed(schemas)}"
    return Refused("schema_in_the_way", what, hint=hint)


def table_shadowed(node: str, schema: str, table: str) -> Refused:
    """Report a table behind the shards' on the search_path with the name of a shard's table."""
    return Refused(
        "table_shadowed",
        f"node {node}: table {schema}.{table} has the name of a table in the shards",
        hint="rename or drop it, or remove its schema from the search_path: after a shard "
        "has moved, statements for that shard would use this table",
    )


def public_open(node: NodeName, user: str, intruders: Sequence[Intruder]) -> Refused:
    """Report roles whose functions a session with `public` on its search_path could run."""
    return Refused(
        "public_open",
        f"node {node}: {listed([one.what for one in intruders], len(intruders))}; such functions "
        f"could run with the rights of {user}",
        hint=f"as the owner of the database: {'; '.join(one.remedy for one in intruders[:5])}",
    )


def refusals(
    topology: Topology,
    observed: Sequence[Observed],
    migrations: Sequence[Migration],
    *,
    adopt: bool,
) -> list[ShardctlError]:
    """List all reasons not to change the fleet; `adopt` allows schemas of other origin.

    While shards change hands, nodes and topology rightly differ: then only that is a reason.
    """
    moves = _moves(observed)
    if changing := [ledger.in_the_way(one) for one in moves if one.changing_hands]:
        return [*changing]
    stale = ownership(topology, {one.node: one.said() for one in observed})
    problems: list[ShardctlError] = list(stale)
    disputed = {shard for error in stale for shard in error.shards}
    for one in observed:
        problems += _in_the_way(topology, one, observed, disputed, adopt=adopt)
        problems += [table_shadowed(one.node, *found) for found in one.shadows]
        problems += changed(one.node, one.migrations, migrations)
        problems += _read_only(topology, one, migrations)
        if one.intruders:
            problems.append(public_open(one.node, topology.database.user, one.intruders))
    waiting = _waiting(topology, observed, migrations)  # a stream has no DDL
    problems += [
        ledger.in_the_way(entry, ", and migrations are pending on its nodes")
        for entry in moves
        if entry.move.streams and entry.open and waiting & {entry.move.source, entry.move.target}
    ]
    return problems


def _moves(observed: Sequence[Observed]) -> tuple[Entry, ...]:
    return ledger.entries(copy for one in observed for copy in one.journal)


def _waiting(
    topology: Topology, observed: Sequence[Observed], migrations: Sequence[Migration]
) -> set[str]:
    """Name the nodes where a file has not run in all shards."""
    return {
        one.node
        for one in observed
        for file in migrations
        if one.lacking(file, topology.nodes[one.node].shards)
    }


def reversible(
    topology: Topology,
    observed: Sequence[Observed],
    migrations: Sequence[Migration],
    only: frozenset[ShardId] | None,
) -> list[Move]:
    """List moves that can be reversed, to nodes where migrations are pending.

    Without `only` for any shards, otherwise moves of which a shard is in it. Rows that go back
    would not fit there any more.
    """
    waiting = _waiting(topology, observed, migrations)
    return [
        entry.move
        for entry in _moves(observed)
        if entry.reverse is not None and entry.reverse.state == "open"
        if entry.move.target in waiting
        if only is None or not only.isdisjoint(entry.move.shards)
    ]


def reverse_open(move: Move) -> Refused:
    """Refuse migrations that a move could not be reversed with."""
    return Refused(
        "reverse_open",
        f"migrations are pending on node {move.target}, and move {move.id} of shards "
        f"{ranges.of(move.shards)} to it can be reversed, which needs the same tables on node "
        f"{move.source}",
        hint=f"run `shardctl moves finish {move.id}`, or `shardctl migrate --finish-reverse`",
    )


def ownership(topology: Topology, said: Mapping[NodeName, Said]) -> list[OwnershipDiffers]:
    """Compare every node's map with the topology: a stale file must bring no shard to life.

    A node that was away while shards moved between other nodes has an older map, which is right
    about its own shards only.
    """
    differing: dict[tuple[NodeName, str, str], list[int]] = {}
    owners = topology.owners()
    newest = max((one.version or 0 for one in said.values()), default=0)
    for witness, one in said.items():
        is_older = 0 < (one.version or 0) < newest
        for shard, node in one.map.items():
            wanted = owners.get(shard, NodeName("no node"))
            if node != wanted and (not is_older or witness in (node, wanted)):
                differing.setdefault((witness, node, wanted), []).append(shard)
    errors: dict[tuple[object, ...], OwnershipDiffers] = {}
    for (witness, owner, right), shards in differing.items():
        error = OwnershipDiffers(witness, owner, right, shards)
        errors.setdefault((owner, right, *shards), error)
    return list(errors.values())


def _in_the_way(
    topology: Topology,
    one: Observed,
    observed: Sequence[Observed],
    disputed: set[int],
    *,
    adopt: bool,
) -> Iterator[ShardctlError]:
    """Find schemas that forbid making this node's shards: foreign, lost, or live elsewhere.

    Disputed shards have their error already.
    """
    owned = {topology.schema(s): s for s in topology.nodes[one.node].shards if s not in disputed}
    foreign = [n for n, s in owned.items() if n in one.schemas and s not in one.map]
    missing = {name for name in owned if name not in one.schemas}
    # A shard's own map row is written by the transaction that makes its schema, the whole map
    # when all shards of all nodes exist.
    lost = sorted(
        owned[name]
        for name in missing
        if any(witness.map.get(owned[name]) == one.node for witness in observed)
    )
    if lost:
        yield Refused(
            "shard_lost",
            f"node {one.node}: shardctl created shards {ranges.of(lost)}, and they are missing",
            hint="check the node's host and port, or restore the shards; to create them again "
            "empty, delete their rows from shardctl.map (on all nodes) and shardctl.migration",
        )
    if foreign and not adopt:
        yield schema_in_the_way(
            one.node,
            "schemas that shardctl did not create have the names of shards",
            foreign,
            hint="drop or rename them, or use --adopt to take them over with their contents",
        )
    for other in observed:
        twice = sorted(name for name in missing if name in other.schemas)
        if other.node != one.node and twice:
            yield schema_in_the_way(
                other.node,
                f"this node has live shards that the topology gives to {one.node}",
                twice,
                hint="check the topology, or drop these schemas if no application uses them",
            )


def changed(
    node: NodeName,
    ran: Mapping[tuple[str, str], Collection[ShardId]],
    migrations: Sequence[Migration],
) -> list[ShardctlError]:
    """Find files that ran on a node otherwise; `ran` maps file and checksum to the shards."""
    by_name = {migration.name: migration for migration in migrations}
    return [
        Refused(
            "migration_changed",
            f"{here.file}: changed after it ran in shards {ranges.of(sorted(shards))} of node "
            f"{node} (SHA-256 {here.checksum[:12]}, ran as {checksum[:12]})",
            hint="restore the file, and write the change as a new migration",
        )
        for (file, checksum), shards in ran.items()
        if (here := by_name.get(file)) is not None and here.checksum != checksum
    ]


def _read_only(
    topology: Topology, one: Observed, migrations: Sequence[Migration]
) -> list[ShardctlError]:
    """Find migrations of read-only shards: they would write, or make tables that take writes."""
    shards = [s for s in topology.nodes[one.node].shards if topology.schema(s) in one.read_only]
    pending = [(file, named) for file in migrations if (named := one.lacking(file, shards))]
    return [
        Refused(
            "shards_read_only",
            f"node {one.node}: {file.name} is pending in shards {ranges.of(named)}, which are "
            "read-only",
            hint=f"run `shardctl read-only off {ranges.of(named)}`, then run the command again; "
            "`read-only on` afterwards also covers new tables. If a move refuses the writes, end "
            "it with `shardctl moves resume`",
        )
        for file, named in pending[:1]
    ]
