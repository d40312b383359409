"""The poolers during a cutover: new files staged, guards armed, aliases held and let go."""

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
"""Sessions over which each pooler's pauses go."""
_WIDTH = 16
_LOGINS_S = 1.0
"""How long logins of poolers are waited for: some may never end, and one may begin again."""
_POLL = 0.002

Value = TypeVar("Value")


class Gates:
    """All poolers of a topology during the cutover of one move.

    Use it in a `with`: at its end every session is closed. That a paused alias is resumed is
    the business of `let_go` and `route`, and of the guards.
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
        """When the first and the last guard that were armed here fire, on the monotonic clock."""
        self.waits_ms: dict[str, float] = {}
        """For each pooler, the time from the first PAUSE until no client waited for a connection.

        No client that came meanwhile has waited longer; 0 where none waited at the RESUME.
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
        """Measure the way to the pooler that is furthest away, in ms; raises PoolerLost."""
        return max(self._each(lambda g: shortest_ms(self._watcher(g).version)), default=0.0)

    def stage(self) -> None:
        """Put the new file beside the old one on every pooler's host, and try a RELOAD there.

        Once the clients are served again it is too late to look whether a pooler reads its files.
        Raises FileRefused, reload_rejected.
        """

        def one(gate: Gate) -> None:
            user, place = gate.pooler.os_user, gate.pooler.databases_file
            # One of an earlier attempt would be kept as a copy.
            files.remove(gate.host, gate.staged, user=user)
            files.write(gate.host, gate.staged, gate.text, user=user, like=place)
            gate.place = files.place_of(gate.host, place, user=user)
            apply.try_reload(gate.pooler, gate.host, self._watcher(gate))

        self._each(one)

    def rehearse(self, question: Question) -> None:
        """Ask on every pooler's host what its guard would ask; raises guard_refused."""
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
        """Arm a guard on every pooler's host; raises guard_refused with none left armed."""

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
        """Let every host wait for the word that the new file is to take its place.

        On a far host, that takes a third of the time of a command that is only begun then.
        """
        for gate in self.all:
            gate.hold_file(seconds)

    def await_logins(self) -> None:
        """Wait a moment until no pooler is logging in to a node for what is to be paused.

        PAUSE breaks such a login off, and PgBouncer takes that for a node that lets nobody in:
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
        """Pause all aliases on all poolers; give when each pooler's last pause held, in ms.

        Raises PauseFailed, PauseLost, and what a pooler refused. The answer to PAUSE is the
        proof, together with `require_held` after it: when somebody resumes an alias, waiting
        sessions are answered all the same.
        """
        now = time.monotonic()
        if self.all and self.guards_fire_from is not None and now > self.guards_fire_from:
            # Nobody would end this pause if this process died now.
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
        """Give the processes of the source that serve aliases which do not come to rest."""
        for gate in self.all:
            wanted = set(waiting.get(gate.pooler.name, ()))
            if not wanted:
                continue
            with self._console(gate.pooler) as console:
                for server in console.servers():
                    if server["database"] in wanted and server["state"] == "active":
                        yield int(server["remote_pid"] or 0)

    def require_held(self) -> None:
        """See that every alias is still paused; raises PauseLost, PoolerLost."""

        def one(gate: Gate) -> None:
            offered = self._watcher(gate).databases()
            gone = tuple(a for a in gate.aliases if a not in offered or not offered[a].paused)
            if gone:
                raise PauseLost(gate.pooler.name, gone)

        self._each(one)

    def route(self) -> None:
        """Let every pooler offer the shards where they are now, and serve its clients again.

        `await_served` has to follow. Raises what one pooler does not do, when all others are
        served.
        """

        def one(gate: Gate) -> None:
            beside = gate.ask_who_waits()
            user = gate.pooler.os_user
            try:
                gate.put_in_place()
            except files.FileRefused:
                # Its guard has fired, and was quicker.
                if files.read(gate.host, gate.pooler.databases_file, user=user) != gate.text:
                    raise
            self._reload_and_resume(gate, waits=gate.any_waits(beside))

        self._each(one)

    def settle(self) -> None:
        """Do what `route` does, whatever somebody else has done of it; repeatable."""

        def one(gate: Gate) -> None:
            gate.drop_held()
            user = gate.pooler.os_user
            if files.read(gate.host, gate.pooler.databases_file, user=user) != gate.text:
                files.write(gate.host, gate.pooler.databases_file, gate.text, user=user)
            self._reload_and_resume(gate, waits=gate.any_waits(self._watcher(gate), ask=True))
            files.remove(gate.host, gate.staged, user=user)

        self._each(one)

    def await_served(self) -> list[str]:
        """Wait a moment until clients that waited have connections; name whose have none.

        What made PgBouncer try connections again so soon is taken back then.
        """

        def one(gate: Gate) -> list[str]:
            if gate.serving is None:  # its pooler was lost before
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
        """Resume every alias as it was, and remove what was staged and armed; repeatable.

        A pooler that does not do so keeps its guard, which goes on trying. Where nobody listens
        any more, nothing is paused any more: gives the errors of such poolers.
        """
        gone: list[ShardctlError] = []

        def one(gate: Gate) -> None:
            gate.drop_held()
            try:
                # A PAUSE that still waits is answered by this; its session is of no more use.
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
        """Resume every alias, and touch nothing else of a move with which somebody else went on.

        Who did that has ended the guards here, and may have resumed before all was paused.
        """

        def one(gate: Gate) -> None:
            gate.drop_held()
            self._resume_as_before(gate)
            self._disarm_own(gate)

        self._each(one)

    def disarm(self) -> list[Disarmed]:
        """End all guards, those of an earlier process of this move too; tell what they had done."""
        return self._each(self._disarm)

    @staticmethod
    def _disarm_own(gate: Gate) -> None:
        """End the guard that this process has armed, which is told from another's of its name."""
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
            told = [error.reason for error in refused if error.command == serving.RELOAD]
            raise RouteFailed(gate.pooler.name, [*told, *wrong])

    def _resume_as_before(self, gate: Gate) -> None:
        """Resume where nothing has changed; raises ResumeFailed, PoolerLost.

        Where nothing is paused `server_login_retry` stays as it is: no guard would put it back if
        this process died.
        """
        console = self._watcher(gate)
        paused = gate.is_paused(console.databases())
        gate.begin_serving(console, reload=False, shorten=paused)
        gate.require_resumed(console.databases())
        if paused or not serving.retry_of(console):
            gate.end_serving(console)

    def _gate(self, pooler: Pooler) -> Gate:
        """Name the aliases that lead to what moves: those of its shards, and of its node."""
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
        """Do something on all poolers in parallel; raises what failed when all are done."""
        if len(self.all) == 1:  # to start a thread takes longer than most of what is asked
            return [work(self.all[0])]
        return fanout.collect(self.all, work, width=_WIDTH).every()
