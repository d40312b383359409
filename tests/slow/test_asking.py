"""Commands that change the fleet show their plan and ask; without a terminal they want `--yes`."""

from __future__ import annotations

import os
import pty
import subprocess
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from shardctl.moves.methods import METHODS
from shardctl.moves.plan import CLONE
from tests.fixtures import commands
from tests.fixtures.processes import ended

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.fleets.pooled import PooledFleet
    from tests.fixtures.moves.spares import MovedFleet

LIKES = "CREATE TABLE likes (id bigint DEFAULT next_id());"


def without_yes(fleet: Fleet, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a script does that does not answer."""
    state = str(fleet.directory / "state")
    return commands.here("--topology", str(fleet.write()), *arguments, XDG_STATE_HOME=state)


def assert_wants_yes(done: subprocess.CompletedProcess[str], plan: str) -> None:
    assert done.returncode == 2, done.stderr
    assert plan in done.stdout
    assert "needs a terminal to ask: nothing was changed" in done.stderr
    assert "add --yes" in done.stderr


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


def test_poolers_are_not_changed_without_a_terminal(fleet_unapplied: PooledFleet) -> None:
    file = fleet_unapplied.pg_bouncer.databases_file
    before = file.read_bytes()
    assert_wants_yes(without_yes(fleet_unapplied, "pgbouncer", "apply"), "write and RELOAD")
    assert file.read_bytes() == before
    assert fleet_unapplied.here("pgbouncer", "apply").returncode == 0
    assert without_yes(fleet_unapplied, "pgbouncer", "apply").returncode == 0


def test_a_move_is_not_resumed_without_a_terminal(fleet_spares: MovedFleet) -> None:
    with closing(fleet_spares.world([0], "c")) as world:
        next(step for step in METHODS[CLONE].steps if step.name == "reserve").run(world)
    assert_wants_yes(without_yes(fleet_spares, "moves", "resume"), "unfinished")
    assert [one["state"] for one in fleet_spares.listed()] == ["unfinished"]


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
    assert b"Apply 2 changes on 2 nodes? [y/N]" in errors
    assert (b"declined: nothing was changed" in errors) == (answer == "n")
    made = fleet_8.query("a", "SELECT to_regclass('shard0.likes') IS NOT NULL")
    assert made == [(answer == "y",)]
