"""Carry out a rollout: wave after wave, each under the locks, with checks between them."""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from shardctl.errors import Incomplete, Interrupted, Problems, Refused, ShardctlError
from shardctl.fanout import Progress, Silent
from shardctl.postgres.cancelling import Running
from shardctl.provision import fleet
from shardctl.provision.scope import Scope
from shardctl.rollout import checks, operator_checks, record, status, waves
from shardctl.state import migrations as folder
from shardctl.state import rollouts
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from shardctl.postgres.connection import Connection
    from shardctl.provision.agreement import NodeLeftOut
    from shardctl.provision.fleet import FleetPlan
    from shardctl.rollout.waves import Wanted
    from shardctl.state.rollouts import Brakes, Rollout
    from shardctl.topology.model import NodeName, ShardId, Topology

logger = logging.getLogger(__name__)
COMMAND = "migrate"


@dataclass(frozen=True, slots=True)
class Way:
    """How waves are carried out. `load` reads the topology again: a move may have changed it."""

    load: Callable[[], Topology]
    options: fleet.Options = field(default_factory=fleet.Options)
    strict: bool = False
    progress: Progress = field(default_factory=Silent)
    notice: Callable[[str], None] = logger.info
    pause: Callable[[float], None] = time.sleep
    """Waits between two waves; Ctrl-C ends it."""


@dataclass(frozen=True, slots=True)
class Result:
    """Where a rollout is when a command ends, and the nodes that were left out."""

    rollout: Rollout
    left_out: tuple[NodeLeftOut, ...]
    empty: bool = False
    """Whether no shard of its waves could be reached: then nothing was tried out."""


def plan(
    topology: Topology,
    wanted: Wanted,
    brakes: Brakes,
    *,
    strict: bool,
    finish_reverse: bool = False,
) -> tuple[FleetPlan, Rollout | None]:
    """Plan a new rollout of all pending files; None where none is pending.

    Raises rollout_open, and what `fleet.plan_migrate` raises.
    """
    found = fleet.plan_migrate(
        topology, strict=strict, finish_reverse=finish_reverse, scope=Scope(everywhere=True)
    )
    pending = {node.node: [work.shard for work in node.shards] for node in found.nodes}
    if not pending:
        return found, None
    files = {one for node in found.nodes for work in node.shards for one in work.migrations}
    _require_first(wanted, pending, found.left_out)
    divided = waves.split(pending, wanted)
    # What a node lacks that was left out is unknown: it comes last.
    away = {one.node for one in found.left_out}
    unknown = [s for node in topology.owning() if node.name in away for s in node.shards]
    divided = (*divided[:-1], (*divided[-1], *unknown))
    return found, rollouts.new(files, divided, brakes)


def _require_first(
    wanted: Wanted,
    pending: Mapping[NodeName, Sequence[ShardId]],
    left_out: Sequence[NodeLeftOut],
) -> None:
    """See that the first wave has a shard that was asked for; raises no_first_shard.

    Without one, the first wave would be the rest of the fleet at once.
    """
    if wanted.first is None or any(set(wanted.first) & set(some) for some in pending.values()):
        return
    away = ", ".join(one.node for one in left_out)
    raise Refused(
        "no_first_shard",
        "no shard that was asked for can be changed first: each has the migrations, or is on a "
        "node that was left out" + (f" ({away})" if away else ""),
        hint="specify other shards or another node; `shardctl migrate status` shows what is "
        "pending",
    )


def plan_rest(
    topology: Topology, *, strict: bool, finish_reverse: bool = False
) -> tuple[FleetPlan, Rollout]:
    """Plan what is left of the open rollout.

    Raises no_rollout, rollout_file_changed, and what `fleet.plan_migrate` raises.
    """
    rollout = _find_open(topology)
    _require_files(topology, rollout)
    scope = Scope(files=frozenset(rollout.files), rollout=rollout.id, everywhere=True)
    found = fleet.plan_migrate(topology, strict=strict, finish_reverse=finish_reverse, scope=scope)
    return found, rollout


def _find_open(topology: Topology) -> Rollout:
    rollout = status.look(topology, command=COMMAND).open
    if rollout is None:
        raise Refused(
            "no_rollout",
            "no rollout is open: there is nothing to continue",
            hint="run `shardctl migrate status`; `shardctl migrate --canary 3` begins a rollout",
        )
    return rollout


def _require_files(topology: Topology, rollout: Rollout) -> None:
    """See that the rollout's files are what they were; raises rollout_file_changed."""
    now = {one.name: one for one in folder.read(topology.database.migrations)}
    for name, checksum in rollout.files.items():
        file = now.get(name)
        if file is None or file.checksum != checksum:
            what = "is missing" if file is None else "was changed"
            raise Refused(
                "rollout_file_changed",
                f"{topology.database.migrations}/{name} {what} since rollout {rollout.id} began "
                f"(SHA-256 {checksum[:12]})",
                hint="restore the file. To roll out another version, run `shardctl migrate "
                f"rollback {name}` first, with the file as it was",
            )


def advance(way: Way, rollout: Rollout, planned: FleetPlan | None = None) -> Result:
    """Run waves until one has to wait for an operator, fails, or was the last one.

    `planned` is what `plan` or `plan_rest` has planned, which the first wave need not do again.
    Raises Problems or Incomplete where the rollout has stopped, and Interrupted.
    """
    while True:
        result = _wave(way, rollout, planned)
        rollout, planned = result.rollout, None
        soak_ms = rollout.brakes.soak_ms
        if rollout.state != "waiting" or soak_ms is None or rollout.last or result.empty:
            return result
        way.notice(
            f"wave {rollout.wave} of {len(rollout.waves)} is done; the next one begins in "
            f"{soak_ms / 1000:g} s if the checks hold"
        )
        try:
            way.pause(soak_ms / 1000)
        except KeyboardInterrupt as interrupt:
            raise Interrupted(
                f"interrupted between two waves: rollout {rollout.id} waits after wave "
                f"{rollout.wave} of {len(rollout.waves)}",
                hint="run `shardctl migrate --continue` to go on",
            ) from interrupt


def _wave(way: Way, rollout: Rollout, planned: FleetPlan | None) -> Result:
    """Run what is left of the waves that have begun; where nothing is, the next wave."""
    topology = planned.topology if planned is not None else way.load()
    _require_files(topology, rollout)
    scope = Scope(files=frozenset(rollout.files), rollout=rollout.id, everywhere=True)
    whole = planned or fleet.plan_migrate(topology, strict=way.strict, scope=scope)
    number = rollout.wave
    if number == 0 or not whole.of_shards(rollout.begun()).nodes:
        number = min(number + 1, len(rollout.waves))
    reached = frozenset(shard for wave in rollout.waves[:number] for shard in wave)
    narrow = replace(whole.of_shards(reached), scope=replace(scope, shards=reached))
    with fleet.locked(narrow, way.options) as locks:
        record.require_current(locks, rollout)
        wave = _Wave(way, topology, narrow, locks, rollout)
        with wave.stopping():
            if 0 < rollout.wave < number:
                wave.require_sound(rollout.begun())
            wave.run(number, reached)
    return Result(wave.rollout, narrow.left_out, empty=not wave.by_node(reached))


@dataclass(slots=True)
class _Wave:
    """One wave, under the locks of its nodes; `rollout` is as the nodes have it."""

    way: Way
    topology: Topology
    plan: FleetPlan
    locks: Mapping[NodeName, Connection]
    rollout: Rollout

    @contextmanager
    def stopping(self) -> Iterator[None]:
        """Record that the rollout has stopped where this block raises an error."""
        try:
            yield
        except (ShardctlError, KeyboardInterrupt) as error:
            if self.rollout.serial > 0:
                reason = error.parts()[0].message if isinstance(error, ShardctlError) else ""
                self._write(self.rollout.to("stopped", reason=reason or "interrupted"))
            raise

    def run(self, number: int, reached: frozenset[ShardId]) -> None:
        """Run the pending files in these shards, check them, and record it."""
        last = number == len(self.rollout.waves)
        watched = self.by_node(frozenset() if last else reached)
        before = self._look(watched)
        known = checks.seen(self.rollout.seen)
        seen = replace(known, counters={one.node: one.counters for one in before})
        self._write(self.rollout.to("running", wave=number, seen=seen.as_json(), reason=""))
        errors = fleet.apply_locked(self.plan, self.way.options, self.way.progress, self.way.notice)
        if errors:
            raise Problems(errors, exit_code=3)
        after = self._look(watched)
        structures, unlike = checks.structures(known.structures, before, after)
        failed = [_unlike(unlike)] if unlike else []
        failed += checks.jumps(seen.counters, after)
        failed += self._ask(reached)
        now = checks.Seen({one.node: one.counters for one in after}, structures)
        self.rollout = replace(self.rollout, seen=now.as_json())
        if failed:
            raise self._check_failed(failed)
        done = last and not self.plan.left_out
        self._write(self.rollout.to("done" if done else "waiting"))

    def require_sound(self, shards: frozenset[ShardId]) -> None:
        """See that what the earlier waves have changed is still well; raises check_failed."""
        known = checks.seen(self.rollout.seen)
        now = self._look(self.by_node(shards))
        strangers = checks.strangers(known.structures, now)
        failed = [_unlike(strangers)] if strangers else []
        failed += checks.jumps(known.counters, now)
        failed += self._ask(shards)
        if failed:
            # What happened until now is not held against the next attempt.
            counters = dict(known.counters)
            counters.update((str(one.node), one.counters) for one in now)
            seen = replace(known, counters=counters)
            self.rollout = replace(self.rollout, seen=seen.as_json())
            raise self._check_failed(failed)

    def _look(self, shards: Mapping[NodeName, Sequence[ShardId]]) -> list[checks.Look]:
        return checks.look(self.topology, list(self.locks), shards, command=COMMAND)

    def _ask(self, shards: frozenset[ShardId]) -> list[str]:
        found = operator_checks.run(
            self.topology,
            self.by_node(shards),
            self.rollout.brakes,
            jobs=self.way.options.jobs,
            command=COMMAND,
            progress=self.way.progress,
            running=Running(self.way.notice),
        )
        return list(operator_checks.described(found))

    def by_node(self, shards: frozenset[ShardId]) -> dict[NodeName, list[ShardId]]:
        """Divide shards among the nodes that are locked."""
        return {
            name: chosen
            for name in self.locks
            if (chosen := [s for s in self.topology.nodes[name].shards if s in shards])
        }

    def _check_failed(self, failed: Sequence[str]) -> Incomplete:
        files = sorted(self.rollout.files)
        return Incomplete(
            "check_failed",
            f"rollout {self.rollout.id} has stopped after wave {self.rollout.wave} of "
            f"{len(self.rollout.waves)}: {'; '.join(failed)}",
            hint=f"undo it with `shardctl migrate rollback {files[-1]}`, or fix the cause and run "
            "`shardctl migrate --continue`, which checks again",
        )

    def _write(self, rollout: Rollout) -> None:
        for lost in record.write(self.locks, rollout):
            self.way.notice(lost.message)
        self.rollout = rollout


def _unlike(shards: Sequence[ShardId]) -> str:
    return (
        f"shards {ranges.of(shards)} have another structure than the other changed shards "
        "(`shardctl verify --check structure` shows what)"
    )
