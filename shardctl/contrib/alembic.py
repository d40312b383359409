"""Alembic's revisions as numbered migrations, which `shardctl migrate` runs in every shard.

`alembic upgrade head --sql` writes a file for each revision that has none, and contacts no server.
`alembic revision --autogenerate` compares the models with shard 0. The version table of Alembic
is on no shard: a file says which revision it is of, and `shardctl` knows which files ran where.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alembic import context
from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import text
from sqlalchemy.dialects.postgresql.base import PGDialect, PGIdentifierPreparer

from shardctl.contrib.sqlalchemy import ShardSessions
from shardctl.postgres import split

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from alembic.script import Script
    from sqlalchemy import MetaData

    from shardctl.router import ShardedDatabase

_OF = re.compile(r"^-- alembic: (\S+)$", re.MULTILINE)
_CONTROL = {"BEGIN", "COMMIT"}
"""Around what must not be in a transaction, by Alembic's `autocommit_block()`."""


class _Unqualified(PGIdentifierPreparer):
    """Refuses schemas: every statement runs in every shard's."""

    def quote_schema(self, schema: str, *_: Any) -> str:
        """Raise CommandError."""
        raise CommandError(f"schema {schema!r}: names in migrations of shards are unqualified")


def environment(
    metadata: MetaData, migrations: str | os.PathLike[str], db: ShardedDatabase | None = None
) -> None:
    """Do what `env.py` is for: write revisions as files of the folder, or compare with shard 0.

    Tables whose key the router may know have it in their `info`, as `{"shard_key": "user_id"}`.
    Raises CommandError, which names the revision, for what cannot be a migration of every shard.
    Files that are there are never written again.
    """
    folder = Path(migrations)
    if context.is_offline_mode():
        if context.get_starting_revision_argument() is not None:
            raise CommandError("files are of all revisions up to one: `alembic upgrade head --sql`")
        for revision, made in _unwritten(metadata, folder, context.get_revision_argument()):
            numbers = [int(file.name.split("_")[0]) for file in folder.glob("[0-9]*_*.sql")]
            words = re.sub(r"\W+", "_", revision.doc.lower()).strip("_") or revision.revision
            file = folder / f"{max(numbers, default=0) + 1:04d}_{words[:60]}.sql"
            with file.open("x", encoding="utf-8") as out:
                out.write(made)
            context.config.print_stdout("wrote %s", file)
        return
    heads = context.script.get_heads()
    for revision, _ in _unwritten(metadata, folder, heads):
        name = revision.revision
        raise CommandError(f"revision {name} has no file yet: run `alembic upgrade head --sql`")
    if db is None:
        raise CommandError("pass the ShardedDatabase to environment(), to compare with shard 0")
    with ShardSessions(db)(number=0) as session:
        connection = session.connection()
        # What Alembic takes for the state of this shard, to the end of the transaction.
        connection.execute(text("CREATE TEMP TABLE alembic_version (version_num text)"))
        for head in heads:
            connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": head})
        connection.execute(text("SET TRANSACTION READ ONLY"))
        context.configure(connection=connection, target_metadata=metadata)
        context.run_migrations()
        session.rollback()


def _unwritten(metadata: MetaData, folder: Path, last: Any) -> Iterator[tuple[Script, str]]:
    """Give the revisions up to some that have no file and do something, with their files' texts."""
    written = {name for file in folder.glob("*.sql") for name in _OF.findall(file.read_text())}
    for revision in reversed(list(context.script.iterate_revisions(last, "base"))):
        if revision.revision in written:
            continue
        try:
            made = _text(revision, metadata)
        except Exception as error:
            raise CommandError(
                f"revision {revision.revision} ({revision.doc}) cannot be a migration of shards: "
                f"{error}; what needs a connection or Python may be SQL in op.execute()"
            ) from error
        if made:
            yield revision, made


def _text(revision: Script, metadata: MetaData) -> str:
    """Give the text of a revision's file; empty if it does nothing."""
    out = io.StringIO()
    dialect = PGDialect(paramstyle="named")  # type: ignore[no-untyped-call]  # SQLAlchemy's
    dialect.identifier_preparer = _Unqualified(dialect)
    migrating = MigrationContext.configure(
        dialect=dialect,
        opts={"as_sql": True, "output_buffer": out, "literal_binds": True},
    )
    with Operations.context(migrating):
        revision.module.upgrade()
    statements = split.split(out.getvalue())
    if not statements:
        return ""
    first_words = [one.first_words[0] if one.first_words else "" for one in statements]
    alone = first_words[0] == "COMMIT" and first_words[-1] == "BEGIN"
    if alone:
        statements, first_words = statements[1:-1], first_words[1:-1]
    if _CONTROL & set(first_words):
        raise CommandError("autocommit_block() needs a revision of its own")
    lines = ["-- shardctl: no-transaction"] if alone else []
    lines += [f"-- {' '.join(revision.doc.split())}", f"-- alembic: {revision.revision}"]
    for table in metadata.tables.values():
        created = f"CREATE TABLE {dialect.identifier_preparer.quote(table.name)} ("
        if "shard_key" in table.info and any(s.text.startswith(created) for s in statements):
            lines.append(f"-- shardctl: key {table.name}.{table.info['shard_key']} check")
    return "\n".join(lines) + "\n\n" + "\n\n".join(f"{one.text};" for one in statements) + "\n"
