"""`shardctl moves reverse` and `moves finish`: give shards back, or give that possibility up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import changing, moves_report, picture
from shardctl.cli.context import load_topology
from shardctl.cli.options import (  # noqa: TC001  # signatures are read at run time
    IgnoreStandbyOption,
    MaxPauseOption,
    MaxWalOption,
    TerminateOption,
)
from shardctl.cli.output import plural, say

if TYPE_CHECKING:
    from shardctl.fanout import Progress
    from shardctl.state.ledger import Entry

MoveArgument = Annotated[
    str,
    typer.Argument(
        metavar="MOVE",
        help="The id of a move that is done.",
    ),
]


def reverse(
    ctx: typer.Context,
    move: MoveArgument,
    *,
    max_pause: MaxPauseOption = None,
    max_wal: MaxWalOption = None,
    terminate: TerminateOption = False,
    ignore_standby: IgnoreStandbyOption = False,
) -> None:
    """Give a streamed move's shards back to the node that they came from, without a copy.

    The retired copies there get their names back, closed to clients, and follow the changes since
    the move. Then the cutover is that of any streamed move. It is a move of its own: `moves resume`
    continues it, and `moves abort` undoes it until its point of no return; after an abort, the
    move can no longer be reversed. A reverse itself cannot be reversed.
    """
    from shardctl.cli.moves_found import find, report_step
    from shardctl.moves import reversing, service
    from shardctl.moves.plan import Options
    from shardctl.state import lock
    from shardctl.topology import ranges

    topology = load_topology(ctx)
    entry = find(topology, move)
    options = Options(
        (max_pause or topology.move.max_pause).total_seconds(),
        entry.move.plan["options"]["retain_s"],
        max_wal_bytes=max_wal or topology.move.max_wal,
        terminate=terminate,
        ignore_standby=ignore_standby,
    )
    decided = reversing.plan(topology, entry, options)
    facts = service.preflight(topology, decided)
    lock.require_all_free(topology, service.locked(decided), command=service.COMMAND)
    held = entry.reverse.held_bytes if entry.reverse is not None else None

    def carry_out(progress: Progress) -> Entry:
        service.start(topology, decided, progress, report_step(decided.id), notice=say)
        return service.read(topology).entry(decided.id)

    changing.run(
        ctx,
        pending=decided.shards,
        header=("what", "plan"),
        rows=[
            ("move", f"{decided.id}: shards {picture.shorten(ranges.of(decided.shards))}"),
            ("reverses", entry.move.id),
            ("from, to", f"{decided.source} -> {decided.target}"),
            ("WAL to read", picture.size(held)),
            ("WAL kept at most", picture.size(facts.max_wal_bytes)),
            ("clients wait", f"about {facts.predicted_pause_ms:.0f} ms"),
        ],
        notes=facts.notes,
        plan={
            "move": decided.id,
            "reverses": entry.move.id,
            "source": decided.source,
            "target": decided.target,
            "method": decided.method,
            "shards": list(decided.shards),
            "wal_bytes": held,
            "max_wal_bytes": facts.max_wal_bytes,
            "predicted_pause_ms": facts.predicted_pause_ms,
            "notes": list(facts.notes),
        },
        question=f"Give {plural(len(decided.shards), 'shard')} back to {decided.target}?",
        carry_out=carry_out,
        result=moves_report.as_json,
        report=moves_report.show_end,
        done=moves_report.ending,
    )


def finish(
    ctx: typer.Context,
    move: MoveArgument,
) -> None:
    """Give up the possibility to reverse a move: drop what both nodes keep for it.

    The target stops to keep WAL, and `shardctl prune` may drop the retired copies after their
    retention time.
    """
    from shardctl.cli.moves_found import find
    from shardctl.moves import reversing

    topology = load_topology(ctx)
    entry = find(topology, move)
    reversing.require_finishable(entry)

    moves_report.change(
        ctx,
        topology,
        entry,
        lambda _: reversing.finish(topology, entry, notice=say),
        question=f"Give up reversing move {entry.move.id}?",
        done=lambda _: f"move {entry.move.id} can no longer be reversed",
    )
