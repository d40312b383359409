"""What docs/howto/real-hosts.md says, command by command, on machines as Debian installs them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from tests.fixtures import leftovers
from tests.fixtures.network import machines, namespaces
from tests.fixtures.network.machines import OPERATOR, ROOT, Machine
from tests.fixtures.network.pages import Command, commands
from tests.fixtures.network.switches import new_switch
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import SSHD

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


PAGES = ROOT / "docs" / "howto"
ADDRESSES = {"db1": "10.0.0.1", "db2": "10.0.0.2", "ops1": "10.0.0.5", "pool1": "10.0.0.9"}
"""Those of the page; no other test has this network."""
PACKAGES = ("postgresql-15", "pgbouncer", "openssl", "sudo", "openssh-server")

_SECONDS = 300
_PUBLIC_KEY = "THE-LINE-IN-id_ed25519.pub"
# A package's files in /etc are those that this machine has, but for what was made here by hand.
_OWN = r"""
mkdir -p all home lib log/postgresql
cp -a /etc/. all/
rm -rf all/postgresql/* all/sudoers.d/*
chmod 640 all/sudoers
printf '%s\n' 'root ALL = (ALL) ALL' '@includedir /etc/sudoers.d' > all/sudoers
chmod 440 all/sudoers
chown postgres: lib
chown root:postgres log/postgresql
chmod 1775 log/postgresql
mount -c --bind all /etc
mount -c --bind home /home
mount -c --bind lib /var/lib/postgresql
mount -c --bind log /var/log
"""


@dataclass
class RealHosts:
    """The page's machines, and what types on them the commands of pages."""

    machines: dict[str, Machine]
    said: list[str] = field(default_factory=list)
    """What each command has printed."""

    def follow(self, page: str, name: str) -> list[str]:
        """Type the commands of a page's blocks; give what each prints, if none fails."""
        return [self.type(one) for one in commands(PAGES / page, name)]

    def type(self, command: Command) -> str:
        """Type a command on its machine."""
        text = command.text
        if text.startswith("apt-get install "):
            return self._installed(command.host, text.split()[2:])
        if text.startswith("pipx install "):
            text = "shardctl --version"
        if _PUBLIC_KEY in text:
            key = self.run("ops1", "cat ~/.ssh/id_ed25519.pub").strip()
            text = text.replace(_PUBLIC_KEY, key)
        asked = re.search(r"\\password (\w+)", text)
        typed = 2 * f"{password(asked[1])}\n" if asked else ""
        return self.run(command.host, text, root=command.root, typed=typed)

    def run(self, host: str, text: str, *, root: bool = False, typed: str = "") -> str:
        """Run a command in a login's home, without a terminal; give all that it prints."""
        done = subprocess.run(
            self.command(host, text, root=root),
            input=typed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=_SECONDS,
            start_new_session=True,
        )
        assert done.returncode == 0, f"{host}: {text}\n{done.stdout}"
        return done.stdout

    def command(self, host: str, text: str, *, root: bool = False) -> list[str]:
        """Give what runs a command on a machine."""
        user = "root" if root else OPERATOR
        path = f'PATH="{sys.prefix}/bin:$PATH"'
        within = f'cd; {path} exec bash -e -u -o pipefail -c "$1"'
        return self.machines[host].command("bash", "-c", within, "bash", text, user=user)

    def _installed(self, host: str, packages: list[str]) -> str:
        """See that packages are there, and do what their scripts do when they are installed."""
        for package in packages:
            said = self.run(host, f"dpkg-query -W -f '${{Status}}' {package}", root=True)
            assert said == "install ok installed", package
        if "postgresql-15" in packages:
            self.run(host, "pg_createcluster 15 main --start", root=True)
        if "openssh-server" in packages:
            self.run(host, f"ssh-keygen -A; {SSHD}", root=True)
            wait_for(lambda: machines.SSH_PORT in self.machines[host].listening())
        return ""


def password(role: str) -> str:
    """Give what pages say instead of a role's password."""
    return f"PASSWORD-OF-{role.upper()}"


@pytest.fixture(scope="module")
def real_hosts(session_directory: Path) -> Iterator[RealHosts]:
    """Boot the machines of the page; the page itself does all the rest."""
    namespaces.require()
    _require_packages()
    hosts = "".join(f"{address} {name}\n" for name, address in ADDRESSES.items())
    with new_switch() as switch:
        made = RealHosts({})
        try:
            for name, address in ADDRESSES.items():
                directory = session_directory / "real" / name
                machines.furnish(directory, hosts)
                first = machines.boot_machine(name, directory, more=_OWN)
                made.machines[name] = Machine(name, address, directory, switch, first)
                switch.connect(name, namespaces.inside(first), address)
                leftovers.keep(first.pid)
            yield made
        finally:
            for machine in made.machines.values():
                machine.power_off()


def _require_packages() -> None:
    argv = ["dpkg-query", "-W", "-f", "${Status}\n", *PACKAGES]
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("the page is for Debian, which this is not")
    if done.stdout.splitlines() != ["install ok installed"] * len(PACKAGES):
        pytest.skip(f"not all of the page's packages are installed: {', '.join(PACKAGES)}")


TLS = "sslmode=verify-full sslrootcert=/etc/ssl/postgresql/ca.crt"
LOGIN = f"psql 'host=10.0.0.9 port=6432 dbname={{alias}} user={{role}} {TLS}' -c 'SELECT 1'"

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
    """Follow the page that changes the application's password: both serve until it is closed."""
    followed = repaired
    followed.follow("change-passwords.md", "change")
    for role in ("app", "app_2"):
        for alias in ("shard0", "shard200"):
            followed.run("ops1", LOGIN.format(role=role, alias=alias))
    followed.follow("change-passwords.md", "close")
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


def test_a_password_changes_on_the_whole_fleet(changed: RealHosts) -> None:
    changed.run("ops1", LOGIN.format(role="app_2", alias="shard0"))
    with pytest.raises(AssertionError, match="SASL authentication failed"):
        changed.run("ops1", LOGIN.format(role="app", alias="shard0"))
