"""docs/howto/managed-postgresql.md: its grants, and no more, and its commands.

Servers are reached by SQL alone, with SCRAM and TLS. The embedded servers, which are 16 and 18, are
built without TLS. So rights are tried there, and TLS on 15, where only a superuser makes
subscriptions.
"""

from __future__ import annotations

import itertools
import secrets
import shutil
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from shardctl.postgres.logical import subscription
from tests.fixtures.fleets.fleet import PHOTOS, Fleet
from tests.fixtures.fleets.verify import SAFE
from tests.fixtures.moves.proof import _LEFT
from tests.fixtures.network.pages import block, commands
from tests.fixtures.servers.certificates import Authority, own
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

    from tests.fixtures.servers.postgres import PgServer, StartServer

pytestmark = pytest.mark.embedded

_numbers = itertools.count(1)
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "managed-postgresql.md"
USER = "shardctl"
PASSWORD = "of the operator"  # noqa: S105  # a test's
ADMIN = """
CREATE ROLE service_admin LOGIN CREATEDB CREATEROLE REPLICATION;
GRANT pg_monitor, pg_signal_backend, pg_create_subscription TO service_admin WITH ADMIN OPTION;
"""
"""What a service gives: rights to pass on, and no superuser."""
RULES = """
{kind} all postgres,service_admin 127.0.0.1/32 trust
{kind} all {clients} 127.0.0.1/32 scram-sha-256
"""
LOUD = {
    **SAFE,
    "wal_level": "logical",
    "log_statement": "all",
    "log_min_duration_statement": "0",
    "log_parameter_max_length_on_error": "-1",
    "log_connections": "on",
}
"""A server that shards are streamed from, and that logs whatever it is sent."""
SEEN = (
    "SELECT query FROM pg_stat_activity UNION ALL SELECT command || result FROM shardctl.event"
    " UNION ALL SELECT concat(m.plan, m.report, m.proof) FROM shardctl.move AS m"
    " UNION ALL SELECT note::text FROM shardctl.stream"
)
STREAMS = (
    "SELECT s.ssl FROM pg_stat_replication AS r JOIN pg_stat_ssl AS s USING (pid)"
    " WHERE r.application_name LIKE 'shardctl\\_%'"
)
ORIGINS = "pg_replication_origin_advance"
"""A function that a reverse needs, and that only superusers may execute at first."""
ROLES = "SELECT rolname::text FROM pg_roles WHERE rolname LIKE 'shardctl\\_%'"


@dataclass
class ManagedFleet(Fleet):
    """Two servers as managed services give them."""

    keys: dict[str, str] = field(default_factory=dict)
    """Further keys of section `database`."""

    def write(self) -> Path:
        """Write the topology, in which nodes have neither directory nor SSH."""
        text = super().write().read_text()
        lines = "".join(f"  {key}: {value}\n" for key, value in self.keys.items())
        self.file.write_text(text.replace("database:\n", f"database:\n  user: {USER}\n{lines}"))
        return self.file

    def call(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in this process, with the operator's passfile."""
        self.write()
        return self.here_as_written(*words, PGPASSFILE=str(self.directory / "pgpass"))

    def done(self, *words: str) -> str:
        """Run a command that succeeds, and give what it printed."""
        ran = self.call(*words)
        assert ran.returncode == 0, (words, ran.stdout, ran.stderr)
        return ran.stdout + ran.stderr

    def log_in(self, node: str) -> psycopg.Connection[Any]:
        """Log in as shardctl does."""
        return self.connect(node, user=USER, password=PASSWORD)


def manage(servers: dict[str, PgServer], directory: Path) -> ManagedFleet:
    """Describe a fleet of such servers; its files are the operator's alone."""
    name = f"managed{next(_numbers)}"
    made = ManagedFleet(directory, servers, name, name)
    directory.chmod(0o700)
    passfile = directory / "pgpass"
    passfile.write_text(f"*:*:*:{USER}:{PASSWORD}\n")
    passfile.chmod(0o600)
    made.migration("0001_photos.sql", PHOTOS)
    return made


def set_password(session: psycopg.Connection[Any]) -> None:
    """Give shardctl's role its password, as psql does it."""
    verifier = session.pgconn.encrypt_password(PASSWORD.encode(), USER.encode(), b"scram-sha-256")
    session.execute(f"ALTER ROLE {USER} PASSWORD '{verifier.decode()}'".encode())


def close(server: PgServer, kind: str, clients: str = "all") -> None:
    """Let a server ask these clients for a password, and nobody else in but administrators."""
    with server.connect() as superuser:
        [(file,)] = superuser.execute("SHOW hba_file").fetchall()
        rules = RULES.replace("{kind}", kind).replace("{clients}", clients)
        Path(file).write_text(rules)
        superuser.execute("SELECT pg_reload_conf()")
    wanted = "password authentication failed" if clients == "all" else "no pg_hba.conf entry"

    def said() -> str:
        try:
            server.connect(user="another", password="wrong").close()  # noqa: S106  # it is none
        except psycopg.OperationalError as error:
            return str(error)
        return ""

    wait_for(lambda: wanted in said())


@pytest.fixture(scope="module")
def managed_servers(pg_server: StartServer) -> dict[str, PgServer]:
    """Start two servers on which the page's grants were run."""
    servers = {}
    for node in "ab":
        servers[node] = one = pg_server(LOUD, major=18)
        with one.connect() as superuser:
            superuser.execute(ADMIN.encode())
        with one.connect(user="service_admin") as admin:
            admin.execute(block(PAGE, "grants").encode())
            set_password(admin)
        close(one, "host")
    return servers


@pytest.fixture
def fleet(managed_servers: dict[str, PgServer], tmp_path: Path) -> Iterator[ManagedFleet]:
    """Give a fleet on which nothing has run so far."""
    made = manage(managed_servers, tmp_path)
    yield made
    made.drop()


@pytest.fixture
def fleet_tls(pg_server: StartServer, server_directory: Path, tmp_path: Path) -> ManagedFleet:
    """Give a fleet of servers with TLS, on which shardctl is a superuser.

    shardctl's files are its own; the servers' user has others, at other paths.
    """
    authority = Authority(tmp_path)
    servers = {}
    for node in "ab":
        place = server_directory / node
        place.mkdir()
        authority.issue(place, "127.0.0.1")
        files = {"ssl_cert_file": place / "server.crt", "ssl_key_file": place / "server.key"}
        tls = {"ssl": "on"} | {name: str(file) for name, file in files.items()}
        servers[node] = pg_server(LOUD | tls, major=15)
        with servers[node].connect() as superuser:
            superuser.execute(f"CREATE ROLE {USER} LOGIN SUPERUSER".encode())
            set_password(superuser)
        close(servers[node], "hostssl")
    made = manage(servers, tmp_path)
    there = shutil.copy(authority.certificate, server_directory)
    passfile = own(server_directory / "pgpass", f"*:*:*:{USER}:{PASSWORD}\n")
    made.keys = {
        "options": f"{{sslmode: verify-full, sslrootcert: {authority.certificate}}}",
        "subscription_options": f"{{sslrootcert: {there}, passfile: {passfile}}}",
    }
    return made


@pytest.fixture
def passwords(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collect the passwords that are made for streams."""
    made: list[str] = []
    whole = secrets.token_urlsafe

    def kept(size: int) -> str:
        made.append(whole(size))
        return made[-1]

    monkeypatch.setattr(secrets, "token_urlsafe", kept)
    return made


class Watch:
    """What others can see while shardctl works."""

    def __init__(self, fleet: ManagedFleet) -> None:
        self.texts: set[str] = set()
        self.stored: set[str] = set()
        self.encrypted: set[bool] = set()
        """Whether streams are."""
        self._fleet = fleet
        self._over = threading.Event()

    def look(self) -> None:
        """Look again and again."""
        while not self._over.is_set():
            for node in self._fleet.servers:
                self.texts |= {text or "" for (text,) in self._fleet.query(node, SEEN)}
                found = self._fleet.query(node, "SELECT subconninfo FROM pg_subscription")
                self.stored |= {text for (text,) in found}
                self.encrypted |= {ssl for (ssl,) in self._fleet.query(node, STREAMS)}
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    self.texts.add(file.read_bytes().decode(errors="replace"))
                except OSError:
                    continue

    @contextmanager
    def at_work(self) -> Iterator[None]:
        thread = threading.Thread(target=self.look)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join()


def left(fleet: ManagedFleet) -> list[Any]:
    """List what streamed moves have made and not removed."""
    queries = [*_LEFT.values(), ROLES]
    return [row for node in fleet.servers for query in queries for row in fleet.query(node, query)]


def assert_secret(fleet: ManagedFleet, said: str, passwords: list[str], *watches: Watch) -> None:
    """See that passwords were stored where a server needs them, and show nowhere."""
    logs = [server.log() for server in fleet.servers.values()]
    kept = [file.read_text() for file in (fleet.directory / "state").rglob("*") if file.is_file()]
    texts = [*logs, *kept, said, *(text for one in watches for text in one.texts)]
    stored = [text for one in watches for text in one.stored if text]
    for password in passwords:
        assert any(password in text for text in stored), "it was never stored"
        assert not [text for text in texts if password in text or PASSWORD in text]


def test_the_pages_grants_are_enough_and_no_secret_shows(
    fleet: ManagedFleet, passwords: list[str]
) -> None:
    init, verify, dry_run, move, *rest = (c.text.split()[1:] for c in commands(PAGE, "commands"))
    fleet.done(*init)
    for node in fleet.servers:
        with fleet.log_in(node) as session:
            assert session.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
            assert session.info.parameter_status("is_superuser") == "off"
            shard = 2 if node == "a" else 5
            session.execute(
                f"INSERT INTO shard{shard}.photos (user_id) SELECT generate_series(1, 9)".encode()
            )
    fleet.done(*verify)
    assert "stores the password of the stream's login in pg_subscription" in fleet.done(*dry_run)
    assert left(fleet) == []
    watch = Watch(fleet)
    with watch.at_work():
        said = fleet.done(*move)
    assert len(passwords) == 1
    assert fleet.query("b", "SELECT count(*) FROM shard2.photos") == [(9,)]
    fleet.shards = {"a": "0-1", "b": "2-7"}
    for words in rest:
        said += fleet.done(*words)
    assert left(fleet) == []
    assert fleet.query("a", "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'shard2%'") == [
        (0,)
    ]
    assert_secret(fleet, said, passwords, watch)


def test_a_move_is_reversed_with_its_grants(fleet: ManagedFleet, passwords: list[str]) -> None:
    fleet.done("init", "--yes")
    with fleet.log_in("a") as session:
        session.execute("INSERT INTO shard2.photos (user_id) SELECT generate_series(1, 9)")
    there = ("move-shards", "2-3", "--to", "b")
    watch = Watch(fleet)
    with watch.at_work():
        said = fleet.done(*there, "--yes")
    fleet.shards = {"a": "0-1", "b": "2-7"}
    with fleet.log_in("b") as session:
        session.execute("INSERT INTO shard2.photos (user_id) SELECT generate_series(10, 14)")
        session.execute("UPDATE shard2.photos SET user_id = 77 WHERE user_id = 1")
        session.execute("DELETE FROM shard2.photos WHERE user_id = 2")
    with fleet.log_in("a") as session, pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        session.execute(f"DELETE FROM {retired(fleet)}.photos")
    [(move,)] = fleet.query("b", "SELECT id FROM shardctl.move")
    refused = fleet.call("moves", "reverse", move, "--yes")
    assert refused.returncode == 1
    assert ORIGINS in refused.stderr
    with fleet.connect("a") as superuser:
        superuser.execute(block(PAGE, "reverse").encode())
    assert ORIGINS not in fleet.done("moves", "reverse", move, "--dry-run")
    again = Watch(fleet)
    with again.at_work():
        said += fleet.done("moves", "reverse", move, "--yes")
    fleet.shards = {"a": "0-3", "b": "4-7"}
    found = fleet.query("a", "SELECT user_id FROM shard2.photos ORDER BY 1")
    assert [user for (user,) in found] == [*range(3, 15), 77]
    said += fleet.done("verify")
    said += fleet.done("prune", "--now", "--yes")
    assert left(fleet) == []
    assert fleet.query("b", "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'shard2%'") == [
        (0,)
    ]
    assert len(passwords) == 2
    assert_secret(fleet, said, passwords, watch, again)


def retired(fleet: ManagedFleet) -> str:
    """Name the copy of shard 2 that its move has left on node a."""
    query = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard2\\_\\_retired%'"
    [(name,)] = fleet.query("a", query)
    return str(name)


def test_what_is_missing_is_refused_by_name(fleet: ManagedFleet) -> None:
    fleet.done("init", "--yes")
    plan = ("move-shards", "2", "--to", "b", "--dry-run")
    for node, take, give, said in (
        ("a", "ALTER ROLE shardctl NOCREATEROLE", "ALTER ROLE shardctl CREATEROLE", "stream_role"),
        (
            "b",
            "ALTER ROLE shardctl NOREPLICATION",
            "ALTER ROLE shardctl REPLICATION",
            "rights",
        ),
        (
            "b",
            "REVOKE pg_create_subscription FROM shardctl GRANTED BY service_admin",
            "GRANT pg_create_subscription TO shardctl GRANTED BY service_admin",
            "rights",
        ),
    ):
        with fleet.connect(node) as superuser:
            superuser.execute(take.encode())
        refused = fleet.call(*plan, "-o", "json")
        with fleet.connect(node) as superuser:
            superuser.execute(give.encode())
        assert refused.returncode == 1
        assert f'"code":"{said}"' in refused.stdout.replace('": "', '":"')
    close(fleet.servers["a"], "host", USER)
    refused = fleet.call(*plan, "-o", "json")
    close(fleet.servers["a"], "host")
    assert refused.returncode == 1
    assert "no pg_hba.conf entry" in refused.stdout
    assert "add a line `host" in refused.stdout


def test_a_stream_verifies_the_sources_certificate(fleet_tls: ManagedFleet) -> None:
    fleet = fleet_tls
    fleet.done("init", "--yes")
    plan = ("move-shards", "2", "--to", "b", "--keep-reverse", "0s")
    right = fleet.keys["subscription_options"]
    fleet.keys["subscription_options"] = right.replace("ca.crt", "pgpass")
    refused = fleet.call(*plan, "--dry-run", "-o", "json")
    assert refused.returncode == 1
    assert '"replication_login"' in refused.stdout
    assert "certificate" in refused.stdout
    fleet.keys["subscription_options"] = right
    watch = Watch(fleet)
    with watch.at_work():
        fleet.done(*plan, "--yes")
    assert any("sslmode=verify-full" in text for text in watch.stored)
    assert watch.encrypted == {True}
    assert all(PASSWORD not in text for text in watch.stored)
    assert left(fleet) == []


def test_a_stream_that_fails_does_not_log_the_password(
    fleet: ManagedFleet, passwords: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.done("init", "--yes")
    made = subscription.make_login

    def forgotten(*given: Any) -> dict[str, str]:
        login = made(*given)
        with fleet.connect("a") as superuser:
            superuser.execute(f"ALTER ROLE {login['user']} NOLOGIN".encode())
        return login

    monkeypatch.setattr(subscription, "make_login", forgotten)
    stopped = fleet.call("move-shards", "2", "--to", "b", "--keep-reverse", "0s", "--yes")
    assert stopped.returncode == 3, stopped.stderr
    assert "is not permitted to log in" in stopped.stderr
    assert passwords[0] not in stopped.stderr + stopped.stdout
    assert all(passwords[0] not in server.log() for server in fleet.servers.values())
    fleet.done("moves", "abort", "--yes")
    assert left(fleet) == []
