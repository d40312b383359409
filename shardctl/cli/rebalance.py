"""`shardctl rebalance`: plan an even fleet, carry the plan out, pause and resume it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import rebalance_options as given
from shardctl.cli import rebalance_shown, values
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import (
    DryRunOption,
    FinishReverseOption,
    IgnoreStandbyOption,
    LockWaitOption,
    MaxPauseOption,
    MaxWalOption,
    Report,
    ReportOption,
    TerminateOption,
    YesOption,
)
from shardctl.cli.output import confirm, plural, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardctl.balance.group import GroupPlan
    from shardctl.moves.plan import Options
    from shardctl.state.rebalances import GroupState, Known
    from shardctl.topology.model import Topology

app = command_app(
    help="Give every node its share of the shards, by moves one after another.",
    no_args_is_help=True,
)


class By(Enum):
    """What is to be even."""

    size = "size"
    tps = "tps"
    count = "count"


ByOption = Annotated[
    By,
    typer.Option(
        "--by", help="What nodes share: bytes, operations per second, or the number of shards."
    ),
]


@app.command()
def plan(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    by: ByOption = By.size,
    threshold: given.ThresholdOption = given.THRESHOLD,
    node_weight: given.WeightOption = None,
    node_room: given.RoomOption = None,
    leave_out: given.LeaveOutOption = None,
    max_moves: given.MostOption = None,
    sample: given.SampleOption = given.SAMPLE,
    max_rate: given.MaxRateOption = None,
    out: given.OutOption = None,
) -> None:
    """Show which moves would give every node its share; changes nothing.

    A shard that is larger than a share gets a node of its own. Drained nodes get nothing. Each move
    is shown with what it copies, how long that takes, how long clients wait, and why.
    """
    topology = load_topology(ctx)
    options = given.of_moves(topology, max_rate=max_rate)
    made, _ = _planned(
        topology,
        options,
        by=by,
        threshold=threshold,
        weights=node_weight,
        rooms=node_room,
        leaving_out=leave_out,
        most=max_moves,
        sample=sample,
    )
    rebalance_shown.show_plan(made, output)
    if out is not None:
        rebalance_shown.save(made, out)


@app.command()
def apply(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    plan_file: Annotated[
        Path | None,
        typer.Option(
            "--plan",
            metavar="FILE",
            help="A plan that `rebalance plan --out` saved; options that make a plan are ignored.",
        ),
    ] = None,
    by: ByOption = By.size,
    threshold: given.ThresholdOption = given.THRESHOLD,
    node_weight: given.WeightOption = None,
    node_room: given.RoomOption = None,
    leave_out: given.LeaveOutOption = None,
    max_moves: given.MostOption = None,
    sample: given.SampleOption = given.SAMPLE,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    max_rate: given.MaxRateOption = None,
    max_pause: MaxPauseOption = None,
    retain: given.RetainOption = None,
    max_wal: MaxWalOption = None,
    finish_reverse: FinishReverseOption = False,
    lock_wait: LockWaitOption = None,
    terminate: TerminateOption = False,
    ignore_standby: IgnoreStandbyOption = False,
) -> None:
    """Carry a plan out: ordinary streamed moves, one after another.

    Each move is checked as `move-shards` does, right before it begins; none can be reversed.
    Ctrl-C, `rebalance pause` and a kill at any moment leave the fleet consistent: `rebalance
    resume` continues, with the unfinished move first. A saved plan is refused if the fleet has
    changed since.
    """
    from shardctl.balance import carry, group
    from shardctl.state import lock, rebalances

    topology = load_topology(ctx, lock_wait=lock_wait)
    options = given.of_moves(
        topology,
        max_rate=max_rate,
        max_pause=max_pause,
        retain=retain,
        max_wal=max_wal,
        terminate=terminate,
        ignore_standby=ignore_standby,
        finish_reverse=finish_reverse,
    )
    if plan_file is not None:
        made = group.read(plan_file)
        known = rebalances.read(topology, purpose=lock.purpose(carry.COMMAND))
    else:
        made, known = _planned(
            topology,
            options,
            by=by,
            threshold=threshold,
            weights=node_weight,
            rooms=node_room,
            leaving_out=leave_out,
            most=max_moves,
            sample=sample,
        )
    if not prepared(topology, made, known, options, output):
        return
    note_changes(ctx, made.moves)
    if dry_run:
        return
    confirm(f"Carry out {plural(len(made.moves), 'move')}?", yes=yes)
    carried_out(topology, made, options, command="rebalance apply")


@app.command()
def status(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show the open rebalance, or else the newest, its moves, and drained nodes."""
    from shardctl.balance import carry
    from shardctl.state import lock, rebalances

    topology = load_topology(ctx)
    known = rebalances.read(topology, purpose=lock.purpose("rebalance status"))
    _report_unread(known)
    rebalance_shown.show_group(carry.newest(topology, known), known, output)


@app.command()
def pause(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """Stop the open rebalance before its next move, from any terminal.

    The move that runs goes on to its end. `rebalance resume` continues with the next one.
    """
    from shardctl.state.rebalances import GroupState

    _decide(ctx, GroupState.paused, "Pause", output, dry_run=dry_run, yes=yes)


@app.command()
def resume(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """Continue the open rebalance; another operator may have started it.

    Its unfinished move is resumed first, then the rest follow; a move that was aborted begins
    again.
    """
    from shardctl.balance import carry
    from shardctl.cli.progress import bars
    from shardctl.state import lock, rebalances

    topology = load_topology(ctx, lock_wait=lock_wait)
    known = rebalances.read(topology, purpose=lock.purpose("rebalance resume"))
    row = carry.require_resumable(topology, known)
    note_changes(ctx, row)
    if dry_run or output is Report.table:
        rebalance_shown.show_group(carry.newest(topology, known), known, output)
    if dry_run:
        return
    confirm(f"Resume rebalance {row.id}?", yes=yes)
    with bars() as progress:
        carry.resume(topology, rebalance_shown.Printed(progress), command="rebalance resume")
    _show_end(topology, output)


@app.command()
def abort(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
) -> None:
    """End the open rebalance: the moves that wait are left out.

    Moves that are done stay as they are. A move that is unfinished goes on by `moves resume`, or is
    undone by `moves abort`.
    """
    from shardctl.state.rebalances import GroupState

    _decide(ctx, GroupState.aborted, "Abort", output, dry_run=dry_run, yes=yes)


def prepared(
    topology: Topology, made: GroupPlan, known: Known, options: Options, output: Report
) -> bool:
    """Check and show a plan, and return whether it has moves; the first is checked completely."""
    from shardctl.balance import carry

    carry.require_startable(topology, made, known)
    facts = None
    if made.moves:
        _, facts = carry.decided(topology, made.moves[0], options)
    rebalance_shown.show_plan(made, output)
    for note in facts.notes if facts is not None else ():
        say(f"note: {note}")
    return bool(made.moves)


def carried_out(
    topology: Topology,
    made: GroupPlan,
    options: Options,
    *,
    command: str,
    on_startable: Callable[[Known], None] = lambda _: None,
) -> None:
    """Carry a plan out, and say that it is done."""
    from shardctl.balance import carry
    from shardctl.cli.progress import bars

    with bars() as progress:
        shown = rebalance_shown.Printed(progress)
        carry.start(topology, made, options, shown, command=command, on_startable=on_startable)
    if made.moves:
        say(
            f"{plural(len(made.moves), 'move')} done; run `shardctl prune` after the retention "
            "time to free the space"
        )


def _planned(
    topology: Topology,
    options: Options,
    *,
    by: By,
    threshold: float,
    weights: list[str] | None,
    rooms: list[str] | None,
    leaving_out: list[str] | None,
    most: int | None,
    sample: values.Duration,
) -> tuple[GroupPlan, Known]:
    from shardctl.balance import look, plans

    return plans.rebalance(
        topology,
        options,
        by=look.By(by.value),
        sample_s=sample.total_seconds(),
        threshold=threshold,
        weights=given.weights(weights),
        rooms=given.rooms(rooms),
        leaving_out=leaving_out or (),
        most=most,
    )


def _decide(
    ctx: typer.Context, state: GroupState, verb: str, output: Report, *, dry_run: bool, yes: bool
) -> None:
    """Set the state of the open rebalance, and show it."""
    from shardctl.balance import carry
    from shardctl.state import lock, rebalances

    topology = load_topology(ctx)
    command = f"rebalance {verb.lower()}"
    known = rebalances.read(topology, purpose=lock.purpose(command))
    _report_unread(known)
    row = carry.require_open(known)
    note_changes(ctx, row.state is not state)
    if dry_run:
        rebalance_shown.show_group(carry.newest(topology, known), known, output)
        return
    confirm(f"{verb} rebalance {row.id}?", yes=yes)
    carry.decide(topology, row.id, state, say, command)
    _show_end(topology, output)
    if known.holder is not None:
        say(f"{known.holder} stops before its next move")


def _show_end(topology: Topology, output: Report) -> None:
    """Show the newest rebalance again; nothing where JSON would be printed twice."""
    from shardctl.balance import carry
    from shardctl.state import lock, rebalances
    from shardctl.topology import loader

    topology = loader.load(topology.path)
    known = rebalances.read(topology, purpose=lock.purpose("rebalance status"))
    rebalance_shown.show_group(carry.newest(topology, known), known, output)


def _report_unread(known: Known) -> None:
    for error in known.unread:
        say(f"shardctl: {error.message}")
