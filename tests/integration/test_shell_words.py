"""Values of the topology that a shell could take for commands: none of them runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.hosts.host import HostUnreachable
from shardctl.hosts.openssh import SshSettings
from shardctl.hosts.ssh import Ssh
from shardctl.postgres import binaries, hosted
from shardctl.sandbox.local import LocalServer
from shardctl.topology import loader
from shardctl.topology.loader import TopologyInvalid
from tests.fixtures.refusals import raises_code
from tests.fixtures.servers.postgres import free_ports, local_node, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.servers.sshd import SshHome


@pytest.fixture
def place(server_directory: Path) -> Iterator[Path]:
    """A directory whose name runs commands where a shell reads it, which leave a file `ran`."""
    made = server_directory
    for part in (f"$(touch {server_directory}/ran)", f"`touch {server_directory}/ran`", '"x\\y'):
        made = made / part
    made.mkdir(parents=True)
    yield made
    stop_all_below(server_directory)


def described(place: Path) -> LocalServer:
    account = accounts.server_account(None)
    settings = {"fsync": "off", "shared_buffers": "16MB"}
    return LocalServer(
        local_node(place, "a", free_ports(1)[0], range(0), settings=settings),
        data_directory=place / "sandbox" / "a",
        binaries=binaries.find(None, account=account),
        account=account,
    )


def test_a_servers_directory_is_no_command(place: Path, server_directory: Path) -> None:
    server = described(place)
    assert server.init(superuser="postgres")
    assert server.start() == "started"
    assert server.start() == "up"
    assert server.log.exists()
    assert server.stop()
    there = hosted.HostedServer(
        **{f.name: getattr(server, f.name) for f in dataclasses.fields(server)}
    )
    assert there.start() == "started"
    there.reload()
    assert there.stop()
    assert not (server_directory / "ran").exists()


def test_a_directory_of_programs_that_a_shell_would_run_is_refused(
    place: Path, server_directory: Path
) -> None:
    there = binaries.find(None, account=None).directory
    (place / "bin").symlink_to(there)
    with raises_code("binaries_refused"):
        binaries.find(place / "bin", account=None)
    odd = server_directory / "odd$bin"
    odd.mkdir()
    (server_directory / "plain").symlink_to(odd)
    with raises_code("binaries_refused"):
        binaries.find(server_directory / "plain", account=None)
    assert not (server_directory / "ran").exists()


TOPOLOGY = """\
cluster: c
shards: {{count: 1}}
database: {{name: app}}
nodes:
  a: {{host: h, port: 1, shards: 0, ssh: {{{ssh}}}}}
"""


@pytest.mark.parametrize(
    "ssh",
    [
        "host: 'x;id>/tmp/ran'",
        "host: x$(id)",
        "host: '`id`'",
        "host: '-oProxyCommand=id'",
        "host: h, user: 'x;id'",
        "host: h, user: '-x'",
        "host: h, user: a b",
    ],
)
def test_a_host_that_ssh_config_would_hand_to_a_shell_is_refused(ssh: str) -> None:
    """As OpenSSH does since 9.6: `ProxyCommand nc %h %p` is a line for a shell."""
    with pytest.raises(TopologyInvalid):
        loader.parse(TOPOLOGY.format(ssh=ssh).encode(), Path("/t.yaml"))


def test_a_plain_host_reaches_the_command_of_ssh_config(ssh_home: SshHome, tmp_path: Path) -> None:
    ssh_home.config.write_text(f"Host *\n  ProxyCommand echo %h %r >{tmp_path}/ran\n")
    text = TOPOLOGY.format(ssh="host: db-1.example.com, user: ops")
    (node,) = loader.parse(text.encode(), Path("/t.yaml")).nodes.values()
    assert node.ssh is not None
    assert node.ssh.host is not None
    with pytest.raises(HostUnreachable):
        Ssh(SshSettings(node.ssh.host, node.ssh.user)).run(["true"])
    assert (tmp_path / "ran").read_text().split() == ["db-1.example.com", "ops"]
