"""SIGKILL while a node comes, goes or gets another name: the same command finishes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from shardctl.topology import loader
from tests.fixtures.fleets.joining import add, lose
from tests.fixtures.fleets.pooled import offered

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

_KILL = """
import importlib, os, signal
where = importlib.import_module({module!r})
*owners, name = {attribute!r}.split(".")
for owner in owners:
    where = getattr(where, owner)
whole = getattr(where, name)
def stopped(*given, **named):
    if {behind}:
        whole(*given, **named)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(where, name, stopped)
from shardctl.cli.app import main
main()
"""
PROVISION = "shardctl.provision"
FILE = (f"{PROVISION}.topology_file", "Change.write")
POOLERS = (f"{PROVISION}.poolers", "carry_out")
APPLY = f"{PROVISION}.apply"


def run(fleet: PooledFleet, *arguments: str) -> None:
    """Run a command to its end; the locks of one that was killed are released soon."""
    done = fleet.here_as_written(*arguments, "--yes", "--lock-wait", "30s")
    assert done.returncode == 0, done.stderr


def killed(fleet: PooledFleet, point: tuple[str, str], *arguments: str, behind: bool) -> None:
    """Run a command in a process that is killed before or behind a function's first call."""
    code = _KILL.format(module=point[0], attribute=point[1], behind=behind)
    done = subprocess.run(
        [sys.executable, "-c", code, "--topology", str(fleet.file), *arguments, "--yes"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
        env=os.environ | {"XDG_STATE_HOME": str(fleet.directory / "state")},
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


def settled(fleet: PooledFleet) -> None:
    """See that the fleet is what the file says, by the command that compares all of it."""
    done = fleet.here_as_written("init")
    assert done.returncode == 0, done.stderr
    assert "nothing to do" in done.stdout


@pytest.mark.parametrize(
    ("point", "behind"),
    [
        ((APPLY, "prepare"), True),
        (FILE, False),
        (FILE, True),
        ((APPLY, "apply"), False),
        ((APPLY, "apply"), True),
        ((APPLY, "write_map"), True),
        (POOLERS, False),
        (POOLERS, True),
    ],
)
def test_a_node_is_added_by_the_next_run(
    fleet_joining_pooled: PooledFleet, point: tuple[str, str], *, behind: bool
) -> None:
    fleet = fleet_joining_pooled
    killed(fleet, point, *add(fleet), behind=behind)
    run(fleet, *add(fleet))
    assert fleet.query("c", "SELECT count(*) FROM shardctl.map") == [(8,)]
    assert offered(fleet.pg_bouncer)[f"{fleet.database}_c"] == fleet.servers["c"].port
    settled(fleet)


@pytest.mark.parametrize(
    ("point", "behind"),
    [
        (POOLERS, False),
        (POOLERS, True),
        (("shardctl.state.cluster", "forget_map"), True),
        (FILE, True),
    ],
)
def test_a_node_is_removed_by_the_next_run(
    fleet_joining_pooled: PooledFleet, point: tuple[str, str], *, behind: bool
) -> None:
    fleet = fleet_joining_pooled
    run(fleet, *add(fleet))
    killed(fleet, point, "node", "remove", "c", behind=behind)
    if "c" in loader.load(fleet.file).nodes:
        run(fleet, "node", "remove", "c")
    assert "c" not in loader.load(fleet.file).nodes
    assert fleet.query("c", "SELECT count(*) FROM shardctl.map") == [(0,)]
    assert f"{fleet.database}_c" not in offered(fleet.pg_bouncer)
    settled(fleet)


@pytest.mark.parametrize(
    ("point", "behind"),
    [
        (POOLERS, True),
        (("shardctl.state.cluster", "rename"), True),
        (FILE, False),
        (FILE, True),
    ],
)
def test_a_node_is_renamed_by_the_next_run(
    fleet_pooled: PooledFleet, point: tuple[str, str], *, behind: bool
) -> None:
    fleet = fleet_pooled
    fleet.write()
    killed(fleet, point, "node", "rename", "b", "e", behind=behind)
    run(fleet, "node", "rename", "b", "e")
    aliases = offered(fleet.pg_bouncer)
    assert f"{fleet.database}_e" in aliases
    assert f"{fleet.database}_b" not in aliases
    settled(fleet)


@pytest.mark.parametrize(
    ("point", "behind"),
    [
        (FILE, True),
        ((APPLY, "apply"), True),
        ((APPLY, "write_map"), True),
        (POOLERS, False),
    ],
)
def test_a_lost_nodes_shards_have_an_owner_after_the_next_run(
    fleet_pooled: PooledFleet, point: tuple[str, str], *, behind: bool
) -> None:
    fleet = fleet_pooled
    fleet.write()
    lose(fleet, "b")
    killed(fleet, point, "node", "lost", "b", "--to", "a", behind=behind)
    run(fleet, "node", "lost", "b", "--to", "a")
    assert fleet.query("a", "SELECT DISTINCT node FROM shardctl.map") == [("a",)]
    assert fleet.query("a", "SELECT map_version FROM shardctl.cluster") == [(2,)]
    run(fleet, "node", "remove", "b", "--lost")
    settled(fleet)
