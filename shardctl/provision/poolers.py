"""All poolers at once: what they should offer by the databases' map, what differs, apply it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from shardctl import fanout
from shardctl.errors import (
    Incomplete,
    Interrupted,
    Misused,
    Problems,
    Refused,
    ShardctlError,
    named,
    together,
)
from shardctl.hosts import files
from shardctl.hosts.reach import host_of
from shardctl.libpq import reason_of
from shardctl.pgbouncer import apply as applying
from shardctl.pgbouncer import render
from shardctl.postgres.connection import NodeLost, NodeUnavailable
from shardctl.provision import maps
from shardctl.state import events, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from shardctl.fanout import Progress
    from shardctl.hosts.files import Place
    from shardctl.pgbouncer.apply import Wanted
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName, Pooler, PoolerName, Topology

APPLY = "pgbouncer apply"
"""The command, as locks and events name it."""


def poolers_unfinished(done: Sequence[PoolerName], failed: Sequence[PoolerName]) -> Incomplete:
    """Report poolers that could not be updated, while the rest were."""
    rest = f"; updated: {', '.join(done)}" if done else ""
    return Incomplete(
        "poolers_unfinished",
        f"poolers that were not updated: {', '.join(failed)}{rest}",
        hint="fix the errors above and run the same command again: it updates only the rest",
    )


@dataclass(frozen=True, slots=True)
class PoolersPlan:
    """What all poolers should be brought to, in the topology's order."""

    topology: Topology
    map_version: int
    force: bool
    wanted: tuple[Wanted, ...]
    unread: tuple[NodeUnavailable, ...] = ()
    """Nodes without which the map was agreed on."""

    def changes(self) -> list[Wanted]:
        """List the poolers that something has to be done for."""
        return [one for one in self.wanted if one.action != "none"]

    def look(self, pooler: Pooler, *, purpose: str) -> Wanted:
        """Look at a pooler, and describe what it needs; raises as `plan` does."""
        host = host_of(pooler)
        # Its journal is on nodes that cannot be read: at the poolers a move shows as well.
        if self.unread and (staged := applying.staged_there(pooler, host)):
            raise applying.FileStaged(pooler, staged[0])
        version, force = self.map_version, self.force
        return applying.plan(self.topology, pooler, host, version, force=force, purpose=purpose)


def chosen(topology: Topology, names: Iterable[str]) -> list[Pooler]:
    """Give the poolers of these names, or all where there are none; raises pooler_not_found."""
    wanted = list(names)
    for name in wanted:
        if name not in topology.poolers:
            known = ", ".join(topology.poolers) or "none"
            raise Misused(
                "pooler_not_found",
                f"unknown pooler {name!r}",
                hint=f"choose from {known}",
            )
    return [one for one in topology.poolers.values() if not wanted or one.name in wanted]


def compare(
    topology: Topology, poolers: Sequence[Pooler], map_version: int
) -> tuple[list[dict[str, Any]], list[ShardctlError]]:
    """Compare every pooler's file with what it should contain, as docs/reference/json.md has it.

    Also gives why files could not be read.
    """
    errors: list[ShardctlError] = []

    def one(pooler: Pooler) -> dict[str, Any]:
        text, file = render.databases(topology, pooler, map_version), pooler.databases_file
        state, diff, header = "differs", "", None
        error: str | None = None
        try:
            there = files.read(host_of(pooler), file, user=pooler.os_user)
            header = render.header(there or "")
            if there == text:
                state = "same"
            elif there and there.strip() and (header is None or header.edited):
                state = "edited"
            diff = applying.diff(there, text, file)
        except ShardctlError as refused:
            state, error = "unreachable", refused.message
            errors.append(named(f"pooler {pooler.name}", refused))
        return {
            "name": pooler.name,
            "file": str(file),
            "state": state,
            "map_version": {"file": header and header.map_version, "wanted": map_version},
            "diff": diff,
            "error": error,
        }

    return fanout.collect(poolers, one).every(), errors


def plan(
    topology: Topology,
    poolers: Sequence[Pooler],
    map_version: int,
    *,
    force: bool,
    purpose: str,
    unread: Sequence[NodeUnavailable] = (),
) -> PoolersPlan:
    """Look at poolers, all in parallel, and describe what each needs; changes nothing.

    While nodes are `unread`, a pooler's own files have to show that no absent node has a newer
    map, so these are not replaced by `force` then. Raises file_staged, what
    `pgbouncer.apply.observe` and `plan` raise, or Problems of several poolers.
    """
    empty = PoolersPlan(topology, map_version, force and not unread, (), tuple(unread))
    found = fanout.collect(poolers, partial(empty.look, purpose=purpose))
    problems = [named(f"pooler {pooler.name}", error) for pooler, error in found.problems]
    owners: dict[Place, PoolerName] = {}
    for _, wanted in found.values:
        name = wanted.pooler.name
        first = owners.setdefault(wanted.place, name)
        # By their hosts' names the loader could not know that it is one machine.
        if first != name:
            problems.append(
                Refused(
                    "pooler_file_shared",
                    f"pooler {name}: pooler {first} uses the same "
                    f"databases_file: {wanted.place.path}",
                    hint="give each pooler its own databases_file",
                )
            )
    if problems:
        raise together(problems)
    return replace(empty, wanted=tuple(found.every()))


def require_free(plan: PoolersPlan) -> None:
    """See before a plan is shown that `apply` would get its locks; raises NodeLocked."""
    if plan.changes():
        lock.require_all_free(plan.topology, _to_lock(plan), command=APPLY)


def _to_lock(plan: PoolersPlan) -> list[NodeName]:
    away = {one.node for one in plan.unread}
    return [node.name for node in plan.topology.owning() if node.name not in away]


def apply(plan: PoolersPlan, progress: Progress) -> None:
    """Carry a plan out under the locks of all nodes that own shards.

    Raises NodeLocked, or map_changed and what `maps.agreed` raises, with nothing done; Problems
    with exit code 3 that name every pooler that failed, when the rest are finished; Interrupted.
    """
    if not plan.changes():
        return
    topology = plan.topology
    with lock.held(topology, _to_lock(plan), command=APPLY) as locks:
        # A move may have ended after the plan was made: its poolers must not be led back.
        purpose, unread = lock.purpose(APPLY), plan.unread
        agreed = maps.agreed(topology, purpose=purpose, strict=not unread, absent=unread)
        agreed.require(plan.map_version)
        errors = carry_out(plan, locks, progress, command=APPLY)
    if errors:
        raise Problems(errors)


def carry_out(
    plan: PoolersPlan,
    locks: Mapping[NodeName, Connection],
    progress: Progress,
    *,
    command: str,
) -> list[ShardctlError]:
    """Bring all poolers of the plan to what they should offer, in parallel; give what failed.

    `locks` are the sessions that hold the nodes' locks: they are used to see that they do, and
    to record what was done. Every pooler is looked at again first, for what was seen without
    the locks may have changed. Raises Interrupted when all that had begun is finished.
    """
    done: list[PoolerName] = []

    def one(planned: Wanted) -> None:
        pooler = planned.pooler
        progress.expect(pooler.name, "applying configuration", 1)
        purpose = lock.purpose(command)
        now = plan.look(pooler, purpose=purpose)
        applying.carry_out(plan.topology, now, purpose=purpose)
        done.append(pooler.name)  # atomic
        progress.advance(pooler.name)

    def record(session: Connection) -> None:
        for name in sorted(done):
            events.record(session, command, f"pooler {name}: map version {plan.map_version}")

    lost = _on_all(locks, lambda session: session.execute("SELECT 1"))
    if lost:  # a command that has lost a lock does not write
        return lost
    try:
        ended = fanout.collect(plan.changes(), one)
    except KeyboardInterrupt as interrupt:
        _on_all(locks, record)
        raise Interrupted(
            f"interrupted: updated poolers: {', '.join(sorted(done)) or 'none'}",
            hint=f"run `shardctl {command}` again to finish the rest",
        ) from interrupt
    failed = [planned.pooler.name for planned, _ in ended.problems]
    errors = [named(f"pooler {p.pooler.name}", error) for p, error in ended.problems]
    if failed:
        errors.append(poolers_unfinished(sorted(done), failed))
    return [*errors, *_on_all(locks, record)]


def _on_all(
    locks: Mapping[NodeName, Connection], work: Callable[[Connection], object]
) -> list[ShardctlError]:
    """Do something over every node's session; give what broke."""
    errors: list[ShardctlError] = []
    for node, session in locks.items():
        try:
            work(session)
        except psycopg.Error as error:
            errors.append(NodeLost(node, reason_of(error)))
    return errors
