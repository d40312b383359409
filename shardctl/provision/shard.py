"""The SQL that makes one shard: schema, sequences, `next_id()`, grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.ids import generator

if TYPE_CHECKING:
    from shardctl.provision.plan import ShardWork

_COUNTER = sql.Identifier(generator.COUNTER)
_REGISTER = sql.Identifier(generator.REGISTER)
_WRAPPER = sql.Identifier(generator.WRAPPER)


def script(work: ShardWork) -> sql.Composed:
    """Compose the statements that `work` needs, but for the migrations, as one text."""
    schema = sql.Identifier(work.schema)
    parts: list[sql.Composable] = []
    if work.create:
        parts.append(sql.SQL("CREATE SCHEMA {};").format(schema))
    for sequence in (_COUNTER, _REGISTER) if work.sequences else ():
        made = "CREATE SEQUENCE IF NOT EXISTS {}.{} MINVALUE 0 START 0;"
        parts.append(sql.SQL(made).format(schema, sequence))
        if not work.create:
            parts.append(
                sql.SQL(
                    "ALTER SEQUENCE {}.{} AS bigint INCREMENT 1 MINVALUE 0"
                    " NO MAXVALUE CACHE 1 NO CYCLE;"
                ).format(schema, sequence)
            )
    if work.wrapper:
        body = sql.Literal(generator.wrapper_body(work.schema, work.shard))
        parts.append(
            sql.SQL(
                "CREATE OR REPLACE FUNCTION {}.{}() RETURNS bigint LANGUAGE sql VOLATILE AS {};"
            ).format(schema, _WRAPPER, body)
        )
    parts += [
        _grants(schema, role, existing=not work.create and role in work.strangers)
        for role in work.grant_to
    ]
    return sql.SQL("\n").join(parts)


def clean_slate(schema: str | None, lock_timeout_ms: int, *, session: bool = False) -> sql.Composed:
    """Compose what every migration finds, whatever the one before it left in the session.

    Its `search_path` is the shard's schema, then public; None is only the catalog. The
    settings hold for the transaction, or the session.
    """
    scope = sql.SQL("SESSION" if session else "LOCAL")
    path = (
        sql.SQL("pg_catalog")
        if schema is None
        else sql.SQL("{}, public").format(sql.Identifier(schema))
    )
    return sql.SQL(
        "RESET SESSION AUTHORIZATION; RESET ROLE; RESET ALL; DISCARD TEMP;"
        " SET {scope} search_path TO {path}; SET {scope} lock_timeout TO {timeout};\n"
    ).format(scope=scope, path=path, timeout=sql.Literal(lock_timeout_ms))


def _grants(schema: sql.Identifier, role: str, *, existing: bool) -> sql.Composed:
    """Let a role use the shard, with what later migrations will put into it."""
    names: dict[str, sql.Composable] = {
        "schema": schema,
        "role": sql.Identifier(role),
        "counter": _COUNTER,
        "register": _REGISTER,
        "wrapper": _WRAPPER,
        "defaults": sql.SQL("ALTER DEFAULT PRIVILEGES IN SCHEMA {}").format(schema),
    }
    grants = [
        "GRANT USAGE ON SCHEMA {schema} TO {role};",
        "GRANT EXECUTE ON FUNCTION {schema}.{wrapper}() TO {role};",
        "{defaults} GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO {role};",
        "{defaults} GRANT USAGE, SELECT, UPDATE ON SEQUENCES TO {role};",
    ]
    if existing:  # tables that were there before the role was
        grants += [
            "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role};",
            "GRANT USAGE, SELECT, UPDATE ON ALL SEQUENCES IN SCHEMA {schema} TO {role};",
        ]
    grants += [  # a role that may set these can stop the shard's ids
        "REVOKE ALL ON SEQUENCE {schema}.{counter}, {schema}.{register} FROM {role};",
        "GRANT USAGE, SELECT ON SEQUENCE {schema}.{counter} TO {role};",
        "GRANT SELECT ON SEQUENCE {schema}.{register} TO {role};",
    ]
    return sql.SQL("\n").join(sql.SQL(grant).format(**names) for grant in grants)
