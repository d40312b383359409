"""`pgbouncer apply` that has lost a lock, or whose pooler ends, hangs or is unwilling."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.files import BACKUP, UNFINISHED
from tests.fixtures.fleets.pooled import leads, offered, refused, reloads
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import PooledFleet

pytestmark = pytest.mark.fault

WRITTEN = """
import os
from shardctl.hosts import files
from shardctl.pgbouncer import console
whole = files.write
def broken(*given, **named):
    whole(*given, **named)
    os.kill({pid}, {number:d})
files.write = broken
console.Console.reload = lambda self: self.execute('RELOAD', seconds=1)
"""
"""Sends a signal when the file is written."""


@pytest.fixture
def applied(fleet_unapplied: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler offers all aliases, and one of a node that is about to go."""
    fleet_unapplied.waiting = {"c": free_ports(1)[0]}
    done = fleet_unapplied.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    fleet_unapplied.waiting = {}
    return fleet_unapplied


def assert_completed(fleet: PooledFleet) -> None:
    """Apply once more, and see that all is as it should be and nothing is left to do."""
    done = fleet.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    for pooler in fleet.pg_bouncers:
        assert offered(pooler) == leads(fleet)
        assert list(pooler.config.parent.glob(f"*{UNFINISHED}")) == []
    assert fleet.here("pgbouncer", "diff").returncode == 0
    assert "nothing to do" in fleet.here("pgbouncer", "apply").stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_pooler_that_ends_or_hangs_at_its_reload_is_named_and_the_next_apply_completes(
    applied: PooledFleet, number: signal.Signals
) -> None:
    pooler = applied.pg_bouncer
    done = applied.patched(WRITTEN.format(pid=pooler.pid, number=number), "pgbouncer", "apply")
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    if number == signal.SIGKILL:
        pooler.start()
    else:
        pooler.signal(signal.SIGCONT)
    assert_completed(applied)


def test_whoever_has_lost_a_nodes_lock_writes_nothing(applied: PooledFleet) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    lose = (
        "import psycopg, shardctl.provision.poolers as poolers\n"
        "whole = poolers.carry_out\n"
        "def broken(plan, locks, *given, **named):\n"
        f"    with psycopg.connect(host='127.0.0.1', port={applied.servers['b'].port},"
        f" user='postgres', dbname={applied.database!r}, autocommit=True) as other:\n"
        "        other.execute('SELECT pg_terminate_backend(%s)',"
        " (locks['b'].info.backend_pid,))\n"
        "    return whole(plan, locks, *given, **named)\n"
        "poolers.carry_out = broken"
    )
    done = applied.patched(lose, "pgbouncer", "apply")
    assert done.returncode in {1, 3}
    assert "Traceback" not in done.stderr
    assert pooler.databases_file.read_text() == before
    assert reloads(pooler) == 1
    assert_completed(applied)


@pytest.mark.parametrize("where", ["before", "after", "included"])
def test_a_configuration_that_the_pooler_rejects_leaves_the_aliases_before(
    fleet_pooled: PooledFleet, where: str
) -> None:
    pooler = fleet_pooled.pg_bouncer
    text = pooler.config.read_text()
    file = pooler.databases_file.read_text()
    events = fleet_pooled.events()
    own = pooler.config.with_name("own.ini")
    own.write_text("[databases]\nno setting at all\n")
    broken = {
        "before": text.replace("%include", "no setting at all\n%include"),
        "after": f"{text}no setting at all\n",
        "included": f"{text}%include {own}\n",
    }
    pooler.config.write_text(broken[where])
    fleet_pooled.raise_map_version()
    fleet_pooled.change(aliases=("node",))
    with pooler.connect("shard1") as client:
        told = refused(fleet_pooled, code=3)
        assert client.execute("SELECT count(*) FROM photos").fetchone() == (0,)
    assert str(own if where == "included" else pooler.config) in told
    assert offered(pooler) == leads(fleet_pooled)
    backup = pooler.databases_file.with_name(pooler.databases_file.name + BACKUP)
    assert not backup.exists()  # it is what was put back
    assert fleet_pooled.events() == events
    assert pooler.databases_file.read_text() == file
    pooler.config.write_text(text)
    done = fleet_pooled.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    assert offered(pooler) == leads(fleet_pooled, "node")
