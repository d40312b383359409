"""What docs/howto/real-hosts.md says, command by command, on machines as Debian installs them."""

from __future__ import annotations

import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.network.debian import password
from tests.fixtures.network.pages import Command
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.network.debian import RealHosts
    from tests.fixtures.network.machines import Machine

TLS = "sslmode=verify-full sslrootcert=/etc/ssl/postgresql/ca.crt"
LOGIN = f"psql 'host=10.0.0.9 port=6432 dbname={{alias}} user={{role}} {TLS}' -c 'SELECT 1'"
CLIENTS = Path("/srv/clients")
CODE = f"""
import psycopg, time
while True:
    role, password = open({{file!r}}).read().split()
    for alias in ("shard0", "shard200"):
        try:
            with psycopg.connect(
                "host=10.0.0.9 port=6432 {TLS}", dbname=alias, user=role, password=password,
                prepare_threshold=None, connect_timeout=10,
            ) as session:
                session.execute("SELECT next_id()")
            said = "ok " + alias
        except psycopg.Error as error:
            said = role + " " + alias + ": " + " ".join(str(error).split())
        with open({{log!r}}, "a") as log:
            log.write(said + "\\n")
    time.sleep(0.02)
"""

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def followed(real_hosts: RealHosts) -> RealHosts:
    """Follow the page, from bare machines to the end of its first move."""
    real_hosts.said = real_hosts.follow("real-hosts.md", "commands")
    return real_hosts


def test_the_page_leads_to_clusters_of_debian(followed: RealHosts) -> None:
    clusters, rules, identifier = followed.said[-3:]
    assert clusters.splitlines()[1].split()[:5] == ["15", "photos", "5432", "online", "postgres"]
    assert "/var/lib/postgresql/15/photos/pg_hba.conf" in rules
    assert "(1 row)" in identifier
    followed.run("db2", "pg_ctlcluster 15 photos restart", root=True)
    assert "online" in followed.run("db2", "pg_lsclusters")


def test_one_node_with_another_secret_is_found_and_repaired(followed: RealHosts) -> None:
    again = Command("db2", root=True, text="sudo -u postgres psql -c '\\password app'")
    followed.type(again)  # the same password, with another salt
    followed.run("pool1", "service pgbouncer restart", root=True)
    followed.run("ops1", LOGIN.format(role="app", alias="shard0"))
    with pytest.raises(AssertionError, match="password authentication failed"):
        followed.run("ops1", LOGIN.format(role="app", alias="shard200"))
    with pytest.raises(AssertionError, match="app on node b: password authentication failed"):
        followed.run("ops1", "shardctl verify --check poolers")
    followed.follow("change-passwords.md", "repair")
    followed.run("pool1", "service pgbouncer restart", root=True)  # or it would wait 15 s
    followed.run("ops1", LOGIN.format(role="app", alias="shard200"))
    followed.run("ops1", "shardctl verify --check poolers")


def test_a_password_changes_on_the_whole_fleet_while_applications_log_in(
    followed: RealHosts,
) -> None:
    with applications(followed, "app") as logins:
        followed.follow("change-passwords.md", "change")
        logins.wait()
        logins.become("app_2")
        logins.wait()
        followed.follow("change-passwords.md", "close")
        logins.wait()
    assert logins.errors() == []
    with pytest.raises(AssertionError, match="SASL authentication failed"):
        followed.run("ops1", LOGIN.format(role="app", alias="shard0"))


@dataclass
class Applications:
    """Programs that log in all the time, each time anew, to shards of both nodes."""

    machine: Machine

    def become(self, role: str) -> None:
        """Give them another role and its password, as a new configuration does."""
        file = self.machine.view(CLIENTS)
        file.with_suffix(".new").write_text(f"{role} {password(role)}")
        file.with_suffix(".new").replace(file)

    def wait(self) -> None:
        """Wait until they have logged in to each shard some more times."""
        before = len(self._log())
        wait_for(lambda: len(self._log()) >= before + 20)

    def errors(self) -> list[str]:
        """Give what was not a login; there were some that were."""
        assert {"ok shard0", "ok shard200"} <= set(self._log())
        return [line for line in self._log() if not line.startswith("ok ")]

    def _log(self) -> list[str]:
        file = self.machine.view(CLIENTS.with_suffix(".log"))
        return file.read_text().splitlines() if file.exists() else []


@contextmanager
def applications(hosts: RealHosts, role: str) -> Iterator[Applications]:
    """Let programs log in as a role, all the while."""
    made = Applications(hosts.machines["ops1"])
    made.become(role)
    code = CODE.format(file=str(CLIENTS), log=str(CLIENTS.with_suffix(".log")))
    command = hosts.command("ops1", f"exec {sys.executable} -c {shlex.quote(code)}", root=True)
    with ended(subprocess.Popen(command)) as process:
        made.wait()
        yield made
        assert process.poll() is None
