"""Whether Patroni manages a server, and whether it is paused.

By its session, which it has as long as it runs, or by its file together with a server that
was started as it does. The file proves nothing by itself: clones have it, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from shardctl.postgres import queries

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres", "patroni.sql")


@dataclass(frozen=True, slots=True)
class Patroni:
    """Patroni at a server; `paused` None where it cannot be reported."""

    paused: bool | None


def look(session: Connection) -> Patroni | None:
    """Return whether Patroni manages the session's server.

    Where the role may not read the server's files, it goes only by Patroni's session.
    """
    at_work, started, may_read = queries.one(session, _QUERIES["signs"])
    row = session.execute(_QUERIES["settings"]).fetchone() if may_read else None
    kept = row[0] if row is not None else None
    if not at_work and not (started and kept is not None):
        return None
    return Patroni(paused(kept) if kept is not None else None)


def paused(settings: str) -> bool | None:
    """Read whether Patroni is paused, by its settings; None where they are not readable.

    >>> paused('{"ttl": 30, "pause": true}'), paused('{"ttl": 30}'), paused('{"ttl"')
    (True, False, None)
    """
    try:
        values = json.loads(settings)
    except ValueError:  # it is being written at this moment
        return None
    return values.get("pause") is True if isinstance(values, dict) else None
