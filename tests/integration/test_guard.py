"""The guard with real poolers: it resumes what nobody else resumes, and nothing else."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.hosts import accounts
from shardctl.hosts.local import Local
from shardctl.pgbouncer import guard
from shardctl.pgbouncer.console import conninfo
from shardctl.pgbouncer.guard import Guard
from tests.fixtures.processes import ended, matching
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers import postgres as servers
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.hosts.host import Completed
    from tests.fixtures.servers.pgbouncer import PgBouncer
    from tests.fixtures.servers.postgres import PgServer

AFTER = 0.3
LATER = 3600.0
"""Seconds after which a guard does not fire in any test, unless it is told to."""
SECRET = "s3cret-of-the-console"  # noqa: S105  # of a pooler that lives as long as a test
STATES = {"waiting", "armed", "fired", "asking", "done", "failed", "disarmed"}


@dataclass
class Site:
    """A pooler with aliases to a server, and the place beside its files where guards live."""

    bouncer: PgBouncer
    node: PgServer
    other: PgServer

    @property
    def directory(self) -> Path:
        return self.bouncer.config.parent

    @property
    def console(self) -> str:
        return conninfo(self.bouncer.pooler, self.bouncer.server.database, purpose="guard")

    def arm(self, *aliases: str, **given: Any) -> Guard:
        host, name = given.pop("host", Local()), given.pop("name", "1")
        one = Guard(host, name, self.directory, accounts.server_account(None))
        given = {"after_s": AFTER, "console": self.console, **given}
        return guard.arm(one, aliases=aliases, **given)

    def refusal(self, **given: Any) -> str:
        """Arm, and give the reason for which it is refused."""
        with raises_code("guard_refused") as caught:
            self.arm("one", **given)
        assert caught.value.hint
        assert SECRET not in caught.value.message
        return caught.value.message.partition("): ")[2]

    def pause(self, *aliases: str) -> None:
        with self.bouncer.console() as console:
            for alias in aliases:
                console.pause(alias, seconds=10)

    def paused(self) -> set[str]:
        with self.bouncer.console() as console:
            return {one.name for one in console.databases().values() if one.paused}

    def port_of(self, alias: str) -> object:
        with self.bouncer.connect(alias) as client:
            [[port]] = client.execute("SELECT inet_server_port()").fetchall()
        return port

    def stage(self) -> tuple[Path, Path]:
        """Lay a file beside that of the aliases, which leads `one` to the other server."""
        staged = self.directory / "shards.ini.new"
        text = self.bouncer.databases_file.read_text()
        staged.write_text(text.replace(str(self.node.port), str(self.other.port)))
        staged.chmod(0o644)
        return staged, self.bouncer.databases_file


@pytest.fixture
def site(pg_bouncer: PgBouncer, two_servers: dict[str, PgServer]) -> Site:
    made = Site(pg_bouncer, two_servers["a"], two_servers["b"])
    made.bouncer.offer(one=made.node.port, two=made.node.port)
    return made


@dataclass
class Changed(Local):
    """This machine, with another environment."""

    env: Mapping[str, str]

    def run(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, **given: Any
    ) -> Completed:
        return super().run(argv, env={**self.env, **(env or {})}, **given)


def naming(path: Path) -> list[int]:
    """List the processes whose arguments have `path`, or whose directory it is."""

    def is_one(process: Path) -> bool:
        words = (process / "cmdline").read_bytes().decode(errors="replace")
        return str(path) in words or str((process / "cwd").readlink()).startswith(str(path))

    return matching(is_one)


def state(one: Guard) -> set[str]:
    return {path.name for path in one.directory.iterdir()} & STATES


def fire(one: Guard) -> None:
    """Let a guard fire now that was to do so LATER: its time is the sleep of a process."""
    wait_for(lambda: len(naming(one.directory)) == 2)  # it, and its sleep
    found = naming(one.directory)
    [sleep] = [pid for pid in found if Path(f"/proc/{pid}/comm").read_text() == "sleep\n"]
    os.kill(sleep, signal.SIGKILL)


def wait_until_done(one: Guard) -> None:
    """Wait until it has resumed, or given up; one that has got no answer goes on asking."""
    wait_for(lambda: state(one) & {"done", "failed", "asking"})


def disarm_fired(one: Guard) -> str:
    """Disarm a guard that has done its work, and give its log."""
    done = guard.disarm(one)
    assert done[0] == "fired fired", done
    assert not one.directory.exists()
    wait_for(lambda: not naming(one.directory))
    return "\n".join(done[1:])


def leader(one: Guard) -> int:
    """Give the process of a guard that waits: it has told of itself before it began to."""
    wait_for(lambda: len(naming(one.directory)) == 2)  # it, and its sleep
    return int((one.directory / "pid").read_text())


def test_a_guard_disarmed_in_time_has_done_nothing_and_leaves_nothing(site: Site) -> None:
    site.pause("one")
    armed = site.arm("one", after_s=LATER, staged=site.stage())
    leader(armed)
    done = guard.disarm(armed)
    assert (done[0].strip(), len(done)) == ("disarmed", 2)
    assert not armed.directory.exists()
    assert naming(armed.directory) == []
    assert site.paused() == {"one"}
    assert (site.directory / "shards.ini.new").exists()
    assert guard.disarm(armed)[0].strip() == "absent"


def test_a_pid_that_belongs_to_another_by_now_is_left_alone(site: Site) -> None:
    armed = site.arm("one", after_s=60)
    servers.kill_all(lambda: naming(armed.directory))  # also what it starts meanwhile
    with ended(subprocess.Popen(["sleep", "60"], start_new_session=True)) as another:  # noqa: S607
        (armed.directory / "pid").write_text(f"{another.pid}\n")
        assert guard.disarm(armed)[0].strip() == "died"
        assert another.poll() is None


def test_a_guard_asks_until_the_answer_is_true_while_its_clients_are_served(site: Site) -> None:
    site.pause("one")
    staged = site.stage()
    dsn = f"host=127.0.0.1 port={site.other.port} user=postgres dbname=postgres"
    question = guard.Question(dsn, "SELECT to_regclass('public.arrived') IS NOT NULL")
    armed = site.arm("one", question=question, staged=staged)
    wait_for(lambda: state(armed) == {"asking"})
    assert site.port_of("one") == site.node.port
    assert "exists (asking)" in site.refusal(name=armed.name)
    with site.other.connect() as session:
        session.execute("CREATE TABLE public.arrived ()")
        try:
            wait_for(lambda: state(armed) == {"done"})
        finally:
            session.execute("DROP TABLE public.arrived")
    assert site.port_of("one") == site.other.port
    assert not staged[0].exists()
    log = disarm_fired(armed)
    assert "the answer is not true" in log
    assert "the answer is true" in log
    site.pause("one")
    armed = site.arm("one", question=guard.Question(dsn, "SELECT true"), staged=site.stage())
    wait_until_done(armed)
    log = disarm_fired(armed)
    assert "the answer is true" in log
    assert "(0 were not, 0 unknown)" in log  # clients have waited for the file


def test_what_somebody_else_paused_stays_paused(site: Site) -> None:
    site.bouncer.offer(**dict.fromkeys(["one", "two", "*"], site.node.port))
    site.pause("two", 'we"ird $x')
    armed = site.arm('we"ird $x')
    without = site.arm(name="2")
    wait_until_done(armed)
    wait_until_done(without)
    assert site.paused() == {"two"}
    disarm_fired(armed)
    disarm_fired(without)


def test_a_second_guard_of_a_name_is_refused_until_the_first_is_disarmed(site: Site) -> None:
    armed = site.arm("one", name="5f3a9c1e", after_s=60)
    assert "exists (armed)" in site.refusal(name="5f3a9c1e")
    assert guard.disarm(armed)[0].strip() == "disarmed"
    armed = site.arm("one", name="5f3a9c1e")
    wait_until_done(armed)
    assert "exists (done)" in site.refusal(name="5f3a9c1e")
    disarm_fired(armed)


def test_a_guard_whose_directory_was_removed_resumes(site: Site) -> None:
    site.pause("one")
    armed = site.arm("one", after_s=LATER)
    shutil.rmtree(armed.directory)
    fire(armed)
    wait_for(lambda: site.paused() == set())
    wait_for(lambda: not naming(armed.directory))


# A console that wants a password


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
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(path, account)
    return path


@pytest.mark.long
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


@pytest.mark.long
def test_a_wrong_password_is_refused_and_not_repeated(locked: Site, passfile: Path) -> None:
    passfile.write_text(passfile.read_text().replace(SECRET, f"{SECRET}-old"))
    host = Changed({"PGPASSFILE": str(passfile)})
    reason = locked.refusal(host=host)
    assert "authentication failed" in reason
    assert SECRET not in reason
    assert naming(locked.directory / "guard-") == []
