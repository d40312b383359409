"""Reads what is in the fleet: copies of shards, maps, and whatever moves may have left."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from tests.fixtures.servers.postgres import wait_for
from tests.soak.fleet import NODES, POOLERS, ROLE, SUPERUSER
from tests.soak.history import Copy, Left, Row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.soak.fleet import Fleet

_SCHEMA = re.compile(r"shard(\d+)(?:__[a-z]+_([0-9a-f]{8}).*)?")
_MOVE = re.compile(r"(?<![0-9a-f])[0-9a-f]{8}(?![0-9a-f])")
_TABLES = "SELECT schemaname::text FROM pg_tables WHERE tablename = 'writes' ORDER BY 1"
_OBJECTS = {
    "slot": "SELECT slot_name FROM pg_replication_slots",
    "publication": "SELECT pubname FROM pg_publication",
    "subscription": "SELECT subname FROM pg_subscription",
    "origin": "SELECT roname FROM pg_replication_origin",
    "role": "SELECT rolname FROM pg_roles WHERE rolname LIKE 'shardctl%'",
    "function": "SELECT proname FROM pg_proc WHERE proname ~ '^shardctl_[0-9a-f]{8}'",
    "trigger": "SELECT g.tgname || ' on ' || c.oid::regclass FROM pg_trigger g"
    " JOIN pg_class c ON c.oid = g.tgrelid WHERE g.tgname LIKE 'shardctl%'"
    " AND c.relnamespace::regnamespace::text !~ '__retired_'",
    "schema": "SELECT nspname FROM pg_namespace WHERE nspname !~ '^pg_'"
    " AND nspname NOT IN ('information_schema', 'public', 'shardctl', 'repack')"
    " AND nspname !~ '^shard[0-9]+$'",
    "session": "SELECT application_name FROM pg_stat_activity"
    # PgBouncer's connections as an application's role keep the name of their last client.
    f" WHERE application_name LIKE 'shardctl %' AND usename <> '{ROLE}'",
    "prepared transaction": "SELECT gid FROM pg_prepared_xacts",
    "lock": "SELECT objid::text FROM pg_locks WHERE locktype = 'advisory' AND granted",
    "record of a stream": "SELECT move FROM shardctl.stream_copy"
    " UNION SELECT move FROM shardctl.stream",
    "progress": "SELECT move FROM shardctl.move_progress",
    "move": "SELECT id || ' ' || state FROM shardctl.move"
    " WHERE state NOT IN ('done', 'aborted', 'unconfirmed')",
}
"""What moves make in a database or a server: of these nothing is there between moves."""


_ENDING_S = 10.0
_SET = {"fsync_off", "full_page_writes_off"}


class Copies:
    """Reads copies, and keeps retired ones after they are dropped."""

    def __init__(self, fleet: Fleet, closed: Callable[[str, str], float]) -> None:
        self._fleet = fleet
        self._closed = closed
        self._ports = fleet.ports()
        self._rows: dict[Row, Row] = {}
        self._retired: dict[tuple[str, str], Copy] = {}

    def read(self, *, live: bool) -> list[Copy]:
        """Read all copies that there are now; give the live ones if wanted, and all retired."""
        found = []
        for node in NODES:
            try:
                with self._fleet.connect(node, connect_timeout=3) as session:
                    found += list(self._of_node(session, node, live=live))
            except psycopg.Error:
                if live and self._fleet.answers(node):
                    raise
        return [*found, *self._retired.values()]

    def _of_node(
        self, session: psycopg.Connection[Any], node: str, *, live: bool
    ) -> Iterator[Copy]:
        own = session.execute("SELECT node FROM shardctl.cluster").fetchone()
        if own != (node,):  # a clone that has not claimed anything
            return
        for (schema,) in session.execute(_TABLES).fetchall():
            parts = _SCHEMA.fullmatch(schema)
            if parts is None or (parts[2] is None and not live):
                continue
            query = f"SELECT token, id, version, port FROM {schema}.writes"
            rows = session.execute(query.encode()).fetchall()
            closed = self._closed(parts[2] or "", node)
            copy = Copy(node, int(parts[1]), schema, tuple(map(self._row, rows)), closed)
            if copy.retired:
                self._retired[node, schema] = copy
            else:
                yield copy

    def _row(self, row: tuple[int, int, int, int]) -> Row:
        """Keep a row once, however many copies have it."""
        token, number, version, port = row
        made = Row(token, number, version, self._ports.get(port, ""))
        return self._rows.setdefault(made, made)


def maps(fleet: Fleet) -> dict[str, dict[int, str]]:
    """Read the map of every node that owns shards."""
    found = {}
    for node in fleet.topology().owning():
        with fleet.connect(str(node.name)) as session:
            rows = session.execute("SELECT shard, node FROM shardctl.map").fetchall()
        found[str(node.name)] = dict(rows)
    return found


def beside(fleet: Fleet) -> dict[str, set[str]]:
    """List the files beside the nodes' directories and the poolers' configurations."""
    return {
        name: {file.name for file in fleet.disk(name).iterdir()}
        for name in (*NODES, *POOLERS)
        if fleet.disk(name).is_dir()
    }


def left(fleet: Fleet, before: dict[str, set[str]]) -> list[Left]:
    """List everything that may be there only while a move goes on.

    Sessions and processes need a moment to end.
    """
    found: list[Left] = []

    def nothing() -> bool:
        found[:] = _left_now(fleet, before)
        return not found

    with contextlib.suppress(AssertionError):
        wait_for(nothing, seconds=_ENDING_S)
    return found


def _left_now(fleet: Fleet, before: dict[str, set[str]]) -> list[Left]:
    found = []
    for node in NODES:
        if not fleet.answers(node):
            continue
        with fleet.connect(node) as session:
            for kind, query in _OBJECTS.items():
                for (name,) in session.execute(query.encode()).fetchall():
                    found.append(_left(kind, name, f"node {node}"))
    for place, files in beside(fleet).items():
        allowed = before.get(place, set()) | {"data", "data.log"}
        new = {one for one in files - allowed if not one.endswith((".bak", ".log", ".previous"))}
        found += [_left("file", name, place) for name in sorted(new)]
    for pooler in POOLERS:
        found += [_left("guard", str(pid), pooler) for pid in fleet.guards(pooler)]
    return [*found, *_processes(fleet)]


def verified(output: str) -> list[Left]:
    """List what `verify` has found, but for notes, and for what the fleet is set to."""
    findings = json.loads(output)["findings"]
    return [
        Left(
            "finding", f"{one['code']}: {one.get('actual') or one.get('message')}", str(one["node"])
        )
        for one in findings
        if one["severity"] != "note" and one["code"] not in _SET
    ]


def _left(kind: str, name: str, where: str) -> Left:
    found = _MOVE.search(name)
    return Left(kind, name, where, found[0] if found else None)


def _processes(fleet: Fleet) -> Iterator[Left]:
    """List programs with the fleet's directory on their command line that are not its servers."""
    for process in Path("/proc").iterdir():
        if not process.name.isdecimal():
            continue
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
            program = (process / "comm").read_text().strip()
        except OSError:
            continue
        if str(fleet.directory) in words and program not in {"postgres", "pgbouncer"}:
            yield Left("process", words[:200], "this machine")


def paused(fleet: Fleet) -> list[Left]:
    """List the aliases that are paused."""
    found = []
    for pooler in fleet.topology().poolers.values():
        where: dict[str, Any] = {"host": "127.0.0.1", "port": pooler.port, "dbname": "pgbouncer"}
        with psycopg.connect(**where, user=SUPERUSER, autocommit=True) as session:
            cursor = psycopg.ClientCursor(session)
            cursor.execute("SHOW DATABASES")
            names = [column.name for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        found += [Left("pause", row["name"], pooler.name) for row in rows if int(row["paused"])]
    return found
