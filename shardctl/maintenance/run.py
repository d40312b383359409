"""Run an operator's command on many hosts or servers at once, and kill it everywhere on Ctrl-C."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from shardctl import fanout
from shardctl.checks import hosts
from shardctl.checks.hosts import Machine
from shardctl.errors import Misused, Refused, ShardctlError
from shardctl.hosts import accounts
from shardctl.hosts.host import CommandFailed, CommandTimedOut, HostLost
from shardctl.hosts.local import Local
from shardctl.maintenance.sql import for_log
from shardctl.provision import maps
from shardctl.state import events, lock, observer
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from shardctl.checks.hosts import Server
    from shardctl.fanout import Progress
    from shardctl.postgres.connection import Connection
    from shardctl.topology.model import Topology


Kind = Literal["node", "pooler"]


@dataclass(frozen=True, slots=True)
class Target:
    """One run of the command; `kind` is None where it is for a machine, with all its servers."""

    machine: Machine
    kind: Kind | None
    env: Mapping[str, str] = field(repr=False)

    @property
    def servers(self) -> list[str]:
        """The names of its nodes and poolers."""
        return [server.name for server in self.machine.servers]

    @property
    def label(self) -> str:
        """Name it for people."""
        if self.kind is not None:
            return self.servers[0]
        return f"{self.machine.name} ({', '.join(self.servers)})"


def machines(topology: Topology) -> list[Target]:
    """Give every machine once, however many nodes and poolers are on it."""
    return [
        Target(machine, None, {"SHARDCTL_NAMES": " ".join(one.name for one in machine.servers)})
        for machine in hosts.machines(topology)
    ]


def servers(topology: Topology, names: str) -> list[Target]:
    """Give what `nodes`, `poolers` or a list of names stands for; raises no_such_server."""
    every: dict[tuple[Kind, str], Server] = {("node", n): one for n, one in topology.nodes.items()}
    every |= {("pooler", name): one for name, one in topology.poolers.items()}
    wanted = [name.strip() for name in names.split(",")]
    for name in wanted:
        if not any(name in (server, f"{kind}s") for kind, server in every):
            raise Misused(
                "no_such_server",
                f"the topology has no node or pooler {name!r}",
                hint="specify nodes and poolers, separated by commas: "
                f"{', '.join(server for _, server in every)}",
            )
    return [
        _of_server(topology, kind, server)
        for (kind, name), server in every.items()
        if name in wanted or f"{kind}s" in wanted
    ]


def _of_server(topology: Topology, kind: Kind, server: Server) -> Target:
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
    env = {f"SHARDCTL_{key}": "" if text is None else str(text) for key, text in given.items()}
    host = hosts.machine_host(server)
    return Target(Machine(hosts.name_of(host), host, (server,)), kind, env)


COMMAND = "run"
_WIDTH = 32
_KILLED_WITHIN = 10.0
_KILL = 'kill -s KILL -- "-$1"'  # the form that every shell knows


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one run.

    `code` is None where it did not end by itself; `error` explains why then, and `begun` whether it
    may have done something.
    """

    target: Target
    code: int | None
    stdout: str
    stderr: str
    took_ms: float
    error: ShardctlError | None = None
    begun: bool = True

    def as_json(self) -> dict[str, Any]:
        """Give the shape of docs/reference/json.md."""
        target, error = self.target, self.error
        return {
            "host": target.machine.name,
            "kind": target.kind,
            "servers": target.servers,
            "exit_code": self.code,
            "stdout": self.stdout,
            "stderr": self.stderr,
            "elapsed_ms": round(self.took_ms, 1),
            "error": None if error is None else error.error_json(),
        }


@dataclass(slots=True)
class Run:
    """A command in transit; `results` are those that have ended so far."""

    command: str
    user: str | None = None
    timeout_s: float | None = None
    results: list[Result] = field(default_factory=list)
    _groups: dict[int, tuple[Target, str]] = field(default_factory=dict)

    def on(self, targets: Sequence[Target], progress: Progress) -> list[Result]:
        """Run it everywhere, and give the results in the targets' order.

        Raises KeyboardInterrupt when all that ran has been killed; `results` has the rest.
        """
        progress.expect("hosts", "running", len(targets), "hosts")

        def work(target: Target) -> Result:
            result = self._one(target)
            self.results.append(result)
            progress.advance("hosts")
            return result

        outcomes = fanout.run(targets, work, width=_WIDTH, cancel=self._kill_all)
        return [outcome.result() for outcome in outcomes]

    def _one(self, target: Target) -> Result:
        began = time.monotonic()
        code: int | None = None
        error: ShardctlError | None = None
        stdout, stderr, begun = "", "", True

        def at(group: str) -> None:
            self._groups[threading.get_ident()] = (target, group)

        try:
            other = self.user if isinstance(target.machine.host, Local) else None
            if other is not None and (why := accounts.why_not(other)) is not None:
                raise Refused(
                    "user_refused",
                    f"cannot run commands as {self.user} on this machine: {why}",
                    hint="choose another user, or run shardctl as root",
                )
            argv = ["sh", "-c", self.command]
            done = target.machine.host.run(
                argv, begun=at, user=self.user, env=target.env, timeout=self.timeout_s
            )
            stdout, stderr = done.stdout, done.stderr
            code = 0
        except CommandFailed as failed:
            done, code = failed.completed, failed.completed.code
            stdout, stderr = done.stdout, done.stderr
        except CommandTimedOut as late:
            stdout = late.stdout
            error = Refused("not_ended", f"killed after {late.seconds:g} s", hint="raise --timeout")
        except HostLost as lost:
            stdout = lost.stdout
            what = f"the connection to host {lost.host} was lost while the command ran"
            error = Refused("not_ended", f"{what}: {lost.reason}", hint=lost.hint)
        except ShardctlError as refused:
            error, begun = refused, False
        finally:
            self._groups.pop(threading.get_ident(), None)
        took_ms = (time.monotonic() - began) * 1000
        return Result(target, code, stdout, stderr, took_ms, error, begun)

    def _kill_all(self) -> None:
        """Kill the running commands; one that is just starting is killed the next time."""
        fanout.run(list(self._groups.values()), self._kill, width=_WIDTH)

    def _kill(self, running: tuple[Target, str]) -> None:
        target, group = running
        with suppress(CommandFailed):  # it has ended
            target.machine.host.run(
                ["sh", "-c", _KILL, "sh", group], user=self.user, timeout=_KILLED_WITHIN
            )


def record(topology: Topology, command: str, results: Sequence[Result]) -> list[str]:
    """Write an event on every node on whose host the command was begun; list where that failed.

    A node's database may well be down while an operator is at its host.
    """
    wanted = {
        server.name: one
        for one in results
        if one.begun
        for server in one.target.machine.servers
        if isinstance(server, Node)
    }
    text = for_log(command)

    def write(session: Connection, node: Node) -> None:
        if maps.known(topology, session, node).version is not None:
            code = wanted[node.name].code
            ended = "was stopped" if code is None else f"exit {code}"
            events.record(session, COMMAND, f"{ended}: {text}")

    nodes = [topology.nodes[name] for name in wanted]
    asked = observer.ask(topology, write, purpose=lock.purpose(COMMAND), nodes=nodes)
    return [f"the event was not recorded: {error.message}" for error in asked.problems]


def exit_code(results: Sequence[Result]) -> int:
    """Return 0 if all ended with 0; 3 where some did not end, or some did not begin."""
    begun = [one for one in results if one.begun]
    if any(one.error for one in begun) or 0 < len(begun) < len(results):
        return 3
    return 0 if begun and all(one.code == 0 for one in begun) else 1
