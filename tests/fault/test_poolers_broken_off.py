"""`pgbouncer apply` killed or interrupted, its poolers killed, hung or unwilling: run again."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.files import BACKUP, UNFINISHED
from shardctl.pgbouncer import render
from tests.fixtures.fleets.pooled import leads, offered, refused, reloads
from tests.fixtures.servers.postgres import _naming, free_ports, wait_for

if TYPE_CHECKING:
    from tests.fixtures.fleets.pooled import AddPooler, PooledFleet
    from tests.fixtures.servers.pgbouncer import PgBouncer

pytestmark = pytest.mark.fault

AROUND = """
import os, signal
from shardctl.hosts import files
from shardctl.pgbouncer import console
from shardctl.state import events
whole = {what}
def broken(*given, **named):
    {before}
    found = whole(*given, **named)
    {after}
    return found
{what} = broken
"""
"""Puts something before or after one function."""

KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def around(what: str, *, before: str = "pass", after: str = "pass") -> str:
    return AROUND.format(what=what, before=before, after=after)


@pytest.fixture
def applied(fleet_unapplied: PooledFleet) -> PooledFleet:
    """Give a fleet whose pooler offers all aliases, and one of a node that is about to go."""
    fleet_unapplied.waiting = {"c": free_ports(1)[0]}
    done = fleet_unapplied.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    fleet_unapplied.waiting = {}
    return fleet_unapplied


def wanted(fleet: PooledFleet) -> str:
    return render.databases(fleet.topology(), fleet.pg_bouncer.pooler, 1)


def assert_completed(fleet: PooledFleet) -> None:
    """Apply once more, and see that all is as it should be and nothing is left to do."""
    done = fleet.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    for pooler in fleet.pg_bouncers:
        assert offered(pooler) == leads(fleet)
        assert list(pooler.config.parent.glob(f"*{UNFINISHED}")) == []
    assert fleet.here("pgbouncer", "diff").returncode == 0
    assert "nothing to do" in fleet.here("pgbouncer", "apply").stdout


@pytest.mark.parametrize(
    "patch",
    [
        around("files.write", before=KILL),
        around("files.write", after=KILL),
        around("console.Console.reload", after=KILL),
        around("events.record", before=KILL),
    ],
    ids=["before-write", "before-reload", "after-reload", "before-record"],
)
def test_apply_killed_at_any_step_is_completed_by_the_next(
    applied: PooledFleet, patch: str
) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    done = applied.patched(patch, "pgbouncer", "apply")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert pooler.databases_file.read_text() in {before, wanted(applied)}
    assert leads(applied).items() <= offered(pooler).items()
    assert_completed(applied)


def test_apply_killed_in_the_middle_of_a_file_leaves_the_one_before(
    applied: PooledFleet,
) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    half = (
        "import os, signal, subprocess\n"
        "whole = subprocess.Popen.communicate\n"
        "def broken(self, text=None, timeout=None):\n"
        "    if text and '[databases]' in text:\n"
        "        self.stdin.write(text[: len(text) // 2])\n"
        "        self.stdin.flush()\n"
        f"        {KILL}\n"
        "    return whole(self, text, timeout)\n"
        "subprocess.Popen.communicate = broken"
    )
    done = applied.patched(half, "pgbouncer", "apply")
    assert done.returncode == -signal.SIGKILL, done.stderr
    # The shell that writes goes on without it, and takes the end of the pipe for the text's.
    wait_for(lambda: not _naming(pooler.databases_file))
    assert pooler.databases_file.read_text() == before
    assert_completed(applied)


def test_ctrl_c_lets_what_was_begun_end_and_says_how_to_go_on(
    applied: PooledFleet, pooler_for: AddPooler
) -> None:
    pooler_for(applied, "p2")
    done = applied.patched(
        around("files.write", before="os.kill(os.getpid(), signal.SIGINT)"), "pgbouncer", "apply"
    )
    assert done.returncode == 130
    assert "interrupted" in done.stderr
    assert "run `shardctl pgbouncer apply` again" in done.stderr
    assert "Traceback" not in done.stderr
    assert applied.pg_bouncer.databases_file.read_text() == wanted(applied)
    assert applied.events()[-2:] == [
        ("pgbouncer apply", f"pooler {name}: map version 1") for name in ("p1", "p2")
    ]
    assert_completed(applied)


def test_a_pooler_killed_during_apply_is_named_and_the_next_apply_completes(
    applied: PooledFleet,
) -> None:
    pooler = applied.pg_bouncer
    kill = around("files.write", after=f"os.kill({pooler.pid}, signal.SIGKILL)")
    done = applied.patched(kill, "pgbouncer", "apply")
    assert done.returncode == 3
    assert "shardctl: pooler p1: RELOAD: " in done.stderr
    assert "shardctl: pooler p1 was not updated" in done.stderr
    assert "Traceback" not in done.stderr
    pooler.start()
    assert_completed(applied)


def test_a_pooler_lost_while_it_is_looked_at_leaves_all_as_it_was(applied: PooledFleet) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    kill = around("console.Console.version", after=f"os.kill({pooler.pid}, signal.SIGKILL)")
    done = applied.patched(kill, "pgbouncer", "apply")
    assert done.returncode == 1, "nothing was begun"
    assert "shardctl: pooler p1" in done.stderr
    assert pooler.databases_file.read_text() == before
    pooler.start()
    assert_completed(applied)


def hang(pooler: PgBouncer) -> None:
    pooler.signal(signal.SIGSTOP)


def test_a_pooler_that_hangs_is_not_waited_for_without_end(applied: PooledFleet) -> None:
    pooler = applied.pg_bouncer
    applied.options = "connect_timeout: 2"
    hang(pooler)
    try:
        done = applied.here("pgbouncer", "apply")
    finally:
        pooler.signal(signal.SIGCONT)
    assert done.returncode == 1
    assert f"pooler p1 (127.0.0.1:{pooler.port}): " in done.stderr
    assert "timeout" in done.stderr
    assert "whether the pooler hangs" in done.stderr
    assert_completed(applied)


def test_a_pooler_that_hangs_at_its_reload_is_named_and_the_next_apply_completes(
    applied: PooledFleet,
) -> None:
    pooler = applied.pg_bouncer
    patch = (
        around("files.write", after=f"os.kill({pooler.pid}, signal.SIGSTOP)")
        + "console.Console.reload = lambda self: self.execute('RELOAD', seconds=1)"
    )
    try:
        done = applied.patched(patch, "pgbouncer", "apply")
        assert done.returncode == 3
        assert "shardctl: pooler p1: RELOAD: no response within 1 s" in done.stderr
        assert "check that the pooler is running" in done.stderr
        assert pooler.databases_file.read_text() == wanted(applied)
    finally:
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
    assert "shardctl: node b: " in done.stderr
    assert "Traceback" not in done.stderr
    assert pooler.databases_file.read_text() == before
    assert reloads(pooler) == 1
    assert_completed(applied)


def test_a_backup_is_never_lost_to_a_broken_off_write(applied: PooledFleet) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    applied.patched(around("files.write", after=KILL), "pgbouncer", "apply")
    assert_completed(applied)
    backup = pooler.databases_file.with_name(pooler.databases_file.name + BACKUP)
    assert backup.read_text() == before


@pytest.mark.parametrize("where", ["before", "after", "included"])
def test_a_configuration_that_the_pooler_rejects_leaves_the_aliases_before(
    fleet_pooled: PooledFleet, where: str
) -> None:
    pooler = fleet_pooled.pg_bouncer
    text = pooler.config.read_text()
    file = pooler.databases_file.read_text()
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
    assert (
        "pooler p1: PgBouncer rejected the new configuration; shardctl has restored the old one"
        in told
    )
    assert f"syntax error in configuration ({own if where == 'included' else pooler.config}" in told
    assert "shardctl: pooler p1 was not updated" in told
    assert offered(pooler) == leads(fleet_pooled)
    backup = pooler.databases_file.with_name(pooler.databases_file.name + BACKUP)
    assert not backup.exists()  # it is what was put back
    assert fleet_pooled.events() == [("init", "pooler p1: map version 1")]
    assert pooler.databases_file.read_text() == file
    pooler.config.write_text(text)
    done = fleet_pooled.here("pgbouncer", "apply")
    assert done.returncode == 0, done.stderr
    assert offered(pooler) == leads(fleet_pooled, "node")


def test_what_a_rejected_first_apply_says_is_there(fleet_unapplied: PooledFleet) -> None:
    pooler = fleet_unapplied.pg_bouncer
    pooler.databases_file.unlink()
    pooler.config.write_text(pooler.config.read_text() + "no setting at all\n")
    told = refused(fleet_unapplied, code=3)
    assert "shardctl has restored the old one" in told
    assert BACKUP not in told
    assert not pooler.databases_file.exists()


def test_a_reload_that_is_rejected_says_nothing_of_files(applied: PooledFleet) -> None:
    assert_completed(applied)
    pooler = applied.pg_bouncer
    text = pooler.databases_file.read_text()
    pooler.databases_file.write_text("")
    pooler.admin("RELOAD")
    pooler.databases_file.write_text(text)
    pooler.config.write_text("no setting at all\n" + pooler.config.read_text())
    told = refused(applied, code=3)
    assert "syntax error in configuration" in told
    assert "shardctl has restored the old one" not in told
    assert BACKUP not in told


def test_a_pooler_killed_before_it_is_brought_back_is_told_with_the_cause(
    applied: PooledFleet,
) -> None:
    pooler = applied.pg_bouncer
    before = pooler.databases_file.read_text()
    text = pooler.config.read_text()
    pooler.config.write_text(f"{text}no setting at all\n")
    kill = "import itertools\ncalls = itertools.count()\n" + around(
        "console.Console.reload",
        before=f"next(calls) and os.kill({pooler.pid}, signal.SIGKILL)",
    )
    done = applied.patched(kill, "pgbouncer", "apply")
    assert done.returncode == 3
    assert "and could not be restored to the old one" in done.stderr
    assert f"syntax error in configuration ({pooler.config}" in done.stderr
    assert "RELOAD: " in done.stderr
    assert pooler.databases_file.read_text() == before
    pooler.config.write_text(text)
    pooler.start()
    assert_completed(applied)
