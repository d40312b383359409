"""Close copies of schemas to everything but their stream, open them at an instant, and tidy up.

A closed copy refuses superusers and `session_replication_role = replica`, too. ADR 28 says why
its triggers read a row instead of being dropped.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import Incomplete
from shardctl.meter import listed
from shardctl.postgres import blocking, queries
from shardctl.postgres.logical import subscription
from shardctl.postgres.patient import Patient

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.postgres.blocking import Held
    from shardctl.postgres.connection import Connection

_QUERIES = queries.load("shardctl.postgres.logical", "closing.sql")
_AT_ONCE = 100
"""Tables or schemas in one transaction: a lock table has room for a few thousand locks."""
_LOCK_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Grant:
    """A right to a schema; `grantor` is empty for its owner, `grantee` for PUBLIC."""

    grantor: str
    grantee: str
    right: str
    with_option: bool


@dataclass(frozen=True, slots=True)
class Access:
    """Who may do what with a schema."""

    schema: str
    owner: str
    grants: tuple[Grant, ...]


def access(session: Connection, schemas: Sequence[str]) -> list[Access]:
    """Read who may do what with schemas, which `opening` gives to their copies."""
    rows = session.execute(_QUERIES["access"], {"schemas": list(schemas)}).fetchall()
    return [
        Access(schema, owner, tuple(Grant(*grant) for _, _, *grant in found if grant[2]))
        for (schema, owner), found in groupby(rows, key=lambda row: (row[0], row[1]))
    ]


def withhold(session: Connection, schemas: Sequence[str]) -> None:
    """Take all rights to the schemas from every role.

    This session's role owns the subscription: unless it is a superuser, its worker needs USAGE.
    """
    found, needed = access(session, schemas), subscription.needs_login(session)
    for first in range(0, len(found), _AT_ONCE):
        parts = [_withheld(one, needed=needed) for one in found[first : first + _AT_ONCE]]
        message = sql.SQL("BEGIN;\n{};\nCOMMIT").format(sql.SQL(";\n").join(parts))
        queries.rows_of_last(session, message)


def _withheld(one: Access, *, needed: bool) -> sql.Composed:
    name = sql.Identifier(one.schema)
    # What a role passed on goes with its own right.
    parts = [
        sql.SQL("REVOKE ALL ON SCHEMA {} FROM {} CASCADE").format(name, _role(role))
        for role in dict.fromkeys(grant.grantee for grant in one.grants)
    ]
    if needed:
        parts.append(sql.SQL("GRANT USAGE ON SCHEMA {} TO CURRENT_USER").format(name))
    return sql.SQL(";\n").join(parts)


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
    for first in range(0, len(tables), _AT_ONCE):
        some = sql.Literal(tables[first : first + _AT_ONCE])
        statement = _QUERIES["close"].format(
            move=sql.Literal(move), tables=some, lock_timeout=timeout
        )
        session.execute(statement)


def opening(session: Connection, move: str, wanted: Sequence[Access]) -> sql.Composed:
    """Compose the statements that open the copies of `move`, with the rights that are `wanted`.

    They are part of a transaction, or of a DO block of this session's role, and may be repeated.
    They wait for no reader of the tables.
    """
    parts: list[sql.Composable] = [_QUERIES["open"].format(move=sql.Literal(move))]
    needed = subscription.needs_login(session)
    for one in wanted:
        if needed:
            revoked = sql.SQL("REVOKE ALL ON SCHEMA {} FROM CURRENT_USER;")
            parts.append(revoked.format(sql.Identifier(one.schema)))
        for grant in one.grants:
            given = sql.SQL("GRANT {} ON SCHEMA {} TO {}{};").format(
                sql.SQL("USAGE" if grant.right == "USAGE" else "CREATE"),
                sql.Identifier(one.schema),
                _role(grant.grantee),
                sql.SQL(" WITH GRANT OPTION" if _is_option(one, grant) else ""),
            )
            if grant.grantor:
                role = sql.Identifier(grant.grantor)
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
    names = {table: name for table, name, _ in found}
    schemas = {schema for _, _, schema in found}

    def take(tables: Sequence[int], timeout_ms: int) -> dict[int, str]:
        timeout = sql.Literal(f"{timeout_ms}ms")
        for one in tables:
            statement = _QUERIES["remove"].format(table=sql.Literal(one), lock_timeout=timeout)
            session.execute(statement)
        return {}

    def held(tables: Sequence[int]) -> dict[int, Held]:
        found = blocking.held(session, schemas, tables=tables)
        return {one.oid: one for one in reversed(found) if one.oid is not None}

    patient = Patient(take, held)
    for table in names:
        patient.together([table])
    if left := patient.singly(deadline):
        raise _left(move, {names[table]: why for table, why in left.items()})
    session.execute(_QUERIES["forget"], {"move": move})


def _left(move: str, tables: Mapping[str, str]) -> Incomplete:
    return Incomplete(
        "copy_triggers_left",
        f"{listed([*tables], most=1)}: the triggers of move {move} accept all writes and are still "
        f"there: {min(tables.values())}",
        hint="wait until long reads (pg_dump) have ended, then run the command again; if a move "
        "stopped by this, `shardctl moves resume`",
    )


def _is_option(access: Access, grant: Grant) -> bool:
    """Return whether a right is to be granted with its option: an owner has it by itself."""
    return grant.with_option and grant.grantee != access.owner


def _role(name: str) -> sql.Composable:
    return sql.Identifier(name) if name else sql.SQL("PUBLIC")
