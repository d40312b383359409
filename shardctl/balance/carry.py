"""Carry a rebalance out: its moves one after another, each as `move-shards` does it.

The moves have their ids before the first begins, and every node has the list. So whatever dies,
the journals of moves show which are done, and `resume` continues with the next.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

import psycopg
from pydantic import ValidationError

from shardctl.balance import group
from shardctl.errors import Incomplete, Interrupted, Misused, Refused, ShardctlError, together
from shardctl.moves import plan as planning
from shardctl.moves import reversing, service
from shardctl.state import lock, rebalances
from shardctl.state.rebalances import GroupRow, GroupState
from shardctl.topology import loader, ranges
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardctl.balance.group import GroupPlan, PlannedMove
    from shardctl.fanout import Progress
    from shardctl.moves.plan import MovePlan, Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.moves.step import Step
    from shardctl.postgres.connection import Connection
    from shardctl.state.ledger import Entry
    from shardctl.state.rebalances import Known
    from shardctl.topology.model import Topology

COMMAND = "rebalance"

_RESUME = (
    "run `shardctl rebalance resume` to go on, or `shardctl rebalance abort` to leave the rest of "
    "the shards where they are"
)


class Shown(Protocol):
    """What shows a rebalance to its operator."""

    @property
    def progress(self) -> Progress:
        """What shows the progress of copies."""

    def on_move(self, number: int, of: int, move: PlannedMove, *, again: bool) -> None:
        """Show that a move begins, or goes on."""

    def on_step(self, move: str) -> Callable[[Step], None]:
        """Give what shows the steps of a move."""

    def notice(self, message: str) -> None:
        """Show something else."""


@dataclass(frozen=True, slots=True)
class Group:
    """A rebalance with the moves that have begun, by their ids."""

    row: GroupRow
    plan: GroupPlan
    entries: Mapping[str, Entry]
    holder: str | None

    @property
    def shown(self) -> str:
        """The state as people see it."""
        return self.row.shown(self.holder)

    @property
    def done(self) -> int:
        """How many of its moves are over."""
        return sum(self.state_of(one) in ("done", "unconfirmed") for one in self.plan.moves)

    def state_of(self, move: PlannedMove) -> str:
        """Give the state of one of its moves; `waiting` before it begins."""
        entry = self.entries.get(move.move or "")
        return "waiting" if entry is None else entry.state


def require_startable(topology: Topology, plan: GroupPlan, known: Known) -> None:
    """See that a plan can be carried out now; changes nothing.

    Raises NodeUnavailable, fleet_changed, rebalance_open and format_too_old.
    """
    if known.unread:
        raise together(list(known.unread))
    group.require_same(plan, topology, known.drained)
    if (there := known.open) is not None:
        raise Refused(
            "rebalance_open",
            f"rebalance {there.id} is not finished ({there.who} began it)",
            hint="run `shardctl rebalance status` to see it, then `shardctl rebalance resume` or "
            "`shardctl rebalance abort`",
        )
    needed = {name for one in plan.moves for name in (one.source, one.target)}
    for name in known.old:
        if name in needed or topology.nodes[name].shards:
            raise rebalances.too_old(name)


def require_without(known: Known, node: str, *, going_on: bool = True) -> None:
    """See that no open rebalance moves shards from or to a node; raises rebalance_open.

    `going_on` is whether it could be carried out to its end.
    """
    row = known.open
    if row is None or node not in plan_of(row).named():
        return
    go_on = "`shardctl rebalance resume` to finish it, or " if going_on else ""
    raise Refused(
        "rebalance_open",
        f"rebalance {row.id} is not finished ({row.who} began it), and names node {node}",
        hint=f"run {go_on}`shardctl rebalance abort`, which leaves out the rest of its moves",
    )


def decided(
    topology: Topology, one: PlannedMove, options: Options, *, move: str | None = None
) -> tuple[MovePlan, Facts]:
    """Plan one move and check everything that it depends on, as `move-shards` does."""
    found = service.plan(
        topology, one.shards, one.target, options, method=planning.STREAM, move=move
    )
    lock.require_all_free(topology, service.locked(found), command=COMMAND)
    return found, service.preflight(topology, found)


def start(
    topology: Topology,
    plan: GroupPlan,
    options: Options,
    shown: Shown,
    *,
    command: str,
    on_startable: Callable[[Known], None] = lambda _: None,
) -> None:
    """Begin a rebalance and carry it out; a plan without moves begins none.

    `on_startable` is called under the locks, once nothing refuses the plan any more. Raises what
    `require_startable` raises, NodeLocked while another command carries one out, and what `_go_on`
    raises.
    """
    with _held(topology, plan, command) as sessions:
        known = rebalances.read(topology, purpose=lock.purpose(command))
        require_startable(topology, plan, known)
        on_startable(known)
        if not plan.moves:
            return
        now = datetime.now(UTC)
        begun = plan.begun(asdict(options))
        row = GroupRow(
            planning.new_id(), 1, GroupState.running, begun.as_json(), lock.who(), now, now
        )
        what = f"rebalance {row.id}: {len(plan.moves)} moves"
        rebalances.write(topology, row, command=command, result=f"{what} begin")
        _go_on(topology, row, begun, sessions, shown, command=command)


def resume(topology: Topology, shown: Shown, *, command: str) -> None:
    """Go on with the open rebalance: its unfinished move first, then the rest.

    Raises nothing_open, NodeLocked, and what `_go_on` raises.
    """
    row = require_open(rebalances.read(topology, purpose=lock.purpose(command)))
    with _held(topology, plan_of(row), command) as sessions:
        row = require_open(rebalances.read(topology, purpose=lock.purpose(command)))
        plan = plan_of(row)
        entries = _entries(topology, plan)
        aborted = {move for move, entry in entries.items() if entry.state == "aborted"}
        plan = plan.again(aborted)
        row = row.changed_to(GroupState.running, plan.as_json())
        rebalances.write(topology, row, command=command, result=f"rebalance {row.id} goes on")
        _go_on(topology, row, plan, sessions, shown, command=command)


def require_resumable(topology: Topology, known: Known) -> GroupRow:
    """See that the open rebalance can go on now; changes nothing.

    Raises NodeUnavailable, nothing_open, rebalance_running, fleet_changed, and what
    `service.require_resumable` raises for its unfinished move.
    """
    if known.unread:
        raise together(list(known.unread))
    row = require_open(known)
    if known.holder is not None:
        raise Refused(
            "rebalance_running",
            f"rebalance {row.id} is being carried out by {known.holder}",
            hint="wait until it ends, or run `shardctl rebalance pause`",
        )
    plan = plan_of(row)
    entries = _entries(topology, plan)
    for one in plan.moves:
        entry = entries.get(one.move or "")
        if entry is not None and entry.open:
            service.require_resumable(topology, entry)
            break
        if (entry is None or entry.state == "aborted") and not _is_there(topology, one):
            _require_on_source(topology, one)
            break
    return row


def decide(
    topology: Topology,
    rebalance: str,
    state: GroupState,
    notice: Callable[[str], None],
    command: str,
) -> None:
    """Pause or abort a rebalance, as it is now; nodes may be away.

    It is read again, because it can have changed while the operator was asked. Raises
    rebalance_over.
    """
    known = rebalances.read(topology, purpose=lock.purpose(command))
    row = known.open
    if row is None or row.id != rebalance:
        raise Refused(
            "rebalance_over",
            f"rebalance {rebalance} is over: it ended while you were asked",
            hint="run `shardctl rebalance status` to see how it ended",
        )
    set_state(topology, row, state, notice, command)


def set_state(
    topology: Topology,
    row: GroupRow,
    state: GroupState,
    notice: Callable[[str], None],
    command: str,
) -> None:
    """Pause a rebalance before its next move, or leave its other moves out; nodes may be away."""
    did = "is to pause" if state is GroupState.paused else state.value
    rebalances.write(
        topology,
        row.changed_to(state),
        command=command,
        result=f"rebalance {row.id} {did}",
        away=notice,
    )


def newest(topology: Topology, known: Known) -> Group | None:
    """Give the rebalance that is open, or else the newest; None where there was none."""
    row = known.open or next(iter(known.groups), None)
    if row is None:
        return None
    plan = plan_of(row)
    return Group(row, plan, _entries(topology, plan), known.holder)


def require_open(known: Known) -> GroupRow:
    """Give the rebalance that is not over; raises nothing_open."""
    if known.open is None:
        raise Misused(
            "nothing_open",
            "no rebalance is open",
            hint="run `shardctl rebalance plan` to make a plan, and `shardctl rebalance apply` to "
            "begin one",
        )
    return known.open


def plan_of(row: GroupRow) -> GroupPlan:
    """Read the plan of a rebalance; raises plan_unreadable."""
    try:
        return group.of_json(row.plan)
    except ValidationError as error:
        raise Refused(
            "plan_unreadable",
            f"rebalance {row.id}: this version of shardctl cannot read its plan",
            hint="continue with the version of shardctl that started it",
        ) from error


def _entries(topology: Topology, plan: GroupPlan) -> dict[str, Entry]:
    wanted = {one.move for one in plan.moves}
    found = service.read(topology).entries
    return {entry.move.id: entry for entry in found if entry.move.id in wanted}


@contextmanager
def _held(
    topology: Topology, plan: GroupPlan, command: str
) -> Iterator[Mapping[NodeName, Connection]]:
    """Hold the lock of rebalances on every node that counts, in the topology's order."""
    needed = {name for one in plan.moves for name in (one.source, one.target)}
    nodes = [name for name, node in topology.nodes.items() if node.shards or name in needed]
    with rebalances.held(topology, nodes, command=command) as sessions:
        yield sessions


def _go_on(
    topology: Topology,
    row: GroupRow,
    plan: GroupPlan,
    sessions: Mapping[NodeName, Connection],
    shown: Shown,
    *,
    command: str,
) -> None:
    """Carry out what is left of a rebalance.

    Raises what stopped it, together with rebalance_stopped; rebalance_paused.
    """
    done = 0
    try:
        for number, one in enumerate(plan.moves, 1):
            _require_going(topology, row, sessions)
            _carry_out(topology, one, plan, number, shown)
            done = number
    except (KeyboardInterrupt, ShardctlError) as caught:
        error = caught if isinstance(caught, ShardctlError) else Interrupted("interrupted")
        stopped = Incomplete(
            "rebalance_stopped",
            f"rebalance {row.id} is not finished: {done} of {len(plan.moves)} moves are done",
            hint=_RESUME,
        )
        raise together([*error.parts(), stopped]) from caught
    latest = next(
        (
            one
            for one in rebalances.read(topology, purpose=lock.purpose(command)).groups
            if one.id == row.id
        ),
        row,
    )
    set_state(topology, latest, GroupState.done, shown.notice, command)


def _require_going(
    topology: Topology, row: GroupRow, sessions: Mapping[NodeName, Connection]
) -> None:
    """See before a move that no operator has stopped it, and that every lock is held.

    Raises rebalance_paused, lock_lost, and what `rebalances.read` raises.
    """
    for name, session in sessions.items():
        try:
            session.execute("SELECT 1")
        except psycopg.Error as error:
            raise Refused(
                "lock_lost",
                f"node {name}: the session that held its lock has ended",
                hint="check that the server is running",
            ) from error
    known = rebalances.read(topology, purpose=lock.purpose(COMMAND))
    now = next((one for one in known.groups if one.id == row.id), None)
    if now is None or now.state is not GroupState.running:
        did = "paused" if now is not None and now.state is GroupState.paused else "aborted"
        raise Incomplete(
            f"rebalance_{did}",
            f"an operator has {did} it",
            hint="run `shardctl rebalance status` to see it",
        )


def _carry_out(
    topology: Topology, one: PlannedMove, plan: GroupPlan, number: int, shown: Shown
) -> None:
    """Do one move, or what is left of it; raises what stops it, and move_doubtful."""
    topology = loader.load(topology.path)  # the move before has written into it
    ledger = service.read(topology)
    move = one.move or ""
    entry = next((found for found in ledger.entries if found.move.id == move), None)
    if entry is not None and not entry.open:
        return
    if entry is None and _is_there(topology, one):
        shown.notice(f"shards {ranges.of(one.shards)} are already on node {one.target}")
        return
    if entry is None:
        _require_on_source(topology, one)
    shown.on_move(number, len(plan.moves), one, again=entry is not None)
    if entry is not None:
        service.resume(topology, entry, shown.progress, shown.on_step(move), notice=shown.notice)
    else:
        options = planning.Options(**plan.options)
        found, facts = decided(topology, one, options, move=move)
        if options.finish_reverse:
            reversing.finish_each(topology, facts.reversible, notice=shown.notice)
        service.start(topology, found, shown.progress, shown.on_step(move), notice=shown.notice)
    ended = service.read(loader.load(topology.path)).entry(move)
    if ended.state != "done":
        raise Incomplete(
            "move_doubtful",
            f"move {move} is {ended.state}: its shards are on node {one.target}, and their rows "
            "were not all compared",
            hint=f"run `shardctl moves show {move}` to see why, before you go on",
        )


def _require_on_source(topology: Topology, one: PlannedMove) -> None:
    """See that a move's shards are where it takes them from; raises fleet_changed."""
    owners = topology.owners()
    for node in topology.nodes:
        elsewhere = [s for s in one.shards if owners.get(ShardId(s)) == node != one.source]
        if elsewhere:
            raise Refused(
                "fleet_changed",
                f"shards {ranges.of(elsewhere)} are on node {node}, and the next move takes them "
                f"from node {one.source}",
                hint="run `shardctl rebalance abort`, then make a new plan",
            )


def _is_there(topology: Topology, one: PlannedMove) -> bool:
    node = topology.nodes.get(NodeName(one.target))
    return node is not None and set(one.shards) <= set(node.shards)
