"""`init` and `migrate` over the whole fleet: observe, plan, lock, apply, report."""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from shardctl import fanout
from shardctl.errors import (
    Incomplete,
    Interrupted,
    Problems,
    Refused,
    ShardctlError,
    together,
)
from shardctl.postgres.connection import NodeUnavailable, Running
from shardctl.provision import apply as applying
from shardctl.provision import maps, observe, refusals
from shardctl.provision import plan as planning
from shardctl.provision import poolers as pooling
from shardctl.provision.apply import as_ours, node_unfinished
from shardctl.provision.plan import Change
from shardctl.state import keys, lock
from shardctl.state import migrations as files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.provision.maps import NodeLeftOut
    from shardctl.provision.plan import Action, NodePlan, Options
    from shardctl.provision.poolers import PoolersPlan
    from shardctl.topology.model import NodeName, ShardId, Topology

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """What `init` or `migrate` would do, and what an operator should know beside it."""

    command: str
    topology: Topology
    nodes: tuple[NodePlan, ...]
    notes: tuple[str, ...]
    map_version: int
    """The version of the map when the plan is carried out."""
    poolers: PoolersPlan | None = None
    unread: tuple[NodeUnavailable, ...] = ()
    """Nodes that could not be read."""
    left_out: tuple[NodeLeftOut, ...] = ()
    """Those nodes, and the other nodes of their moves."""
    adopt: bool = False
    """Whether it takes over schemas of other origin."""
    only: frozenset[ShardId] | None = None
    """The shards that `migrate` is for; None is all."""
    finishing: tuple[str, ...] = ()
    """Moves that can no longer be reversed when the plan is carried out."""

    def changes(self) -> list[Change]:
        """List all changes, node by node in the topology's order, then the poolers'."""
        changes = [change for node in self.nodes for change in node.changes()]
        for wanted in self.poolers.changes() if self.poolers else ():
            pooler = wanted.pooler
            action: Action = "write" if wanted.action == "write" else "reload"
            name = str(pooler.databases_file)
            changes.append(Change(action, "aliases", None, name=name, pooler=pooler.name))
        return changes


def plan_init(
    topology: Topology, *, adopt: bool = False, poolers: bool = True, strict: bool = True
) -> FleetPlan:
    """Observe the fleet and plan what `init` has to do; changes nothing.

    `poolers` False leaves these as they are. Unless `strict`, nodes that cannot be read are left
    out where `maps.left_out` allows it. Raises what observation and planning raise, one
    error or Problems of several.
    """
    return _plan(topology, "init", adopt=adopt, poolers=poolers, strict=strict)


def plan_migrate(
    topology: Topology,
    *,
    strict: bool = True,
    finish_reverse: bool = False,
    only: frozenset[ShardId] | None = None,
) -> FleetPlan:
    """Observe the fleet and plan the migrations that are pending; changes nothing.

    `only` are the shards to migrate, None is all. `finish_reverse` accepts that moves can no
    longer be reversed then. Raises init_pending where more than migrations is missing, and what
    `plan_init` raises.
    """
    return _plan(topology, "migrate", strict=strict, finish_reverse=finish_reverse, only=only)


def init_pending(changes: Sequence[Change]) -> Refused:
    """Report shards on some nodes that are missing or out of date."""
    nodes = ", ".join(dict.fromkeys(str(change.node) for change in changes))
    return Refused(
        "init_pending",
        f"shards on {nodes} are missing or out of date",
        hint="run `shardctl init` first (`shardctl init --dry-run` shows what is missing)",
    )


def _migrations_only(plan: FleetPlan) -> FleetPlan:
    """Keep what `migrate` does, which needs no node without shards; raises init_pending."""
    owning = [one for one in plan.nodes if plan.topology.nodes[one.node].shards]
    changes = [change for node in owning for change in node.changes()]
    other = [change for change in changes if change.kind not in {"migration", "check"}]
    if other:
        raise init_pending(other)
    kept = [node.migrations_only(plan.only) for node in owning]
    return replace(plan, nodes=tuple(node for node in kept if node.shards))


def _plan(
    topology: Topology,
    command: str,
    *,
    strict: bool,
    adopt: bool = False,
    poolers: bool = False,
    absent: Sequence[NodeUnavailable] = (),
    finish_reverse: bool = False,
    only: frozenset[ShardId] | None = None,
) -> FleetPlan:
    """Observe and plan, for `migrate` what that does; `absent` nodes are not tried again."""
    migrations = files.read(topology.database.migrations)
    keys.key_columns(migrations)  # a malformed line is reported before anything is contacted
    observed, notes, unread = observe.look(topology, command, absent)
    said = {one.node: one.said() for one in observed}
    left_out = maps.left_out(topology, said, unread, strict=strict)
    gone = {one.node for one in left_out}
    observed = [one for one in observed if one.node not in gone]
    plans = planning.plan(topology, observed, migrations, adopt=adopt)
    reversible = refusals.reversible(topology, observed, migrations, only)
    if reversible and not finish_reverse:
        raise together([refusals.reverse_open(move) for move in reversible])
    notes += [
        f"move {move.id} can no longer be reversed then (--finish-reverse)" for move in reversible
    ]
    version = planning.map_version(observed)
    offered = None
    if poolers and topology.poolers:
        if doubts := maps.doubted_moves(said, unread):
            raise Problems([*unread, *doubts])
        every, purpose = list(topology.poolers.values()), lock.purpose(command)
        offered = pooling.plan(
            topology, every, version, force=False, purpose=purpose, unread=unread
        )
    found = FleetPlan(
        command,
        topology,
        tuple(p for p in plans if p.changes()),
        tuple(notes),
        version,
        offered,
        tuple(unread),
        left_out,
        adopt=adopt,
        only=only,
        finishing=tuple(move.id for move in reversible),
    )
    return _migrations_only(found) if command == "migrate" else found


def require_free(plan: FleetPlan) -> None:
    """See before a plan is shown that `carry_out` would get its locks; raises NodeLocked.

    Where there is no database yet, no other command can hold one.
    """
    new = {one.node for one in plan.nodes if one.database}
    there = [node for node in _to_lock(plan) if node not in new]
    lock.require_all_free(plan.topology, there, command=plan.command)


def _to_lock(plan: FleetPlan) -> list[NodeName]:
    """Name the nodes that are changed, and those whose shards the poolers' changes are about."""
    planned = [one.node for one in plan.nodes]
    known = {*planned, *(one.node for one in plan.left_out)}
    poolers = plan.poolers is not None and plan.poolers.changes()
    return planned + [n.name for n in plan.topology.owning() if poolers and n.name not in known]


def carry_out(
    plan: FleetPlan,
    options: Options,
    progress: Progress,
    notice: Callable[[str], None] = logger.info,
) -> None:
    """Carry out a plan under the nodes' locks, all nodes in parallel.

    Raises NodeLocked or plan_outdated with nothing done but roles and databases made;
    Problems with exit code 3 that name every node and shard that failed, when the rest
    are finished; Interrupted after Ctrl-C, which cancels transactions and rolls them back. What
    the plan leaves out is for the caller to report; `notice` shows what happens in the meantime.
    """
    poolers = plan.poolers if plan.poolers and plan.poolers.changes() else None
    if not plan.nodes and poolers is None:
        return
    with ExitStack() as stack:
        prepared = _prepare(plan)
        try:
            locks = stack.enter_context(
                lock.held(plan.topology, _to_lock(plan), command=plan.command)
            )
            _check_still_true(plan)
        except ShardctlError as error:
            if not prepared:
                raise
            raise Problems(error.parts(), exit_code=Incomplete.exit_code) from error
        errors = _apply(plan, options, progress, Running(notice))
        if not errors:
            errors = _write_maps(plan, locks)
        if not errors and poolers is not None:
            errors = pooling.carry_out(poolers, locks, progress, command=plan.command)
    if errors:
        raise Problems(errors)


def _apply(
    plan: FleetPlan, options: Options, progress: Progress, running: Running
) -> list[ShardctlError]:
    """Carry out all but the map on all nodes; give what failed."""
    stop = threading.Event()

    def work(node_plan: NodePlan) -> list[ShardctlError]:
        return applying.apply(
            plan.topology,
            node_plan,
            command=plan.command,
            options=options,
            progress=progress,
            stop=stop,
            running=running,
        )

    try:
        outcomes = fanout.run(plan.nodes, work, stop=stop, cancel=running.cancel)
    except KeyboardInterrupt as interrupt:
        raise Interrupted(
            "interrupted: every batch of shards is finished or rolled back",
            hint=f"run `shardctl {plan.command}` again to finish the rest",
        ) from interrupt
    return [error for outcome in outcomes for error in outcome.result()]


def _write_maps(plan: FleetPlan, locks: Mapping[NodeName, Connection]) -> list[ShardctlError]:
    """Write the map to all nodes, now that every shard exists; give what failed."""

    def work(node_plan: NodePlan) -> None:
        locks[node_plan.node].execute("SELECT 1")  # a command that has lost the lock does not write
        applying.write_map(plan.topology, node_plan, command=plan.command)

    outcomes = fanout.run(plan.nodes, work)
    failed = [(o.item, o.error) for o in outcomes if o.error]
    return [
        error
        for node_plan, cause in failed
        for error in (as_ours(node_plan.node, cause), node_unfinished(node_plan.node, 0, ()))
    ]


def _prepare(plan: FleetPlan) -> bool:
    """Make roles and databases, which the locks need to be taken in; tell whether it had to."""
    new: list[NodeName] = []

    def work(node: NodePlan) -> None:
        made = partial(new.append, node.node)
        applying.prepare(plan.topology, node, command=plan.command, made=made)

    outcomes = fanout.run(plan.nodes, work)
    if errors := [as_ours(o.item.node, o.error) for o in outcomes if o.error]:
        raise Problems(errors, exit_code=Incomplete.exit_code if new else None)
    return bool(new)


def _check_still_true(plan: FleetPlan) -> None:
    """Plan again, now that no other command can change the nodes; raises plan_outdated."""
    now = _plan(
        plan.topology,
        plan.command,
        adopt=plan.adopt,
        strict=not plan.unread,
        absent=plan.unread,
        only=plan.only,
    )
    before = {n.node: replace(n, roles=(), database=False).changes() for n in plan.nodes}
    after = {n.node: n.changes() for n in now.nodes}
    differing = [str(n) for n in before | after if before.get(n, []) != after.get(n, [])]
    if now.map_version != plan.map_version:
        differing.append("the map's version")
    if differing:
        raise Refused(
            "plan_outdated",
            f"the fleet changed after the plan was made ({', '.join(differing)}); nothing was done",
            hint="run the command again to see the new plan",
        )
