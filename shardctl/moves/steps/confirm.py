"""Confirm: what was moved is on the target, row for row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.errors import Unfinished
from shardctl.moves import confirm
from shardctl.moves import plan as planning
from shardctl.moves import preflight_schemas as schemas
from shardctl.moves.confirm import CopiesDiffer
from shardctl.moves.step import Step
from shardctl.postgres import timeline
from shardctl.state import journal
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from shardctl.moves.world import World


class ForkedTooEarly(Unfinished):
    """A target whose timeline left the source's before the source was drained."""

    def __init__(self, move: str, forked: str, drained: str) -> None:
        super().__init__(
            f"move {move}: the target left the source's timeline at {forked}, before {drained}",
            hint="what was committed between may be on the source only, under the retired names; "
            "nothing will be pruned: please report it",
        )


def probe(world: World) -> bool:
    """See whether a proof stands in the journal."""
    move = world.journal()
    return move is not None and move.proof is not None


def run(world: World) -> None:
    """Compare; where the target's snapshot is lost, take the timelines for a lesser proof.

    Raises CopiesDiffer, which the journal keeps: nobody else can compare them again.
    """
    if not world.source_lost:
        _tell_of_unfenced(world)
    differs: CopiesDiffer | None = None
    compared = None
    with world.timeline.span("confirm"):
        try:
            compared = confirm.compare(world)
        except CopiesDiffer as error:
            differs = error
    move = world.journal()
    if move is None:  # pragma: no cover  # it was read a moment ago
        raise AssertionError
    report = dict(move.report or {})
    if differs is not None:
        proof = "differs"
        report |= {"differing": list(differs.tables)}
    elif compared is not None:
        proof = "compared"
        report |= {"tables": compared.tables, "rows": compared.rows}
    else:
        _require_fork(world, move)
        proof = "forked"
    for node in world.keepers:
        with world.on(node):
            journal.advance(
                world.session(node), world.plan.id, [MoveState.routed], MoveState.routed,
                proof=proof, report=report | {"proof": proof},
            )  # fmt: skip
    if differs is not None:
        raise differs


def _tell_of_unfenced(world: World) -> None:
    """Tell of what was made during the cutover and writes into the source's retired copies."""
    plan = world.plan
    staying = planning.leaving(world.topology, plan)
    with world.on(plan.source):
        found = schemas.crossings(world.session(plan.source), plan.retired, staying)
    if found.total:
        world.notice(
            f"node {plan.source}: made during the cutover, and bound to retired copies of moved "
            f"shards: {found}; what is written through them is on no owner: drop them"
        )


def _require_fork(world: World, move: journal.Move) -> None:
    """See that the target went its own way only after it had what the source had committed."""
    with world.on(world.plan.target):
        fork = timeline.forked_at(world.session(world.plan.target))
    drained = move.drained_to or "0/0"
    at = fork.lsn if fork else "0/0"
    if timeline.position(at) < timeline.position(drained):
        raise ForkedTooEarly(move.id, at, drained)


STEP = Step("confirm", "compares every moved table on both sides", probe, run)
