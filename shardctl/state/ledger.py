"""The journals of several nodes together: every move, once, as people see it; one is chosen."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, cast

from shardctl.errors import Misused, Refused, together
from shardctl.ids import times
from shardctl.state import cluster, identity, journal, lock, observer, progress, reverses
from shardctl.state.journal import MoveState, StepRecord
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.state.cluster import ClusterRow
    from shardctl.state.journal import Move
    from shardctl.state.progress import MoveProgress
    from shardctl.state.reverses import Kept, Reverse
    from shardctl.topology.model import Node, NodeName, Topology

    Unread = tuple[NodeName, str]

Shown = Literal["running", "unfinished", "unconfirmed", "done", "aborted"]

_CHANGING_HANDS = (
    MoveState.fenced, MoveState.drained, MoveState.promoting, MoveState.claimed,
)  # fmt: skip
_BEFORE_FENCE = (MoveState.reserved, MoveState.undone)


@dataclass(frozen=True, slots=True)
class Copy:
    """What one node knows of one move, and who holds that node's lock."""

    node: NodeName
    move: Move
    steps: tuple[StepRecord, ...]
    holder: str | None
    progress: MoveProgress | None = None
    kept: Kept | None = None
    """What the node keeps for the reverse of the move, whose target it is."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One move as the cluster knows it: the newest copy, its steps, the command that runs it."""

    move: Move
    steps: tuple[StepRecord, ...]
    holder: str | None
    """Who holds the source's or the target's lock at this moment."""
    behind: bool = False
    """Whether it is over, and source or target do not know that yet."""
    progress: MoveProgress | None = None
    """The progress of its copy, while it is open and until the copy is made."""
    reverse: Reverse | None = field(default=None, compare=False)
    """Whether it can be reversed, where that was wanted and it is over."""

    @property
    def state(self) -> Shown:
        """The state as people see it."""
        if self.behind or not self.move.state.closed:
            return "running" if self.holder else "unfinished"
        return cast("Shown", self.move.state.value)

    @property
    def open(self) -> bool:
        """Whether a command runs it, or should."""
        return self.state in ("running", "unfinished")

    @property
    def changing_hands(self) -> bool:
        """Whether its shards are fenced on the source, and not everybody knows the target's yet.

        Then nodes, maps, poolers and the topology file need not agree on who owns them.
        """
        return self.open and self.move.state in _CHANGING_HANDS

    @property
    def due(self) -> datetime | None:
        """When `retain` has passed, and prune may drop what it has retired.

        None for what prune leaves permanently: of moves that are not over, were aborted, or left
        copies that differ.
        """
        move = self.move
        if self.open or move.state is MoveState.aborted or move.proof == "differs":
            return None
        return (move.ended or move.changed) + timedelta(seconds=move.plan["options"]["retain_s"])

    @property
    def slot(self) -> str:
        """The name of its replication slot."""
        return journal.slot(self.move.id)

    def clones(self, node: NodeName, says: str | None) -> bool:
        """Return whether a node is a copy that has claimed nothing yet; `says` is its own row's."""
        return self.open and (node, says) == (self.move.target, self.move.source)

    def require_open(self) -> None:
        """See that it can be gone on with or aborted; raises move_ended."""
        if not self.open:
            raise Refused(
                "move_ended",
                f"move {self.move.id} has ended: state {self.state}",
                hint="run `shardctl moves list` to see all moves",
            )

    def can(self) -> list[str]:
        """Name what an operator can do about it."""
        if self.state == "running":
            return []
        if self.behind:
            return ["resume"]
        kept = self.move.proof == "differs"  # prune keeps what it has retired
        of_move = () if kept and self.move.state.closed else self.move.state.can
        return [*of_move, *(self.reverse.can if self.reverse else ())]

    @property
    def step(self) -> str | None:
        """The step that began last; within the cutover the state that was reached.

        Of an aborted move the step at which it stopped: its state no longer shows more.
        """
        last, state = self.steps[-1].step if self.steps else None, self.move.state
        if last != "cutover" or state is MoveState.aborted:
            return last
        if self.state == "running" and state in _BEFORE_FENCE:
            return last
        return f"cutover.{self.move.state.value}"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md, without steps and report."""
        move = self.move
        return {
            "id": move.id,
            "state": self.state,
            "method": move.method,
            "source": move.source,
            "target": move.target,
            "shards": list(move.shards),
            "step": self.step,
            "by": move.who,
            "started": written(move.started),
            "ended": written(move.ended),
            "can": self.can(),
            "reverse": self.reverse.as_json() if self.reverse else None,
        }

    def details(self) -> dict[str, Any]:
        """Give what `moves show` shows beside that."""
        return {
            "steps": [
                {
                    "name": one.step,
                    "state": one.state,
                    "started": written(one.started),
                    "elapsed_ms": None if one.took_ms is None else round(one.took_ms, 1),
                    "error": one.error,
                }
                for one in self._steps()
            ],
            "report": self.move.report,
            "progress": self.copied(),
        }

    def copied(self) -> dict[str, Any] | None:
        """Give how far its copy is, in the shape of docs/reference/json.md; None where unknown."""
        one = self.progress
        return None if one is None else asdict(one) | {"at": written(one.at)}

    def _steps(self) -> Iterator[StepRecord]:
        """Give the steps, and behind the cutover what it was made of: one after the other."""
        for one in self.steps:
            yield one
            began = one.started
            spans = (self.move.report or {}).get("timeline", []) if one.step == "cutover" else []
            for place, took_ms in spans:
                name = f"cutover.{place.replace(' ', '_')}"
                yield StepRecord(name, "done", began, took_ms, None)
                began += timedelta(milliseconds=took_ms)


def in_the_way(one: Entry | Copy, why: str = "") -> Refused:
    """Report an open move on whose shards or nodes a command cannot work.

    `why` is added where that is not plain.
    """
    move, condition = one.move, "unfinished"
    hint = (
        f"run `shardctl moves show {move.id}` to see its step, and `shardctl moves resume "
        f"{move.id}` or `abort` to end it; then run this command again"
    )
    # A command of the move has its id in its name; any other, such as the one that asks, may have
    # the lock of one of its nodes, too.
    if one.holder and move.id in one.holder:
        condition = f"running ({one.holder})"
        hint = (
            f"wait until it ends, with --lock-wait 10m or by hand; `shardctl moves show {move.id} "
            "--watch 1s` shows its progress"
        )
    return Refused(
        "move_unfinished",
        f"move {move.id} of shards {ranges.of(move.shards)} ({move.source} to {move.target}, "
        f"started by {move.who}) is {condition}{why}",
        hint=hint,
    )


def copies(
    session: Connection, topology: Topology, node: NodeName, row: ClusterRow | None
) -> tuple[Copy, ...]:
    """Read one node's journal; `row` is the server's own row, None where it has none.

    Empty where there is no journal, or where the journal belongs to another cluster.
    """
    if row is None or row.cluster != topology.cluster:
        return ()
    moves = journal.read(session)
    if (holder := lock.holder(session)) is None:
        moves = journal.read(session)  # its command may have ended it in between
    steps, copying = journal.steps(session), progress.read(session)
    kept = reverses.read(session, [move for move in moves if move.target == node])
    return tuple(
        Copy(
            node,
            move,
            tuple(steps.get(move.id, ())),
            holder,
            copying.get(move.id),
            kept.get(move.id),
        )
        for move in moves
    )


def entries(found: Iterable[Copy]) -> tuple[Entry, ...]:
    """Make one entry of all copies of each move; the move that began last comes first."""
    moves: dict[str, list[Copy]] = defaultdict(list)
    for copy in found:
        moves[copy.move.id].append(copy)
    every = {move: _entry(of_one) for move, of_one in moves.items()}
    now = datetime.now(UTC)
    known = (replace(one, reverse=_reverse(one, moves, every, now)) for one in every.values())
    return tuple(sorted(known, key=lambda entry: entry.move.started, reverse=True))


def _reverse(
    entry: Entry, moves: Mapping[str, Sequence[Copy]], every: Mapping[str, Entry], now: datetime
) -> Reverse | None:
    begun = every.get(reverses.id_of(entry.move) or "")
    kept = next((one.kept for one in moves[entry.move.id] if one.kept is not None), None)
    return reverses.of(entry.move, begun.move if begun else None, kept, now)


def _entry(of_one: Sequence[Copy]) -> Entry:
    newest = journal.newest(copy.move for copy in of_one) or of_one[0].move
    # Those of the node on which the last step began.
    steps = max((copy.steps for copy in of_one), key=lambda one: [s.started for s in one[-1:]])
    holder = next((copy.holder for copy in of_one if copy.holder), None)
    # An aborted move is known as soon as its source knows it.
    unaware = [
        copy
        for copy in of_one
        if copy.node in (newest.source, newest.target) and not copy.move.state.closed
    ]
    behind = newest.state in (MoveState.done, MoveState.unconfirmed) and bool(unaware)
    found = [copy.progress for copy in of_one if copy.progress and not newest.state.closed]
    # A clone has a copy of its source's.
    progress = max(found, key=lambda one: one.at, default=None)
    return Entry(newest, steps, holder, behind, progress)


def kept_reverses(known: Iterable[Entry], *, over: bool = False) -> frozenset[str]:
    """Give the ids of the reverses for which nodes rightly keep something.

    Of a move that is open, or can be reversed; if `over`, also of one whose time is over or whose
    slot is lost, and that is to be finished.
    """
    return frozenset(
        reverse
        for entry in known
        if (reverse := reverses.id_of(entry.move)) is not None
        if entry.open
        or (entry.reverse is not None and (entry.reverse.holds or (over and entry.reverse.can)))
    )


def written(moment: datetime | None) -> str | None:
    """Write a moment as JSON has it."""
    return None if moment is None else times.render(int(moment.timestamp() * 1000))


@dataclass(frozen=True, slots=True)
class Ledger:
    """The moves in all journals, newest first; `unread` are nodes that could not be asked."""

    entries: tuple[Entry, ...]
    unread: tuple[Unread, ...]

    def entry(self, move: str | None) -> Entry:
        """Return one move; None means the unfinished one, before those that a command runs.

        Raises move_not_found, nothing_unfinished, several_unfinished.
        """
        but, hint = "", "run `shardctl moves list` to see all moves"
        if self.unread:  # its journal may have the move
            node, reason = self.unread[0]
            but = f" (not checked: nodes {', '.join(node for node, _ in self.unread)})"
            hint = (
                f"node {node}: {reason}; start it, then try again; if it cannot start because the "
                "WAL of a move has filled its disk, see docs/operations/failures.md"
            )
        if move is not None:
            for entry in self.entries:
                if entry.move.id == move:
                    return entry
            raise Misused("move_not_found", f"unknown move {move!r}{but}", hint=hint)
        found = [entry for entry in self.entries if entry.state == "unfinished"]
        found = found or [entry for entry in self.entries if entry.open]
        if not found:
            raise Misused("nothing_unfinished", f"no move is unfinished{but}", hint=hint)
        if len(found) > 1:
            moves = [one.move for one in found]
            listed = ", ".join(f"{one.id} ({one.source} to {one.target})" for one in moves)
            raise Misused(
                "several_unfinished",
                f"{len(found)} moves are unfinished: {listed}",
                hint="give the id of one of them",
            )
        return found[0]

    def newest(self) -> Entry:
        """Return the move that began last; raises no_move_yet."""
        if not self.entries:
            raise Misused(
                "no_move_yet",
                "no move has started yet",
                hint="run `shardctl move-shards` to start one (see its --help)",
            )
        return self.entries[0]


def read(topology: Topology, *, purpose: str) -> Ledger:
    """Read the journals of all reachable nodes.

    Raises NodeUnavailable if none is, and node_unfit if all that are belong to another cluster.
    """

    def of_node(session: Connection, node: Node) -> tuple[Copy, ...]:
        row = cluster.read(session) if cluster.is_present(session) else None
        if row is not None and row.cluster != topology.cluster:
            identity.check(row, topology, node.name)
        return copies(session, topology, node.name, row)

    asked = observer.ask(topology, of_node, purpose=purpose)
    if asked.problems and not asked.values:
        raise together(asked.problems)
    known = (copy for found in asked.values.values() for copy in found)
    return Ledger(entries(known), tuple(asked.unread.items()))
