"""The way to another machine, and as whom commands run there."""

from __future__ import annotations

import dataclasses
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts.host import (
    CommandFailed,
    HostLost,
    HostUnreachable,
    SudoRefused,
)
from shardctl.hosts.local import Local
from shardctl.hosts.openssh import SshSettings
from shardctl.hosts.ssh import Ssh, connections
from tests.fixtures.servers.postgres import wait_for
from tests.fixtures.servers.sshd import ROOT, error_of, shell, sleeping, when_running

if TYPE_CHECKING:
    from tests.fixtures.servers.sshd import Sshd, SshHome, StartSshd


def test_a_host_that_takes_connections_and_hangs_is_told(sshd: Sshd, box: Ssh) -> None:
    sshd.hang()
    host = Ssh(dataclasses.replace(box.settings, connect_timeout=0.5))
    error_of(host, ["true"], HostUnreachable)


def test_a_user_who_may_run_nothing_is_told(start_sshd: StartSshd, ssh_home: SshHome) -> None:
    server = start_sshd("ForceCommand echo not for you")
    ssh_home.known_hosts.write_text(server.known())
    ssh_home.config.write_text(server.block("box"))
    host = Ssh(SshSettings("box"))
    assert "not for you" in error_of(host, ["true"], HostUnreachable)


def test_jump_hosts_are_gone_through_in_their_order(
    start_sshd: StartSshd, sshd: Sshd, ssh_home: SshHome, token: str
) -> None:
    second = start_sshd(f"PermitOpen {sshd.host}:{sshd.port}")
    first = start_sshd(f"PermitOpen {second.host}:{second.port}")
    ahead = start_sshd(f"PermitOpen {first.host}:{first.port}")
    ssh_home.config.write_text(
        ahead.block("ahead", "ProxyJump none")
        + first.block("first", "ProxyJump ahead")
        + second.block("second")
        + sshd.block("box", "ProxyJump first,second")
        + "Host *\n  ProxyJump first\n  StrictHostKeyChecking no\n"
    )
    known = ahead.known() + first.known() + sshd.known()
    ssh_home.known_hosts.write_text(known + second.known())
    host = Ssh(SshSettings("box"))
    assert host.run(["echo", "far"]).stdout == "far\n"
    assert all(one.sessions() for one in (ahead, first, second))
    breaker = when_running(token, lambda: first.signal(signal.SIGKILL))
    error_of(host, sleeping(token), HostLost)
    breaker.join()
    assert host.run(["echo", "again"]).stdout == "again\n"
    connections.close_all()
    wait_for(lambda: not (ahead.sessions() or first.sessions() or second.sessions()))
    ssh_home.known_hosts.write_text(known)
    assert f"[{second.host}]:{second.port}" in error_of(host, ["true"], HostUnreachable)
    ssh_home.known_hosts.write_text(known + second.known())
    sshd.stop()
    assert "box" in error_of(host, ["true"], HostUnreachable)
    second.stop()
    assert "ProxyJump" in error_of(host, ["true"], HostUnreachable)


def may_sudo() -> bool:
    try:
        Local().run(["sudo", "-n", "true"])
    except CommandFailed:
        return False
    return True


@pytest.fixture
def as_root(box: Ssh) -> Ssh:
    """A login that may become anybody."""
    if shutil.which("sudo") is None:
        pytest.skip("sudo is not installed here")
    if ROOT:
        return Ssh(dataclasses.replace(box.settings, user="root"))
    if not may_sudo():
        pytest.skip("this user may not become another")
    return box


def test_another_user_runs_in_a_small_world(as_root: Ssh, token: str) -> None:
    other = "nobody"
    assert as_root.run(["id", "-un"], user=other).stdout == f"{other}\n"
    assert as_root.run(["pwd"], user=other).stdout == "/\n"
    names = as_root.run(["env"], user=other, env={"PGPASSWORD": "a 'b"}).stdout
    assert "PGPASSWORD=a 'b\n" in names
    assert "SUDO_" not in names
    said = as_root.run(
        shell("ps -eww -o args; printenv PGPASSWORD; cat", "$HOME 'x' größe"),
        user=other,
        env={"PGPASSWORD": f"secret-{token}"},
        input=f"secret-{token}",
    ).stdout
    assert said.count("secret-") == 2
    assert "SudoRefused" not in error_of(as_root, ["false"], CommandFailed, user=other)
    error_of(as_root, ["true"], SudoRefused, user="no-such-user")
