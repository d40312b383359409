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

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from shardctl.postgres.binaries import Binaries
    from shardctl.postgres.connection import Connection, Route

_QUERIES = queries.load("shardctl.postgres.logical", "structure.sql")
_RIGHTS = re.compile(r"\d+; \d+ \d+ (DEFAULT )?ACL (?!- SCHEMA )")
"""Entries of an archive that grant rights, as pg_restore lists them, but for rights to schemas."""
_GRANTS = re.compile(r"\d+; \d+ \d+ ACL - SCHEMA ")
_WITH_RIGHTS = re.compile(
    r"\d+; \d+ \d+ "
    r"(MATERIALIZED VIEW|VIEW|FUNCTION|PROCEDURE|AGGREGATE|TABLE|SEQUENCE|TYPE|DOMAIN) "
)
"""Entries that make what has rights; some of them come late, since they depend on a key."""
_VERSIONED = re.compile(rb"(ALTER .* ALTER COLUMN .* SET \()(.*\bpg_attver=.*)\);\n")
_SCHEMA = re.compile(rb"CREATE SCHEMA (.*);\n")
_KEPT = re.compile(rb"(?!pg_attver=)")
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
        things, rights = _contents(programs, route, archive)
        script = archive.with_name("script")
        for contents in (things, rights):
            argv = [programs.program("pg_restore"), f"--use-list={contents}"]
            _run(route, [*argv, f"--file={script}.raw", str(archive)])
            _strip(Path(f"{script}.raw"), script, makers)
            argv = [programs.program("psql"), "-X", "-q", "-w", "-v", "ON_ERROR_STOP=1"]
            into = route.conninfo(route.target, _RESTORING)
            _run(route, [*argv, f"--file={script}", "-d", into])
            if contents == things:
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
    if makers:
        with route.connect(route.target) as session:
            for schema in schemas:
                session.execute(_let_make(sql.Identifier(schema), makers))
    with _archive(programs, route, schemas, "post-data") as archive:
        things, rights = _contents(programs, route, archive)
        if again:
            _drop_rest(programs, route, schemas, archive)
        late = any(map(_WITH_RIGHTS.match, things.read_text(encoding="utf-8").splitlines()))
        before = _made(route, schemas) if late else []
        for contents in (things, rights):
            argv = [programs.program("pg_restore"), "--exit-on-error", "-w", f"--jobs={jobs}"]
            argv += [f"--use-list={contents}", "-d", route.conninfo(route.target, _RESTORING)]
            _run(route, [*argv, str(archive)])
            if contents == things and late:
                _take_defaults(route, schemas, but=before)


def drop(session: Connection, schemas: Sequence[str]) -> None:
    """Drop the schemas with all that is in them, if they are there, some tables at a time.

    One DROP SCHEMA of 10,000 tables would need more locks than a server has room for.
    """
    tables = publication.tables(session, schemas)
    for first in range(0, len(tables), _AT_ONCE):
        names = [sql.Identifier(*table) for table in tables[first : first + _AT_ONCE]]
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
        for first in range(0, len(found), _AT_ONCE):
            session.execute(";".join(found[first : first + _AT_ONCE]).encode())


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
        yield archive


def _contents(programs: Binaries, route: Route, archive: Path) -> tuple[Path, Path]:
    """List an archive for pg_restore: what it makes, and the rights to that."""
    listed = _run(route, [programs.program("pg_restore"), "--list", str(archive)]).splitlines()
    things = [line for line in listed if not (_GRANTS.match(line) or _RIGHTS.match(line))]
    parts = {"things": things, "rights": list(filter(_RIGHTS.match, listed))}
    for name, lines in parts.items():
        archive.with_name(name).write_text("\n".join([*lines, ""]), encoding="utf-8")
    return archive.with_name("things"), archive.with_name("rights")


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
        for first in range(0, len(found), _AT_ONCE):
            message = ";".join(["BEGIN", *found[first : first + _AT_ONCE], "COMMIT"])
            session.execute(message.encode())


def _let_make(schema: sql.Composable, makers: Sequence[str]) -> sql.Composed:
    roles = sql.SQL(", ").join(map(sql.Identifier, makers))
    return _QUERIES["let_make"].format(schema=schema, roles=roles)


def _strip(raw: Path, script: Path, makers: Sequence[str]) -> None:
    """Leave out what servers of late 2026 keep in the options of columns; let `makers` make things.

    An older pg_dump, also one of a newer major version, takes that for an option to be set.
    """
    with raw.open("rb") as lines, script.open("wb") as kept:
        for line in lines:
            made = _SCHEMA.fullmatch(line)
            if made and makers:
                kept.write(line + _let_make(_unquoted(made[1]), makers).as_bytes() + b";\n")
                continue
            match = _VERSIONED.fullmatch(line)
            options = [one for one in match[2].split(b", ") if _KEPT.match(one)] if match else []
            if match is None:
                kept.write(line)
            elif options:
                kept.write(match[1] + b", ".join(options) + b");\n")


def _unquoted(written: bytes) -> sql.Identifier:
    r"""Read a name as pg_dump writes it.

    >>> _unquoted(b'"shard""2"') == sql.Identifier('shard"2'), _unquoted(b"shard2").as_string()
    (True, '"shard2"')
    """
    name = written.decode()
    return sql.Identifier(name[1:-1].replace('""', '"') if name.startswith('"') else name)


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
