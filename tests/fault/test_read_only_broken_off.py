"""`read-only` killed or interrupted at any moment, and run again; 2,000 shards of three tables."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.fleets.fleet import Fleet, command_line
from tests.fixtures.fleets.read_only import triggers
from tests.fixtures.fleets.verify import verify
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.servers.postgres import PgServer

pytestmark = pytest.mark.fault

SHARDS = 2000
TABLES = "".join(
    f"CREATE TABLE {name} (id bigint PRIMARY KEY DEFAULT next_id(), user_id bigint);"
    for name in ("photos", "likes", "follows")
)
OF_A_NODE = 3 * SHARDS // 2


@pytest.fixture(scope="module")
def many_shards(
    safe_servers: dict[str, PgServer], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    one = Fleet(
        tmp_path_factory.mktemp("read_only"),
        safe_servers,
        "read_only",
        "read_only",
        shards={"a": f"0-{SHARDS // 2 - 1}", "b": f"{SHARDS // 2}-{SHARDS - 1}"},
        count=SHARDS,
    )
    one.migration("0001_photos.sql", TABLES)
    one.init()
    yield one
    one.drop()


@pytest.fixture
def large(many_shards: Fleet) -> Iterator[Fleet]:
    """Give a fleet on which nothing is read-only, and leave it so."""
    yield many_shards
    if [count(many_shards, node) for node in "ab"] == [0, 0]:
        return
    done = many_shards.here("read-only", "off", f"0-{SHARDS - 1}", "--yes")
    assert done.returncode == 0, done.stderr
    assert [count(many_shards, node) for node in "ab"] == [0, 0]


def count(one: Fleet, node: str) -> int:
    """Count the triggers on a node."""
    return sum(triggers(one, node).values())


@contextlib.contextmanager
def start(one: Fleet, verb: str) -> Iterator[subprocess.Popen[str]]:
    """Run the command for all shards; it ends with the block."""
    one.write()
    command = command_line(one.file, "read-only", verb, f"0-{SHARDS - 1}", "--yes")
    environment = os.environ | {"XDG_STATE_HOME": str(one.directory / "state")}
    started = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    with ended(started) as process:
        yield process


def stop_when(one: Fleet, running: subprocess.Popen[str], triggers_left: int, number: int) -> str:
    """Send a signal as soon as node a has so many triggers, or at least; give what was said."""
    growing = count(one, "a") < triggers_left

    def reached() -> bool:
        there = count(one, "a")
        there_yet = there >= triggers_left if growing else there <= triggers_left
        return there_yet or running.poll() is not None

    wait_for(reached, seconds=60)
    running.send_signal(number)
    _, said = running.communicate(timeout=60)
    return said


def everything_refuses(one: Fleet) -> bool:
    found = verify(one, "leftovers")
    assert {finding.code for finding in found} == {"read_only"}
    return sorted(shard for finding in found for shard in finding.shards) == list(range(SHARDS))


@pytest.mark.parametrize("share", [0.0, 0.05, 0.4, 0.9])
def test_on_killed_at_any_moment_is_finished_by_the_next(large: Fleet, share: float) -> None:
    with start(large, "on") as running:
        stop_when(large, running, int(share * OF_A_NODE), signal.SIGKILL)
    # Whole shards, whenever it was.
    codes = {finding.code for finding in verify(large, "leftovers")}
    assert codes <= {"read_only"}
    done = large.shardctl("read-only", "on", f"0-{SHARDS - 1}", "--yes")
    assert done.returncode == 0, done.stderr
    assert everything_refuses(large)


@pytest.mark.parametrize("share", [0.9, 0.4])
def test_off_killed_at_any_moment_is_finished_by_the_next(large: Fleet, share: float) -> None:
    assert large.shardctl("read-only", "on", f"0-{SHARDS - 1}", "--yes").returncode == 0
    with start(large, "off") as running:
        stop_when(large, running, int(share * OF_A_NODE), signal.SIGKILL)
    # Writes are let in everywhere before the first trigger goes.
    with large.connect("a") as session, session.transaction(force_rollback=True):
        session.execute("INSERT INTO shard999.photos (user_id) VALUES (1)")
    left = verify(large, "leftovers")
    # The other node may not have begun by then.
    assert {finding.code for finding in left} <= {"read_only", "read_only_in_part"}
    assert all("read-only off" in finding.hint for finding in left)
    done = large.shardctl("read-only", "off", f"0-{SHARDS - 1}", "--yes")
    assert done.returncode == 0, done.stderr
    assert verify(large) == []
