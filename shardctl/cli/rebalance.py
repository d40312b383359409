"""`shardctl rebalance`: plan and carry out moves that give every node its share."""

from __future__ import annotations

import json
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import changing, picture, values
from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import (
    IdentityOption,
    IgnoreStandbyOption,
    MaxPauseOption,
    MaxRateOption,
    MaxWalOption,
    Report,
    ReportOption,
    TerminateOption,
)
from shardctl.cli.output import plural, print_json, print_line, print_table, say
from shardctl.errors import Refused, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from shardctl.cli.context import Settings
    from shardctl.errors import ShardctlError
    from shardctl.fanout import Progress
    from shardctl.fleet.group import Group, Part
    from shardctl.fleet.rebalance import NodeShare, Plan
    from shardctl.moves.plan import Options
    from shardctl.topology.model import Topology

app = command_app(
    help="Plan moves that give every node its share, and carry them out.", no_args_is_help=True
)

MOVES = ("source", "target", "shards", "", "size", "takes")
PARTS = ("move", "state", "source", "target", "shards", "")


class By(StrEnum):
    """What is balanced."""

    SIZE = "size"
    TPS = "tps"
    COUNT = "count"


class Percent(float):
    """A part of 1 that prints as a percentage."""

    def __str__(self) -> str:
        return f"{float(self):.0%}"


def _percent(value: object) -> Percent:
    """Read `5%`; raises typer.BadParameter."""
    if isinstance(value, Percent):  # the option's default
        return value
    text = str(value).removesuffix("%")
    if not (text.isdecimal() and text.isascii() and 0 < int(text) < 100):
        raise typer.BadParameter(f"{value!r} is not a percentage from 1% to 99%")
    return Percent(int(text) / 100)


ByOption = Annotated[
    By,
    typer.Option(
        "--by", help="Balance bytes, rows written and scans a second, or the number of shards."
    ),
]
ThresholdOption = Annotated[
    Percent,
    typer.Option(
        "--threshold",
        metavar="PERCENT",
        parser=_percent,
        help="The largest accepted distance between a node and its share.",
    ),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node-weight",
        metavar="NODE=NUMBER",
        help="The share of a node beside that of other nodes, which have 1; 0 empties it. Can be "
        "repeated.",
    ),
]
MaxMovesOption = Annotated[
    int | None,
    typer.Option("--max-moves", min=1, metavar="N", help="Plan only so many moves."),
]
SampleOption = Annotated[
    values.Duration,
    typer.Option(
        "--sample",
        metavar="DURATION",
        parser=values.duration(least=values.Duration(milliseconds=100)),
        help="With --by tps, how long to count.",
    ),
]
_SAMPLE = values.Duration(seconds=1)
_THRESHOLD = Percent(0.05)
_LIGHTEST, _HEAVIEST = 0.001, 1000
"""The weights beside 0: among these, no share is too small for a number."""


@app.command("plan")
def make_plan(
    ctx: typer.Context,
    *,
    by: ByOption = By.SIZE,
    threshold: ThresholdOption = _THRESHOLD,
    node_weight: WeightOption = None,
    max_moves: MaxMovesOption = None,
    sample: SampleOption = _SAMPLE,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the plan into a file, too, as JSON."),
    ] = None,
    output: ReportOption = Report.table,
) -> None:
    """Plan moves after which every node has about its share; change nothing.

    A node's share is in proportion to its weight. A shard that is larger than any share gets a node
    of its own. No node gets more than its disk has room for.
    """
    topology = load_topology(ctx)
    found = planned(
        topology,
        by=by,
        threshold=threshold,
        node_weight=node_weight,
        max_moves=max_moves,
        sample=sample,
    )
    if out is not None:
        write(out, found)
    if output is Report.json:
        print_json({"format": 1, **found.as_json()})
        return
    show_nodes(found)
    if found.moves:
        print_table(MOVES, move_rows(found))
    for note in notes(found):
        say(f"note: {note}")
    print_line(summary(found))


@app.command(cls=Changing)
def apply(
    ctx: typer.Context,
    *,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", metavar="FILE", help="Carry out a plan that `--out` has written."),
    ] = None,
    by: ByOption = By.SIZE,
    threshold: ThresholdOption = _THRESHOLD,
    node_weight: WeightOption = None,
    max_moves: MaxMovesOption = None,
    sample: SampleOption = _SAMPLE,
    max_pause: MaxPauseOption = None,
    max_rate: MaxRateOption = None,
    max_wal: MaxWalOption = None,
    identity: IdentityOption = None,
    terminate: TerminateOption = False,
    ignore_standby: IgnoreStandbyOption = False,
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel",
            min=1,
            metavar="N",
            help="How many moves run at the same time, each between two nodes of its own.",
        ),
    ] = 1,
) -> None:
    """Carry out a plan: one move after the other, each streamed, compared and confirmed.

    Without --plan, it plans as `rebalance plan` does. It refuses a plan whose fleet has changed
    since. The moves cannot be reversed; each is planned and checked again when its turn comes. With
    --parallel, moves that have no node in common run at the same time; their cutovers take turns.
    If it is interrupted or killed at any moment, `shardctl rebalance resume` goes on.
    """
    from shardctl.fleet import rebalance

    topology = load_topology(ctx)
    if plan is None:
        found = planned(
            topology,
            by=by,
            threshold=threshold,
            node_weight=node_weight,
            max_moves=max_moves,
            sample=sample,
        )
    elif any(_given(ctx, name) for name in ("by", "threshold", "node_weight", "max_moves")):
        raise UsageError(
            "--plan excludes --by, --threshold, --node-weight and --max-moves",
            hint="give them to `shardctl rebalance plan --out FILE`",
        )
    else:
        found = rebalance.read(plan)
        rebalance.require_same(found, topology)
    options = options_of(
        topology,
        max_pause,
        max_rate,
        max_wal,
        identity_full=identity is not None,
        terminate=terminate,
        ignore_standby=ignore_standby,
    )
    carry_out(ctx, topology, found, options, parallel=parallel)


@app.command()
def status(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show the moves of the newest rebalance, from any terminal."""
    from shardctl.cli.moves_report import report_unread
    from shardctl.fleet.group import Group
    from shardctl.moves import service

    topology = load_topology(ctx)
    ledger = service.read(topology)
    report_unread(ledger)
    group = Group.newest(ledger)
    if output is Report.json:
        print_json({"format": 1, **group.as_json()})
        return
    print_table(PARTS, part_rows(group.parts))
    left = sum(part.state not in ("done", "unconfirmed") for part in group.parts)
    print_line(
        f"rebalance {group.id}: {plural(len(group.parts) - left, 'move')} of "
        f"{len(group.parts):,} finished"
        + ("; `shardctl rebalance resume` carries out the rest" if left else "")
    )


@app.command(cls=Changing)
def pause(ctx: typer.Context) -> None:
    """Let the newest rebalance stop before its next move; what runs goes on to its end."""
    from shardctl.cli.moves_report import report_unread
    from shardctl.fleet import group as groups
    from shardctl.moves import service

    topology = load_topology(ctx)
    ledger = service.read(topology)
    report_unread(ledger)
    group = groups.Group.newest(ledger)
    left = group.left(topology)
    idle = "one that has not started its first move is not in the journal; Ctrl-C ends it"
    changing.run(
        ctx,
        pending=left,
        header=PARTS,
        rows=part_rows(left),
        plan=group.as_json(),
        question=f"Pause rebalance {group.id} before its next move?",
        carry_out=lambda _: groups.pause(topology, group),
        nothing=f"rebalance {group.id} is finished; {idle}",
        notes=()
        if not left or any(part.state == "running" for part in left)
        else [f"no move of rebalance {group.id} runs now; {idle}"],
        done=lambda _: (
            f"rebalance {group.id} stops before its next move; `shardctl rebalance resume` goes on"
        ),
    )


@app.command(cls=Changing)
def resume(ctx: typer.Context) -> None:
    """Go on with the newest rebalance: resume its unfinished moves, and carry out the rest."""
    from shardctl.cli.moves_report import report_unread
    from shardctl.fleet import group as groups
    from shardctl.moves import service

    topology = load_topology(ctx)
    ledger = service.read(topology)
    report_unread(ledger)
    group = groups.Group.newest(ledger)
    for entry in group.open:
        service.require_resumable(topology, entry)
    groups.check_first(topology, group, groups.options_of(group))
    left = group.left(topology)
    changing.run(
        ctx,
        pending=left,
        header=PARTS,
        rows=part_rows(left),
        plan=group.as_json(),
        question=f"Go on with rebalance {group.id}: {plural(len(left), 'move')}?",
        carry_out=lambda progress: _run(
            ctx, topology, group, groups.begin_again(topology, group), progress
        ),
        result=lambda now: now.as_json(),
        nothing=f"rebalance {group.id} is finished",
        done=ending,
    )


def options_of(
    topology: Topology,
    max_pause: values.Duration | None,
    max_rate: int | None,
    max_wal: int | None,
    **given: Any,
) -> Options:
    """Return the options of each move, which cannot be reversed."""
    from shardctl.moves.plan import Options

    move = topology.move
    return Options(
        (max_pause or move.max_pause).total_seconds(),
        move.retain.total_seconds(),
        max_rate=f"{max_rate // 1024}k" if max_rate else None,  # pg_basebackup's syntax
        max_wal_bytes=max_wal or move.max_wal,
        **given,
    )


def planned(
    topology: Topology,
    *,
    by: By = By.SIZE,
    threshold: float = _THRESHOLD,
    node_weight: Sequence[str] | None = None,
    max_moves: int | None = None,
    sample: values.Duration = _SAMPLE,
) -> Plan:
    """Plan moves by the options of the command line; raises UsageError and what `plan` raises."""
    from shardctl.fleet import rebalance
    from shardctl.state import lock
    from shardctl.topology.model import NodeName

    weights = {}
    for given in node_weight or ():
        node, _, text = given.partition("=")
        try:
            weights[NodeName(node)] = float(text)
        except ValueError:
            weights[NodeName(node)] = -1.0
        if not (weights[NodeName(node)] == 0 or _LIGHTEST <= weights[NodeName(node)] <= _HEAVIEST):
            raise UsageError(
                f"{given!r} is not a node and its weight: 0, or {_LIGHTEST} to {_HEAVIEST:,}",
                hint="give for example --node-weight a=2",
            )
    wanted = rebalance.Wanted(by.value, threshold, weights, max_moves, sample.total_seconds())
    return rebalance.plan(topology, wanted, purpose=lock.purpose("rebalance"))


def carry_out(
    ctx: typer.Context,
    topology: Topology,
    found: Plan,
    options: Options,
    *,
    parallel: int = 1,
    left_out: Sequence[ShardctlError] = (),
) -> None:
    """Show a plan, ask, and carry it out; raises `left_out` at the end."""
    from shardctl.fleet import group as groups
    from shardctl.state import lock

    nodes = dict.fromkeys(node for move in found.moves for node in (move.source, move.target))
    lock.require_all_free(topology, nodes, command=groups.COMMAND)
    group = groups.Group.of(found, parallel)
    groups.check_first(topology, group, options)
    settings: Settings = ctx.obj
    if not settings.json:
        show_nodes(found)

    shards = sum(len(move.shards) for move in found.moves)
    changing.run(
        ctx,
        pending=found.moves,
        header=MOVES,
        rows=move_rows(found),
        plan=found.as_json(),
        question=f"Move {plural(shards, 'shard')} in {plural(len(found.moves), 'move')}?",
        carry_out=lambda progress: _run(ctx, topology, group, options, progress),
        result=lambda now: {**found.as_json(), **now.as_json()},
        nothing=summary(found),
        notes=notes(found),
        done=ending,
        left_out=left_out,
    )


def _run(
    ctx: typer.Context, topology: Topology, group: Group, options: Options, progress: Progress
) -> Group:
    """Carry out the moves of a group that are left."""
    from shardctl.cli import log
    from shardctl.cli.moves_report import report_step
    from shardctl.fleet import group as groups

    settings: Settings = ctx.obj
    work = groups.Work(progress, report_step, say)
    begin = partial(log.open_log, verbose=settings.verbose)
    return groups.run(topology, group, options, work, begin)


def ending(group: Group) -> str:
    """Return the last line of a rebalance that is finished."""
    return (
        f"rebalance {group.id} is finished: {plural(len(group.parts), 'move')}; `shardctl prune` "
        "frees the space on their sources when `retain` has passed"
    )


def write(path: Path, found: Plan) -> None:
    """Write a plan for `apply --plan`; raises plan_unwritable."""
    try:
        path.write_text(json.dumps({"format": 1, **found.as_json()}, indent=1) + "\n")
    except OSError as error:
        raise Refused(
            "plan_unwritable", f"{path}: {error.strerror}", hint="give another file to --out"
        ) from error


def show_nodes(found: Plan) -> None:
    """Print each node now and after the moves."""
    header = ["node", "weight", "shards", "size", "share"]
    if found.by == "tps":
        header[4:4] = ["tps"]
    print_table(header, [_node_row(node, found) for node in found.nodes])


def _node_row(node: NodeShare, found: Plan) -> list[str]:
    came = sum(len(move.shards) for move in found.moves if move.target == node.name)
    left = sum(len(move.shards) for move in found.moves if move.source == node.name)
    count = len(node.shards)
    row = [
        node.name,
        "-" if node.weight is None else f"{node.weight:g}",
        _now_and_after(f"{count:,}", f"{count + came - left:,}"),
        _now_and_after(picture.size(node.size_bytes), picture.size(node.size_bytes_after)),
    ]
    if found.by == "tps":
        row.append(_now_and_after(f"{node.load:,.1f}", f"{node.load_after:,.1f}"))
    if node.share:
        before, after = node.load / node.share, node.load_after / node.share
        return [*row, _now_and_after(f"{before:.0%}", f"{after:.0%}")]
    return [*row, "-"]


def _now_and_after(now: str, after: str) -> str:
    return now if now == after else f"{now} -> {after}"


def move_rows(found: Plan) -> list[tuple[str, ...]]:
    """Return a row of each move, in their order."""
    from shardctl.topology import ranges

    return [
        (
            move.source,
            move.target,
            f"{len(move.shards):,}",
            picture.shorten(ranges.of(move.shards)),
            picture.size(move.size_bytes),
            f"about {picture.duration(move.predicted_s)}",
        )
        for move in found.moves
    ]


def part_rows(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """Return a row of each move of a group."""
    from shardctl.topology import ranges

    return [
        (
            part.entry.move.id if part.entry else "-",
            part.state,
            part.source,
            part.target,
            f"{len(part.shards):,}",
            picture.shorten(ranges.of(part.shards)),
        )
        for part in parts
    ]


def notes(found: Plan) -> list[str]:
    """Return what an operator should know beside the moves."""
    from shardctl.topology import ranges

    if not found.stuck:
        return list(found.notes)
    stuck = f"no node has room for shards {picture.shorten(ranges.of(found.stuck))}: they stay"
    return [stuck, *found.notes]


def summary(found: Plan) -> str:
    """Return the line below a plan."""
    if not found.moves:
        return "nothing to move: every node is as near to its share as whole shards allow"
    shards = sum(len(move.shards) for move in found.moves)
    size = picture.size(sum(move.size_bytes for move in found.moves))
    took = picture.duration(sum(move.predicted_s for move in found.moves))
    return (
        f"{plural(len(found.moves), 'move')} of {plural(shards, 'shard')}, {size}, about {took}; "
        "`shardctl rebalance apply` carries them out"
    )


def _given(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
