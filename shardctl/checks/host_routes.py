"""How shardctl gets to the machines of nodes and poolers, and which of them share one."""

from __future__ import annotations

import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from shardctl.hosts.reach import machine_of
from shardctl.hosts.ssh import Ssh
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from shardctl.hosts.host import Host
    from shardctl.hosts.openssh import SshSettings
    from shardctl.topology.model import Pooler, Topology

    Server = Node | Pooler


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, by what ssh calls it or by this machine's own name; and what is on it."""

    name: str
    host: Host
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class HostRoute:
    """How a server's machine is reached; `login` is None where it is this one."""

    server: Server
    machine: str
    login: str | None

    @property
    def kind(self) -> str:
        """Name the kind of server."""
        return "node" if isinstance(self.server, Node) else "pooler"

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return {
            "server": self.server.name,
            "kind": self.kind,
            "address": self.server.host,
            "host": self.machine,
            "way": "here" if self.login is None else "ssh",
            "login": self.login,
            "os_user": self.server.os_user,
        }


def reach(server: Server) -> Host:
    """Give a server's host for commands that are not its own user's."""
    return machine_of(replace(server, os_user=None))


def name_of(host: Host) -> str:
    """Name a machine."""
    return host.settings.host if isinstance(host, Ssh) else socket.gethostname()


def servers(topology: Topology) -> list[Server]:
    """List nodes, then poolers."""
    return [*topology.nodes.values(), *topology.poolers.values()]


def machines(topology: Topology) -> list[Machine]:
    """Give every machine once, in the order of the first server on it."""
    found: dict[SshSettings | None, list[Server]] = {}
    for server in servers(topology):
        host = reach(server)
        found.setdefault(host.settings if isinstance(host, Ssh) else None, []).append(server)
    hosts = {key: reach(some[0]) for key, some in found.items()}
    return [Machine(name_of(hosts[key]), hosts[key], tuple(some)) for key, some in found.items()]


def routes(topology: Topology) -> list[HostRoute]:
    """Report every server how it is reached; contacts nothing."""
    found = []
    for server in servers(topology):
        host = reach(server)
        login = _login(host.settings) if isinstance(host, Ssh) else None
        found.append(HostRoute(server, name_of(host), login))
    return found


def _login(settings: SshSettings) -> str:
    """Write where ssh goes; ~/.ssh/config decides what is left out.

    >>> from shardctl.hosts.openssh import SshSettings
    >>> _login(SshSettings("db1", user="ann", port=2222)), _login(SshSettings("db1"))
    ('ann@db1:2222', 'db1')
    """
    user = f"{settings.user}@" if settings.user else ""
    port = f":{settings.port}" if settings.port else ""
    return f"{user}{settings.host}{port}"
