"""`shardctl moves`: the journal of moves, how to go on with one, how to call it off."""

from __future__ import annotations

import sys
from datetime import UTC
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import completion, picture, values
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    Listing,
    ListingOption,
    LockWaitOption,
    MaxWalOption,
    Report,
    ReportOption,
    YesOption,
)
from shardctl.cli.output import (
    always_json,
    confirm,
    plural,
    print_csv,
    print_json,
    print_table,
    print_tsv,
    say,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardctl.moves.context import MoveContext
    from shardctl.moves.ledger import Ledger
    from shardctl.moves.step import Step
    from shardctl.state.ledger import Entry
    from shardctl.state.progress import MoveProgress
    from shardctl.topology.model import Topology

app = command_app(help="Show moves, go on with one, or call it off.", no_args_is_help=True)

MoveArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MOVE]",
        autocompletion=completion.moves,
        help="Its id; the unfinished one by default.",
    ),
]
ShownArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MOVE]",
        autocompletion=completion.moves,
        help="Its id; the newest one by default.",
    ),
]

_HEADER = ("move", "state", "from", "to", "shards", "step", "by", "started", "can")
_BAR = 30


@app.command("list")
def list_moves(ctx: typer.Context, *, output: ListingOption = Listing.table) -> None:
    """List all moves, the newest first."""
    from shardctl.moves import service

    with always_json(Report.json if output is Listing.json else Report.table):
        ledger = service.read(load_topology(ctx))
    _tell_unread(ledger)
    rows = [_row(entry) for entry in ledger.entries]
    if output is Listing.json:
        print_json({"format": 1, "moves": [entry.as_json() for entry in ledger.entries]})
    elif output is Listing.tsv:
        print_tsv(rows)
    elif output is Listing.csv:
        print_csv((_HEADER, *rows))
    elif not ledger.entries:
        print("there was no move yet")
    else:
        print_table(_HEADER, rows)


@app.command()
def show(
    ctx: typer.Context, move: ShownArgument = None, *, output: ReportOption = Report.table
) -> None:
    """Show one move: its steps, and the cutover's sub-steps in milliseconds."""
    from shardctl.moves import service

    with always_json(output):
        ledger = service.read(load_topology(ctx))
        _tell_unread(ledger)
        entry = ledger.newest() if move is None else ledger.entry(move)
    if output is Report.json:
        print_json({"format": 1, **entry.as_json(), **entry.details()})
        return
    print_table(_HEADER, [_row(entry)])
    print_table(
        ("step", "state", "took", "error"),
        [(s.step, s.state, _ms(s.took_ms), s.error or "") for s in entry.steps],
    )
    if entry.progress is not None:
        print(_copied(entry.progress))
    if entry.read_only:
        print("read-only: its cutover refuses writes, and reads go on")
    _show_report(entry.move.report or {})


@app.command()
def resume(
    ctx: typer.Context,
    move: MoveArgument = None,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    lock_wait: LockWaitOption = None,
    yes: YesOption = False,
    max_pause: Annotated[
        values.Duration | None,
        typer.Option(
            "--max-pause",
            metavar="DURATION",
            parser=values.duration(least=values.Duration(milliseconds=1)),
            help="Another one than was planned, such as 2s.",
        ),
    ] = None,
    max_wal: MaxWalOption = None,
    terminate: Annotated[
        bool, typer.Option("--terminate", help="End transactions that hold up the cutover.")
    ] = False,
    source_destroyed: Annotated[
        bool,
        typer.Option(
            "--source-destroyed",
            help="You know that the source is gone for good; the target has claimed the shards.",
        ),
    ] = False,
) -> None:
    """Go on with a move, wherever it stopped and whoever began it.

    A move that was called off before its point of no return tries its cutover again; one that is
    past it is finished. A source that is gone for good keeps it from its end until you say so.
    """
    from shardctl.cli.progress import bars
    from shardctl.moves import service

    pause = max_pause.total_seconds() if max_pause else None
    topology = load_topology(ctx, lock_wait=lock_wait)
    entry = _entry(topology, move)
    service.require_resumable(
        topology,
        entry,
        max_pause_s=pause,
        terminate=terminate,
        source_destroyed=source_destroyed,
    )
    note_changes(ctx, entry)
    if dry_run or output is Report.table:
        _show_entry(entry, output)
    if dry_run:
        return
    confirm(f"Go on with move {entry.move.id}?", yes=yes)
    with bars() as progress:
        context = service.resume(
            topology,
            entry,
            progress,
            tell(entry.move.id),
            notice=say,
            max_pause_s=pause,
            max_wal_bytes=max_wal,
            terminate=terminate,
            source_destroyed=source_destroyed,
        )
    finish(topology, context, output)
    if output is Report.json:
        _show_entry(_entry(topology, entry.move.id), output)


@app.command()
def abort(
    ctx: typer.Context,
    move: MoveArgument = None,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    lock_wait: LockWaitOption = None,
    yes: YesOption = False,
    target_destroyed: Annotated[
        bool,
        typer.Option(
            "--target-destroyed",
            help="You know that the target is gone for good and has never served.",
        ),
    ] = False,
    restart_source: Annotated[
        str | None,
        typer.Option(
            "--restart-source",
            metavar="NODE",
            autocompletion=completion.nodes,
            help="This source takes no logins because its disk is full: free it on its host first.",
        ),
    ] = None,
) -> None:
    """Call a move off before its point of no return: the source keeps its shards.

    Lifts the fence, serves the clients, deletes the clone that this move made, drops its slot.
    A target that was told to take over and is gone for good keeps the source from serving until
    you say so. A source whose disk the move's WAL has filled takes no logins: name it with
    --restart-source, and its slot is removed on its host, and its server started.
    """
    from shardctl.cli.progress import bars
    from shardctl.moves import service

    topology = load_topology(ctx, lock_wait=lock_wait)
    if restart_source is not None:
        found = _rescue(topology, restart_source, move, dry_run=dry_run, yes=yes)
        note_changes(ctx, restart_source)
        if found is None:
            return
        move, yes = found, True
    entry = _entry(topology, move)
    service.require_abortable(topology, entry, target_destroyed=target_destroyed)
    note_changes(ctx, entry)
    if dry_run or output is Report.table:
        _show_entry(entry, output)
    if dry_run:
        return
    confirm(f"Call off move {entry.move.id} and delete its clone on {entry.move.target}?", yes=yes)
    with bars() as progress:
        service.abort(
            topology,
            entry,
            progress,
            tell(entry.move.id, undoing=True),
            notice=say,
            target_destroyed=target_destroyed,
        )
    if output is Report.json:
        _show_entry(_entry(topology, entry.move.id), output)
    say(f"move {entry.move.id} is aborted; node {entry.move.source} owns its shards as before")


def _rescue(
    topology: Topology, node: str, move: str | None, *, dry_run: bool, yes: bool
) -> str | None:
    """Let a source take logins again, and give its move; None where nothing was to be done."""
    from shardctl.moves import rescue
    from shardctl.state import lock

    planned = rescue.look(topology, node, move, purpose=lock.purpose("moves abort"))
    say(planned.sentence)
    if dry_run:
        return None
    confirm(f"Do that, and abort move {planned.move}?", yes=yes)
    rescue.carry_out(planned)
    say(f"node {planned.node} takes logins again")
    return planned.move


def tell(move: str, *, undoing: bool = False) -> Callable[[Step], None]:
    """Give what says each step as it begins."""

    def one(step: Step) -> None:
        say(f"move {move}: {'undo ' if undoing else ''}{step.name}: {step.sentence}")

    return one


def finish(topology: Topology, context: MoveContext, output: Report) -> None:
    """Say how a move ended, and print its timeline where the output is for people."""
    from shardctl.moves import service

    entry = service.read(topology).entry(context.plan.id)
    report = dict(entry.move.report or {})
    # The journal's ends with the cutover; this process knows what came after.
    spans = [[name, round(ms, 1)] for name, ms in context.timeline.spans]
    if output is Report.table:
        _show_report(report | ({"timeline": spans} if spans else {}))
    if entry.state == "unconfirmed":
        say(f"move {entry.move.id} is unconfirmed: {_doubt(entry.move.proof, report)}")
    else:
        say(
            f"move {entry.move.id} is {entry.state}; `shardctl prune` gives the space back when "
            "its time has come"
        )


_ALL_HAD = (
    "; the target had all that the source had committed. `shardctl prune` wants "
    "--accept-unconfirmed"
)
_DOUBTS = {
    "": "nothing was compared",
    "forked": "rows could not be compared, for the target's snapshot was lost" + _ALL_HAD,
    "differs": "the copies differ, and `shardctl prune` leaves them; `shardctl moves show` names "
    "the tables",
}


def _doubt(proof: str | None, report: Mapping[str, Any]) -> str:
    """Say why a move is not confirmed."""
    if not (altered := report.get("uncompared")):
        return _DOUBTS[proof or ""]
    shown = ", ".join(altered[:5]) + (f" and {len(altered) - 5} more" if altered[5:] else "")
    return (
        f"{report['tables']} tables are equal, and clients of the target have dropped, renamed or "
        f"altered {shown} before they could be compared{_ALL_HAD}"
    )


def _entry(topology: Topology, move: str | None) -> Entry:
    """Find the move that is meant; a node that cannot be asked is told, for it may know more."""
    from shardctl.moves import service

    ledger = service.read(topology)
    _tell_unread(ledger)
    return ledger.entry(move)


def _show_entry(entry: Entry, output: Report) -> None:
    if output is Report.json:
        print_json({"format": 1, **entry.as_json()})
    else:
        print_table(_HEADER, [_row(entry)])


def _copied(progress: MoveProgress) -> str:
    """Say how far the copy of a move was when that was last written."""
    total = "" if progress.total is None else f" of {picture.size(progress.total)}"
    rate = "" if progress.rate is None else f", {picture.size(round(progress.rate))} a second"
    left = "" if progress.eta_s is None else f", about {progress.eta_s:.0f} s to go"
    when = f" (at {progress.at.astimezone(UTC):%H:%M:%S} UTC)"
    return f"{progress.phase}: {picture.size(progress.bytes)}{total}{rate}{left}{when}"


def _show_report(report: dict[str, Any]) -> None:
    """Print the cutover's sub-steps, with bars that show which took how long."""
    if spans := report.get("timeline"):
        longest = max(float(ms) for _, ms in spans)
        palette = picture.palette(sys.stdout.encoding)
        print_table(
            ("sub-step", "ms", ""),
            [
                (
                    str(name),
                    f"{ms:.1f}",
                    picture.bar(round(ms * 10), round(longest * 10), width=_BAR, palette=palette),
                )
                for name, ms in spans
            ],
        )
    if (pause := report.get("pause_ms")) is not None:
        predicted = report.get("predicted_pause_ms")
        beside = "" if predicted is None else f" (predicted: {predicted:.0f} ms)"
        refused = report.get("refused_ms")
        if refused is not None:
            print(f"writes were refused for {refused:.0f} ms")
        whoever = "clients" if refused is None else "reads"
        print(f"{whoever} waited at most {pause:.0f} ms{beside}")
    for pooler, waited in report.get("pooler_waits_ms", {}).items():
        print(f"longest wait at pooler {pooler}: {waited:.0f} ms")
    if report.get("proof") == "compared":
        print(f"compared: {plural(report['tables'], 'table')}, {plural(report['rows'], 'row')}")
    if limit := report.get("wal_limit"):
        held, most = picture.size(limit["held_bytes"]), picture.size(limit["limit_bytes"])
        print(f"its slot was dropped: it held back {held} of WAL, and the limit is {most}")
    for table in report.get("differing", ()):
        print(f"differs: {table}")


def _row(entry: Entry) -> tuple[str, ...]:
    from shardctl.topology import ranges

    shown = entry.as_json()
    return (
        entry.move.id,
        entry.state,
        entry.move.source,
        entry.move.target,
        ranges.of(entry.move.shards),
        shown["step"] or "-",
        entry.move.who,
        shown["started"],
        ", ".join(entry.can()) or "-",
    )


def _ms(took: float | None) -> str:
    return "-" if took is None else f"{took:,.1f} ms"


def _tell_unread(ledger: Ledger) -> None:
    for node, reason in ledger.unread:
        say(f"shardctl: node {node}: its journal could not be read: {reason}")
