"""Tests on every host: the connection to it, and what a move needs there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from shardctl import fanout
from shardctl.checks import host_routes, host_tests
from shardctl.errors import ShardctlError
from shardctl.hosts import reach
from shardctl.hosts.host import CommandFailed
from shardctl.topology.model import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardctl.checks.host_routes import Machine, Server
    from shardctl.checks.host_tests import Found
    from shardctl.fanout import Progress
    from shardctl.topology.model import Topology


class State(StrEnum):
    """How a test ended."""

    ok = "ok"
    warning = "warning"
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
        return {
            "host": self.host,
            "server": self.server,
            "test": self.test,
            "state": self.state.value,
            "found": self.found,
            "hint": self.hint,
        }


def test(topology: Topology, progress: Progress) -> list[Tested]:
    """Test all hosts in parallel; of one that cannot be reached, that is all that is reported.

    The machines of nodes that give only SQL are left out.
    Whatever is wrong is in the result. Changes nothing.
    """
    machines = [
        replace(machine, servers=tested)
        for machine in host_routes.machines(topology)
        if (tested := tuple(filter(reach.is_reached, machine.servers)))
    ]
    progress.expect("hosts", "testing", len(machines), "hosts")

    def work(machine: Machine) -> list[Tested]:
        found = list(_machine(machine))
        progress.advance("hosts")
        return found

    found = fanout.collect(machines, work).every()
    return [one for tested in found for one in tested]


def ok(found: Sequence[Tested]) -> bool:
    """Return whether no error was found."""
    return not any(one.state is State.error for one in found)


def _machine(machine: Machine) -> Iterator[Tested]:
    way = _tested(machine, None, "way", lambda: host_tests.way(machine.host))
    yield way
    if way.state is State.error:
        return
    for name, of_machine in host_tests.OF_MACHINES.items():
        yield _tested(machine, None, name, partial(of_machine, machine.host))
    for server in machine.servers:
        yield from _server(machine, server)


def _server(machine: Machine, server: Server) -> Iterator[Tested]:
    host, account = machine.host, None

    def user() -> Found:
        nonlocal account
        account, found = host_tests.account(host, server)
        return found

    tested = _tested(machine, server, "user", user)
    yield tested
    if tested.state is State.error:
        return
    if isinstance(server, Node):
        for name, of_node in host_tests.OF_NODES.items():
            yield _tested(machine, server, name, partial(of_node, host, server, account))
    else:
        own = reach.host_of(server)
        for name, of_pooler in host_tests.OF_POOLERS.items():
            yield _tested(machine, server, name, partial(of_pooler, own, server))


def _tested(machine: Machine, server: Server | None, name: str, run: Callable[[], Found]) -> Tested:
    """Run one test; what it raises is what it found."""
    of = None if server is None else server.name
    try:
        found = run()
    except CommandFailed as error:
        lines = (error.completed.stderr or error.completed.stdout).strip().splitlines()
        reason = lines[-1] if lines else f"the command exited with code {error.completed.code}"
        return Tested(machine.name, of, name, State.error, reason, error.hint)
    except ShardctlError as error:
        return Tested(machine.name, of, name, State.error, error.message, error.hint)
    state = State.ok if not found.hint else State.error if found.grave else State.warning
    return Tested(machine.name, of, name, state, found.output, found.hint)
