"""Logins of applications through a pooler that keeps SCRAM secrets, as `verify` sees them."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from tests.fixtures.fleets.verify import verify
from tests.fixtures.servers.clones import rules

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.fleets.pooled import PooledFleet

PASSWORD = "a password of a test"  # noqa: S105
ROLPASSWORD = "SELECT rolpassword FROM pg_authid WHERE rolname = '{}'"


@dataclass
class Secretive:
    """A fleet whose nodes and pooler ask the application's role for its password."""

    fleet: PooledFleet
    directory: Path

    def set(self, node: str, secret: str) -> None:
        """Set the role's password, or its secret as it is."""
        self.fleet.execute(node, f"ALTER ROLE {self.fleet.role} PASSWORD '{secret}'")

    def secret(self, node: str) -> str:
        ((found,),) = self.fleet.query(node, ROLPASSWORD.format(self.fleet.role))
        return str(found)

    def keep(self, secret: str) -> None:
        """Let the pooler keep a secret, for new logins."""
        give(self.directory / "userlist.txt", f'"postgres" ""\n"{self.fleet.role}" "{secret}"\n')
        self.fleet.pg_bouncer.admin("RELOAD")

    def restart(self) -> None:
        """Let the pooler have no connection to any node."""
        self.fleet.pg_bouncer.stop()
        self.fleet.pg_bouncer.start()

    def know(self, password: str) -> None:
        """Put a password into the passfile that shardctl uses."""
        port, role = self.fleet.pg_bouncer.port, self.fleet.role
        file = self.directory / "passfile"
        file.write_text(f"*:{port}:*:{role}:{password}\n")
        file.chmod(0o600)

    def told(self) -> list[tuple[str, str, tuple[int, ...], str | None]]:
        found = verify(self.fleet, "poolers")
        return [(f.code, f.severity.value, f.shards, f.object) for f in found]


def give(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)
    if (account := accounts.server_account(None)) is not None:
        shutil.chown(file, account)


@pytest.fixture
def secretive(
    fleet_pooled: PooledFleet, server_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Secretive]:
    fleet, pooler = fleet_pooled, fleet_pooled.pg_bouncer
    configuration = pooler.config.read_text().replace(
        f"auth_type = trust\nauth_file = {pooler.config.parent}/users.txt",
        f"auth_type = hba\nauth_hba_file = {server_directory}/hba\n"
        f"auth_file = {server_directory}/userlist.txt",
    )
    give(
        server_directory / "hba",
        "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n",
    )
    made = Secretive(fleet, server_directory)
    give(server_directory / "userlist.txt", '"postgres" ""\n')
    pooler.config.write_text(configuration)
    made.restart()
    asked = f"host all {fleet.role} 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"
    monkeypatch.setenv("PGPASSFILE", str(server_directory / "passfile"))
    with contextlib.ExitStack() as stack:
        for server in fleet.servers.values():
            stack.enter_context(rules(server, asked))
        made.set("a", PASSWORD)
        made.set("b", made.secret("a"))
        made.keep(made.secret("a"))
        try:
            yield made
        finally:  # other tests of this worker have the role, too
            fleet.execute_everywhere(f"ALTER ROLE {fleet.role} PASSWORD NULL")


def log_in(secretive: Secretive, alias: str) -> None:
    fleet = secretive.fleet
    with fleet.pg_bouncer.connect(alias, fleet.role, password=PASSWORD) as session:
        session.execute("SELECT 1")


def test_a_login_that_a_node_refuses_is_found_and_names_no_secret(secretive: Secretive) -> None:
    role = secretive.fleet.role
    untried = ("unasked", "note", (), role)
    assert secretive.told() == [untried]
    secretive.know(PASSWORD)
    assert secretive.told() == []
    secretive.set("b", PASSWORD)
    secretive.restart()
    (refused,) = verify(secretive.fleet, "poolers")
    assert (refused.code, refused.shards) == ("login_refused", (4, 5, 6, 7))
    assert refused.object == f"{role} on node b"
    assert "password authentication failed" in refused.actual
    for secret in (secretive.secret("a"), secretive.secret("b"), PASSWORD):
        assert secret not in str(refused)
