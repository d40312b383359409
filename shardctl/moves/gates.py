"""The poolers during a cutover: stages files, arms guards, pauses and resumes aliases."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Self, TypeVar

from shardctl import fanout
from shardctl.errors import ShardctlError, together
from shardctl.hosts import files, ports
from shardctl.hosts.reach import host_of
from shardctl.moves.distance import shortest_ms
from shardctl.moves.gate import Gate, PauseFailed, PauseLost, RouteFailed
from shardctl.pgbouncer import apply, batch, guard, render, serving
from shardctl.pgbouncer.console import Console, PoolerLost, PoolerUnavailable, conninfo
from shardctl.pgbouncer.guard import Guard, Question, Staged
from shardctl.topology import aliases as names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from shardctl.moves.plan import MovePlan
    from shardctl.pgbouncer.guard import Disarmed
    from shardctl.topology.model import Pooler, Topology

logger = logging.getLogger(__name__)

CONSOLES = 16
"""Console sessions per pooler that send PAUSE."""
_WIDTH = 16
_LOGINS_S = 1.0
"""How long to wait for logins of poolers: some may never end."""
_POLL = 0.002

Value = TypeVar("Value")


class Gates:
    """All poolers of a topology during the cutover of one move.

    Use it in a `with`, which closes every session at its end. `let_go`, `route` and the guards
    resume the paused aliases.
    """

    def __init__(self, before: Topology, after: Topology, plan: MovePlan, *, purpose: str) -> None:
        self._before = before
        self._after = after
        self._plan = plan
        self._purpose = purpose
        self.all = [self._gate(pooler) for pooler in before.poolers.values()]
        self.held_at: float | None = None
        """When the first PAUSE was sent, on the monotonic clock; None before that."""
        self.guards_fire_from: float | None = None
        self.guards_fire_at: float | None = None
        """When the first and the last guard of this process fire, on the monotonic clock."""
        self.waits_ms: dict[str, float] = {}
        """For each pooler, the time from the first PAUSE until no client waited for a connection.

        No client waited longer; 0 where none waited at the RESUME.
        """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self.all:
            gate.drop_held()
            for console in (*gate.consoles, gate.watcher):
                if console is not None:
                    console.close()

    def open(self) -> None:
        """Log in to every console, several times; raises PoolerUnavailable."""

        def one(gate: Gate) -> None:
            gate.consoles[:] = [console for console in gate.consoles if not console.closed]
            wanted = 1 + min(CONSOLES, max(1, len(gate.aliases)))
            while len(gate.consoles) + 1 < wanted:
                gate.consoles.append(self._console(gate.pooler))
            if gate.retry is None:
                gate.retry = serving.retry_of(self._watcher(gate))

        self._each(one)

    def distance_ms(self) -> float:
        """Measure the longest round trip to a pooler, in ms; raises PoolerLost."""
        return max(self._each(lambda g: shortest_ms(self._watcher(g).version)), default=0.0)

    def stage(self) -> None:
        """Put the new file beside the old one on every pooler's host, and try a RELOAD there.

        After the decision it is too late to find out that a pooler cannot read its files. Raises
        FileRefused, reload_rejected.
        """

        def one(gate: Gate) -> None:
            user, place = gate.pooler.os_user, gate.pooler.databases_file
            # A file of an earlier attempt would be kept as a backup.
            files.remove(gate.host, gate.staged, user=user)
            files.write(gate.host, gate.staged, gate.text, user=user, like=place)
            gate.place = files.place_of(gate.host, place, user=user)
            apply.try_reload(gate.pooler, gate.host, self._watcher(gate))

        self._each(one)

    def rehearse(self, question: Question) -> None:
        """Run every guard's query on its host; raises guard_refused."""
        self._each(
            lambda gate: guard.rehearse(
                gate.host,
                name=self._plan.id,
                directory=gate.pooler.databases_file.parent,
                question=question,
                user=gate.pooler.os_user,
            )
        )

    def arm(self, *, after_s: float, question: Question) -> None:
        """Arm a guard on every pooler's host; raises guard_refused after disarming all."""

        def one(gate: Gate) -> None:
            gate.guard = guard.arm(
                gate.host,
                name=self._plan.id,
                directory=gate.pooler.databases_file.parent,
                console=conninfo(gate.pooler, self._before.database, purpose=self._purpose),
                aliases=gate.aliases,
                after_s=after_s,
                question=question,
                staged=Staged(gate.staged, gate.pooler.databases_file),
                retry=gate.retry or "",
                user=gate.pooler.os_user,
            )

        self.guards_fire_from = time.monotonic() + after_s
        try:
            self._each(one)
        except ShardctlError:
            self._each(self._disarm_own)
            raise
        self.guards_fire_at = time.monotonic() + after_s

    def hold_files(self, *, seconds: float) -> None:
        """Start the command on every host that replaces its file on request.

        On a remote host, the request takes a third of the time of a new command.
        """
        for gate in self.all:
            gate.hold_file(seconds)

    def await_logins(self) -> None:
        """Wait briefly until no pooler is logging in to a node for the aliases to pause.

        PAUSE aborts such a login, and PgBouncer takes that for a node that rejects connections:
        after RESUME it would wait for `server_login_retry`, and new clients would get an error.
        """
        until = time.monotonic() + _LOGINS_S

        def one(gate: Gate) -> None:
            ours = set(gate.aliases)
            console = self._watcher(gate)
            while time.monotonic() < until and any(
                row["database"] in ours and int(row["sv_login"] or 0) for row in console.pools()
            ):
                time.sleep(_POLL)

        self._each(one)

    def hold(self, *, seconds: float) -> dict[str, float]:
        """Pause all aliases on all poolers; return how long each pooler's last PAUSE took, in ms.

        Raises PauseFailed, PauseLost, and what a pooler refused. The answer to PAUSE proves the
        pause only with `require_held` after it: RESUME by another session answers a waiting PAUSE,
        too.
        """
        now = time.monotonic()
        if self.all and self.guards_fire_from is not None and now > self.guards_fire_from:
            # No guard would end this pause if this process died now.
            raise PauseLost(self.all[0].pooler.name, self.all[0].aliases)
        self.held_at = self.held_at or now
        answers = batch.pause([(g.consoles, g.aliases) for g in self.all], seconds=seconds)
        if refused := [error for answer in answers for error in answer.refused.values()]:
            raise together(list({error.message: error for error in refused}.values()))
        waiting: dict[str, tuple[str, ...]] = {
            g.pooler.name: a.waiting for g, a in zip(self.all, answers, strict=True) if a.waiting
        }
        if waiting:
            raise PauseFailed(waiting, seconds)
        self.require_held()
        return {
            g.pooler.name: max(a.seconds.values(), default=0.0) * 1000
            for g, a in zip(self.all, answers, strict=True)
        }

    def busy(self, waiting: Mapping[str, tuple[str, ...]]) -> Iterator[int]:
        """Yield the pids on the source that serve aliases whose PAUSE does not complete."""
        for gate in self.all:
            wanted = set(waiting.get(gate.pooler.name, ()))
            if not wanted:
                continue
            with self._console(gate.pooler) as console:
                for server in console.servers():
                    if server["database"] in wanted and server["state"] == "active":
                        yield int(server["remote_pid"] or 0)

    def require_held(self) -> None:
        """Check that every alias is still paused; raises PauseLost, PoolerLost."""

        def one(gate: Gate) -> None:
            offered = self._watcher(gate).databases()
            gone = tuple(a for a in gate.aliases if a not in offered or not offered[a].paused)
            if gone:
                raise PauseLost(gate.pooler.name, gone)

        self._each(one)

    def route(self) -> None:
        """Route every pooler to the shards' new node, and serve its clients again.

        `await_served` must follow. Raises a pooler's error after serving all others.
        """

        def one(gate: Gate) -> None:
            beside = gate.ask_who_waits()
            user = gate.pooler.os_user
            try:
                gate.put_in_place()
            except files.FileRefused:
                # Its guard may have fired first and replaced the file.
                if files.read(gate.host, gate.pooler.databases_file, user=user) != gate.text:
                    raise
            self._reload_and_resume(gate, waits=gate.any_waits(beside))

        self._each(one)

    def settle(self) -> None:
        """Do what `route` does, however much of it is done; repeatable."""

        def one(gate: Gate) -> None:
            gate.drop_held()
            user = gate.pooler.os_user
            if files.read(gate.host, gate.pooler.databases_file, user=user) != gate.text:
                files.write(gate.host, gate.pooler.databases_file, gate.text, user=user)
            self._reload_and_resume(gate, waits=gate.any_waits(self._watcher(gate), ask=True))
            files.remove(gate.host, gate.staged, user=user)

        self._each(one)

    def await_served(self) -> list[str]:
        """Wait briefly until waiting clients have connections; return aliases that have none.

        Restores `server_login_retry` afterwards.
        """

        def one(gate: Gate) -> list[str]:
            if gate.serving is None:  # the pooler was lost before
                return []
            left = gate.end_serving(self._watcher(gate))
            if gate.serving.resumed:
                since = gate.serving.at if self.held_at is None else self.held_at
                waited = time.monotonic() - since if gate.serving.waits else 0.0
                self.waits_ms[gate.pooler.name] = round(waited * 1000, 1)
            return left

        return [alias for left in self._each(one) for alias in left]

    @property
    def served_at(self) -> float | None:
        """When the last pooler had resumed its aliases, on the monotonic clock."""
        return max((gate.serving.at for gate in self.all if gate.serving), default=None)

    def let_go(self) -> list[ShardctlError]:
        """Resume every alias unchanged, remove the staged files, disarm the guards; repeatable.

        A pooler where this fails keeps its guard, which tries again. A pooler that has stopped
        pauses nothing: returns the errors of such poolers.
        """
        gone: list[ShardctlError] = []

        def one(gate: Gate) -> None:
            gate.drop_held()
            try:
                # This answers a waiting PAUSE, too, whose session is not used again.
                self._resume_as_before(gate)
            except (PoolerLost, PoolerUnavailable) as error:
                if ports.knock(gate.pooler.host, gate.pooler.port) != "closed":
                    raise
                gone.append(error)
            files.remove(gate.host, gate.staged, user=gate.pooler.os_user)
            self._disarm(gate)

        self._each(one)
        return gone

    def abandon(self) -> None:
        """Resume every alias, and change nothing else: another process has taken over the move.

        That process has ended the guards here, and may have resumed before all was paused.
        """

        def one(gate: Gate) -> None:
            gate.drop_held()
            self._resume_as_before(gate)
            self._disarm_own(gate)

        self._each(one)

    def disarm(self) -> list[Disarmed]:
        """End all guards of this move, also an earlier process's; return what they had done."""
        return self._each(self._disarm)

    @staticmethod
    def _disarm_own(gate: Gate) -> None:
        """End the guard that this process has armed, but not another's of the same name."""
        if gate.guard is not None:
            guard.disarm(gate.guard)
            gate.guard = None

    def _disarm(self, gate: Gate) -> Disarmed:
        parent = gate.pooler.databases_file.parent
        named = Guard(gate.host, self._plan.id, parent, gate.pooler.os_user)
        found = guard.disarm(gate.guard or named)
        gate.guard = None
        return found

    def _reload_and_resume(self, gate: Gate, *, waits: bool) -> None:
        """Send both in one packet; raises RouteFailed, ResumeFailed, PoolerLost."""
        console = self._watcher(gate)
        refused = gate.begin_serving(console, reload=True, waits=waits)
        offered = console.databases()
        wrong = apply.differences(render.entries(self._after, gate.pooler), offered)
        gate.require_resumed(offered)
        if wrong:
            rejected = [error.reason for error in refused if error.command == serving.RELOAD]
            raise RouteFailed(gate.pooler.name, [*rejected, *wrong])

    def _resume_as_before(self, gate: Gate) -> None:
        """Resume with the old file; raises ResumeFailed, PoolerLost.

        Where nothing is paused `server_login_retry` is not changed: no guard would restore it if
        this process died.
        """
        console = self._watcher(gate)
        paused = gate.is_paused(console.databases())
        gate.begin_serving(console, reload=False, shorten=paused)
        gate.require_resumed(console.databases())
        if paused or not serving.retry_of(console):
            gate.end_serving(console)

    def _gate(self, pooler: Pooler) -> Gate:
        """Return a pooler with the aliases of the moved shards, and of their node."""
        held: list[str] = []
        if "node" in pooler.aliases:
            held.append(names.of_node(self._before.database.name, self._plan.source))
        if "shard" in pooler.aliases:
            held += self._plan.schemas
        text = render.databases(self._after, pooler, self._plan.map_version + 1)
        return Gate(pooler, host_of(pooler), tuple(held), text)

    def _watcher(self, gate: Gate) -> Console:
        if gate.watcher is None or gate.watcher.closed:
            gate.watcher = self._console(gate.pooler)
        return gate.watcher

    def _console(self, pooler: Pooler) -> Console:
        return Console(pooler, self._before.database, purpose=self._purpose)

    def _each(self, work: Callable[[Gate], Value]) -> list[Value]:
        """Call `work` for all poolers in parallel; raises the errors when all have ended."""
        if len(self.all) == 1:  # starting a thread takes longer than most calls
            return [work(self.all[0])]
        return fanout.collect(self.all, work, width=_WIDTH).every()
