"""Commands that ask, or meet nodes that are away."""

from __future__ import annotations

import os
import pty
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures import commands
from tests.fixtures.fleets.pooled import PooledFleet
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet


LIKES = "CREATE TABLE likes (id bigint DEFAULT next_id());"


def without_yes(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a script does that does not answer."""
    state = str(fleet.directory / "state")
    return commands.here("--topology", str(fleet.write()), *arguments, XDG_STATE_HOME=state)


def test_without_a_terminal_nothing_is_changed(fleet_8: Fleet) -> None:
    fleet_8.migration("0002_likes.sql", LIKES)
    token = fleet_8.directory / "token"
    for words, plan in (("migrate",), "0002_likes.sql"), (("run", f"touch {token}"), ""):
        done = without_yes(fleet_8, *words)
        assert done.returncode == 2, done.stderr
        assert plan in done.stdout
    assert not token.exists()
    assert fleet_8.query("a", "SELECT to_regclass('shard0.likes')") == [(None,)]


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


def test_a_map_that_only_the_absent_nodes_have_is_seen_in_the_poolers_file(
    fleet_pooled: PooledFleet,
) -> None:
    """Version 2 was applied, and the one node that can be read still has version 1."""
    pooler = fleet_pooled.pg_bouncer
    fleet_pooled.raise_map_version()
    assert fleet_pooled.here("pgbouncer", "apply").returncode == 0
    newer = pooler.databases_file.read_text()
    fleet_pooled.execute("a", "UPDATE shardctl.cluster SET map_version = 1")
    with fleet_pooled.at_ports(b=free_ports(1)[0]):
        for arguments in (("apply",), ("apply", "--force"), ("apply", "--force", "--dry-run")):
            done = fleet_pooled.here("pgbouncer", *arguments)
            assert done.returncode == 1, done.stderr
        assert fleet_pooled.here("init").returncode == 1
    assert pooler.databases_file.read_text() == newer
