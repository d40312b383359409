"""How shardctl gets to the hosts of nodes and poolers, and tests on every host."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files, reach
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.hosts.ssh import Ssh
from shardctl.postgres import binaries
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.fanout import Progress
    from shardctl.hosts.host import Host
    from shardctl.hosts.openssh import SshSettings
    from shardctl.topology.model import Pooler, Topology

    Server = Node | Pooler


_SECONDS = 30.0
_TOOLS = ("awk", "flock", "setsid")
"""Of what shardctl runs there, what a host can be without."""
TOOLS_OF_GUARDS = ("psql", "setsid", "timeout", "awk")
_STOPPED = 3
"""How a status command ends where the server is stopped."""
_CLONING = ("pg_basebackup", "psql")
_MISSING = 'for tool; do command -v -- "$tool" > /dev/null || printf "%s " "$tool"; done'


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine, by what ssh calls it or by this machine's own name; and what is on it."""

    name: str
    host: Host
    servers: tuple[Server, ...]


def machine_host(server: Server) -> Host:
    """Give a server's host for commands that are not its own user's."""
    return reach.machine_of(replace(server, os_user=None))


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
        host = machine_host(server)
        found.setdefault(host.settings if isinstance(host, Ssh) else None, []).append(server)
    hosts = {key: machine_host(some[0]) for key, some in found.items()}
    return [Machine(name_of(hosts[key]), hosts[key], tuple(some)) for key, some in found.items()]


def routes(topology: Topology) -> list[dict[str, Any]]:
    """Report every server how it is reached, as docs/reference/json.md has it; contacts nothing."""
    found = []
    for server in servers(topology):
        host = machine_host(server)
        login = _login(host.settings) if isinstance(host, Ssh) else None
        found.append(
            {
                "server": server.name,
                "kind": "node" if isinstance(server, Node) else "pooler",
                "address": server.host,
                "host": name_of(host),
                "way": "here" if login is None else "ssh",
                "login": login,
                "os_user": server.os_user,
            }
        )
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


def _way(host: Host) -> str:
    began = time.monotonic()
    name = host.run(["id", "-un"], timeout=_SECONDS).stdout.strip()
    took_ms = (time.monotonic() - began) * 1000
    return f"local, as {name}" if isinstance(host, Local) else f"{name}, {took_ms:.0f} ms"


def _commands(host: Host, names: tuple[str, ...], hint: str, user: str | None = None) -> str:
    """See that a user of a host finds these programs there."""
    argv = ["sh", "-c", _MISSING, "sh", *names]
    if lacking := host.run(argv, user=user, timeout=_SECONDS).stdout.split():
        raise ShardctlError(f"lacks {', '.join(lacking)}", hint=hint)
    return ", ".join(names)


def _user(host: Host, server: Server) -> str:
    """See that commands can be run as the server's user."""
    if isinstance(server, Node):
        account = accounts.account_on(host, server.os_user)
    else:
        account, host = server.os_user, reach.host_of(server)
    return host.run(["id", "-un"], user=account, timeout=_SECONDS).stdout.strip()


def _programs(host: Host, node: Node) -> str:
    account = accounts.account_on(host, node.os_user)
    found = binaries.find(node.bin_directory, account=account, host=host)
    programs = tuple(found.program(name) for name in _CLONING)
    _commands(host, programs, "install PostgreSQL's client programs on that host", account)
    return f"PostgreSQL {found.major} in {found.directory}"


def why_no_status(host: Host, node: Node) -> str | None:
    """Run the operator's command for a server's status, which changes nothing, for all of them.

    Gives why it does not show whether the server runs; None where it does, or there is none.
    """
    if node.control is None or node.control.status is None:
        return None
    try:
        host.run(["sh", "-c", node.control.status], timeout=_SECONDS)
    except CommandFailed as error:
        path, code = str(node.data_directory or ""), error.completed.code
        # It may miss the directory that a clone will use.
        misses = path and any(path in line for line in error.lines)
        if code != _STOPPED and not misses:
            return (
                f"the status command exited with code {code}; expected 0 (server "
                f"running) or 3 (server stopped): {(error.lines or ['no output'])[-1]}"
            )
    return None


def _control(host: Host, node: Node) -> str:
    """See that the operator's own commands can be run, by the one that changes nothing."""
    if (why := why_no_status(host, node)) is not None:
        raise ShardctlError(
            why,
            hint="correct `control` in the topology: shardctl runs it with `sh -c` on that "
            "host, as its login user",
        )
    return (node.control.status or "no status command") if node.control else "pg_ctl"


def _guard(host: Host, pooler: Pooler) -> str:
    hint = (
        "install them on that host for the guard of a move: util-linux, postgresql-client, "
        "coreutils, mawk or gawk"
    )
    return _commands(host, TOOLS_OF_GUARDS, hint, pooler.os_user)


def _files(host: Host, pooler: Pooler) -> str:
    """See that the configuration can be read, and the file of aliases be written."""
    if files.read(host, pooler.config, user=pooler.os_user) is None:
        raise ShardctlError(
            f"{pooler.config}: no such file", hint="correct `config` of the pooler in the topology"
        )
    files.place(host, Path(pooler.databases_file), user=pooler.os_user)
    return f"{pooler.config}, {pooler.databases_file}"


class Tested(NamedTuple):
    """One test on one host; `server` is None where it is of the machine itself."""

    host: str
    server: str | None
    test: str
    state: Literal["ok", "error"]
    found: str
    hint: str = ""


def test(topology: Topology, progress: Progress) -> list[Tested]:
    """Test all hosts in parallel; of one that cannot be reached, that is all that is reported.

    The machines of nodes that give only SQL are left out.
    Whatever is wrong is in the result. Changes nothing.
    """
    there = [
        replace(machine, servers=tested)
        for machine in machines(topology)
        if (tested := tuple(filter(reach.is_reached, machine.servers)))
    ]
    progress.expect("hosts", "testing", len(there), "hosts")

    def work(machine: Machine) -> list[Tested]:
        found = list(_machine(machine))
        progress.advance("hosts")
        return found

    found = fanout.collect(there, work).every()
    return [one for tested in found for one in tested]


def _machine(machine: Machine) -> Iterator[Tested]:
    yield (reached := _tested(machine, None, "way", partial(_way, machine.host)))
    if reached.state == "error":
        return
    hint = "install util-linux and an awk on that host"
    yield _tested(machine, None, "tools", partial(_commands, machine.host, _TOOLS, hint))
    for server in machine.servers:
        yield from _server(machine, server)


def _server(machine: Machine, server: Server) -> Iterator[Tested]:
    host = machine.host
    yield (tested := _tested(machine, server, "user", partial(_user, host, server)))
    if tested.state == "error":
        return
    if isinstance(server, Node):
        yield _tested(machine, server, "programs", partial(_programs, host, server))
        yield _tested(machine, server, "control", partial(_control, host, server))
    else:
        own = reach.host_of(server)
        yield _tested(machine, server, "guard", partial(_guard, own, server))
        yield _tested(machine, server, "files", partial(_files, own, server))


def _tested(machine: Machine, server: Server | None, name: str, run: Callable[[], str]) -> Tested:
    """Run one test; what it raises is what it found."""
    of = None if server is None else server.name
    try:
        return Tested(machine.name, of, name, "ok", run())
    except ShardctlError as error:
        reason = error.reason if isinstance(error, CommandFailed) else error.message
        return Tested(machine.name, of, name, "error", reason, error.hint)
