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
from shardctl.ids.generator import quote_identifier
from shardctl.postgres import binaries, queries
from shardctl.postgres.logical import publication
from shardctl.postgres.patient import chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.connection import Connection, Route

_QUERIES = queries.load("shardctl.postgres.logical", "structure.sql")
_RIGHTS = re.compile(r"\d+; \d+ \d+ (DEFAULT )?ACL (?!- SCHEMA )")
"""Entries of an archive that grant rights, as pg_restore lists them, but for rights to schemas."""
_GRANTS = re.compile(r"\d+; \d+ \d+ ACL - SCHEMA ")
_SCHEMAS = re.compile(r"\d+; \d+ \d+ SCHEMA - ")
_VERSIONED = re.compile(rb"^(ALTER .* ALTER COLUMN .* SET \()(.*\bpg_attver=.*)\);\n", re.MULTILINE)
_ERROR = re.compile(r"(?:error|ERROR|FATAL): +(?!.*\b(?:ERROR|FATAL):)(.*)")
# What a later step commits makes this durable, too. The programs set other settings themselves.
_RESTORING = {"synchronous_commit": "off", "default_transaction_read_only": "off"}
_LOCK_WAIT_MS = 30_000
_AT_ONCE = 50


class NotMade(Refused):
    """A structure that the target's server refuses."""


def owners(session: Connection, schemas: Sequence[str]) -> tuple[str, ...]:
    """List the roles that own the schemas or something in them."""
    found = session.execute(_QUERIES["owners"], {"schemas": list(schemas)})
    return tuple(name for (name,) in found)


def make_tables(
    route: Route, schemas: Sequence[str], *, major: int, makers: Sequence[str] = ()
) -> None:
    """Make the schemas with types, functions, tables and views, all empty, on the target.

    `major` is the newer version of both servers. `makers` get CREATE on the schemas, for a role
    that is not a superuser can make only such roles owners; `closing.withhold` takes it away. Other
    rights to the schemas are not granted: `closing.opening` does that. What was made stays where
    this fails. Raises structure_unreadable, structure_not_made, no_pg_dump.
    """
    programs = binaries.find_clients(major)
    with _archive(programs, route, schemas, "pre-data") as archive:
        script, raw = archive.with_name("script"), archive.with_name("raw")
        for part in ("schemas", "things", "rights"):
            argv = [programs.program("pg_restore"), f"--use-list={archive.with_name(part)}"]
            _run(route, [*argv, f"--file={raw}", str(archive)])
            script.write_bytes(_VERSIONED.sub(_unversioned, raw.read_bytes()))
            argv = [programs.program("psql"), "-X", "-q", "-w", "-v", "ON_ERROR_STOP=1"]
            into = route.conninfo(route.target, _RESTORING)
            _run(route, [*argv, f"--file={script}", "-d", into])
            if part == "schemas":
                _let_make(route, schemas, makers)
            elif part == "things":
                _take_defaults(route, schemas, but=())


def make_rest(
    route: Route,
    schemas: Sequence[str],
    *,
    major: int,
    jobs: int,
    makers: Sequence[str] = (),
    again: bool = False,
) -> None:
    """Make indexes, constraints, triggers, rules and policies on the target, `jobs` at a time.

    `again` drops first what was made of them. `major`, `makers`, and what is raised, are those of
    `make_tables`.
    """
    programs = binaries.find_clients(major)
    _let_make(route, schemas, makers)
    with _archive(programs, route, schemas, "post-data") as archive:
        if again:
            _drop_rest(programs, route, schemas, archive)
        before = _made(route, schemas)  # views that depend on a key come now
        for part in ("things", "rights"):
            argv = [programs.program("pg_restore"), "--exit-on-error", "-w", f"--jobs={jobs}"]
            argv += [
                f"--use-list={archive.with_name(part)}",
                "-d",
                route.conninfo(route.target, _RESTORING),
            ]
            _run(route, [*argv, str(archive)])
            if part == "things":
                _take_defaults(route, schemas, but=before)


def drop(session: Connection, schemas: Sequence[str]) -> None:
    """Drop the schemas with all that is in them, if they are there, some tables at a time.

    One DROP SCHEMA of 10,000 tables would need more locks than a server has room for.
    """
    tables = publication.tables(session, schemas)
    for some in chunks(tables, _AT_ONCE):
        names = [sql.Identifier(*table) for table in some]
        statement = sql.SQL("DROP TABLE IF EXISTS {} CASCADE").format(sql.SQL(", ").join(names))
        session.execute(statement)
    for schema in schemas:
        name = sql.Identifier(schema)
        session.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(name))


def _drop_rest(programs: Binaries, route: Route, schemas: Sequence[str], archive: Path) -> None:
    """Drop what was made of an archive, as pg_restore does it before it makes anything.

    What it cannot drop, as a trigger of a partition, goes with something else, or is found when it
    is made again. It leaves the indexes of partitions, which go with those of their tables once
    they belong to them.
    """
    script, drops = archive.with_name("script"), archive.with_name("drops")
    argv = [programs.program("pg_restore"), "--clean", "--if-exists", f"--file={script}"]
    _run(route, [*argv, f"--use-list={archive.with_name('things')}", str(archive)])
    drops.write_bytes(script.read_bytes().partition(b"\n-- Name: ")[0])
    argv = [programs.program("psql"), "-X", "-q", "-w", f"--file={drops}"]
    _run(route, [*argv, "-d", route.conninfo(route.target, _RESTORING)])
    with route.connect(route.target) as session:
        found = [one for (one,) in session.execute(_QUERIES["indexes"], {"schemas": list(schemas)})]
        for some in chunks(found, _AT_ONCE):
            session.execute(";".join(some).encode())


@contextmanager
def _archive(
    programs: Binaries, route: Route, schemas: Sequence[str], section: str
) -> Iterator[Path]:
    """Dump a section of the schemas' structure; the file is gone when the block ends."""
    with tempfile.TemporaryDirectory(prefix="shardctl-") as directory:
        archive = Path(directory, "structure")
        argv = [programs.program("pg_dump"), "--format=custom", "--compress=0", "--schema-only"]
        argv += ["--no-password", "--no-publications", "--no-subscriptions", f"--section={section}"]
        argv += [f"--schema={quote_identifier(schema)}" for schema in schemas]
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
        _list(programs, route, archive)
        yield archive


def _list(programs: Binaries, route: Route, archive: Path) -> None:
    """List for pg_restore, beside an archive, schemas, what is in them, and the rights to that."""
    listed = _run(route, [programs.program("pg_restore"), "--list", str(archive)]).splitlines()
    apart = {"schemas": _SCHEMAS, "rights": _RIGHTS, "left out": _GRANTS}
    parts = {name: list(filter(one.match, listed)) for name, one in apart.items()}
    parts["things"] = [
        line for line in listed if not any(one.match(line) for one in apart.values())
    ]
    for name, lines in parts.items():
        archive.with_name(name).write_text("\n".join([*lines, ""]), encoding="utf-8")


def _made(route: Route, schemas: Sequence[str]) -> list[str]:
    statement = _QUERIES["made"].format(objects=_QUERIES["objects"])
    with route.connect(route.target) as session:
        return [key for (key,) in session.execute(statement, {"schemas": list(schemas)})]


def _take_defaults(route: Route, schemas: Sequence[str], *, but: Sequence[str]) -> None:
    """Take from what was made all rights of the target's ALTER DEFAULT PRIVILEGES.

    What pg_dump grants and revokes begins at what PostgreSQL itself gives.
    """
    statement = _QUERIES["to_own_defaults"].format(objects=_QUERIES["objects"])
    given = {"schemas": list(schemas), "but": list(but)}
    with route.connect(route.target) as session:
        found = [changes for (changes,) in session.execute(statement, given)]
        for some in chunks(found, _AT_ONCE):
            session.execute(";".join(["BEGIN", *some, "COMMIT"]).encode())


def _let_make(route: Route, schemas: Sequence[str], makers: Sequence[str]) -> None:
    """Let roles that make a structure give away what they have made."""
    roles = sql.SQL(", ").join(map(sql.Identifier, makers))
    if makers:
        with route.connect(route.target) as session:
            for schema in map(sql.Identifier, schemas):
                session.execute(_QUERIES["let_make"].format(schema=schema, roles=roles))


def _unversioned(options: re.Match[bytes]) -> bytes:
    """Leave out what servers of late 2026 keep in the options of columns.

    An older pg_dump, also one of a newer major version, takes that for an option to be set.
    """
    kept = [one for one in options[2].split(b", ") if not one.startswith(b"pg_attver=")]
    return options[1] + b", ".join(kept) + b");\n" if kept else b""


def _run(route: Route, argv: Sequence[str]) -> str:
    """Run a program that makes the structure on the target, and give its output."""
    try:
        return Local().run(argv).stdout
    except CommandFailed as error:
        raise NotMade(
            "structure_not_made",
            f"node {route.target.name}: {Path(argv[0]).name} could not make the structure: "
            f"{_said(error)}",
            hint="fix what it names, then run `shardctl moves resume`",
        ) from error


def _said(error: CommandFailed) -> str:
    """Give the line that names the error: the programs repeat the whole statement after it."""
    lines = error.completed.stderr.splitlines() or [f"code {error.completed.code}"]
    return next((found[1] for line in lines if (found := _ERROR.search(line))), lines[0])
