"""Starts, stops and checks the local poolers of a topology."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeVar

from shardctl.hosts import ports
from shardctl.pgbouncer import server
from shardctl.pgbouncer.server import Server
from shardctl.sandbox.servers import Down, each

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardctl.fanout import Progress
    from shardctl.pgbouncer.server import Foreseen, Started
    from shardctl.topology.model import Pooler, Topology

WITHOUT = "this machine has no pgbouncer (apt-get install pgbouncer); continuing without"
"""The start of the note where the sandbox runs no poolers."""

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PoolerUp:
    """A pooler that runs after `up`."""

    pooler: Pooler
    did: Started


@dataclass(frozen=True, slots=True)
class PoolerState:
    """The state of a pooler; `foreign` if the sandbox did not write its file."""

    pooler: Pooler
    state: Literal["up", "down", "absent", "foreign"]
    pid: int | None


def available() -> bool:
    """Return whether this machine has PgBouncer."""
    return server.program() is not None


def foresee(topology: Topology) -> list[tuple[Pooler, Foreseen]]:
    """Return what `up` would do with each pooler; changes nothing. Raises Problems."""
    return _each(topology, lambda one: (one.pooler, one.foresee())) if available() else []


def up(topology: Topology, progress: Progress) -> list[PoolerUp]:
    """Start a PgBouncer for every local pooler, if this machine has the program.

    The nodes must be running. Raises Problems for poolers that did not start; the rest keep
    running.
    """

    def start(one: Server) -> PoolerUp:
        progress.expect(one.pooler.name, "starting", 1)
        did = one.start()
        progress.advance(one.pooler.name)
        return PoolerUp(one.pooler, did)

    nodes = [node.name for node in topology.owning()]
    return _each(topology, start, begun="started", before=nodes) if available() else []


def down(topology: Topology, progress: Progress, *, delete: bool) -> list[Down]:
    """Stop every local pooler that the sandbox started; `delete` removes its files.

    Raises Problems; skips poolers that the sandbox did not start.
    """

    def stop(one: Server) -> Down | None:
        made = one.made()
        if made in ("absent", "foreign"):
            return None
        progress.expect(one.pooler.name, "stopping", 1)
        was_up = one.stop()
        deleted, kept = one.remove() if delete else ((), None)
        left = (kept, "it has your own settings") if kept else None
        progress.advance(one.pooler.name)
        return Down(one.pooler, was_up, deleted, left)

    return [one for one in _each(topology, stop, begun="stopped") if one is not None]


def status(topology: Topology) -> list[PoolerState]:
    """Return the state of every local pooler; raises Problems."""

    def look(one: Server) -> PoolerState:
        pid = one.running()
        made = one.made()
        state: Literal["up", "down", "absent", "foreign"] = "up" if pid is not None else "down"
        if made in ("absent", "foreign"):
            state = "absent" if made == "absent" else "foreign"
        return PoolerState(one.pooler, state, pid)

    return _each(topology, look)


def _each(
    topology: Topology,
    work: Callable[[Server], Value],
    *,
    begun: str | None = None,
    before: Sequence[str] = (),
) -> list[Value]:
    """Call `work` for every local pooler, as `servers.each` does."""
    # Stopping or checking a pooler does not need the program.
    program = server.program() or "pgbouncer"
    local = [p for p in topology.poolers.values() if ports.is_loopback(p.host) and p.ssh is None]
    return each(
        local,
        "pooler",
        lambda pooler: work(Server.of(topology, pooler, program)),
        begun=begun,
        before=before,
    )
