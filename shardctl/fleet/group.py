"""A rebalance that is carried out: moves that the journal knows as one group.

Each of them has the whole group in its plan, so whichever nodes can be read, any terminal can show
what is done and go on with the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.errors import Incomplete, Misused
from shardctl.fleet import rebalance
from shardctl.moves import plan as planning
from shardctl.moves import service
from shardctl.moves.plan import MovePlan
from shardctl.postgres.connection import connect
from shardctl.state import events, lock
from shardctl.topology import loader, ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.fanout import Progress
    from shardctl.fleet.rebalance import Plan
    from shardctl.moves.ledger import Ledger
    from shardctl.moves.plan import Options
    from shardctl.moves.service import Notice
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Node, Topology

COMMAND = "rebalance"
PAUSE, RESUME = "rebalance pause", "rebalance resume"
"""The commands of the events by which any terminal pauses a rebalance that runs in another one."""
_LAST = """
    SELECT command FROM shardctl.event WHERE command = ANY (%s) AND result = %s
    ORDER BY id DESC LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Part:
    """One move of a group; `entry` is the newest in the journal that carries it out."""

    source: NodeName
    target: NodeName
    shards: tuple[ShardId, ...]
    entry: Entry | None = None

    @property
    def state(self) -> str:
        """The state of its move as people see it; `waiting` before there is one."""
        return "waiting" if self.entry is None else self.entry.state

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "source": self.source,
            "target": self.target,
            "shards": list(self.shards),
            "move": self.entry.move.id if self.entry else None,
            "state": self.state,
        }

    def left(self, topology: Topology) -> list[ShardId]:
        """List the shards that are still on the source; raises plan_outdated for other nodes."""
        owners = topology.owners()
        away = [s for s in self.shards if owners.get(s) not in (self.source, self.target)]
        if away:
            where = ", ".join(sorted({str(owners.get(shard)) for shard in away}))
            raise rebalance.outdated(
                [f"shards {ranges.of(away)} are on {where}, and should be on {self.source}"]
            )
        return [shard for shard in self.shards if owners[shard] == self.source]


@dataclass(frozen=True, slots=True)
class Group:
    """Moves in their order, each from one node to another."""

    id: str
    parts: tuple[Part, ...]

    @classmethod
    def of(cls, plan: Plan) -> Group:
        """Begin to carry out a plan."""
        parts = (Part(move.source, move.target, move.shards) for move in plan.moves)
        return cls(planning.new_id(), tuple(parts))

    @classmethod
    def newest(cls, ledger: Ledger) -> Group:
        """Read the group that began last out of the journal; raises no_rebalance_yet."""
        given = next((g for one in ledger.entries if (g := one.move.plan.get("group"))), None)
        if given is None:
            raise Misused(
                "no_rebalance_yet",
                "no rebalance has started yet",
                hint="run `shardctl rebalance apply` to start one",
            )
        entries = {
            (entry.move.source, entry.move.target): entry
            for entry in reversed(ledger.entries)
            if (entry.move.plan.get("group") or {}).get("id") == given["id"]
        }
        parts = (
            Part(NodeName(source), NodeName(target), _numbers(text), entries.get((source, target)))
            for source, target, text in given["moves"]
        )
        return cls(given["id"], tuple(parts))

    @property
    def open(self) -> Entry | None:
        """The move that is unfinished, or runs."""
        return next((p.entry for p in self.parts if p.entry is not None and p.entry.open), None)

    def left(self, topology: Topology) -> list[Part]:
        """List the moves that are not finished; raises plan_outdated."""
        return [p for p in self.parts if p.left(topology) or (p.entry is not None and p.entry.open)]

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {"group": self.id, "moves": [part.as_json() for part in self.parts]}

    def row(self) -> Mapping[str, Any]:
        """Give what the journal keeps with each of its moves."""
        moves = [[part.source, part.target, ranges.of(part.shards)] for part in self.parts]
        return {"id": self.id, "moves": moves}


def _numbers(text: str) -> tuple[ShardId, ...]:
    return tuple(ShardId(n) for first, last in ranges.parse(text) for n in range(first, last + 1))


def run(
    topology: Topology,
    group: Group,
    options: Options,
    progress: Progress,
    on_step: Callable[[str], Callable[[Step], None]],
    *,
    notice: Notice,
) -> Group:
    """Carry out the moves of a group that are left, one after the other; return how they ended.

    Each is planned and checked when its turn comes, by the file as the moves before have left it.
    Raises plan_outdated, rebalance_paused, rebalance_stopped for a move that is not confirmed, and
    what a move raises.
    """
    for number, part in enumerate(group.parts, 1):
        topology = loader.load_trusted(topology.path)
        shards = part.left(topology)
        if not shards:
            continue
        _require_unpaused(topology, group, part.source)
        decided = service.plan(topology, shards, part.target, options, method=planning.STREAM)
        decided = replace(decided, group=group.row())
        service.preflight(topology, decided)
        lock.require_all_free(topology, service.locked(decided), command=COMMAND)
        notice(
            f"move {number} of {len(group.parts)}: {len(shards):,} shards from {part.source} to "
            f"{part.target}"
        )
        service.start(topology, decided, progress, on_step(decided.id), notice=notice)
        _require_confirmed(service.read(topology).entry(decided.id))
    return Group.newest(service.read(loader.load_trusted(topology.path)))


def resume(
    topology: Topology,
    group: Group,
    progress: Progress,
    on_step: Callable[[str], Callable[[Step], None]],
    *,
    notice: Notice,
) -> Group:
    """Finish the move that is unfinished, and carry out those that are left, with its options.

    Raises what `run` raises, and service.resume.
    """
    _record(topology, group, RESUME)
    entry = group.open
    if entry is not None:
        service.resume(topology, entry, progress, on_step(entry.move.id), notice=notice)
        _require_confirmed(service.read(topology).entry(entry.move.id))
    last = next(part.entry for part in reversed(group.parts) if part.entry is not None)
    options = MovePlan.of_journal(last.move).options
    return run(topology, group, options, progress, on_step, notice=notice)


def pause(topology: Topology, group: Group) -> None:
    """Let whichever terminal runs a group stop before its next move; raises NodeUnavailable."""
    _record(topology, group, PAUSE)


def _record(topology: Topology, group: Group, command: str) -> None:
    """Write an event on the sources of the moves that are left."""

    def one(node: Node) -> None:
        purpose = lock.purpose(command)
        with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
            events.record(session, command, group.id)

    sources = {part.source for part in group.left(topology)}
    fanout.collect([topology.nodes[name] for name in sorted(sources)], one).every()


def _require_unpaused(topology: Topology, group: Group, name: NodeName) -> None:
    node, purpose = topology.nodes[name], lock.purpose(COMMAND)
    with connect(node, topology.database, purpose=purpose, autocommit=True) as session:
        last = session.execute(_LAST, [[PAUSE, RESUME], group.id]).fetchone()
    if last is not None and last[0] == PAUSE:
        raise Incomplete(
            "rebalance_paused",
            f"rebalance {group.id} is paused; no move is unfinished",
            hint="run `shardctl rebalance resume` to carry out the rest",
        )


def _require_confirmed(entry: Entry) -> None:
    if entry.state == "unconfirmed":
        raise Incomplete(
            "rebalance_stopped",
            f"move {entry.move.id} is unconfirmed, so the rebalance ends here",
            hint=f"see `shardctl moves show {entry.move.id}`, then run `shardctl rebalance resume`",
        )
