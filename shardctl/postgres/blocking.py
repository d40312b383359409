"""Which sessions of a server wait for a lock, and who holds it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg

QUERIES = queries.load("shardctl.postgres", "blocking.sql")


def holders(session: psycopg.Connection[Any], pids: Sequence[int]) -> list[tuple[int, str]]:
    """Give those of some sessions that wait for a lock, each with a text of who holds it."""
    found = session.execute(QUERIES["blockers"], {"ours": list(pids)})
    return [(waiting, _holder(*holder)) for waiting, *holder in found]


def _holder(pid: int, user: str | None, application: str | None, since: datetime | None) -> str:
    """Name the session that holds a lock; process 0 is that of prepared transactions."""
    if pid == 0:
        return "a prepared transaction (see pg_prepared_xacts)"
    began = f", query begun {since:%Y-%m-%d %H:%M:%S %Z}" if since else ""
    named = f", application {application}" if application else ""
    return f"session {pid} (user {user or '-'}{named}{began})"
