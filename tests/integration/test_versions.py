"""A fleet of two major versions: what compares its nodes, and moves to the newer one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.checks.check import Severity
from tests.fixtures.fleets.fleet import Fleet
from tests.fixtures.fleets.verify import SAFE, told, verify

if TYPE_CHECKING:
    from pathlib import Path

    from tests.fixtures.servers.postgres import StartServer

pytestmark = pytest.mark.embedded

OTHER_VIEW = (
    "CREATE OR REPLACE VIEW shard5.mailed AS SELECT id, name FROM shard5.users WHERE mail IS NULL"
)
MIXED = {"version_differs", "not_compared"}


def test_definitions_are_compared_within_a_version_and_that_is_told(fleet_mixed: Fleet) -> None:
    found = verify(fleet_mixed)
    assert {finding.code for finding in found} == MIXED
    (apart,) = [finding for finding in found if finding.code == "not_compared"]
    older, newer = (
        int(fleet_mixed.query(node, "SHOW server_version_num")[0][0]) // 10_000 for node in "ab"
    )
    assert (apart.severity, apart.shards) == (Severity.note, (4, 5, 6, 7))
    assert f"PostgreSQL {newer}" in apart.actual
    assert f"PostgreSQL {older}" in apart.expected
    assert fleet_mixed.plan().changes() == []
    fleet_mixed.migration(
        "0002_more.sql",
        "CREATE VIEW younger AS SELECT name FROM users WHERE born > '2000-01-01';"
        "ALTER TABLE photos ADD COLUMN title text NOT NULL DEFAULT ''",
    )
    assert fleet_mixed.shardctl("migrate", "--yes").returncode == 0
    assert {finding.code for finding in verify(fleet_mixed)} == MIXED


def test_shards_that_differ_from_those_of_their_version_are_found(fleet_mixed: Fleet) -> None:
    for node, statement in (
        ("a", "ALTER TABLE shard1.users DROP CONSTRAINT odd"),
        ("b", OTHER_VIEW),
        ("b", "DROP INDEX shard6.users_utc"),
        ("b", "CREATE INDEX users_utc ON shard6.users ((made AT TIME ZONE 'CET'))"),
        ("b", f"REVOKE DELETE ON shard7.users FROM {fleet_mixed.role}"),
    ):
        fleet_mixed.execute(node, statement)
    found = told(verify(fleet_mixed, "structure"))
    assert [(code, shards, what) for _, code, _, shards, what in found] == [
        ("constraint_missing", (1,), "users.odd"),
        ("grant_differs", (7,), "users"),
        ("index_differs", (6,), "users_utc"),
        ("view_differs", (5,), "mailed"),
        ("not_compared", (4, 5, 6, 7), None),
    ]


def test_a_move_to_the_newer_version_keeps_everything_and_no_copy_goes_back(
    fleet_mixed: Fleet,
) -> None:
    there = ("move-shards", "2-3", "--to", "b", "--keep-reverse", "0", "--yes")
    done = fleet_mixed.shardctl(*there, "-o", "json")
    assert done.returncode == 0, done.stderr
    fleet_mixed.shards = {"a": "0-1", "b": "2-7"}
    codes = {finding.code for finding in verify(fleet_mixed)}
    assert codes == {*MIXED, "retired_kept"}
    assert fleet_mixed.plan().changes() == []
    assert fleet_mixed.query("b", "SELECT count(*), max(both_of::text) FROM shard3.users") == [
        (100, "(99,it's)")
    ]
    back = fleet_mixed.shardctl("move-shards", "2", "--to", "a", "--dry-run", "-o", "json")
    assert back.returncode == 1
    older, newer = (
        fleet_mixed.query(node, "SHOW server_version")[0][0] for node in fleet_mixed.servers
    )
    said = [error["message"] for error in json.loads(back.stdout)["errors"]]
    assert any(older in message and newer in message for message in said)
    doctor = fleet_mixed.shardctl("moves", "doctor", "--dry-run", "-o", "json")
    assert doctor.returncode == 0, doctor.stdout
    for command in (("status",), ("prune", "--now", "--yes")):
        ran = fleet_mixed.shardctl(*command)
        assert ran.returncode == 0, (command, ran.stderr)


CHANGES = """
UPDATE shard3.users SET name = 'changed', fields = '{"i": 0}' WHERE number <= 10;
DELETE FROM shard3.photos WHERE user_id IN (SELECT id FROM shard3.users WHERE number > 95);
DELETE FROM shard3.users WHERE number > 95;
INSERT INTO shard3.users (name, mail, both_of, span) VALUES ('new', 'new@x', '(7,x)', '[1,3)');
INSERT INTO shard3.photos (user_id) SELECT id FROM shard3.users WHERE name = 'new';
UPDATE shard3.log SET at = '2036-01-01' WHERE at = '2025-01-01';
INSERT INTO shard3.log (at) VALUES ('2026-01-01');
"""
EVERY_ROW = " UNION ALL ".join(
    f"SELECT '{table}', t::text FROM shard3.{table} AS t" for table in ("users", "photos", "log")
)


def test_a_reverse_takes_shards_and_what_came_since_to_the_older_version(
    fleet_mixed: Fleet,
) -> None:
    done = fleet_mixed.shardctl("move-shards", "2-3", "--to", "b", "--yes", "-o", "json")
    assert done.returncode == 0, done.stderr
    move = json.loads(done.stdout)["id"]
    before = sorted(fleet_mixed.query("b", EVERY_ROW))
    fleet_mixed.shards = {"a": "0-1", "b": "2-7"}
    fleet_mixed.execute("b", CHANGES)
    changed = sorted(fleet_mixed.query("b", EVERY_ROW))
    assert changed != before
    back = fleet_mixed.shardctl("moves", "reverse", move, "--yes")
    assert back.returncode == 0, back.stderr
    fleet_mixed.shards = {"a": "0-3", "b": "4-7"}
    assert sorted(fleet_mixed.query("a", EVERY_ROW)) == changed
    assert {finding.code for finding in verify(fleet_mixed)} == {*MIXED, "retired_kept"}
    fleet_mixed.execute("a", "INSERT INTO shard3.users (name) VALUES ('after')")
    [(last, most)] = fleet_mixed.query(
        "a", "SELECT max(number) FILTER (WHERE name = 'after'), max(number) FROM shard3.users"
    )
    assert last == most, "the sequence has fallen back"
    pruned = fleet_mixed.shardctl("prune", "--now", "--yes")
    assert pruned.returncode == 0, pruned.stderr


NEW_IN_18 = """
CREATE TABLE stays (
    room int4range,
    during daterange,
    guest text CONSTRAINT named NOT NULL,
    louder text GENERATED ALWAYS AS (upper(guest)) VIRTUAL,
    stored text GENERATED ALWAYS AS (lower(guest)) STORED,
    note text,
    PRIMARY KEY (room, during WITHOUT OVERLAPS)
);
ALTER TABLE stays ADD CONSTRAINT noted NOT NULL note NOT VALID;
ALTER TABLE stays ADD CONSTRAINT short CHECK (length(guest) < 3) NOT ENFORCED;
CREATE TABLE bills (
    id bigint PRIMARY KEY DEFAULT next_id(),
    room int4range,
    during daterange,
    FOREIGN KEY (room, PERIOD during) REFERENCES stays (room, PERIOD during)
);
GRANT MAINTAIN ON bills TO {role};
"""


def test_a_move_between_servers_of_18_keeps_what_is_new_there(
    pg_server: StartServer, tmp_path: Path
) -> None:
    settings = SAFE | {"wal_level": "logical"}
    servers = {node: pg_server(settings, major=18) for node in "ab"}
    made = Fleet(tmp_path, servers, "new_in_18", "new_in_18")
    for server in servers.values():
        with server.connect() as session:
            session.execute(f"CREATE ROLE {made.role} LOGIN".encode())
    made.migration("0001_new.sql", NEW_IN_18.replace("{role}", made.role))
    made.init()
    made.execute(
        "a",
        "INSERT INTO shard2.stays (room, during, guest, note)"
        " SELECT int4range(n, n + 1), '[2026-01-01,2026-02-01)', 'Anna', 'x'"
        " FROM generate_series(1, 50) AS n",
    )
    made.execute(
        "a", "INSERT INTO shard2.bills (room, during) SELECT '[7,8)', '[2026-01-02,2026-01-09)'"
    )
    there = ("move-shards", "2", "--to", "b", "--keep-reverse", "0", "--yes")
    moving = made.shardctl(*there, "-o", "json")
    assert moving.returncode == 0, moving.stderr
    made.shards = {"a": "0-1,3", "b": "2,4-7"}
    assert {finding.code for finding in verify(made)} == {"retired_kept"}
    assert made.query("b", "SELECT count(*), max(louder), max(stored) FROM shard2.stays") == [
        (50, "ANNA", "anna")
    ]
    made.drop()
