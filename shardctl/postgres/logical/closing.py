"""Close copies of schemas to everything but their stream, open them at an instant, and tidy up.

A closed copy refuses superusers and `session_replication_role = replica`, too. ADR 28 says why
its triggers read a row instead of being dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from psycopg import sql

from shardctl.errors import Incomplete
from shardctl.postgres import queries
from shardctl.postgres.logical import subscription
from shardctl.postgres.patient import END_IT, chunks, each_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres.logical", "closing.sql")
_AT_ONCE = 100
"""Tables or schemas in one transaction: a lock table has room for a few thousand locks."""
_LOCK_TIMEOUT_S = 10.0


class Grant(NamedTuple):
    """A right to a schema; `grantor` is empty for its owner, `grantee` for PUBLIC."""

    schema: str
    grantor: str
    grantee: str
    right: str
    with_option: bool


def granted(
    session: Connection, schemas: Sequence[str], *, retired: Sequence[str] = ()
) -> list[Grant]:
    """Read the rights to schemas, or to their `retired` copies where these are there."""
    given = {"schemas": list(schemas), "retired": list(retired)}
    return [Grant(*row) for row in session.execute(_QUERIES["rights"], given)]


def withhold(session: Connection, schemas: Sequence[str]) -> None:
    """Take all rights to the schemas from every role.

    This session's role owns the subscription: unless it is a superuser, its worker needs USAGE.
    """
    roles = dict.fromkeys((one.schema, one.grantee) for one in granted(session, schemas))
    # What a role passed on goes with its own right.
    parts = [
        sql.SQL("REVOKE ALL ON SCHEMA {} FROM {} CASCADE").format(sql.Identifier(name), _role(role))
        for name, role in roles
    ]
    if subscription.needs_login(session):
        needed = sql.SQL("GRANT USAGE ON SCHEMA {} TO CURRENT_USER")
        parts += [needed.format(sql.Identifier(name)) for name in schemas]
    for some in chunks(parts, _AT_ONCE):
        message = sql.SQL("BEGIN;\n{};\nCOMMIT").format(sql.SQL(";\n").join(some))
        queries.rows_of_last(session, message)


def close(session: Connection, move: str, schemas: Sequence[str]) -> None:
    """Let every table of the schemas refuse writes of all but the stream of `move`; repeatable.

    It comes after the copy and all DDL. No vacuum touches the tables until `remove`: a vacuum
    would hold up what locks them.
    """
    withhold(session, schemas)
    session.execute(_QUERIES["copy"], {"move": move})
    given = {"schemas": list(schemas), "move": move}
    tables = [oid for (oid,) in session.execute(_QUERIES["tables"], given)]
    timeout = sql.Literal(f"{int(_LOCK_TIMEOUT_S * 1000)}ms")
    for some in chunks(tables, _AT_ONCE):
        statement = _QUERIES["close"].format(
            move=sql.Literal(move), tables=sql.Literal(some), lock_timeout=timeout
        )
        session.execute(statement)


def opening(
    session: Connection, move: str, schemas: Sequence[str], grants: Sequence[Grant]
) -> sql.Composed:
    """Compose the statements that open the copies of `move`, in these schemas, with these rights.

    They are part of a transaction, or of a DO block of this session's role, and may be repeated.
    They wait for no reader of the tables.
    """
    parts: list[sql.Composable] = [_QUERIES["open"].format(move=sql.Literal(move))]
    if subscription.needs_login(session):
        revoked = sql.SQL("REVOKE ALL ON SCHEMA {} FROM CURRENT_USER;")
        parts += [revoked.format(sql.Identifier(name)) for name in schemas]
    for one in grants:
        given = sql.SQL("GRANT {} ON SCHEMA {} TO {}{};").format(
            sql.SQL("USAGE" if one.right == "USAGE" else "CREATE"),
            sql.Identifier(one.schema),
            _role(one.grantee),
            sql.SQL(" WITH GRANT OPTION" if one.with_option else ""),
        )
        if one.grantor:
            role = sql.Identifier(one.grantor)
            given = sql.SQL("SET LOCAL ROLE {}; {} RESET ROLE;").format(role, given)
        parts.append(given)
    return sql.SQL("\n").join(parts)


def remove(session: Connection, move: str, *, deadline: float) -> None:
    """Take a move's triggers away, and give the tables back to vacuums.

    Options that operators have set since stay. Each table waits for its readers, a moment at a
    time, so that clients do not queue behind it, until `deadline` on `time.monotonic()`. Raises
    copy_triggers_left.
    """
    found = session.execute(_QUERIES["closed"], {"move": move}).fetchall()
    tables = {oid: (schema, name) for oid, schema, name in found}
    statements = {oid: _QUERIES["remove"].format(table=sql.Literal(oid)) for oid in tables}
    if left := each_table(session, tables, statements, deadline):
        raise Incomplete(
            "copy_triggers_left",
            f"the triggers of move {move} accept all writes and are still there: {left}",
            hint=END_IT,
        )
    session.execute(_QUERIES["forget"], {"move": move})


def _role(name: str) -> sql.Composable:
    return sql.Identifier(name) if name else sql.SQL("PUBLIC")
