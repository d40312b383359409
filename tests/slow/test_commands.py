"""Commands that ask, are interrupted, draw on a terminal, or meet nodes that are away."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
from rich.cells import cell_len

from tests.fixtures import commands
from tests.fixtures.fleets.fleet import command_line
from tests.fixtures.fleets.pooled import PooledFleet, leads, offered
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports, wait_for
from tests.fixtures.terminal import in_turn, on_terminal
from tests.integration.test_move_progress import begin

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet


LIKES = "CREATE TABLE likes (id bigint DEFAULT next_id());"


def without_yes(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a script does that does not answer."""
    state = str(fleet.directory / "state")
    return commands.here("--topology", str(fleet.write()), *arguments, XDG_STATE_HOME=state)


def assert_wants_yes(done: subprocess.CompletedProcess[str], plan: str) -> None:
    assert done.returncode == 2, done.stderr
    assert plan in done.stdout


def test_without_a_terminal_nothing_is_changed(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", LIKES)
    assert_wants_yes(without_yes(fleet_8, "init"), "0002_likes.sql")
    assert_wants_yes(without_yes(fleet_8, "migrate"), "0002_likes.sql")
    token = fleet_8.directory / "token"
    assert_wants_yes(without_yes(fleet_8, "run", f"touch {token}"), "")
    assert not token.exists()
    assert fleet_8.query("a", "SELECT to_regclass('shard0.likes')") == [(None,)]
    assert fleet_8.here("migrate").returncode == 0
    # Where nothing is to be done, nothing is asked.
    for command in ("init", "migrate"):
        assert without_yes(fleet_8, command).returncode == 0


@pytest.mark.parametrize(("answer", "code"), [("n", 1), ("y", 0)])
def test_on_a_terminal_the_plan_comes_and_then_the_question(
    fleet_8: Fleet, answer: str, code: int
) -> None:
    fleet_8.migration("0002_likes.sql", LIKES)
    ours, theirs = pty.openpty()
    argv = commands.command_line("--topology", str(fleet_8.write()), "migrate")
    with ended(
        subprocess.Popen(argv, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ) as process:
        os.close(theirs)
        os.write(ours, f"{answer}\n".encode())
        out, errors = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == code, errors
    assert b"0002_likes.sql" in out
    assert (b"declined" in errors) == (answer == "n")
    made = fleet_8.query("a", "SELECT to_regclass('shard0.likes') IS NOT NULL")
    assert made == [(answer == "y",)]


def test_what_cannot_be_taken_back_is_not_cancelled(fleet_8: Fleet) -> None:
    """A cancelled CREATE INDEX CONCURRENTLY would leave an invalid index."""
    fleet_8.migration(
        "0002_index.sql",
        "-- shardctl: no-transaction\nCREATE INDEX CONCURRENTLY photos_user ON photos (user_id);",
    )
    argv = command_line(fleet_8.write(), "migrate", "--jobs", "1")
    with fleet_8.connect("a", autocommit=False) as holder:
        holder.execute("SELECT count(*) FROM shard0.photos")
        holder.execute("INSERT INTO shard0.photos (user_id) VALUES (1)")
        with (
            subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process,
            fleet_8.connect("a") as other,
        ):
            waits = (
                "SELECT FROM pg_stat_activity WHERE query LIKE '%%CONCURRENTLY%%' "
                "AND wait_event_type = 'Lock' AND pid <> pg_backend_pid()"
            )
            wait_for(lambda: other.execute(waits.encode()).fetchall())
            process.send_signal(signal.SIGINT)
            wait_for(lambda: "interrupted" in (process.stderr.readline() if process.stderr else ""))
            holder.rollback()
            process.communicate(timeout=120)
    assert process.returncode == 130
    invalid = "SELECT count(*) FROM pg_index WHERE NOT indisvalid"
    assert fleet_8.query("a", invalid) == [(0,)]


@pytest.fixture
def pending(fleet_8: Fleet) -> Fleet:
    """Give a fleet in which one migration is pending everywhere."""
    fleet_8.migration("0002_likes.sql", LIKES)
    return fleet_8


def away(one: Fleet, *nodes: str) -> AbstractContextManager[None]:
    """Let nodes be at ports on which nothing listens."""
    return one.at_ports(**dict(zip(nodes, free_ports(len(nodes)), strict=True)))


def migrated(one: Fleet, node: str, shard: int) -> bool:
    return one.query(node, f"SELECT to_regclass('shard{shard}.likes') IS NOT NULL") == [(True,)]


def open_move(one: Fleet, node: str, *, source: str, target: str, state: str) -> None:
    one.execute(
        node,
        "INSERT INTO shardctl.move (id, state, method, source, target, shards, schemas, retired,"
        f" plan, who) VALUES ('5f3a9c1e', '{state}', 'clone', '{source}', '{target}', '{{4}}',"
        " '{shard4}', '{shard4__retired_5f3a9c1e}', '{}', 'a test')",
    )


def left_out(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [one["node"] for one in json.loads(done.stdout)["left_out"]]


def test_migrate_does_what_it_can_and_the_rest_later(pending: Fleet) -> None:
    with away(pending, "b"):
        shown = pending.here("migrate", "--dry-run", "-o", "json")
        assert not migrated(pending, "a", 0)
        done = pending.here("migrate")
    assert (shown.returncode, done.returncode) == (3, 3), done.stderr
    assert left_out(shown) == ["b"]
    assert [change["node"] for change in json.loads(shown.stdout)["changes"]] == ["a"]
    assert migrated(pending, "a", 0)
    assert not migrated(pending, "b", 4)
    rest = pending.here("migrate", "-o", "json")
    assert rest.returncode == 0, rest.stderr
    assert [change["node"] for change in json.loads(rest.stdout)["changes"]] == ["b"]
    assert migrated(pending, "b", 7)


def test_pgbouncer_apply_writes_what_the_others_prove(fleet_pooled: PooledFleet) -> None:
    pooler = fleet_pooled.pg_bouncer
    pooler.databases_file.unlink()
    with away(fleet_pooled, "b"):
        shown = fleet_pooled.here("pgbouncer", "apply", "--dry-run", "-o", "json")
        assert not pooler.databases_file.exists()
        done = fleet_pooled.here("pgbouncer", "apply")
        assert (shown.returncode, done.returncode) == (3, 3), done.stderr
        assert left_out(shown) == ["b"]
        assert offered(pooler) == leads(fleet_pooled)
        compared = fleet_pooled.here("pgbouncer", "diff")
    assert compared.returncode == 0, compared.stderr


def test_a_map_that_only_the_absent_nodes_have_is_seen_in_the_poolers_file(
    fleet_pooled: PooledFleet,
) -> None:
    """Version 2 was applied, and the one node that can be read still has version 1."""
    pooler = fleet_pooled.pg_bouncer
    fleet_pooled.raise_map_version()
    assert fleet_pooled.here("pgbouncer", "apply").returncode == 0
    newer = pooler.databases_file.read_text()
    fleet_pooled.execute("a", "UPDATE shardctl.cluster SET map_version = 1")
    with away(fleet_pooled, "b"):
        for arguments in (("apply",), ("apply", "--force"), ("apply", "--force", "--dry-run")):
            done = fleet_pooled.here("pgbouncer", *arguments)
            assert done.returncode == 1, done.stderr
        assert fleet_pooled.here("init").returncode == 1
    assert pooler.databases_file.read_text() == newer


SLOW = "ALTER TABLE photos ADD note text;\nSELECT pg_sleep(0.7);\n"


def test_a_terminal_shows_phase_and_count_of_each_node(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_slow.sql", SLOW)
    shown = on_terminal("--topology", str(fleet_8.write()), "migrate", "--yes", "--jobs", "1")
    for node in "ab":
        assert re.search(rf"{node}  migrating  +\d/4 shards", shown)
    assert "done: 8 shards on 2 nodes" in shown


@pytest.mark.parametrize("width", [60, 100, 160])
def test_answers_and_plans_are_whole_in_a_terminal(fleet_8: Fleet, width: int) -> None:
    found: list[str] = []
    fleet_8.migration("0002_a_migration_with_a_long_name_for_a_column.sql", "SELECT 1;\n")
    with fleet_8.connect("a") as session:
        begin(session, [0, 2])
        topology = str(fleet_8.write())
        commands = ("migrate --dry-run", "status --sample 0", "moves list", "moves show")
        for shown in in_turn(topology, commands, width=width):
            assert shown.strip()
            assert "…" not in shown
            assert max(map(cell_len, re.split(r"[\r\n]+", shown))) <= width
            found.append("".join(shown.split()))
    assert len(found) == len(commands)
    assert "0002_a_migration_with_a_long_name_for_a_column.sql" in found[0]
