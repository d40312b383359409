"""A dry run refuses what the run would: both are given to every command, side by side."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from shardctl.fanout import Silent
from shardctl.sandbox import poolers
from shardctl.state import lock
from shardctl.topology import loader
from shardctl.topology.model import NodeName
from shardctl.traffic import table
from tests import reference

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.moves.own import Lab

    Cause = Callable[[Lab], AbstractContextManager[str]]

LIKES = "CREATE TABLE /* a table */ IF NOT EXISTS likes (id bigint DEFAULT next_id());"


@contextmanager
def locked(fleet: Fleet | Lab) -> Iterator[str]:
    """Another command changes node a."""
    with lock.held(loader.load(fleet.file), [NodeName("a")], command="a test"):
        yield "node a is being changed by shardctl a test"


@contextmanager
def locked_and_unapplied(fleet: Lab) -> Iterator[str]:
    next(iter(fleet.topology.poolers.values())).databases_file.unlink()
    with locked(fleet) as why:
        yield why


@contextmanager
def node_away(fleet: Lab) -> Iterator[str]:
    fleet.server("b").stop(mode="immediate")
    yield "node b (127.0.0.1:"


@contextmanager
def stale(fleet: Lab) -> Iterator[str]:
    """The map gives shard 0 to another node than the file."""
    for node in "ab":
        fleet.ask(node, "UPDATE shardctl.map SET node = 'b' WHERE shard = 0")
    yield "shards 0"


@contextmanager
def moving(fleet: Lab) -> Iterator[str]:
    """Another move has not ended."""
    fleet.up_to("clone", [1], "d").close()
    yield fleet.copy("a").id


@contextmanager
def pooler_down(fleet: Lab) -> Iterator[str]:
    poolers.down(fleet.topology, Silent(), delete=False)
    yield "pooler p1 (127.0.0.1:"


@contextmanager
def loading(fleet: Lab) -> Iterator[str]:
    """Another load runs."""
    with table.alone(fleet.topology, [NodeName("a")]):
        yield "another load is running"


@contextmanager
def table_taken(fleet: Lab) -> Iterator[str]:
    fleet.ask("a", "CREATE TABLE shard0.shardctl_traffic (id int)")
    yield "was not created by"


@contextmanager
def nothing(fleet: Lab) -> Iterator[str]:  # noqa: ARG001  # as all causes are called
    yield ""


STRICT = "--all-or-nothing"
INIT, MIGRATE = ("init", "--without-poolers", STRICT), ("migrate", STRICT)
APPLY = ("pgbouncer", "apply", STRICT)
MOVE = ("move-shards", "0", "--to", "c")
READ_ONLY = ("read-only", "on", "0,4")
WRITE = ("sql", "--write", "DELETE FROM photos")
TRAFFIC = ("sandbox", "traffic", "--seconds", "1s", "--clients", "1")
REFUSALS: list[tuple[tuple[str, ...], Cause]] = [
    *((command, locked) for command in (INIT, MIGRATE, MOVE, READ_ONLY, WRITE)),
    (APPLY, locked_and_unapplied),
    *((command, node_away) for command in (INIT, MIGRATE, APPLY, READ_ONLY, WRITE)),
    *((command, stale) for command in (INIT, MIGRATE, APPLY, MOVE, READ_ONLY, WRITE)),
    *((command, moving) for command in (MOVE, WRITE)),
    *((command, pooler_down) for command in (("init",), APPLY, MOVE)),
    (TRAFFIC, loading),
    (TRAFFIC, table_taken),
    (("run", "true", "--user", "no-such-user"), nothing),
]


def pair(fleet: Lab, *arguments: str) -> str:
    """Give both to a command, see that they refuse alike, and give what was told."""
    dry = fleet.here(*arguments, "--dry-run")
    run = fleet.here(*arguments, "--yes")
    told = [
        [line for line in done.stderr.splitlines() if not line.startswith("note:")]
        for done in (dry, run)
    ]
    assert told[0] == told[1], arguments
    assert (dry.returncode, run.returncode) == (1, 1), (arguments, dry.stderr)
    return dry.stderr


@pytest.mark.parametrize(
    "cause", dict.fromkeys(cause for _, cause in REFUSALS), ids=lambda cause: cause.__name__
)
def test_a_dry_run_refuses_what_the_run_would(fleet_own: Lab, cause: Cause) -> None:
    (fleet_own.directory / "migrations" / "0002_likes.sql").write_text(LIKES)
    with cause(fleet_own) as why:
        for arguments in (arguments for arguments, one in REFUSALS if one is cause):
            assert why in pair(fleet_own, *arguments), arguments


def test_a_move_that_another_process_is_at(fleet_own: Lab) -> None:
    world = fleet_own.up_to("clone", [0], "c")
    for command in ("resume", "abort"):
        assert "is being changed by" in pair(fleet_own, "moves", command)
    world.close()


FREEZE = (
    "CREATE FUNCTION public.frozen() RETURNS event_trigger LANGUAGE plpgsql AS"
    " $$BEGIN RAISE EXCEPTION 'change freeze'; END$$;"
    " CREATE EVENT TRIGGER frozen ON ddl_command_start EXECUTE FUNCTION public.frozen()"
)
THAW = "DROP EVENT TRIGGER frozen; DROP FUNCTION public.frozen()"


def test_a_dry_run_for_ci_tells_by_its_exit_code_what_it_found(fleet_8: Fleet) -> None:
    detailed = ("migrate", "--dry-run", "--detailed-exitcode")
    assert fleet_8.here(*detailed).returncode == 0
    fleet_8.migration("0002_likes.sql", LIKES)
    assert fleet_8.here(*detailed).returncode == 2
    assert fleet_8.here("sql", "SELECT 1", *detailed[1:]).returncode == 0
    assert fleet_8.here("sql", "--write", "SELECT 1", *detailed[1:]).returncode == 2
    with locked(fleet_8):
        assert fleet_8.here(*detailed).returncode == 1
    assert fleet_8.here(*detailed, "--jobs", "none").returncode == 1


def test_every_command_that_takes_a_lock_can_wait_for_it() -> None:
    offered = [entry for entry in reference.entries() if not entry.group]
    here = {
        entry.name.removeprefix("shardctl ")
        for entry in offered
        if any("--lock-wait" in option.opts for option in entry.options)
    }
    with_dry_run = [e for e in offered if any("--dry-run" in o.opts for o in e.options)]
    # These run where no lock is: anywhere, on servers of the sandbox, and on a file.
    without = {"run", "sandbox up", "sandbox down", "sandbox traffic", "topology pull"}
    assert here == {entry.name.removeprefix("shardctl ") for entry in with_dry_run} - without


def test_every_command_with_a_dry_run_is_here() -> None:
    """What a new command refuses has to be added."""
    entries = reference.entries()
    groups = {entry.name for entry in entries if entry.group}
    here = {
        " ".join(arguments[:2] if f"shardctl {arguments[0]}" in groups else arguments[:1])
        for arguments, _ in REFUSALS
    }
    # Tests of their own.
    here |= {"repack", "read-only off", "moves resume", "moves abort", "moves doctor"}
    here |= {"moves reverse", "moves finish", "rebalance apply", "rebalance pause"}
    here |= {"rebalance resume", "node add", "node drain", "node remove", "topology pull"}
    here.add("sandbox up")
    here |= {"sandbox down", "prune"}  # they refuse nothing: prune lists why a schema stays
    offered = [entry for entry in entries if not entry.group]
    with_dry_run = [e for e in offered if any("--dry-run" in o.opts for o in e.options)]
    assert {entry.name.removeprefix("shardctl ") for entry in with_dry_run} == here
