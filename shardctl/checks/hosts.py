"""How shardctl gets to the hosts of nodes and poolers, and tests on every host."""

from __future__ import annotations

import socket
import time
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.errors import ShardctlError
from shardctl.hosts import accounts, files, reach, scripts
from shardctl.hosts.host import CommandFailed
from shardctl.hosts.local import Local
from shardctl.hosts.ssh import Ssh
from shardctl.postgres import binaries
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.fanout import Progress
    from shardctl.hosts.host import Host
    from shardctl.hosts.openssh import SshSettings
    from shardctl.topology.model import Pooler, Topology

    Server = Node | Pooler


_SECONDS = 30.0
_TOOLS = (
    "awk",
    "base64",
    "cp",
    "date",
    "dd",
    "df",
    "flock",
    "head",
    "ln",
    "mv",
    "readlink",
    "setsid",
)
TOOLS_OF_GUARDS = ("psql", "setsid", "timeout", "awk")
_NOT_RUN = (126, 127)
_STOPPED = 3
"""What a shell ends with for a program that it cannot run, or find."""
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


@dataclass(frozen=True, slots=True)
class Found:
    """The result of a test; with a hint it is a fault."""

    output: str
    hint: str = ""


def way(host: Host) -> Found:
    """Run something; raises what keeps shardctl from it."""
    began = time.monotonic()
    name = host.run(["id", "-un"], timeout=_SECONDS).stdout.strip()
    took_ms = (time.monotonic() - began) * 1000
    return Found(f"local, as {name}" if isinstance(host, Local) else f"{name}, {took_ms:.0f} ms")


def _tools(host: Host) -> Found:
    return _commands(host, _TOOLS, "install coreutils, util-linux and an awk on that host")


def missing(host: Host, names: Sequence[str], user: str | None = None) -> tuple[str, ...]:
    """List the programs that a user of a host does not find there."""
    argv = ["sh", "-c", _MISSING, "sh", *names]
    return tuple(host.run(argv, user=user, timeout=_SECONDS).stdout.split())


def _commands(host: Host, names: tuple[str, ...], hint: str, user: str | None = None) -> Found:
    lacking = missing(host, names, user)
    return Found(f"lacks {', '.join(lacking)}", hint) if lacking else Found(", ".join(names))


def account(host: Host, server: Server) -> tuple[str | None, Found]:
    """See that commands can be run as the server's user; None is shardctl's login user.

    Raises account_refused, os_user_refused, SudoRefused, and what else keeps shardctl from it.
    """
    if isinstance(server, Node):
        name = accounts.account_on(host, server.os_user)
    else:
        name = server.os_user
        host = reach.host_of(server)  # refuses users as which shardctl cannot run commands here
    mine = host.run(["id", "-un"], user=name, timeout=_SECONDS).stdout.strip()
    return name, Found(mine)


def _programs(host: Host, node: Node, account: str | None) -> Found:
    found = binaries.find(node.bin_directory, account=account, host=host)
    programs = tuple(found.program(name) for name in _CLONING)
    lacking = _commands(
        host, programs, "install PostgreSQL's client programs on that host", account
    )
    if lacking.hint:
        return lacking
    return Found(f"PostgreSQL {found.major} in {found.directory}")


def why_no_status(host: Host, node: Node, account: str | None) -> str | None:
    """Run the operator's command for a server's status, which changes nothing, for all of them.

    Gives why it does not show whether the server runs; None where it does, or there is none. One
    that misses the data directory is enough for a directory that a clone will use.
    """
    if node.control is None or node.control.status is None:
        return None
    try:
        host.run(["sh", "-c", node.control.status], timeout=_SECONDS)
    except CommandFailed as error:
        by_sudo = [line for line in error.lines if line.startswith("sudo:")]
        code, reason = error.completed.code, (by_sudo or error.lines or ["no output"])[-1]
        if code in _NOT_RUN or by_sudo:
            return f"the status command cannot be run: {reason}"
        path = str(node.data_directory or "")
        misses = (
            path and any(path in line for line in error.lines) and _is_bare(host, path, account)
        )
        if code != _STOPPED and not misses:
            return (
                f"the status command exited with code {code}; expected 0 (server "
                f"running) or 3 (server stopped): {reason}"
            )
    return None


def _is_bare(host: Host, path: str, account: str | None) -> bool:
    argv = scripts.argv("directory", "of_clone", path, "")
    return host.run(argv, user=account, timeout=_SECONDS).stdout.startswith(("absent", "empty"))


def _control(host: Host, node: Node, account: str | None) -> Found:
    """See that the operator's own commands can be run, by the one that changes nothing."""
    if (why := why_no_status(host, node, account)) is not None:
        return Found(
            why,
            "correct `control` in the topology: shardctl runs it with `sh -c` on that "
            "host, as its login user",
        )
    status = node.control.status if node.control else None
    return Found(status or ("no status command" if node.control else "pg_ctl"))


def _guard(host: Host, pooler: Pooler) -> Found:
    hint = (
        "install them on that host for the guard of a move: util-linux, postgresql-client, "
        "coreutils, mawk or gawk"
    )
    return _commands(host, TOOLS_OF_GUARDS, hint, pooler.os_user)


def _files(host: Host, pooler: Pooler) -> Found:
    """See that the configuration can be read, and the file of aliases be written."""
    if files.read(host, pooler.config, user=pooler.os_user) is None:
        return Found(
            f"{pooler.config}: no such file", "correct `config` of the pooler in the topology"
        )
    files.place(host, Path(pooler.databases_file), user=pooler.os_user)
    return Found(f"{pooler.config}, {pooler.databases_file}")


class State(StrEnum):
    """How a test ended."""

    ok = "ok"
    error = "error"


@dataclass(frozen=True, slots=True)
class Tested:
    """One test on one host; `server` is None where it is of the machine itself."""

    host: str
    server: str | None
    test: str
    state: State
    found: str
    hint: str = ""

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        return asdict(self)


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


def ok(found: Sequence[Tested]) -> bool:
    """Return whether no error was found."""
    return not any(one.state is State.error for one in found)


def _machine(machine: Machine) -> Iterator[Tested]:
    reached = _tested(machine, None, "way", lambda: way(machine.host))
    yield reached
    if reached.state is State.error:
        return
    yield _tested(machine, None, "tools", partial(_tools, machine.host))
    for server in machine.servers:
        yield from _server(machine, server)


def _server(machine: Machine, server: Server) -> Iterator[Tested]:
    host, name_there = machine.host, None

    def user() -> Found:
        nonlocal name_there
        name_there, found = account(host, server)
        return found

    tested = _tested(machine, server, "user", user)
    yield tested
    if tested.state is State.error:
        return
    if isinstance(server, Node):
        for name, of_node in (("programs", _programs), ("control", _control)):
            yield _tested(machine, server, name, partial(of_node, host, server, name_there))
    else:
        own = reach.host_of(server)
        for name, of_pooler in (("guard", _guard), ("files", _files)):
            yield _tested(machine, server, name, partial(of_pooler, own, server))


def _tested(machine: Machine, server: Server | None, name: str, run: Callable[[], Found]) -> Tested:
    """Run one test; what it raises is what it found."""
    of = None if server is None else server.name
    try:
        found = run()
    except ShardctlError as error:
        reason = error.reason if isinstance(error, CommandFailed) else error.message
        return Tested(machine.name, of, name, State.error, reason, error.hint)
    state = State.error if found.hint else State.ok
    return Tested(machine.name, of, name, state, found.output, found.hint)
