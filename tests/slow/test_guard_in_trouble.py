"""The guard in trouble: databases, poolers, disks and hosts that do not do as they should."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from shardctl.pgbouncer import guard
from shardctl.pgbouncer.guard import Question, Staged
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.guards import (
    AFTER,
    LATER,
    SECRET,
    Changed,
    Site,
    disarm_fired,
    fire,
    kill_all,
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
def silent(_: Site) -> Iterator[int]:
    with socket.create_server(("127.0.0.1", free_ports(1)[0])) as listening:
        yield listening.getsockname()[1]


@contextlib.contextmanager
def down(_: Site) -> Iterator[int]:
    yield free_ports(1)[0]


@contextlib.contextmanager
def refusing(site: Site) -> Iterator[int]:
    yield site.bouncer.port  # which has no such database


@contextlib.contextmanager
def slow(site: Site) -> Iterator[int]:
    yield site.other.port


@pytest.mark.parametrize("trouble", [hung, silent, down, refusing, slow])
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


def test_a_staged_file_that_cannot_be_moved_does_not_prevent_the_resuming(site: Site) -> None:
    site.pause("one")
    staged = site.stage()
    armed = site.arm("one", staged=staged, after_s=LATER)
    staged.target.unlink()
    staged.target.mkdir()
    fire(armed)
    wait_until_done(armed)
    assert site.paused() == set()
    assert "could not be moved" in disarm_fired(armed)


def test_a_pooler_that_hangs_for_a_while_is_served_when_it_goes_on(site: Site) -> None:
    site.pause("one")
    console = make_conninfo(site.console, connect_timeout=2)
    armed = site.arm("one", console=console, after_s=LATER)
    site.bouncer.signal(signal.SIGSTOP)
    fire(armed)
    wait_for(lambda: "tries again" in (armed.directory / "log").read_text())
    with raises_code("guard_busy", match="tries again"):
        guard.disarm(armed, patience_s=0)
    site.bouncer.signal(signal.SIGCONT)
    wait_until_done(armed)
    assert site.port_of("one") == site.node.port
    disarm_fired(armed)


def test_a_guard_killed_while_it_fires_is_said_to_be_dead(site: Site) -> None:
    armed = site.arm("one", after_s=LATER)
    site.bouncer.signal(signal.SIGKILL)
    fire(armed)
    wait_for(lambda: "tries again" in (armed.directory / "log").read_text())
    kill_all(armed)
    done = guard.disarm(armed)
    assert (done.became, done.fired) == ("died", True)
    assert not armed.directory.exists()


@pytest.fixture
def small_disk(server_directory: Path, site: Site) -> Iterator[Path]:
    """Give a directory on a file system of 1 MB, which only root can mount."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small file system to fill")
    path = server_directory / "small"
    path.mkdir()
    owner = pwd.getpwnam(str(site.user)).pw_uid
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size=1m,mode=0755,uid={owner}", "tmpfs", str(path)],  # noqa: S607
        capture_output=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.decode().strip()}")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)  # noqa: S607


def test_a_full_disk_keeps_a_guard_from_being_armed_and_not_from_firing(
    site: Site, small_disk: Path
) -> None:
    site.pause("one")
    armed = site.arm("one", directory=small_disk, after_s=LATER)
    with contextlib.suppress(OSError):
        (small_disk / "full").write_bytes(b"x" * 20_000_000)
    assert "No space left" in site.refusal(name="2", directory=small_disk)
    assert list(small_disk.glob("guard-2*")) == []
    fire(armed)
    wait_until_done(armed)
    assert site.paused() == set()
    disarm_fired(armed)


def test_a_directory_may_have_any_name(site: Site) -> None:
    odd = site.directory / """it's a "dir" $HOME `x` \\ of\nmine"""
    odd.mkdir(mode=0o777)
    odd.chmod(0o777)
    staged = site.stage()
    inside = Staged(odd / "-a 'file'", odd / 'to "be"')
    staged.file.rename(inside.file)
    site.pause("one")
    armed = site.arm("one", directory=odd, staged=inside)
    wait_until_done(armed)
    assert site.paused() == set()
    assert inside.target.exists()
    disarm_fired(armed)
    again = site.arm("one", directory=odd, after_s=60)
    assert guard.disarm(again).became == "disarmed"
    assert naming(odd) == []


def test_what_cannot_work_is_refused_and_leaves_nothing(site: Site) -> None:
    def refusal(**given: Any) -> str:
        return site.refusal_that_leaves_nothing(**given)

    def console(**changes: Any) -> str:
        return make_conninfo(site.console, **changes)

    assert "admin access needed" in refusal(console=console(user="watcher"))
    assert "failed: FATAL" in refusal(console=console(user="nobody"))
    assert "syntax error" in refusal(console=console(port=site.node.port, dbname="postgres"))
    assert "syntax error" in refusal(console=console(dbname="one"))
    assert "no such database: none" in refusal(console=console(dbname="none"))
    assert "refused" in refusal(console=console(port=free_ports(1)[0]))
    assert "such file" in refusal(directory=site.directory / "none")
    staged = site.stage()
    assert "no such file" in refusal(staged=replace(staged, file=site.directory / "none"))
    elsewhere = Staged(staged.file, site.directory.parent / "other.ini")
    assert "is not in the directory of" in refusal(staged=elsewhere)
    site.bouncer.signal(signal.SIGSTOP)
    assert "timeout expired" in refusal(console=console(connect_timeout=2))
    site.bouncer.signal(signal.SIGCONT)


@pytest.mark.parametrize("lacking", ["psql", "setsid", "timeout", "awk", "sleep"])
def test_a_host_that_lacks_a_program_is_refused(site: Site, lacking: str) -> None:
    few = ["sh", "setsid", "timeout", "awk", "psql", "sleep", "mkdir", "mv", "rm", "cat"]
    folder = site.directory.parent / "programs"
    folder.mkdir()
    for program in [*few, "date", "tail", "wc", "readlink"]:
        found = shutil.which(program)
        assert found is not None
        if program != lacking:
            (folder / program).symlink_to(found)
    reason = site.refusal_that_leaves_nothing(host=Changed({"PATH": str(folder)}))
    assert reason == f"this host lacks: {lacking}"


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
