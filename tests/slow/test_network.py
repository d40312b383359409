"""The network on which tests have several machines is one."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.network.machines import DISK, LOGIN, OPERATOR, ROOT, SSH_PORT
from tests.fixtures.network.network import HOSTS
from tests.fixtures.processes import ended
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.network.network import Network


DELAY_MS = 50


def ssh(network: Network, *argv: str) -> str:
    """Run OpenSSH's own client as the operator."""
    return network["desk"].run("ssh", "-o", "ConnectTimeout=2", *argv, user=OPERATOR)


def reached(network: Network, name: str) -> bool:
    try:
        socket.create_connection((network.addresses[name], SSH_PORT), timeout=1).close()
    except OSError:
        return False
    return True


def round_trip_ms(network: Network, name: str) -> float:
    """Take the time until a machine has taken a connection."""
    began = time.monotonic()
    socket.create_connection((network.addresses[name], SSH_PORT), timeout=5).close()
    return (time.monotonic() - began) * 1000


def is_near(network: Network, name: str) -> bool:
    """Tell whether a connection comes about in less time than two packets with the delay take."""
    return round_trip_ms(network, name) < 2 * DELAY_MS


def test_an_operator_gets_to_every_machine_and_becomes_postgres_there(network: Network) -> None:
    for name in HOSTS:
        assert ssh(network, name, "hostname; id -un").split() == [name, LOGIN]
    assert ssh(network, "a", "sudo -n -u postgres id -un") == "postgres\n"
    with pytest.raises(AssertionError, match="sudo"):
        ssh(network, "a", "sudo -n id -un")


def test_machines_have_their_own_files_and_processes(network: Network) -> None:
    for name in ("a", "b"):
        (network[name].view() / "own").write_text(name)
    assert [ssh(network, name, f"cat {DISK}/own") for name in ("a", "b")] == ["a", "b"]
    desk = network["desk"]
    assert desk.run("ls", DISK, user=OPERATOR) == "home\n"
    with pytest.raises(AssertionError, match="No such file"):
        desk.run("ls", network.directory, user=OPERATOR)
    assert "sshd" not in desk.run("ps", "-e", user=OPERATOR)
    said = desk.run(sys.executable, "-m", "shardctl", "--version", user=OPERATOR)
    assert "shardctl" in said


def test_a_cable_can_be_pulled(network: Network) -> None:
    with network["a"].unplugged():
        assert not reached(network, "a")
        assert reached(network, "b")
        with pytest.raises(AssertionError):
            ssh(network, "a", "true")
    wait_for(lambda: reached(network, "a"))
    with network["desk"].unplugged():
        assert reached(network, "a")
        with pytest.raises(AssertionError):
            ssh(network, "a", "true")


def test_packets_can_be_delayed(network: Network) -> None:
    # What else this machine does adds to some of the times, and takes nothing from any.
    wait_for(lambda: is_near(network, "a"))
    with network["a"].delayed(DELAY_MS):
        assert not any(is_near(network, "a") for _ in range(5))
        wait_for(lambda: is_near(network, "b"))
    wait_for(lambda: is_near(network, "a"))


def test_ssh_servers_hang_refuse_sudo_and_change_their_keys(network: Network) -> None:
    with network["b"].ssh_hangs(), pytest.raises(AssertionError):
        ssh(network, "b", "true")
    assert ssh(network, "b", "echo again") == "again\n"
    with network["b"].sudo_refused(), pytest.raises(AssertionError, match="password"):
        ssh(network, "b", "sudo -n -u postgres true")
    network["b"].new_host_key()
    with pytest.raises(AssertionError, match="IDENTIFICATION HAS CHANGED"):
        ssh(network, "b", "true")
    network.know()
    assert ssh(network, "b", "echo again") == "again\n"


def test_a_disk_can_be_full(network: Network) -> None:
    place = DISK / "small"
    c = network["c"]
    write = ["dd", "if=/dev/zero", f"of={place}/file", "bs=1M", "count=2"]
    with c.small_disk(place, "1m") as make_large:
        with pytest.raises(AssertionError, match="No space left"):
            c.run(*write, user="postgres")
        make_large()
        c.run(*write, user="postgres")


@pytest.mark.usefixtures("network")
def test_machines_end_when_what_made_them_is_killed() -> None:
    code = (
        "from tests.fixtures.network.namespaces import ALL, boot, inside\n"
        "made = boot('echo up; exec cat > /dev/null', *ALL)\n"
        "print(inside(made), flush=True)\n"
        "input()\n"
    )
    started = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    )
    with ended(started) as maker:
        assert maker.stdout is not None
        first = Path("/proc") / maker.stdout.readline().decode().strip()
        assert (first / "ns").exists()
    wait_for(lambda: not first.exists())


def test_a_machine_can_be_powered_off_and_come_up_again(network: Network) -> None:
    network["v"].power_off()
    assert not reached(network, "v")
    network.boot("v")
    wait_for(lambda: reached(network, "v"))
    assert ssh(network, "v", "hostname") == "v\n"
