"""The poolers during a cutover: stages files, arms guards, pauses and resumes aliases."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from shardctl import fanout
from shardctl.errors import Incomplete, ShardctlError, Unfinished, together
from shardctl.hosts import files, ports
from shardctl.hosts.reach import host_of
from shardctl.meter import listed
from shardctl.moves import plan as planning
from shardctl.moves.sub_step import shortest_ms
from shardctl.pgbouncer import apply, guard, render, serving
from shardctl.pgbouncer.console import SHOW_POOLS, Console, PoolerLost, PoolerUnavailable, conninfo
from shardctl.pgbouncer.guard import Guard, Question

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.moves.plan import MovePlan
    from shardctl.pgbouncer.console import Alias, CommandRefused
    from shardctl.topology.model import Pooler, Topology

logger = logging.getLogger(__name__)

CONSOLES = 16
"""Console sessions per pooler that send PAUSE."""
_WIDTH = 16
_LOGINS_S = 1.0
"""How long to wait for logins of poolers: some may never end."""
_POLL = 0.002
_SERVED_S = 2.0
"""How long to wait after RESUME until waiting clients have connections to the nodes."""

Value = TypeVar("Value")


class PausedPoolers(ExitStack):
    """All poolers of a topology during the cutover of one move.

    Use it in a `with`, which closes every session at its end. `let_go`, `route` and the guards
    resume the paused aliases.
    """

    def __init__(self, before: Topology, plan: MovePlan, *, purpose: str) -> None:
        super().__init__()
        self._before = before
        self._after = planning.after(before, plan)
        self._plan = plan
        self._purpose = purpose
        self.all = [
            PausedPooler(
                pooler,
                host_of(pooler),
                planning.paused(before, plan, pooler),
                render.databases(self._after, pooler, plan.map_version + 1),
                apply.staged(pooler, plan.id),
            )
            for pooler in before.poolers.values()
        ]
        self.held_at: float | None = None
        """When the first PAUSE was sent, on the monotonic clock; None before that."""
        self.guards_fire_from: float | None = None
        self.guards_fire_at: float | None = None
        """When the first and the last guard of this process fire, on the monotonic clock."""
        self.waits_ms: dict[str, float] = {}
        """For each pooler, the time from the first PAUSE until no client waited for a connection.

        No client waited longer; 0 where none waited at the RESUME.
        """

    def open(self) -> None:
        """Log in to every console, several times; raises PoolerUnavailable."""

        def one(paused: PausedPooler) -> None:
            paused.consoles[:] = [console for console in paused.consoles if not console.closed]
            while len(paused.consoles) < min(CONSOLES, max(1, len(paused.aliases))):
                paused.consoles.append(self._console(paused.pooler))
            if paused.retry is None:
                paused.retry = serving.retry_of(self._watcher(paused))

        self._each(one)

    def round_trip_ms(self) -> float:
        """Measure the longest round trip to a pooler, in ms; raises PoolerLost."""
        return max(self._each(lambda g: shortest_ms(self._watcher(g).version)), default=0.0)

    def stage(self) -> None:
        """Put the new file beside the old one on every pooler's host, and try a RELOAD there.

        After the decision it is too late to find out that a pooler cannot read its files. Raises
        FileRefused, reload_rejected, and pooler_file_of_other where it has a newer map.
        """

        def one(paused: PausedPooler) -> None:
            user, place = paused.pooler.os_user, paused.pooler.databases_file
            now = files.read(paused.host, place, user=user)
            apply.require_not_newer(paused.pooler, now, self._plan.map_version)
            # A file of an earlier attempt would be kept as a backup.
            files.remove(paused.host, paused.staged, user=user)
            files.write(paused.host, paused.staged, paused.text, user=user, like=place)
            paused.place = files.place_of(paused.host, place, user=user)
            apply.try_reload(paused.pooler, paused.host, self._watcher(paused))

        self._each(one)

    def rehearse(self, question: Question) -> None:
        """Run every guard's query on its host; raises guard_refused."""
        self._each(lambda paused: guard.rehearse(self._guard(paused), question))

    def arm(self, *, after_s: float, question: Question) -> None:
        """Arm a guard on every pooler's host; raises guard_refused after disarming all."""

        def one(paused: PausedPooler) -> None:
            paused.guard = guard.arm(
                self._guard(paused),
                console=conninfo(paused.pooler, self._before.database, purpose=self._purpose),
                aliases=paused.aliases,
                after_s=after_s,
                question=question,
                staged=(paused.staged, paused.pooler.databases_file),
                retry=paused.retry or "",
            )

        self.guards_fire_from = time.monotonic() + after_s
        try:
            self._each(one)
        except ShardctlError:
            self._each(self._disarm_own)
            raise
        self.guards_fire_at = time.monotonic() + after_s

    def await_logins(self) -> None:
        """Wait briefly until no pooler is logging in to a node for the aliases to pause.

        PAUSE aborts such a login, and PgBouncer takes that for a node that rejects connections:
        after RESUME it would wait for `server_login_retry`, and new clients would get an error.
        """
        until = time.monotonic() + _LOGINS_S

        def one(paused: PausedPooler) -> None:
            ours = set(paused.aliases)
            console = self._watcher(paused)
            while time.monotonic() < until and any(
                row["database"] in ours and int(row["sv_login"] or 0) for row in console.pools()
            ):
                time.sleep(_POLL)

        self._each(one)

    def hold(self, *, seconds: float) -> None:
        """Pause all aliases on all poolers.

        Raises PauseFailed, PauseLost, and what a pooler refused. The answer to PAUSE proves the
        pause only with `require_held` after it: RESUME by another session answers a waiting PAUSE,
        too.
        """
        now = time.monotonic()
        if self.all and self.guards_fire_from is not None and now > self.guards_fire_from:
            # No guard would end this pause if this process died now.
            raise PauseLost(self.all[0].pooler.name, self.all[0].aliases)
        self.held_at = self.held_at or now
        answers = serving.pause([(g.consoles, g.aliases) for g in self.all], seconds=seconds)
        if refused := [error for answer in answers for error in answer.refused.values()]:
            raise together(list({error.message: error for error in refused}.values()))
        waiting: dict[str, tuple[str, ...]] = {
            g.pooler.name: a.waiting for g, a in zip(self.all, answers, strict=True) if a.waiting
        }
        if waiting:
            raise PauseFailed(waiting, list(self._busy(waiting)), seconds)
        self.require_held()

    def _busy(self, waiting: Mapping[str, tuple[str, ...]]) -> Iterator[int]:
        """Yield the pids on the source that serve aliases whose PAUSE does not complete."""
        for paused in self.all:
            wanted = set(waiting.get(paused.pooler.name, ()))
            if not wanted:
                continue
            for server in self._console(paused.pooler).servers():
                if server["database"] in wanted and server["state"] == "active":
                    yield int(server["remote_pid"] or 0)

    def require_held(self) -> None:
        """Check that every alias is still paused; raises PauseLost, PoolerLost."""

        def one(paused: PausedPooler) -> None:
            held = set(paused.paused(self._watcher(paused).databases()))
            if gone := tuple(alias for alias in paused.aliases if alias not in held):
                raise PauseLost(paused.pooler.name, gone)

        self._each(one)

    def route(self, *, again: bool = False) -> None:
        """Route every pooler to the shards' new node, and serve its clients again.

        With `again`, it can be repeated, however much of it is done. `await_served` must follow.
        Raises a pooler's error after serving all others.
        """

        def one(paused: PausedPooler) -> None:
            with paused.look_who_waits():
                if again:
                    paused.write()
                else:
                    paused.put_in_place()
            self._reload_and_resume(paused)
            if again:
                files.remove(paused.host, paused.staged, user=paused.pooler.os_user)

        self._each(one)

    def await_served(self) -> list[str]:
        """Wait briefly until waiting clients have connections; return aliases that have none.

        Restores `server_login_retry` afterwards.
        """

        def one(paused: PausedPooler) -> list[str]:
            if paused.served_at is None:  # the pooler was lost before
                return []
            left = paused.end_serving(self._watcher(paused))
            if paused.resumed:
                since = paused.served_at if self.held_at is None else self.held_at
                waited = time.monotonic() - since if paused.waits else 0.0
                self.waits_ms[paused.pooler.name] = round(waited * 1000, 1)
            return left

        return [alias for left in self._each(one) for alias in left]

    @property
    def served_at(self) -> float | None:
        """When the last pooler had resumed its aliases, on the monotonic clock."""
        return max((one.served_at for one in self.all if one.served_at), default=None)

    def let_go(self) -> list[ShardctlError]:
        """Resume every alias unchanged, remove the staged files, disarm the guards; repeatable.

        A pooler where this fails keeps its guard, which tries again. A pooler that has stopped
        pauses nothing: returns the errors of such poolers.
        """
        gone: list[ShardctlError] = []

        def one(paused: PausedPooler) -> None:
            try:
                # This answers a waiting PAUSE, too, whose session is not used again.
                self._resume_as_before(paused)
            except (PoolerLost, PoolerUnavailable) as error:
                if ports.knock(paused.pooler.host, paused.pooler.port) != "closed":
                    raise
                gone.append(error)
            files.remove(paused.host, paused.staged, user=paused.pooler.os_user)
            self._disarm(paused)

        self._each(one)
        return gone

    def abandon(self) -> None:
        """Resume every alias, and change nothing else: another process has taken over the move.

        That process has ended the guards here, and may have resumed before all was paused.
        """

        def one(paused: PausedPooler) -> None:
            self._resume_as_before(paused)
            self._disarm_own(paused)

        self._each(one)

    def disarm(self) -> None:
        """End all guards of this move, also an earlier process's."""
        self._each(self._disarm)

    def _disarm_own(self, paused: PausedPooler) -> None:
        """End the guard that this process has armed, but not another's of the same name."""
        if paused.guard is not None:
            self._disarm(paused)

    def _disarm(self, paused: PausedPooler) -> None:
        guard.disarm(paused.guard or self._guard(paused))
        paused.guard = None

    def _guard(self, paused: PausedPooler) -> Guard:
        """Name the guard of this move on a pooler's host, whichever process has armed it."""
        parent = paused.pooler.databases_file.parent
        return Guard(paused.host, self._plan.id, parent, paused.pooler.os_user)

    def _reload_and_resume(self, paused: PausedPooler) -> None:
        """Send both in one packet; raises route_failed, ResumeFailed, PoolerLost."""
        console = self._watcher(paused)
        refused = paused.begin_serving(console, reload=True)
        offered = console.databases()
        wrong = apply.differences(render.entries(self._after, paused.pooler), offered)
        paused.require_resumed(offered)
        if wrong:
            rejected = [error.reason for error in refused if error.command == serving.RELOAD]
            raise Incomplete(
                "route_failed",
                f"pooler {paused.pooler.name}: {listed([*rejected, *wrong], most=1)}",
                hint="check its log and `shardctl pgbouncer diff`, then run `shardctl moves "
                "resume`",
            )

    def _resume_as_before(self, paused: PausedPooler) -> None:
        """Resume with the old file; raises ResumeFailed, PoolerLost.

        Where nothing is paused `server_login_retry` is not changed: no guard would restore it if
        this process died.
        """
        console = self._watcher(paused)
        still = bool(paused.paused(console.databases()))
        paused.begin_serving(console, reload=False, shorten=still)
        paused.require_resumed(console.databases())
        if still or not serving.retry_of(console):
            paused.end_serving(console)

    def _watcher(self, paused: PausedPooler) -> Console:
        if paused.watcher is None or paused.watcher.closed:
            paused.watcher = self._console(paused.pooler)
        return paused.watcher

    def _console(self, pooler: Pooler) -> Console:
        return self.enter_context(Console(pooler, self._before.database, purpose=self._purpose))

    def _each(self, work: Callable[[PausedPooler], Value]) -> list[Value]:
        """Call `work` for all poolers in parallel; raises the errors when all have ended."""
        if len(self.all) == 1:  # starting a thread takes longer than most calls
            return [work(self.all[0])]
        return fanout.collect(self.all, work, width=_WIDTH).every()


class PauseFailed(ShardctlError):
    """Aliases whose transactions did not end in time; all aliases are resumed."""

    def __init__(
        self, waiting: Mapping[str, tuple[str, ...]], pids: Sequence[int], seconds: float
    ) -> None:
        whose = "; ".join(f"pooler {name}: {listed(found)}" for name, found in waiting.items())
        super().__init__(
            f"transactions did not end within {seconds:.1f} s, so PAUSE did not complete: {whose} "
            f"(pids on the source: {listed([str(pid) for pid in pids]) or 'unknown'})",
            hint="run `shardctl moves resume` to try again, with a longer --max-pause, or with "
            "--terminate to end them",
        )
        self.pids = pids


class PauseLost(ShardctlError):
    """Aliases that are no longer paused: a guard or another process resumed them."""

    def __init__(self, pooler: str, resumed: tuple[str, ...]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(resumed)} aliases are no longer paused ({resumed[0]}, ...)",
            hint="run `shardctl moves resume` to try again",
        )


class ResumeFailed(Unfinished):
    """Aliases that a pooler did not resume."""

    def __init__(self, pooler: str, left: Sequence[str]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(left)} aliases are still paused ({left[0]}, ...)",
            hint=f'run on its console: RESUME "{left[0]}", and so on; its guard tries, too',
        )


@dataclass(slots=True)
class PausedPooler:
    """One pooler during a cutover."""

    pooler: Pooler
    host: Host
    aliases: tuple[str, ...]
    text: str
    """The text of the file after the move."""
    staged: Path
    """The new file, beside the old one."""
    consoles: list[Console] = field(default_factory=list)
    watcher: Console | None = None
    """A session that never runs PAUSE."""
    retry: str | None = None
    """The pooler's `server_login_retry`, empty where only RELOAD restores it; None before."""
    served_at: float | None = None
    """When it had resumed all aliases, on the monotonic clock; None before that."""
    resumed: int = 0
    """How many aliases were still paused until then."""
    waits: bool = False
    """Whether clients of these aliases were waiting."""
    guard: Guard | None = None
    place: str | None = None
    """The path of the file that the staged one replaces, without links; None before staging."""

    def put_in_place(self) -> None:
        """Replace the file by the staged one; raises FileRefused."""
        place = self.place or self.pooler.databases_file
        try:
            files.replace(self.host, self.staged, place, user=self.pooler.os_user)
        except files.FileRefused as error:  # its connection broke, or its guard was first
            logger.info("pooler %s: %s", self.pooler.name, error.message)
            self.write()

    def write(self) -> None:
        """Write the file, unless it is this one or a newer one; raises FileRefused."""
        place, user = self.pooler.databases_file, self.pooler.os_user
        now = files.read(self.host, place, user=user)
        if now != self.text and not render.is_newer(now, self.text):
            files.write(self.host, place, self.text, user=user)

    @contextmanager
    def look_who_waits(self) -> Iterator[None]:
        """Look beside the block whether clients wait for paused aliases, or log in to them."""
        self.waits = True  # if it stays unknown
        beside = next((one for one in self.consoles if not one.closed), None)
        with self._needless():
            if beside is not None:
                beside.send(SHOW_POOLS)
        yield
        with self._needless():
            if beside is not None and not beside.closed:
                ours = {row["database"] for row in beside.finish() if int(row["cl_waiting"] or 0)}
                self.waits = not ours.isdisjoint(self.aliases)

    @contextmanager
    def _needless(self) -> Iterator[None]:
        """Go on where a session is lost: serving the clients does not need it."""
        try:
            yield
        except PoolerLost as error:
            logger.info("pooler %s: %s", self.pooler.name, error.message)

    def begin_serving(
        self, console: Console, *, reload: bool, shorten: bool = True
    ) -> list[CommandRefused]:
        """Reload on request, and resume; return what was refused. Raises PoolerLost.

        `end_serving` must follow if this is to `shorten` `server_login_retry`.
        """
        if self.retry is None:
            self.retry = serving.retry_of(console)
        refused = serving.begin(console, self.aliases, reload=reload, shorten=shorten)
        idle = sum(error.not_paused for error in refused)
        self.served_at = time.monotonic()
        self.resumed = len(self.aliases) - idle
        return refused

    def end_serving(self, console: Console) -> list[str]:
        """Wait until the clients are served; return aliases with clients that still wait."""
        try:
            left = serving.watch(console, self.aliases, seconds=_SERVED_S)
        finally:
            serving.end(console, self.retry or "")
        return [f"{alias} on pooler {self.pooler.name}" for alias in left]

    def require_resumed(self, offered: Mapping[str, Alias]) -> None:
        """Check that nothing is paused; raises ResumeFailed."""
        if left := self.paused(offered):
            raise ResumeFailed(self.pooler.name, left)

    def paused(self, offered: Mapping[str, Alias]) -> list[str]:
        """List the aliases that are paused, also those whose PAUSE still waits."""
        return [a for a in self.aliases if a in offered and offered[a].paused]
