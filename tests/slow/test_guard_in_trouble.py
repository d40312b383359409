"""The guard in trouble: databases, poolers, disks and hosts that do not do as they should."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from shardctl.pgbouncer import guard
from shardctl.pgbouncer.guard import Question
from tests.fixtures.moves.harm import small_disk
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.guards import (
    AFTER,
    LATER,
    SECRET,
    Changed,
    Site,
    disarm_fired,
    fire,
    leader,
    naming,
    wait_until_done,
)
from tests.fixtures.servers.postgres import free_ports, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.mark.parametrize(
    "query", ["SELECT false", "SELECT NULL", "SELECT true, true", "SELECT 1/0"]
)
def test_any_other_answer_leaves_the_old_file(site: Site, query: str) -> None:
    site.pause("one")
    staged = site.stage()
    dsn = f"host=127.0.0.1 port={site.other.port} user=postgres dbname=postgres"
    armed = site.arm("one", question=Question(dsn, query), staged=staged)
    wait_until_done(armed)
    assert site.port_of("one") == site.node.port
    assert staged.file.exists()
    assert "the answer is not true" in disarm_fired(armed)


@contextlib.contextmanager
def hung(site: Site) -> Iterator[int]:
    running = site.other.server.process()
    assert running is not None
    os.kill(running.pid, signal.SIGSTOP)
    try:
        yield site.other.port
    finally:
        os.kill(running.pid, signal.SIGCONT)


@contextlib.contextmanager
def down(_: Site) -> Iterator[int]:
    yield free_ports(1)[0]


@contextlib.contextmanager
def slow(site: Site) -> Iterator[int]:
    yield site.other.port


@pytest.mark.parametrize("trouble", [hung, down, slow])
def test_a_database_that_does_not_answer_does_not_hold_up_the_resuming(
    site: Site, trouble: Callable[[Site], contextlib.AbstractContextManager[int]]
) -> None:
    site.pause("one")
    staged = site.stage()
    with trouble(site) as port:
        dsn = f"host=127.0.0.1 port={port} user=postgres dbname=postgres"
        query = "SELECT true FROM pg_sleep(600)" if trouble is slow else "SELECT true"
        armed = site.arm("one", question=Question(dsn, query), staged=staged)
        wait_until_done(armed)
        assert site.port_of("one") == site.node.port
        assert staged.file.exists()
    disarm_fired(armed)


def test_a_pooler_that_hangs_for_a_while_is_served_when_it_goes_on(site: Site) -> None:
    site.pause("one")
    console = make_conninfo(site.console, connect_timeout=2)
    armed = site.arm("one", console=console, after_s=LATER)
    site.bouncer.signal(signal.SIGSTOP)
    fire(armed)
    wait_for(lambda: "tries again" in (armed.directory / "log").read_text())
    with raises_code("guard_busy"):
        guard.disarm(armed, patience_s=0)
    site.bouncer.signal(signal.SIGCONT)
    wait_until_done(armed)
    assert site.port_of("one") == site.node.port
    disarm_fired(armed)


def test_a_full_disk_keeps_a_guard_from_being_armed_and_not_from_firing(
    site: Site, server_directory: Path
) -> None:
    small = server_directory / "small"
    small.mkdir()
    site.pause("one")
    with small_disk(small, "1m"):
        armed = site.arm("one", directory=small, after_s=LATER)
        with contextlib.suppress(OSError):
            (small / "full").write_bytes(b"x" * 20_000_000)
        assert "No space left" in site.refusal(name="2", directory=small)
        assert list(small.glob("guard-2*")) == []
        fire(armed)
        wait_until_done(armed)
        assert site.paused() == set()
        disarm_fired(armed)


@pytest.fixture
def locked(site: Site) -> Site:
    """Let the console want a password."""
    users = site.bouncer.server.users
    users.write_text(f'"postgres" "{SECRET}"\n')
    text = site.bouncer.config.read_text()
    site.bouncer.config.write_text(text.replace("auth_type = trust", "auth_type = scram-sha-256"))
    site.bouncer.signal(signal.SIGHUP)
    wait_for(lambda: "fe_sendauth" in site.refusal())
    return site


@pytest.fixture
def passfile(locked: Site) -> Path:
    """Give a file with the console's password, which only the guard's user may read."""
    path = locked.directory.parent / "a passfile"
    path.write_text(f"127.0.0.1:{locked.bouncer.port}:pgbouncer:postgres:{SECRET}\n")
    path.chmod(0o600)
    if locked.user is not None:
        shutil.chown(path, locked.user)
    return path


def console_with_password(site: Site) -> psycopg.Connection[Any]:
    return psycopg.connect(site.console, password=SECRET, autocommit=True)


def test_the_password_comes_from_the_passfile_and_is_seen_nowhere(
    locked: Site, passfile: Path
) -> None:
    seen: list[list[str]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.is_set():
            listed = subprocess.run(["ps", "axeww"], capture_output=True, check=True, text=True)  # noqa: S607
            seen.extend(line.split() for line in listed.stdout.splitlines() if SECRET in line)

    with (
        ThreadPoolExecutor(1) as executor,
        contextlib.ExitStack() as at_end,
        console_with_password(locked) as console,
    ):
        at_end.callback(over.set)
        console.pgconn.exec_(b'PAUSE "one"')
        watching = executor.submit(watch)
        env = {"PGPASSWORD": "of another", "PGOPTIONS": "-c search_path=x"}
        host = Changed({**env, "PGPASSFILE": str(passfile)})
        armed = locked.arm("one", host=host, after_s=LATER)
        environment = Path(f"/proc/{leader(armed)}/environ").read_text()
        fire(armed)
        wait_until_done(armed)
        over.set()
        watching.result()
    assert seen == []
    assert "of another" not in environment
    for file in armed.directory.iterdir():
        assert SECRET not in file.read_text()
    assert "none is paused (0 were not" in disarm_fired(armed)


def test_a_wrong_password_is_refused_and_not_repeated(locked: Site, passfile: Path) -> None:
    passfile.write_text(passfile.read_text().replace(SECRET, f"{SECRET}-old"))
    host = Changed({"PGPASSFILE": str(passfile)})
    reason = locked.refusal_that_leaves_nothing(host=host)
    assert "authentication failed" in reason
    assert SECRET not in reason


def test_disarming_at_the_moment_of_firing_has_one_of_two_outcomes(site: Site) -> None:
    aliases = [f"alias{number}" for number in range(6)]
    site.bouncer.offer(**dict.fromkeys(aliases, site.node.port))
    outcomes = []

    def meet(alias: str, offset: float) -> None:
        site.pause(alias)
        armed = site.arm(alias, name=alias)
        time.sleep(AFTER + offset)  # the moment is what is tried
        done = guard.disarm(armed)
        assert done.became in {"disarmed", "fired"}, done
        assert done.fired == (done.became == "fired")
        assert (alias in site.paused()) == (not done.fired)
        assert ("none is paused" in "".join(done.log)) == done.fired
        assert not armed.directory.exists()
        outcomes.append(done.became)

    with ThreadPoolExecutor(len(aliases)) as executor:
        for round_ in range(5):
            offsets = [(number - 3) * 0.012 + round_ * 0.002 - 0.03 for number in range(6)]
            list(executor.map(meet, aliases, offsets))
    assert len(outcomes) == 30
    assert naming(site.directory / "guard-") == []
