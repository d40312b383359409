"""Undo a migration by its down part, in the shards that have it, the last wave first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from shardctl.errors import Problems, Refused, UsageError
from shardctl.provision import fleet
from shardctl.provision.scope import Scope
from shardctl.rollout import record, status
from shardctl.state import events
from shardctl.state import migrations as folder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.fanout import Progress
    from shardctl.provision.fleet import FleetPlan, Options
    from shardctl.rollout.status import FileState
    from shardctl.state.migrations import Migration
    from shardctl.state.rollouts import Rollout
    from shardctl.topology.model import ShardId, Topology

COMMAND = "migrate rollback"


@dataclass(frozen=True, slots=True)
class Undoing:
    """What a rollback would do; `waves` are its shards in the order in which it is done."""

    plan: FleetPlan
    migration: Migration
    waves: tuple[tuple[ShardId, ...], ...]
    rollout: Rollout | None
    """The open rollout that brought the file."""


def find(topology: Topology, wanted: str) -> Migration:
    """Find a file by its number or its name; raises UsageError."""
    known = folder.read(topology.database.migrations)
    for one in known:
        if wanted == one.name or (wanted.isdecimal() and int(wanted) == one.number):
            return one
    raise UsageError(
        f"no migration {wanted!r} in {topology.database.migrations}",
        hint="specify the number or the name of a file, such as 0003",
    )


def plan(topology: Topology, wanted: str, *, strict: bool, finish_reverse: bool = False) -> Undoing:
    """Look where a file ran, and plan to undo it there; changes nothing.

    Raises later_migrations, no_down_part, rollout_open where another rollout goes on, and what
    `fleet.plan_migrate` raises.
    """
    migration = find(topology, wanted)
    known = status.look(topology, command=COMMAND)
    _require_last(migration, known.files)
    rollout = known.open
    ours = rollout is not None and migration.name in rollout.files
    ran = any(one.done for one in known.files if one.name == migration.name)
    # A file without a down part that no shard has needs none: this ends its rollout.
    undo = migration.name if ran or migration.down is not None or not ours else None
    scope = Scope(
        files=frozenset(),
        undo=undo,
        rollout=rollout.id if rollout is not None and ours else None,
        everywhere=True,
    )
    found = fleet.plan_migrate(
        topology,
        strict=strict,
        finish_reverse=finish_reverse,
        scope=scope,
        command=COMMAND,
    )
    shards = [work.shard for node in found.nodes for work in node.shards]
    history = [one for one in known.rollouts if migration.name in one.files]
    waves = order(shards, history[0].waves if history else ())
    return Undoing(found, migration, waves, rollout if ours else None)


def _require_last(migration: Migration, known: Sequence[FileState]) -> None:
    """See that no later file ran in a shard that has this one; raises later_migrations."""
    has = {shard for one in known if one.name == migration.name for shard in one.done}
    later = [
        one.name
        for one in known
        if one.migration is not None
        and one.migration.number > migration.number
        and has & {*one.done, *one.differing}
    ]
    if later:
        raise Refused(
            "later_migrations",
            f"{migration.name} cannot be undone: {', '.join(later)} ran after it",
            hint=f"undo the last one first: `shardctl migrate rollback {later[-1]}`",
        )


def order(
    shards: Sequence[ShardId], waves: Sequence[Sequence[ShardId]]
) -> tuple[tuple[ShardId, ...], ...]:
    """Divide shards by the waves that brought them a file, the last wave first; pure.

    >>> order([0, 1, 2, 3, 9], [[0], [1, 2], [3, 4]])
    ((9,), (3,), (1, 2), (0,))
    """
    known = {shard for wave in waves for shard in wave}
    groups = [[shard for shard in shards if shard not in known]]
    groups += [[shard for shard in shards if shard in wave] for wave in map(set, reversed(waves))]
    return tuple(tuple(group) for group in groups if group)


def carry_out(
    undoing: Undoing,
    options: Options,
    progress: Progress,
    notice: Callable[[str], None],
) -> Rollout | None:
    """Undo the file; give the rollout that brought it, as it is then.

    Raises Problems with exit code 3 where the down part failed in a shard: earlier waves keep the
    file then. Raises what `fleet.locked` raises, and Interrupted.
    """
    plan = undoing.plan
    with fleet.locked(plan, options) as locks:
        if undoing.rollout is not None:
            record.require_current(locks, undoing.rollout)
        for wave in undoing.waves:
            errors = fleet.apply_locked(plan.of_shards(wave), options, progress, notice)
            if errors:
                raise Problems(errors, exit_code=3)
        if undoing.rollout is None or plan.left_out:
            return undoing.rollout
        ended = _after(undoing.rollout, undoing.migration)
        for lost in record.write(locks, ended):
            notice(lost.message)
        return ended


def _after(rollout: Rollout, migration: Migration) -> Rollout:
    """Give the state of a rollout one of whose files was undone."""
    others = [name for name in rollout.files if name != migration.name]
    reason = f"{migration.name} was rolled back"
    return replace(rollout.to("undone" if not others else "stopped"), reason=reason)


def abandon(topology: Topology, *, strict: bool) -> tuple[FleetPlan, Rollout]:
    """Plan to end the open rollout as it is; raises no_rollout."""
    rollout = status.look(topology, command=COMMAND).open
    if rollout is None:
        raise Refused(
            "no_rollout", "no rollout is open", hint="`shardctl migrate status` lists all"
        )
    scope = Scope(files=frozenset(), rollout=rollout.id, everywhere=True)
    found = fleet.plan_migrate(topology, strict=strict, scope=scope, command="migrate abandon")
    return found, rollout


def end(plan: FleetPlan, rollout: Rollout, notice: Callable[[str], None]) -> Rollout:
    """End a rollout where it is; shards keep what they have."""
    with fleet.locked(plan, fleet.Options()) as locks:
        record.require_current(locks, rollout)
        ended = rollout.to("abandoned", reason="")
        for session in locks.values():
            events.record(session, plan.command, f"rollout {rollout.id} abandoned")
        for lost in record.write(locks, ended):
            notice(lost.message)
    return ended
