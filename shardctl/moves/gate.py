"""One pooler during a cutover, and its new file on its host."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, Unfinished
from shardctl.hosts import files
from shardctl.pgbouncer import apply, serving
from shardctl.pgbouncer.console import SHOW_POOLS, PoolerLost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Held, Host
    from shardctl.pgbouncer.console import Alias, CommandRefused, Console
    from shardctl.pgbouncer.guard import Guard
    from shardctl.topology.model import Pooler

logger = logging.getLogger(__name__)

_SERVED_S = 2.0
"""How long it is waited, after RESUME, for connections to the nodes that clients wait for."""


class PauseFailed(ShardctlError):
    """Aliases whose transactions did not end in time; all aliases are let go again."""

    def __init__(self, waiting: Mapping[str, tuple[str, ...]], seconds: float) -> None:
        told = "; ".join(
            f"pooler {pooler}: {', '.join(aliases[:5])}{' ...' if len(aliases) > 5 else ''}"
            for pooler, aliases in waiting.items()
        )
        super().__init__(
            f"transactions did not end within {seconds:.1f} s, so the pause does not hold: {told}",
            hint="`shardctl moves resume` tries again; with --terminate it ends them, "
            "and --max-pause gives them more time",
        )
        self.waiting = waiting


class PauseLost(ShardctlError):
    """Aliases that were paused and are not any more: a guard or somebody else resumed them."""

    def __init__(self, pooler: str, resumed: tuple[str, ...]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(resumed)} aliases are not paused any more ({resumed[0]}, ...)",
            hint="`shardctl moves resume` tries again",
        )


class RouteFailed(Unfinished):
    """A pooler that does not offer the moved shards where they are now."""

    def __init__(self, pooler: str, wrong: Sequence[str]) -> None:
        super().__init__(
            f"pooler {pooler}: {wrong[0]}" + (f" and {len(wrong) - 1} more" if wrong[1:] else ""),
            hint="see its log and `shardctl pgbouncer diff`, then `shardctl moves resume`",
        )


class ResumeFailed(Unfinished):
    """Aliases that a pooler did not resume."""

    def __init__(self, pooler: str, left: Sequence[str]) -> None:
        super().__init__(
            f"pooler {pooler}: {len(left)} aliases are still paused ({left[0]}, ...)",
            hint=f'on its console: RESUME "{left[0]}" and so on; its guard tries, too',
        )


@dataclass(slots=True)
class Serving:
    """A pooler whose clients are being served again."""

    at: float
    """When it had resumed all aliases, on the monotonic clock."""
    resumed: int
    """How many aliases were still paused then."""
    waits: bool
    """Whether clients of these were waiting."""


@dataclass(slots=True)
class Gate:
    """One pooler during a cutover."""

    pooler: Pooler
    host: Host
    aliases: tuple[str, ...]
    text: str
    """The file as it is to be after the move."""
    consoles: list[Console] = field(default_factory=list)
    watcher: Console | None = None
    """A session that no PAUSE ever occupies."""
    retry: str | None = None
    """The pooler's `server_login_retry`, empty where only RELOAD puts it back; None at first."""
    cancelled: tuple[str, ...] = ()
    """Aliases on which a client cancelled a statement while PAUSE waited for it."""
    serving: Serving | None = None
    """How far its clients are served again; None before that."""
    guard: Guard | None = None
    place: str | None = None
    """Where the staged file is to go, without links; None before it is staged."""
    placing: Held | None = None
    """What puts it there, and waits on the host for the word."""

    @property
    def staged(self) -> Path:
        """The new file, beside the old one."""
        return apply.staged(self.pooler)

    def hold_file(self, seconds: float) -> None:
        """Let its host wait for the word that the new file is to take its place."""
        place = self.place or self.pooler.databases_file
        self.placing = files.hold_replace(
            self.host, self.staged, place, seconds=seconds, user=self.pooler.os_user
        )

    def put_in_place(self) -> None:
        """Put the new file into place; raises FileRefused."""
        place = self.place or self.pooler.databases_file
        if self.placing is not None:
            try:
                with files.named(place):
                    self.placing.go()
            except files.FileRefused as error:  # its connection may have broken meanwhile
                logger.info("pooler %s: %s; tries again", self.pooler.name, error.message)
            else:
                return
        files.replace(self.host, self.staged, place, user=self.pooler.os_user)

    def drop_held(self) -> None:
        """Give up what waits on the host for the word: others may need its room there."""
        if self.placing is not None:
            self.placing.drop()
            self.placing = None

    def ask_who_waits(self) -> Console | None:
        """Ask, beside what is to be done meanwhile, which clients wait; `any_waits` takes it."""
        beside = next((one for one in self.consoles if not one.closed), None)
        try:
            if beside is not None:
                beside.send(SHOW_POOLS)
        except PoolerLost as error:  # of a session that is not needed for serving the clients
            logger.info("pooler %s: %s", self.pooler.name, error.message)
            return None
        return beside

    def any_waits(self, asked: Console | None, *, ask: bool = False) -> bool:
        """Tell whether clients wait for what is paused, those too who are logging in.

        Where that cannot be known, it is so. Requests to cancel that wait are noted, too.
        """
        if asked is None:
            return True
        try:
            rows = asked.pools() if ask else asked.finish()
        except PoolerLost as error:
            logger.info("pooler %s: %s", self.pooler.name, error.message)
            return True
        held = set(self.aliases)
        ours = [row for row in rows if row["database"] in held]
        self.cancelled = tuple(
            sorted({str(row["database"]) for row in ours if int(row["cl_waiting_cancel_req"] or 0)})
        )
        return any(int(row["cl_waiting"] or 0) for row in ours)

    def begin_serving(
        self, console: Console, *, reload: bool, shorten: bool = True, waits: bool = False
    ) -> list[CommandRefused]:
        """Reload, if that is to do, and resume; give what was refused. Raises PoolerLost.

        `waits` tells that clients wait. `end_serving` has to follow where `server_login_retry` is
        to `shorten`.
        """
        if self.retry is None:
            self.retry = serving.retry_of(console)
        refused = serving.begin(console, self.aliases, reload=reload, shorten=shorten)
        idle = sum(error.not_paused for error in refused)
        self.serving = Serving(time.monotonic(), len(self.aliases) - idle, waits)
        return refused

    def end_serving(self, console: Console) -> list[str]:
        """Wait until the clients are served; name aliases some of whose clients are not."""
        try:
            left = serving.watch(console, self.aliases, seconds=_SERVED_S)
        finally:
            serving.end(console, self.retry or "")
        return [f"{alias} on pooler {self.pooler.name}" for alias in left]

    def require_resumed(self, offered: Mapping[str, Alias]) -> None:
        """See that nothing stays paused; raises ResumeFailed."""
        if left := self._paused(offered):
            raise ResumeFailed(self.pooler.name, left)

    def is_paused(self, offered: Mapping[str, Alias]) -> bool:
        """Tell whether any alias is paused, also one whose PAUSE still waits."""
        return bool(self._paused(offered))

    def _paused(self, offered: Mapping[str, Alias]) -> list[str]:
        return [a for a in self.aliases if a in offered and offered[a].paused]
