"""The holders of the locks that sessions of a node wait for: reported while they wait."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psycopg

from shardctl.libpq import reason_of
from shardctl.postgres import blocking
from shardctl.postgres.connection import NodeUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from shardctl.postgres.blocking import Holder
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import NodeName

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""How long a session waits before its blocker is reported."""
_POLL_S = 0.25
_GAP_S = 3.0
"""Between two attempts at a lock there are pauses of up to 2 s."""


@dataclass(slots=True)
class Watch:
    """Looks from a session of its own, opened after a second, until the block ends."""

    node: NodeName
    connect: Callable[[], Connection]
    notice: Callable[[str], None]
    waits: Callable[[str | None], None]
    """Shows what is waited for at this moment, or None."""
    sessions: list[Connection] = field(default_factory=list)
    """The sessions that may wait; their threads append to it."""
    holders: dict[int, str] = field(default_factory=dict)
    """By the process id of a session: the last holder of the lock that it waited for."""
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        if self._ended.wait(PATIENCE_S):
            return
        try:
            with self.connect() as session:
                session.autocommit = True
                self._look(session)
        except (psycopg.Error, NodeUnavailable) as error:
            said = reason_of(error) if isinstance(error, psycopg.Error) else error.message
            logger.info("node %s: cannot find out which sessions hold locks: %s", self.node, said)
        finally:
            self.waits(None)

    def _look(self, session: Connection) -> None:
        reported: set[Holder] = set()
        since: dict[int, float] = {}
        seen: dict[int, float] = {}
        while not self._ended.is_set():
            ours = [one.info.backend_pid for one in list(self.sessions) if not one.closed]
            found = blocking.holders(session, ours)
            now = time.monotonic()
            for waiting, holder in found:
                if now - seen.get(waiting, -_GAP_S) >= _GAP_S:
                    since[waiting] = now
                seen[waiting] = now
                self.holders[waiting] = str(holder)
                # What was there in the first look has waited for that long already.
                if now - since[waiting] >= PATIENCE_S and holder not in reported:
                    reported.add(holder)
                    self.notice(f"node {self.node}: waits for a lock of {holder}")
            if found:
                self.waits(f"a lock of {min(str(holder) for _, holder in found)}")
            elif all(now - last >= _GAP_S for last in seen.values()):
                self.waits(None)
            self._ended.wait(_POLL_S)
