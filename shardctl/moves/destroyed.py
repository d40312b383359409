"""Finishing or aborting a move whose source or target is destroyed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError
from shardctl.hosts import ports
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.topology.model import NodeName

if TYPE_CHECKING:
    from shardctl.moves.context import MoveContext
    from shardctl.state.journal import Move
    from shardctl.topology.model import Topology


class TargetThere(ShardctlError):
    """A target that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves abort` without --target-destroyed; or stop its server",
        )
        self.node = node


class SourceNeeded(ShardctlError):
    """A move that cannot go on without its source: its target does not own the shards."""

    def __init__(self, move: str, node: str, state: str) -> None:
        super().__init__(
            f"move {move} is {state}: its target has not claimed the shards, so it cannot finish "
            f"without node {node}",
            hint="run `shardctl moves resume` without --source-destroyed, which continues as far "
            "as it can",
        )


class SourceThere(ShardctlError):
    """A source that was declared destroyed, but exists."""

    def __init__(self, node: str, what: str) -> None:
        super().__init__(
            f"node {node} is not destroyed: {what}",
            hint="run `shardctl moves resume` without --source-destroyed; if it is another server "
            "in the node's place, stop that server until the move has ended",
        )
        self.node = node


def require_source_gone(topology: Topology, move: Move, *, purpose: str) -> None:
    """Check that a move may end without its source: the target must own the shards.

    The operator has declared the source destroyed; nothing may listen at its address. Raises
    SourceNeeded, SourceThere.
    """
    source = topology.nodes[NodeName(move.source)]
    if not move.state.claimed_by_target:
        raise SourceNeeded(move.id, source.name, move.state.value)
    try:
        connect(source, topology.database, purpose=purpose).close()
    except NodeUnavailable as error:
        if ports.knock(source.host, source.port) == "open":
            raise SourceThere(source.name, f"its port is open: {error.reason}") from error
    else:
        raise SourceThere(source.name, "its server answers")


def require_silent(context: MoveContext) -> None:
    """Check that no server answers at the target's address; raises TargetThere."""
    target = context.plan.target
    try:
        context.session(target)
    except NodeUnavailable:
        pass
    else:
        raise TargetThere(target, "its server answers")
    if ports.knock(context.target.host, context.target.port) == "open":
        raise TargetThere(target, "its port is open, but the server rejects logins from here")
