"""Where a command is to run: once on every machine, or once for each node and pooler named."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from shardctl.checks import host_routes
from shardctl.errors import Misused, UsageError
from shardctl.topology.model import Node, NodeName, PoolerName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.checks.host_routes import Server
    from shardctl.hosts.host import Host
    from shardctl.topology.model import Topology

Kind = Literal["node", "pooler"]


@dataclass(frozen=True, slots=True)
class Target:
    """One run of the command; `kind` is None where it is for a machine, with all its servers."""

    machine: str
    """What ssh calls it, or this machine's own name."""
    host: Host
    kind: Kind | None
    servers: tuple[str, ...]
    nodes: tuple[NodeName, ...]
    """Those nodes among the servers, where it is recorded."""
    env: Mapping[str, str] = field(repr=False)

    @property
    def label(self) -> str:
        """Name it for people."""
        if self.kind is not None:
            return self.servers[0]
        return f"{self.machine} ({', '.join(self.servers)})"


def machines(topology: Topology) -> list[Target]:
    """Give every machine once, however many nodes and poolers are on it."""
    return [
        Target(
            machine=machine.name,
            host=machine.host,
            kind=None,
            servers=tuple(server.name for server in machine.servers),
            nodes=tuple(server.name for server in machine.servers if isinstance(server, Node)),
            env={"SHARDCTL_NAMES": " ".join(server.name for server in machine.servers)},
        )
        for machine in host_routes.machines(topology)
    ]


def servers(topology: Topology, names: str) -> list[Target]:
    """Give what `nodes`, `poolers` or a list of names stands for; raises UsageError."""
    chosen: dict[tuple[Kind, str], Server] = {}
    for name in (part.strip() for part in names.split(",")):
        nodes = topology.nodes if name == "nodes" else {NodeName(name)} & topology.nodes.keys()
        poolers = (
            topology.poolers if name == "poolers" else {PoolerName(name)} & topology.poolers.keys()
        )
        if not nodes and not poolers and name not in ("nodes", "poolers"):
            known = ", ".join([*topology.nodes, *topology.poolers])
            raise Misused(
                "no_such_server",
                f"unknown node or pooler {name!r}",
                hint=f"specify nodes and poolers, separated by commas: {known}",
            )
        chosen |= {("node", one): topology.nodes[one] for one in nodes}
        chosen |= {("pooler", one): topology.poolers[one] for one in poolers}
    if not chosen:
        raise UsageError(f"the topology has no {names}", hint="specify nodes, or leave out --on")
    return [_of_server(topology, kind, server) for (kind, _), server in chosen.items()]


def _of_server(topology: Topology, kind: Kind, server: Server) -> Target:
    host = host_routes.reach(server)
    given: dict[str, object] = {
        "NAME": server.name,
        "KIND": kind,
        "HOST": server.host,
        "PORT": server.port,
        "DATABASE": topology.database.name,
        "OS_USER": server.os_user,
    }
    if isinstance(server, Node):
        given |= {"DATA_DIRECTORY": server.data_directory, "BIN_DIRECTORY": server.bin_directory}
    else:
        given |= {"CONFIG": server.config, "DATABASES_FILE": server.databases_file}
    return Target(
        machine=host_routes.name_of(host),
        host=host,
        kind=kind,
        servers=(server.name,),
        nodes=(server.name,) if isinstance(server, Node) else (),
        env={f"SHARDCTL_{key}": "" if text is None else str(text) for key, text in given.items()},
    )
