"""The plan of a move, with the method and the handover that shardctl chooses where none is given.

| left out | shardctl takes |
|---|---|
| `--method` | `stream` where the target is a running member of the cluster, else `clone` |
| `--handover` of a clone | `stream` where nothing refuses it, else `promote` |
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from shardctl.errors import ShardctlError, UsageError
from shardctl.moves import methods
from shardctl.moves import plan as planning
from shardctl.moves.methods import CLONE_BY_STREAM, METHODS
from shardctl.moves.plan import MoveRefused
from shardctl.postgres.connection import NodeUnavailable, connect
from shardctl.provision import maps
from shardctl.state import cluster, lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from shardctl.moves.plan import MovePlan, Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.topology.model import NodeName, Topology

logger = logging.getLogger(__name__)

COMMAND = "move-shards"


def choose(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    options: Options,
    *,
    method: str | None = None,
    handover: str | None = None,
) -> tuple[MovePlan, Facts]:
    """Plan a move and check everything that it depends on; changes nothing.

    What is None is chosen here. Raises what `plan` and `preflight` raise.
    """
    _require_known(method, METHODS, "method")
    _require_known(handover, planning.HANDOVERS, "handover")
    # Report what the topology alone forbids before contacting any node.
    decided = planning.make(topology, shards, target, 0, options)
    method = method or _method(topology, decided.target)
    planned = partial(plan, topology, shards, target, options, method=method)
    if method != planning.METHOD or handover is not None:
        decided = planned(handover=handover)
        return decided, preflight(topology, decided)
    return _by_handover(topology, options, lambda one: planned(handover=one))


def plan(
    topology: Topology,
    shards: Sequence[int],
    target: str,
    options: Options,
    *,
    method: str,
    handover: str | None = None,
    move: str | None = None,
) -> MovePlan:
    """Return the plan of a move, by the topology and the databases' map; changes nothing.

    `move` is its id, where that is known. A clone needs a handover, and no other method has one.
    Raises UsageError, MoveRefused, and what `planning.make` and `maps.version` raise.
    """
    _require_known(method, METHODS, "method")
    _require_known(handover, planning.HANDOVERS, "handover")
    decided = planning.make(topology, shards, target, 0, options, move=move)
    _require_fit(method, handover, options)
    streams = planning.STREAM in (method, handover)
    chosen = CLONE_BY_STREAM if streams and method == planning.METHOD else METHODS[method]
    chosen.accepts(topology.nodes[decided.target])
    _require_options(method, options, streams=streams)
    version = maps.version(topology, purpose=lock.purpose(COMMAND))
    keep_s = options.keep_reverse_s if chosen.handover.reversible else 0.0
    return replace(
        decided,
        map_version=version,
        method=method,
        waiting=chosen.fence,
        options=replace(options, keep_reverse_s=keep_s),
        reverse=planning.new_id() if keep_s else None,
    )


def preflight(topology: Topology, decided: MovePlan) -> Facts:
    """Check everything that a move depends on; raises every refusal at once."""
    method = methods.of(decided)
    return method.preflight(topology, decided, purpose=lock.purpose(COMMAND))


def _method(topology: Topology, target: NodeName) -> str:
    """Give the method that fits a target: `stream` where it is a running member of the cluster."""
    node = topology.nodes[target]
    if node.shards:
        return planning.STREAM
    try:
        with connect(node, topology.database, purpose=lock.purpose(COMMAND)) as session:
            row = cluster.read(session) if cluster.is_present(session) else None
    except NodeUnavailable:
        return planning.METHOD
    member = row is not None and (row.cluster, row.node) == (topology.cluster, node.name)
    return planning.STREAM if member else planning.METHOD


def _by_handover(
    topology: Topology, options: Options, planned: Callable[[str], MovePlan]
) -> tuple[MovePlan, Facts]:
    """Plan a clone with the first handover that nothing refuses, and keep what refused the other.

    Only a stream can be rehearsed: then its refusals are raised, as where it is asked for.
    """
    try:
        decided = planned(planning.STREAM)
        facts = preflight(topology, decided)
    except ShardctlError as refusal:
        if options.rehearse_only:
            raise
        found = refusal.parts()
    else:
        return replace(decided, handover_why=[]), facts
    logger.debug("handover stream: refused: %s", "; ".join(error.message for error in found))
    # What refuses every clone is raised here: all that was found is then about the stream.
    decided = planned(planning.PROMOTE)
    facts = preflight(topology, decided)
    why = [{"code": error.code, "message": error.message} for error in found]
    return replace(decided, handover_why=why), facts


def _require_known(given: str | None, known: Collection[str], what: str) -> None:
    if given is not None and given not in known:
        raise UsageError(f"unknown {what} {given!r}", hint=f"choose one of: {', '.join(known)}")


def _require_fit(method: str, handover: str | None, options: Options) -> None:
    """Refuse a handover that does not fit its method and the options; raises MoveRefused."""
    if method != planning.METHOD:
        if handover is not None:
            raise MoveRefused(
                f"a move by method {method} has one handover, and --handover chooses that of a "
                "clone",
                hint="leave --handover out, or use --method clone with a target that owns no "
                "shards",
            )
        return
    if handover is None:
        raise ValueError("a clone is planned without a handover")
    if handover == planning.STREAM and options.read_only:
        raise MoveRefused(
            "a clone that hands over by stream cannot refuse writes (--read-only): clients wait "
            "for its cutover",
            hint="leave --read-only out, or use --handover promote",
        )


def _require_options(method: str, options: Options, *, streams: bool) -> None:
    """Refuse options that do not fit a method; raises MoveRefused."""
    if options.read_only and method == planning.STREAM:
        raise MoveRefused(
            "a streamed move cannot refuse writes (--read-only): clients wait for its cutover",
            hint="leave --read-only out, or use --method clone with a target that owns no shards",
        )
    if options.rehearse_only and not streams:
        raise MoveRefused(
            "a clone that is promoted in the cutover has no rehearsal (--rehearse-only)",
            hint="use --handover stream, or leave --rehearse-only out; --dry-run checks and "
            "predicts every move",
        )
    if options.rehearse_only and options.finish_reverse:
        raise MoveRefused(
            "a rehearsal (--rehearse-only) gives nothing up, and --finish-reverse does",
            hint="leave one of them out; `shardctl moves finish` gives a reverse up by itself",
        )
