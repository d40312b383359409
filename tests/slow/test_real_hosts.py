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
from tests.fixtures.network.machines import OPERATOR, home_of
from tests.fixtures.network.pages import Command
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.network.debian import RealHosts
    from tests.fixtures.network.machines import Machine

TLS = "sslmode=verify-full sslrootcert=/etc/ssl/postgresql/ca.crt"
LOGIN = f"psql 'host=10.0.0.9 port=6432 dbname={{alias}} user={{role}} {TLS}' -c 'SELECT 1'"
PG_CTL = "sudo -n pg_ctlcluster 15 other"
CONTROL = f"{{start: {PG_CTL} start, stop: {PG_CTL} stop -m fast}}"
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


@pytest.fixture(scope="module")
def repaired(followed: RealHosts) -> RealHosts:
    """Give node b a secret of its own, and follow the page that repairs that."""
    again = Command("db2", root=True, text="sudo -u postgres psql -c '\\password app'")
    followed.type(again)  # the same password, with another salt
    followed.run("pool1", "service pgbouncer restart", root=True)
    followed.run("ops1", LOGIN.format(role="app", alias="shard0"))
    with pytest.raises(AssertionError, match="password authentication failed"):
        followed.run("ops1", LOGIN.format(role="app", alias="shard200"))
    with pytest.raises(AssertionError, match=r"app on node b: .*password authentication failed"):
        followed.run("ops1", "shardctl verify --check poolers")
    followed.follow("change-passwords.md", "repair")
    followed.run("pool1", "service pgbouncer restart", root=True)  # or it would wait 15 s
    followed.run("ops1", LOGIN.format(role="app", alias="shard200"))
    followed.run("ops1", "shardctl verify --check poolers")
    return followed


@pytest.fixture(scope="module")
def changed(repaired: RealHosts) -> RealHosts:
    """Follow the page that changes the application's password, while applications log in."""
    followed = repaired
    with applications(followed, "app") as logins:
        followed.follow("change-passwords.md", "change")
        logins.wait()
        logins.become("app_2")
        logins.wait()
        followed.follow("change-passwords.md", "close")
        logins.wait()
    assert logins.errors() == []
    return followed


@pytest.fixture(scope="module")
def refused(changed: RealHosts) -> RealHosts:
    """Describe a third node badly in every way that a dry run refuses, and then well."""
    followed = changed
    own = "{host: 10.0.0.2, port: 5433, shards: none, os_user: postgres"
    own += ", ssh: {host: db2, user: shardctl}, data_directory: /var/lib/postgresql/15/other}"
    followed.run("ops1", "cp topology.yaml other.yaml")
    edit(followed, "poolers:\n", f"  c: {own}\npoolers:\n")
    plan = "shardctl --topology other.yaml move-shards 128-130 --to c --dry-run"
    # Its source is a clone, whose configuration pg_ctlcluster still takes from /etc.
    with pytest.raises(
        AssertionError, match="run `pg_createcluster 15 other` on its host, then set"
    ):
        followed.run("ops1", plan)
    followed.run("db2", "pg_createcluster 15 other --port 5433", root=True)
    followed.run("db2", "rm -r /var/lib/postgresql/15/other", root=True)
    with pytest.raises(AssertionError, match="belongs to Debian's cluster 15 other, but the"):
        followed.run("ops1", plan)
    edit(
        followed, "15/other}", f"15/other, control: {CONTROL}, settings: {{ssl_cert_file: /none}}}}"
    )
    with pytest.raises(AssertionError, match="node c: ssl_cert_file is /none, which"):
        followed.run("ops1", plan)
    with pytest.raises(AssertionError, match=r"has no line for 10.0.0.2:5433:app:shardctl"):
        followed.run("ops1", plan)
    edit(followed, "/none", "/etc/ssl/postgresql/ca.crt")
    with pytest.raises(
        AssertionError, match=r"node c: its certificate is for photos, not for 10.0.0.2"
    ):
        followed.run("ops1", plan)
    edit(followed, ", settings: {ssl_cert_file: /etc/ssl/postgresql/ca.crt}", "")
    return followed


def test_the_page_leads_to_clusters_of_debian(followed: RealHosts) -> None:
    clusters, rules, identifier = followed.said[-3:]
    assert clusters.splitlines()[1].split()[:5] == ["15", "photos", "5432", "online", "postgres"]
    assert "/var/lib/postgresql/15/photos/pg_hba.conf" in rules
    assert "(1 row)" in identifier
    followed.run("db2", "pg_ctlcluster 15 photos restart", root=True)
    assert "online" in followed.run("db2", "pg_lsclusters")


def test_one_node_with_another_secret_is_found_and_repaired(repaired: RealHosts) -> None:
    assert "login_refused" not in repaired.run("ops1", "shardctl verify -o json")


def test_a_password_changes_on_the_whole_fleet_while_applications_log_in(
    changed: RealHosts,
) -> None:
    changed.run("ops1", LOGIN.format(role="app_2", alias="shard0"))
    with pytest.raises(AssertionError, match="SASL authentication failed"):
        changed.run("ops1", LOGIN.format(role="app", alias="shard0"))


def test_a_clone_is_cloned_in_its_turn_onto_another_cluster_of_its_host(
    refused: RealHosts,
) -> None:
    sudoers = "sed 's/photos/other/' /etc/sudoers.d/shardctl > /etc/sudoers.d/other"
    refused.run("db2", f"{sudoers}; chmod 440 /etc/sudoers.d/other", root=True)
    more = f"echo '*:5433:*:shardctl:{password('shardctl')}' >> ~"
    refused.run("ops1", f"{more}/.pgpass")
    refused.run("pool1", f"{more}postgres/.pgpass", root=True)
    refused.run("ops1", "shardctl --topology other.yaml move-shards 128-130 --to c --yes")
    refused.run("ops1", "shardctl --topology other.yaml verify; cp other.yaml topology.yaml")
    clusters = refused.run("db2", "pg_lsclusters --no-header").splitlines()
    assert [line.split()[:4] for line in clusters] == [
        ["15", "other", "5433", "online"],
        ["15", "photos", "5432", "online"],
    ]
    refused.run("ops1", LOGIN.format(role="app_2", alias="shard128"))


def edit(hosts: RealHosts, old: str, new: str) -> None:
    """Change the topology that has a third node."""
    file = hosts.machines["ops1"].view(home_of(OPERATOR) / "other.yaml")
    assert file.read_text().count(old) == 1
    file.write_text(file.read_text().replace(old, new))


@dataclass
class Applications:
    """Programs that log in again and again, to shards of both nodes."""

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
    program = shlex.join([sys.executable, "-c", code])
    command = hosts.command("ops1", f"exec {program}", root=True)
    with ended(subprocess.Popen(command)) as process:
        made.wait()
        yield made
        assert process.poll() is None
