"""Whether libpq would find a password in a passfile; the password itself is not looked at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shardctl.postgres.connection import Connection

_FIELD = re.compile(r"((?:[^:\\]|\\.)*):")


def knows(session: Connection, host: str, port: int) -> bool:
    """Return whether a login as the session's, to another server, would have a password.

    True where this session needed none.
    """
    pgconn = session.pgconn
    keywords = {one.keyword.decode(): (one.val or b"").decode() for one in pgconn.info}
    if not pgconn.used_password or keywords.get("password"):
        return True
    try:
        text = Path(keywords.get("passfile") or Path.home() / ".pgpass").read_text()
    except (OSError, RuntimeError):  # no home, too: the session's password is from elsewhere
        return True
    return has(text, host, port, session.info.dbname, session.info.user)


def has(text: str, host: str, port: int, dbname: str, user: str) -> bool:
    r"""Return whether a line of a passfile is for this login.

    >>> has("# all\ndb1:5432:*:ops:secret", "db1", 5432, "app", "ops")
    True
    >>> has("*:5432:*:ops:secret", "db1", 5433, "app", "ops")
    False
    >>> has(r"\:\:1:*:*:a\\b:secret", "::1", 5432, "app", r"a\b")
    True
    """
    wanted = ("localhost" if host.startswith("/") else host, str(port), dbname, user)
    return any(_is_for(line, wanted) for line in text.splitlines() if not line.startswith("#"))


def _is_for(line: str, wanted: tuple[str, ...]) -> bool:
    at = 0
    for text in wanted:
        match = _FIELD.match(line, at)
        if match is None or (match[1] != "*" and re.sub(r"\\(.)", r"\1", match[1]) != text):
            return False
        at = match.end()
    return True
