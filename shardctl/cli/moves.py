"""`shardctl moves`: list, show, resume, abort and reverse moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import (
    moves_doctor,
    moves_report,
    moves_reverse,
    moves_shown,
    values,
)
from shardctl.cli import watch as watching
from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology
from shardctl.cli.moves_found import find, report_step, report_unread
from shardctl.cli.options import (
    DANGEROUS,
    Listing,
    ListingOption,
    MaxWalOption,
    Report,
    ReportOption,
    TerminateOption,
    WatchOption,
)
from shardctl.cli.output import (
    emit,
    say,
)

if TYPE_CHECKING:
    from shardctl.state.ledger import Entry

app = command_app(
    help="List, show, resume, abort or reverse moves, and clear what they left.",
    no_args_is_help=True,
)

MoveArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MOVE",
        help="The move's id; the unfinished move by default.",
    ),
]
TimelineOption = Annotated[
    bool,
    typer.Option(
        "--timeline", help="Draw the sub-steps of the cutover, beside what was predicted."
    ),
]
ShownArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="MOVE",
        help="The move's id; the newest move by default.",
    ),
]


@app.command("list")
def list_moves(ctx: typer.Context, *, output: ListingOption = Listing.table) -> None:
    """List all moves, the newest first."""
    from shardctl.moves import service

    ledger = service.read(load_topology(ctx))
    report_unread(ledger)
    row = moves_shown.short_row if output is Listing.table else moves_shown.row
    emit(
        output,
        moves_shown.HEADER,
        map(row, ledger.entries),
        {"moves": [entry.as_json() for entry in ledger.entries]},
        nothing="no move has started yet",
    )


@app.command()
def show(
    ctx: typer.Context,
    move: ShownArgument = None,
    *,
    output: ReportOption = Report.table,
    watch: WatchOption = None,
    timeline: TimelineOption = False,
) -> None:
    """Show a move: its steps, its progress, and the cutover's sub-steps in milliseconds.

    With --watch, it refreshes until the move has ended, or Ctrl-C. With --timeline, it draws each
    sub-step of the cutover as a bar, beside what was predicted for it.
    """
    from shardctl.moves import service

    topology = load_topology(ctx)

    def look(move: str | None) -> Entry:
        ledger = service.read(topology)
        report_unread(ledger)
        return ledger.newest() if move is None else ledger.entry(move)

    entry = look(move)
    if watch is not None:
        drawn = output is Report.table and watching.on_terminal()
        entry = moves_shown.until_over(
            entry,
            lambda: look(entry.move.id),
            watch.total_seconds(),
            show=None if drawn else lambda now: moves_report.show_move(now, output),
        )
    if timeline:
        from shardctl.cli import moves_timeline

        moves_timeline.show(topology, entry, output)
    else:
        moves_report.show_move(entry, output)


@app.command(cls=Changing)
def resume(
    ctx: typer.Context,
    move: MoveArgument = None,
    *,
    max_pause: Annotated[
        values.Duration | None,
        values.duration_option(
            "--max-pause", "Replace the planned limit, for example 2s.", least=values.MS
        ),
    ] = None,
    max_wal: MaxWalOption = None,
    terminate: TerminateOption = False,
    source_destroyed: Annotated[
        bool,
        typer.Option(
            "--source-destroyed",
            help="Confirm that the source is permanently lost; the target owns the shards.",
            rich_help_panel=DANGEROUS,
        ),
    ] = False,
) -> None:
    """Continue an unfinished move where it stopped; another operator may have started it.

    A move that stopped before its point of no return tries its cutover again; a later one is
    finished. If the source is permanently lost, the move ends only with --source-destroyed.
    """
    from shardctl.moves import service

    pause = max_pause.total_seconds() if max_pause else None
    topology = load_topology(ctx)
    entry = find(topology, move)
    service.require_resumable(
        topology,
        entry,
        max_pause_s=pause,
        terminate=terminate,
        source_destroyed=source_destroyed,
    )

    moves_report.change(
        ctx,
        topology,
        entry,
        lambda progress: service.resume(
            topology,
            entry,
            progress,
            report_step(entry.move.id),
            notice=say,
            max_pause_s=pause,
            max_wal_bytes=max_wal,
            terminate=terminate,
            source_destroyed=source_destroyed,
        ),
        question=f"Resume move {entry.move.id}?",
        report=moves_report.show_end,
        done=moves_report.ending,
    )


@app.command(cls=Changing)
def abort(
    ctx: typer.Context,
    move: MoveArgument = None,
    *,
    target_destroyed: Annotated[
        bool,
        typer.Option(
            "--target-destroyed",
            help="Confirm that the target is permanently lost: nothing is undone there.",
            rich_help_panel=DANGEROUS,
        ),
    ] = False,
) -> None:
    """Abort a move before its point of no return: the source keeps its shards.

    Lifts the fence, serves the clients, deletes the copy that this move made, and drops its slot.
    Where a streamed move's target is permanently lost, --target-destroyed closes the move without
    it.
    """
    from shardctl.moves import service

    topology = load_topology(ctx)
    entry = find(topology, move)
    service.require_abortable(topology, entry, with_target=not target_destroyed)

    moves_report.change(
        ctx,
        topology,
        entry,
        lambda progress: service.abort(
            topology,
            entry,
            progress,
            report_step(entry.move.id, undoing=True),
            notice=say,
            target_destroyed=target_destroyed,
        ),
        question=f"Abort move {entry.move.id} and delete its copy on {entry.move.target}?",
        done=lambda _: (
            f"move {entry.move.id} is aborted; node {entry.move.source} still owns its shards"
        ),
    )


app.command(cls=Changing)(moves_reverse.reverse)
app.command(cls=Changing)(moves_reverse.finish)
app.command(cls=Changing)(moves_doctor.doctor)
