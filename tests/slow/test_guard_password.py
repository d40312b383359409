"""A guard whose console wants a password."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.fixtures.servers.guards import (
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
from tests.fixtures.servers.postgres import wait_for


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
        psycopg.connect(locked.console, password=SECRET, autocommit=True) as console,
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
    reason = locked.refusal(host=host)
    assert "authentication failed" in reason
    assert SECRET not in reason
    assert naming(locked.directory / "guard-") == []
