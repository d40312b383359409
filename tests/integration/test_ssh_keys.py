"""Who a host is, and who is let in there: as ssh has it, and without a question."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.host import (
    HostUnreachable,
)
from shardctl.hosts.openssh import HostKeyChanged, HostKeyUnknown, SshSettings
from shardctl.hosts.ssh import Ssh
from tests.fixtures.servers.sshd import error_of, make_key, tool

if TYPE_CHECKING:
    from tests.fixtures.servers.sshd import Sshd, SshHome


def test_a_host_that_nobody_knows_is_refused(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.config.write_text(sshd.block("box"))
    with pytest.raises(HostKeyUnknown) as refused:
        Ssh(SshSettings("box")).run(["true"])
    assert "`ssh box`" in refused.value.hint
    assert "accept_new" in refused.value.hint
    assert not ssh_home.known_hosts.exists()


def test_a_new_host_is_accepted_once_where_that_is_allowed(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.config.write_text(sshd.block("box", "HashKnownHosts yes"))
    ssh_home.known_hosts.write_text("# a comment\n")
    Ssh(SshSettings("box", accept_new=True)).run(["true"])
    Ssh(SshSettings("box")).run(["true"])
    comment, line = ssh_home.known_hosts.read_text().splitlines()
    assert comment == "# a comment"
    assert line.startswith("|1|")
    found = tool("ssh-keygen", "-f", ssh_home.known_hosts, "-F", f"[{sshd.host}]:{sshd.port}")
    assert line.split()[2] in found


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_host_with_another_key_is_refused(
    sshd: Sshd, ssh_home: SshHome, *, accept_new: bool
) -> None:
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(f"# a comment\n{sshd.known()}")
    sshd.stop()
    make_key(sshd.directory / "host_key")
    sshd.start()
    before = ssh_home.known_hosts.read_text()
    with pytest.raises(HostKeyChanged, match=f"{ssh_home.known_hosts}:2"):
        Ssh(SshSettings("box", accept_new=accept_new)).run(["true"])
    assert ssh_home.known_hosts.read_text() == before


def test_a_revoked_key_is_refused(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.config.write_text(sshd.block("box"))
    ssh_home.known_hosts.write_text(f"{sshd.known()}@revoked {sshd.known()}")
    with pytest.raises(HostKeyChanged, match="revokes"):
        Ssh(SshSettings("box")).run(["true"])


def test_a_user_who_is_not_let_in_is_told(sshd: Sshd, ssh_home: SshHome) -> None:
    ssh_home.known_hosts.write_text(sshd.known())
    host = Ssh(SshSettings(sshd.host, "no-such-user", sshd.port, sshd.user_key))
    assert str(sshd.user_key) in error_of(host, ["true"], HostUnreachable)
    host = Ssh(SshSettings(sshd.host, sshd.login, sshd.port, ssh_home.directory / "missing"))
    assert "missing" in error_of(host, ["true"], HostUnreachable)
