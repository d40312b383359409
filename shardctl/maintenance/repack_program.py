"""The program pg_repack: which one fits a node, and one run of it over one table.

It runs on this machine, and logs in as shardctl itself does: no row travels through it, so the
network does not matter, and hosts need neither a way there nor a password of their own.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import sql

from shardctl import libpq
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.postgres import binaries, connection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.topology.model import Database, Node

NAME = "pg_repack"

_SETTINGS = {
    # A role's own limits would end sessions that wait on purpose.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    # It tries for its own locks for a second at a time, but cleans up after itself without any
    # limit, while all other users of the table wait behind it.
    "lock_timeout": "2s",
    # What a killed program leaves running would hold its locks until the statement has ended.
    "client_connection_check_interval": "1s",
}
_TRANSACTION_TIMEOUT_SINCE = 17
_TAKES_CONNINFO_SINCE = (1, 5, 1)
_SERVES_OWNERS_SINCE = (1, 5, 2)
_ANSWER_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """How it treats other sessions: seconds until it gives up or, to `terminate`, ends them."""

    wait_timeout_s: int
    terminate: bool
    superuser_check: bool


@dataclass(frozen=True, slots=True)
class Order:
    """One table to repack; `order_by` None is the index that the table is clustered by."""

    schema: str
    table: str
    order_by: str | None


def find() -> dict[str, str]:
    """Find the programs that this machine has, by the versions that they print.

    Looked for in `$SHARDCTL_PG_BIN`, beside PostgreSQL's servers, and in PATH; a version's
    first one counts.
    """
    found: dict[str, str] = {}
    for path in _candidates():
        try:
            said = Local().run([path, "--version"], timeout=_ANSWER_S).stdout.strip()
        except CommandFailed:
            continue  # one that does not run is none
        found.setdefault(said, path)
    return found


def _candidates() -> Iterator[str]:
    directories = [os.environ.get(binaries.VARIABLE)]
    directories += [str(one.directory) for one in binaries.installed()]
    for directory in (*filter(None, directories), None):
        path = shutil.which(NAME, path=directory)
        if path is not None:
            yield path


def conninfo(node: Node, database: Database, *, major: int) -> str:
    """Write libpq's connection string for a node, as shardctl's own sessions have it.

    Other runs of pg_repack know by its application_name that they need not wait for it.
    """
    settings = dict(_SETTINGS)
    if major >= _TRANSACTION_TIMEOUT_SINCE:
        settings["transaction_timeout"] = "0"
    return libpq.conninfo(
        node, database.options, user=database.user, dbname=database.name, application_name=NAME,
        options=connection.options(database, settings),
    )  # fmt: skip


def serves_owners(version: str) -> bool:
    """Return whether this version lets ordinary roles repack their own tables."""
    return _numbers(version) >= _SERVES_OWNERS_SINCE


def arguments(
    program: str, version: str, login: str, order: Order, settings: Settings
) -> list[str]:
    """Compose the argument list of a run; `login` is a connection string.

    >>> version, login = "pg_repack 1.5.3", "dbname=app port=6101"
    >>> order, settings = Order("shard2", "photos", "user_id"), Settings(60, False, True)
    >>> arguments("pg_repack", version, login, order, settings)[1:5]
    ['--no-password', '--dbname=dbname=app port=6101', '--table="shard2"."photos"', \
'--wait-timeout=60']
    >>> arguments("pg_repack", "pg_repack 1.4.8", login, order, settings)[2]
    '--dbname=app port=6101'
    """
    # Older ones write `dbname=` and the value, as it is, into a connection string.
    whole = _numbers(version) >= _TAKES_CONNINFO_SINCE
    table = sql.Identifier(order.schema, order.table).as_string()
    argv = [program, "--no-password"]
    argv += [f"--dbname={login if whole else login.removeprefix('dbname=')}", f"--table={table}"]
    argv += [f"--wait-timeout={settings.wait_timeout_s}"]
    argv += [f"--order-by={order.order_by}"] if order.order_by is not None else []
    argv += [] if settings.terminate else ["--no-kill-backend"]
    return argv + ([] if settings.superuser_check else ["--no-superuser-check"])


def start(argv: list[str]) -> subprocess.Popen[str]:
    """Start it; what it says comes on its standard output, and SIGINT lets it clean up and end.

    Its exit code shows little: it is 0 even where it gave up a table.
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=os.environ | {"LC_ALL": "C"},
        start_new_session=True,  # Ctrl-C at the terminal reaches shardctl alone
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Read the numbers of a version.

    >>> _numbers("pg_repack 1.4.8"), _numbers("pg_repack 1.5dev")
    ((1, 4, 8), (1, 5))
    """
    return tuple(map(int, re.findall(r"\d+", version)))
