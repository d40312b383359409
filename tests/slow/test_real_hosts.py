"""What docs/howto/real-hosts.md says, command by command, on machines as Debian installs them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.network import namespaces
from tests.fixtures.network.pages import Command, commands
from tests.fixtures.network.switches import new_switch
from tests.fixtures.servers.sshd import SSHD

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "howto"
ADDRESSES = {"db1": "10.0.0.1", "db2": "10.0.0.2", "ops1": "10.0.0.5", "pool1": "10.0.0.9"}
"""Those of the page; no other test has this network."""
PACKAGES = ("postgresql-15", "pgbouncer", "openssl", "sudo", "openssh-server")

_SECONDS = 300
_PUBLIC_KEY = "THE-LINE-IN-id_ed25519.pub"
_OPERATOR = "operator"
"""The ordinary user who runs shardctl."""
# The first process of a machine: when what made the machine ends, however that ends, the pipe of
# its input ends, and with its first process a PID namespace has ended. It reaps what is orphaned,
# as that of any machine does: by ignoring SIGCHLD.
# It works in its own directory and names that by no path, as any may be covered by then. What is
# to be seen is kept before all else, and put back where it is not there any more.
# A package's files in /etc are those that this machine has, but for what was made here by hand.
_BOOT = r"""
set -eu
name=$1 places=$2
cd "$3"
shift 3
umask 022
mount --make-rprivate /
hostname "$name"
number=0
for place in "$@"; do
    [ $number -lt "$places" ] || break
    number=$((number + 1))
    if [ -d "$place" ]; then mkdir -p "kept/$number"; else mkdir -p kept; : > "kept/$number"; fi
    mount -c --rbind "$place" "kept/$number"
done
mkdir -p all home lib log/postgresql
cp -a /etc/. all/
rm -rf all/postgresql/* all/sudoers.d/*
cp hosts all/hosts
echo 'operator:x:40002:40002::/home/operator:/bin/sh' >> all/passwd
echo 'operator:x:40002:' >> all/group
echo 'operator:*:19000:0:99999:7:::' >> all/shadow
chmod 640 all/sudoers
printf '%s\n' 'root ALL = (ALL) ALL' '@includedir /etc/sudoers.d' > all/sudoers
chmod 440 all/sudoers
install -d -m 700 -o 40002 -g 40002 home/operator
chown postgres: lib
chown root:postgres log/postgresql
chmod 1775 log/postgresql
mount -c --bind all /etc
mount -c --bind home /home
mount -c --bind lib /var/lib/postgresql
mount -c --bind log /var/log
number=0
for place in "$@"; do
    number=$((number + 1))
    if [ $number -gt "$places" ]; then mount -c -t tmpfs -o mode=755 none "$place"; fi
done
for place in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 none "$place"; done
mount -t tmpfs -o mode=755 none /run
mkdir /run/sshd
number=0
for place in "$@"; do
    [ $number -lt "$places" ] || break
    number=$((number + 1))
    if [ "$place" -ef "kept/$number" ]; then continue; fi
    mkdir -p "${place%/*}"
    if [ -d "kept/$number" ]; then mkdir -p "$place"; else : > "$place"; fi
    mount -c --move "kept/$number" "$place"
done
cd /
ip link set lo up
echo up
exec env --ignore-signal=CHLD cat > /dev/null
"""
_SSHD = f"""
ssh-keygen -A
{SSHD}
until ss -Hltn 'sport = :22' | grep -q .; do sleep 0.1; done
"""


@dataclass
class RealHosts:
    """The page's machines, and what types on them the commands of pages."""

    machines: dict[str, subprocess.Popen[bytes]]
    """The first process of each."""
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
        user = "root" if root else _OPERATOR
        home = "/root" if root else f"/home/{user}"
        machine = str(namespaces.inside(self.machines[host]))
        path = f"{sys.prefix}/bin:{os.environ['PATH']}:/usr/sbin"
        argv = ["nsenter", "-t", machine, "--net", "--mount", "--uts", "--ipc", "--pid", "--"]
        argv += ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        argv += ["--pdeathsig=KILL", "env", f"--chdir={home}", f"HOME={home}", f"USER={user}"]
        argv += [f"LOGNAME={user}", "TMPDIR=/tmp", f"PATH={path}"]
        done = subprocess.run(
            [*argv, "bash", "-e", "-u", "-o", "pipefail", "-c", text],
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

    def _installed(self, host: str, packages: list[str]) -> str:
        """See that packages are there, and do what their scripts do when they are installed."""
        for package in packages:
            said = self.run(host, f"dpkg-query -W -f '${{Status}}' {package}", root=True)
            assert said == "install ok installed", package
        if "postgresql-15" in packages:
            self.run(host, "pg_createcluster 15 main --start", root=True)
        if "openssh-server" in packages:
            self.run(host, _SSHD, root=True)
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
    places, closed = _seen()
    with new_switch() as switch:
        made = RealHosts({})
        try:
            for name, address in ADDRESSES.items():
                directory = session_directory / "real" / name
                directory.mkdir(parents=True)
                (directory / "hosts").write_text(f"127.0.0.1 localhost\n{hosts}")
                words = (name, str(len(places)), str(directory), *map(str, (*places, *closed)))
                first = namespaces.boot(_BOOT, *namespaces.ALL, words=words)
                made.machines[name] = first
                switch.connect(name, namespaces.inside(first), address)
            yield made
        finally:
            for first in made.machines.values():
                namespaces.shut(first)


def _require_packages() -> None:
    argv = ["dpkg-query", "-W", "-f", "${Status}\n", *PACKAGES]
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("the page is for Debian, which this is not")
    if done.stdout.splitlines() != ["install ok installed"] * len(PACKAGES):
        pytest.skip(f"not all of the page's packages are installed: {', '.join(PACKAGES)}")


def _seen() -> tuple[list[Path], list[Path]]:
    """List what all machines have of this one, and the closed directories that would hide it.

    All users can enter the checkout and its Python there, wherever these are: below a home that
    only its owner may enter, or where the machine has a directory of its own, as `/tmp`.
    """
    programs = (Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parents[1])
    named = {path for one in (ROOT, *programs) for path in (one, one.resolve())}
    outermost = [one for one in sorted(named) if named.isdisjoint(one.parents)]
    covers = {cover for one in outermost if (cover := _closed(one))}
    # A directory that is closed itself gives what is in it.
    opened = [[one] if _is_open(one) else filter(Path.exists, one.iterdir()) for one in outermost]
    return [one for some in opened for one in some], sorted(covers)


def _closed(place: Path) -> Path | None:
    """Find the first directory on the way to a place that others may not enter."""
    return next((d for d in (*reversed(place.parents), place) if not _is_open(d)), None)


def _is_open(directory: Path) -> bool:
    return bool(directory.stat().st_mode & 0o001)


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
