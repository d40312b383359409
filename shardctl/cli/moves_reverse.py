"""`shardctl moves reverse` and `moves finish`: give shards back, or give that possibility up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import moves_report, picture
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    IgnoreStandbyOption,
    LockWaitOption,
    MaxPauseOption,
    MaxWalOption,
    Report,
    ReportOption,
    TerminateOption,
    YesOption,
)
from shardctl.cli.output import confirm, plural, print_at_end, print_table, say

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan
    from shardctl.moves.preflight.check import Facts
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
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    lock_wait: LockWaitOption = None,
    yes: YesOption = False,
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
    from shardctl.cli.progress import bars
    from shardctl.moves import reversing, service
    from shardctl.moves.plan import Options
    from shardctl.state import lock

    topology = load_topology(ctx, lock_wait=lock_wait)
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
    _show(entry, decided, facts, output)
    note_changes(ctx, decided.shards)
    if dry_run:
        return
    moved = plural(len(decided.shards), "shard")
    confirm(f"Give {moved} back to {decided.target}?", yes=yes)
    with bars() as progress:
        context = service.start(topology, decided, progress, report_step(decided.id), notice=say)
    moves_report.finish(topology, context, output)


def finish(
    ctx: typer.Context,
    move: MoveArgument,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    lock_wait: LockWaitOption = None,
    yes: YesOption = False,
) -> None:
    """Give up the possibility to reverse a move: drop what both nodes keep for it.

    The target stops to keep WAL, and `shardctl prune` may drop the retired copies after their
    retention time.
    """
    from shardctl.cli.moves_found import find
    from shardctl.moves import reversing

    topology = load_topology(ctx, lock_wait=lock_wait)
    entry = find(topology, move)
    reversing.require_finishable(entry)
    note_changes(ctx, entry)
    if dry_run or output is Report.table:
        moves_report.show_entry(entry, output)
    if dry_run:
        return
    confirm(f"Give up reversing move {entry.move.id}?", yes=yes)
    reversing.finish(topology, entry, notice=say)
    if output is Report.json:
        moves_report.show_entry(find(topology, move), output)
    say(f"move {entry.move.id} can no longer be reversed")


def _show(entry: Entry, decided: MovePlan, facts: Facts, output: Report) -> None:
    from shardctl.topology import ranges

    held = entry.reverse.held_bytes if entry.reverse is not None else None
    if output is Report.json:
        print_at_end(
            {
                "format": 1,
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
            }
        )
        return
    print_table(
        ("what", "plan"),
        [
            ("move", f"{decided.id}: shards {picture.shorten(ranges.of(decided.shards))}"),
            ("reverses", entry.move.id),
            ("from, to", f"{decided.source} -> {decided.target}"),
            ("WAL to read", picture.size(held)),
            ("WAL kept at most", picture.size(facts.max_wal_bytes)),
            ("clients wait", f"about {facts.predicted_pause_ms:.0f} ms"),
        ],
    )
    for note in facts.notes:
        say(f"note: {note}")
