"""One pooler during a cutover: its new file on its host, and what its guard asks."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from shardctl.errors import ShardctlError, Unfinished
from shardctl.hosts import files
from shardctl.pgbouncer import render, serving
from shardctl.pgbouncer.console import SHOW_POOLS, PoolerLost
from shardctl.postgres import connection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from shardctl.hosts.host import Host
    from shardctl.pgbouncer.console import Alias, CommandRefused, Console
    from shardctl.pgbouncer.guard import Guard
    from shardctl.topology.model import Database, Node, Pooler


logger = logging.getLogger(__name__)

_SERVED_S = 2.0
"""How long to wait after RESUME until waiting clients have connections to the nodes."""


class PauseFailed(ShardctlError):
    """Aliases whose transactions did not end in time; all aliases are resumed."""

    def __init__(
        self, waiting: Mapping[str, tuple[str, ...]], pids: Sequence[int], seconds: float
    ) -> None:
        listed = "; ".join(
            f"pooler {pooler}: {', '.join(aliases[:5])}{' ...' if len(aliases) > 5 else ''}"
            for pooler, aliases in waiting.items()
        )
        super().__init__(
            f"transactions did not end within {seconds:.1f} s, so PAUSE did not complete: {listed}"
            + (f" (on the source, pid {', '.join(map(str, pids[:5]))})" if pids else ""),
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
class Serving:
    """A pooler that serves its clients again."""

    at: float
    """When it had resumed all aliases, on the monotonic clock."""
    resumed: int
    """How many aliases were still paused until then."""
    waits: bool
    """Whether clients of these aliases were waiting."""


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
    cancelled: tuple[str, ...] = ()
    """Aliases on which a client cancelled a statement while PAUSE waited for it."""
    serving: Serving | None = None
    """How its clients are served again; None before that."""
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

    def ask_who_waits(self) -> Console | None:
        """Send the query for waiting clients; `any_waits` reads its answer."""
        beside = next((one for one in self.consoles if not one.closed), None)
        try:
            if beside is not None:
                beside.send(SHOW_POOLS)
        except PoolerLost as error:  # serving the clients does not need this session
            logger.info("pooler %s: %s", self.pooler.name, error.message)
            return None
        return beside

    def any_waits(self, asked: Console | None, *, ask: bool = False) -> bool:
        """Return whether clients wait for paused aliases, including clients that are logging in.

        True if that is unknown. Records aliases with waiting cancel requests, too.
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
        """Reload on request, and resume; return what was refused. Raises PoolerLost.

        `waits` says that clients are waiting. `end_serving` must follow if this is to `shorten`
        `server_login_retry`.
        """
        if self.retry is None:
            self.retry = serving.retry_of(console)
        refused = serving.begin(console, self.aliases, reload=reload, shorten=shorten)
        idle = sum(error.not_paused for error in refused)
        self.serving = Serving(time.monotonic(), len(self.aliases) - idle, waits)
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
        if left := self._paused(offered):
            raise ResumeFailed(self.pooler.name, left)

    def is_paused(self, offered: Mapping[str, Alias]) -> bool:
        """Return whether any alias is paused, also one whose PAUSE still waits."""
        return bool(self._paused(offered))

    def _paused(self, offered: Mapping[str, Alias]) -> list[str]:
        return [a for a in self.aliases if a in offered and offered[a].paused]


def guard_dsn(node: Node, database: Database) -> str:
    """Return the connection string, without a password, for a pooler's host."""
    # A guard uses shardctl's options, not the defaults of the role and the database.
    given = dict(database.options) | {"options": connection.options(database)}
    return make_conninfo(
        "",
        **given,
        # Until it opens, a target rejects connections through its Unix socket.
        host=node.host if node.pooler_host.startswith("/") else node.pooler_host,
        port=node.port,
        dbname=database.name,
        user=database.user,
    )
