"""Make the structure of schemas on another server, by pg_dump and what belongs to it.

Tables come first, without indexes: to copy rows into indexed tables takes twice as long.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl.errors import Refused
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import queries
from shardctl.postgres.logical import clients

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.connection import Connection
    from shardctl.postgres.logical.route import Route

_QUERIES = queries.load("shardctl.postgres.logical", "structure.sql")
_GRANTS = re.compile(r"\d+; \d+ \d+ ACL - SCHEMA ")
"""Entries of an archive that grant rights to a schema, as pg_restore lists them."""
_VERSIONED = re.compile(rb"(ALTER .* ALTER COLUMN .* SET \()(.*\bpg_attver=.*)\);\n")
_KEPT = re.compile(rb"(?!pg_attver=)")
_ERROR = re.compile(r"(?:error|ERROR|FATAL): +(?!.*\b(?:ERROR|FATAL):)(.*)")
# What a later step commits makes this durable, too. The programs set other settings themselves.
_RESTORING = {"synchronous_commit": "off", "default_transaction_read_only": "off"}
_LOCK_WAIT_MS = 30_000
_AT_ONCE = 50


def make_tables(route: Route, schemas: Sequence[str], *, major: int) -> None:
    """Make the schemas with types, functions, tables and views, all empty, on the target.

    `major` is the newer version of both servers. Rights to the schemas themselves are not granted:
    `closing.opening` does that. What was made stays where this fails. Raises
    structure_unreadable, structure_not_made, no_pg_dump.
    """
    programs = clients.find(major)
    with _archive(programs, route, schemas, "pre-data") as archive:
        listed = _run(route, [programs.program("pg_restore"), "--list", str(archive)])
        lines = [line for line in listed.splitlines() if not _GRANTS.match(line)]
        contents, script = archive.with_name("contents"), archive.with_name("script")
        contents.write_text("\n".join([*lines, ""]), encoding="utf-8")
        argv = [programs.program("pg_restore"), f"--use-list={contents}", f"--file={script}.raw"]
        _run(route, [*argv, str(archive)])
        _strip(Path(f"{script}.raw"), script)
        argv = [programs.program("psql"), "-X", "-q", "-w", "-v", "ON_ERROR_STOP=1"]
        _run(route, [*argv, f"--file={script}", "-d", route.conninfo(route.target, _RESTORING)])


def make_rest(route: Route, schemas: Sequence[str], *, major: int, jobs: int) -> None:
    """Make indexes, constraints, triggers, rules and policies on the target, `jobs` at a time.

    `major`, and what is raised, are those of `make_tables`.
    """
    programs = clients.find(major)
    with _archive(programs, route, schemas, "post-data") as archive:
        argv = [programs.program("pg_restore"), "--exit-on-error", "-w", f"--jobs={jobs}"]
        _run(route, [*argv, "-d", route.conninfo(route.target, _RESTORING), str(archive)])


def drop(session: Connection, schemas: Sequence[str]) -> None:
    """Drop the schemas with all that is in them, if they are there, some tables at a time.

    One DROP SCHEMA of 10,000 tables would need more locks than a server has room for.
    """
    tables = session.execute(_QUERIES["tables"], {"schemas": list(schemas)}).fetchall()
    for first in range(0, len(tables), _AT_ONCE):
        names = [sql.Identifier(*table) for table in tables[first : first + _AT_ONCE]]
        statement = sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.SQL(", ").join(names))
        session.execute(statement)
    for schema in schemas:
        name = sql.Identifier(schema)
        session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


@contextmanager
def _archive(
    programs: Binaries, route: Route, schemas: Sequence[str], section: str
) -> Iterator[Path]:
    """Dump a section of the schemas' structure; the file is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="shardctl-") as directory:
        archive = Path(directory, "structure")
        argv = [programs.program("pg_dump"), "--format=custom", "--compress=0", "--schema-only"]
        argv += ["--no-password", "--no-publications", "--no-subscriptions", f"--section={section}"]
        argv += [f"--schema={_pattern(schema)}" for schema in schemas]
        argv += ["--strict-names", f"--lock-wait-timeout={_LOCK_WAIT_MS}", f"--file={archive}"]
        argv += [f"--dbname={route.conninfo(route.source, {})}"]
        try:
            Local().run(argv)
        except CommandFailed as error:
            raise Refused(
                "structure_unreadable",
                f"node {route.source.name}: pg_dump could not read the structure: {_said(error)}",
                hint="fix what it names, then run `shardctl moves resume`",
            ) from error
        yield archive


def _strip(raw: Path, script: Path) -> None:
    """Leave out what servers of late 2026 keep in the options of columns.

    An older pg_dump, also one of a newer major version, takes that for an option to be set.
    """
    with raw.open("rb") as lines, script.open("wb") as kept:
        for line in lines:
            match = _VERSIONED.fullmatch(line)
            options = [one for one in match[2].split(b", ") if _KEPT.match(one)] if match else []
            if match is None:
                kept.write(line)
            elif options:
                kept.write(match[1] + b", ".join(options) + b");\n")


def _run(route: Route, argv: Sequence[str]) -> str:
    """Run a program that makes the structure on the target, and give its output."""
    try:
        return Local().run(argv).stdout
    except CommandFailed as error:
        raise Refused(
            "structure_not_made",
            f"node {route.target.name}: {Path(argv[0]).name} could not make the structure: "
            f"{_said(error)}",
            hint="fix what it names, then run `shardctl moves resume`",
        ) from error


def _said(error: CommandFailed) -> str:
    """Give the line that names the error: the programs repeat the whole statement after it."""
    lines = error.completed.stderr.splitlines() or [f"code {error.completed.code}"]
    return next((found[1] for line in lines if (found := _ERROR.search(line))), lines[0])


def _pattern(schema: str) -> str:
    r"""Write a name as pg_dump takes it, in which nothing is a pattern.

    >>> _pattern('shard"1*')
    '"shard""1*"'
    """
    return '"' + schema.replace('"', '""') + '"'
