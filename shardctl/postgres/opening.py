"""The logins of a clone: only shardctl, until it is opened up and is a node."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import Incomplete, Refused
from shardctl.postgres import clone as clones
from shardctl.postgres import overrides, queries, standby

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.clone import Clone
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres", "standby.sql")
_POLL = 0.001


def clone_not_opened(node: str, problems: Sequence[str]) -> Incomplete:
    """Report a promoted clone whose own configuration did not come into force."""
    return Incomplete(
        "clone_not_opened",
        "\n  ".join(
            [f"node {node}: the new primary still accepts only shardctl's connections:", *problems]
        ),
        hint="fix the file named above, then run `shardctl moves resume`",
    )


def require_closed(clone: Clone, target: Connection, user: str) -> None:
    """Prove that the clone accepts only `user`, and runs with the overrides.

    Raises clone_not_closed.
    """
    wanted = overrides.OVERRIDES
    given = {"user": user, "names": list(wanted), "settings": list(wanted.values())}
    wrong = [problem for (problem,) in standby.ask(target, _QUERIES["not_closed"], given)]
    if wrong:
        raise Refused(
            "clone_not_closed",
            "\n  ".join(
                [f"node {clone.server.name}: the clone runs with unexpected settings:", *wrong]
            ),
            hint="its server reads files outside its data directory, or starts with extra "
            "parameters: change that, then run `shardctl moves resume`",
        )


def by_itself() -> sql.Composed:
    """Compose what opens the clone on the server itself, for the same message as a claim.

    Who sends it need not live to see its end. It takes a role that may run programs there. Its
    row is what `is_open` takes, which shows whether it worked; `open_up` proves it when there is
    time for that.
    """
    return _QUERIES["open"].format(program=sql.Literal(clones.OPENING_ONCE))


def loaded(target: Connection) -> object:
    """Give the time at which the server has read its files, by which `is_open` goes."""
    return _files(target)[0]


def is_open(target: Connection, before: object, deadline: float) -> bool:
    """Wait until files are read that were put in place after `before`; return whether they are fit.

    `target` is in autocommit, `deadline` on `time.monotonic()`.
    """
    # The postmaster signals its children before it reads the rules for clients, and takes no
    # connection in between: all logins from now on are judged by the new ones.
    while True:
        at, fit = _files(target)
        if at != before:
            return fit
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL)


def _files(target: Connection) -> tuple[object, bool]:
    """Return when the server has read its files, and whether it can use its rules for clients."""
    row = target.execute(_QUERIES["files_read"]).fetchone()
    if row is None:  # pragma: no cover  # a SELECT without FROM gives one row
        raise AssertionError
    return row[0], row[1]


def open_up(clone: Clone, target: Connection, deadline: float) -> tuple[str, ...]:
    """Accept all clients that the source accepts, with the node's own settings.

    Returns the parameters whose values wait for a restart.

    It was promoted and has claimed its shards. Archiving stays off, and no commit waits for a
    standby. `target` is in autocommit, `deadline` on `time.monotonic()`. Doing it again is
    harmless. Raises clone_not_opened, clone_refused.
    """
    clones.open_files(clone)
    wrong = [
        f"pg_hba.conf, line {line}: {error}"
        for line, error in target.execute(_QUERIES["refused_rules"])
    ]
    if wrong:
        raise clone_not_opened(clone.server.name, wrong)
    before = loaded(target)
    target.execute("SELECT pg_reload_conf()")
    if not is_open(target, before, deadline):
        problem = "the server did not reload its files in time"
        raise clone_not_opened(clone.server.name, [problem])
    wrong = [f"{name}: {error}" for name, error in target.execute(_QUERIES["refused_settings"])]
    if wrong:
        raise clone_not_opened(clone.server.name, wrong)
    return tuple(name for (name,) in target.execute(_QUERIES["waiting"]))
