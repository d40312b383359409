"""`shardctl rebalance`: plan and carry out moves that give every node its share."""

from __future__ import annotations

import json
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from shardctl.cli import moving, picture
from shardctl.cli.command import App, Changing, Command, Context, load_topology, made, run_change
from shardctl.cli.options import SAMPLE, Duration, ReportOption, duration_option
from shardctl.cli.output import emit, plural, print_line, print_table, say
from shardctl.errors import Refused, ShardctlError, UsageError
from shardctl.topology import ranges

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from shardctl.fanout import Progress
    from shardctl.fleet.group import Group, Part, Work
    from shardctl.fleet.rebalance import NodeShare, Plan
    from shardctl.moves.plan import Options
    from shardctl.topology.model import Topology

app = App()

MOVES = ("source", "target", "shards", "", "size", "takes")
PARTS = ("move", "state", "source", "target", "shards", "")


def _percent(value: str) -> float:
    """Read `5%`; raises typer.BadParameter."""
    text = value.removesuffix("%")
    if not (text.isdecimal() and text.isascii() and 0 < int(text) < 100):
        raise typer.BadParameter(f"{value!r} is not a percentage from 1% to 99%")
    return int(text) / 100


def _weight(value: str) -> tuple[str, float]:
    """Read `a=2`; raises typer.BadParameter."""
    node, _, text = value.partition("=")
    try:
        weight = float(text)
    except ValueError:
        weight = -1.0
    if not (weight == 0 or _LIGHTEST <= weight <= _HEAVIEST):
        raise typer.BadParameter(
            f"{value!r} is not a node and its weight: 0, or {_LIGHTEST} to {_HEAVIEST:,}"
        )
    return node, weight


_LIGHTEST, _HEAVIEST = 0.001, 1000
"""The weights beside 0: among these, no share is too small for a number."""


def _of_plans(
    *,
    by: Annotated[
        Literal["size", "tps", "count"],
        typer.Option(
            help="Balance bytes, rows written and scans a second, or the number of shards."
        ),
    ] = "size",
    threshold: Annotated[
        Any,  # its default is read, too
        typer.Option(
            metavar="<percent>",
            parser=_percent,
            help="The largest accepted distance between a node and its share.",
        ),
    ] = "5%",
    node_weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="<node=number>",
            parser=_weight,
            help="The share of a node beside that of other nodes, which have 1; 0 empties it. Can "
            "be repeated.",
        ),
    ] = None,
    max_moves: Annotated[int | None, typer.Option(min=1, help="Plan only so many moves.")] = None,
    sample: Annotated[
        Duration,
        duration_option("With --by tps, how long to count.", least=Duration(milliseconds=100)),
    ] = SAMPLE,
) -> None: ...


class Planning(Command):
    """A command that plans moves; its options are in the settings."""

    shared = made(_of_plans)


class Applying(moving.Moving):
    """A command that plans moves and carries them out."""

    shared = (*Planning.shared, *moving.Moving.shared)


class Draining(Applying):
    """A command that does so for one node."""

    left_out = ("by", "threshold", "max_moves", "sample")


@app.command("plan", cls=Planning)
def make_plan(
    ctx: Context,
    *,
    out: Annotated[
        Path | None,
        typer.Option(metavar="<file>", help="Write the plan into a file, too, as JSON."),
    ] = None,
    output: ReportOption = "table",
) -> None:
    """Plan moves after which every node has about its share; change nothing.

    A node's share is in proportion to its weight. A shard that is larger than any share gets a node
    of its own. No node gets more than its disk has room for.
    """
    found = planned(ctx, load_topology(ctx))
    if out is not None:
        write(out, found)
    if output == "table":
        show_nodes(found)
    emit(output, MOVES, move_rows(found), found.as_json())
    for note in notes(found):
        say(f"note: {note}")
    if output == "table":
        print_line(summary(found))


@app.command(cls=Applying)
def apply(
    ctx: Context,
    *,
    plan: Annotated[
        Path | None,
        typer.Option(metavar="<file>", help="Carry out a plan that `--out` has written."),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            min=1, help="How many moves run at the same time, each between two nodes of its own."
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
        found = planned(ctx, topology)
    elif any(_given(ctx, name) for name in ("by", "threshold", "node_weight", "max_moves")):
        raise UsageError(
            "--plan excludes --by, --threshold, --node-weight and --max-moves",
            hint="give them to `shardctl rebalance plan --out FILE`",
        )
    else:
        found = rebalance.read(plan)
        rebalance.require_same(found, topology)
    carry_out(ctx, topology, found, parallel=parallel)


@app.command()
def status(ctx: Context, *, output: ReportOption = "table") -> None:
    """Show the moves of the newest rebalance, from any terminal."""
    _, group = _newest(ctx)
    emit(output, PARTS, part_rows(group.parts), group.as_json())
    done = sum(part.state in ("done", "unconfirmed") for part in group.parts)
    if output == "table":
        print_line(
            f"rebalance {group.id}: {done:,} of {plural(len(group.parts), 'move')} finished"
            + ("; `shardctl rebalance resume` carries out the rest" * (done < len(group.parts)))
        )


@app.command(cls=Changing)
def pause(ctx: Context) -> None:
    """Let the newest rebalance stop before its next move; what runs goes on to its end."""
    from shardctl.fleet import group as groups

    topology, group = _newest(ctx)
    _change(
        ctx,
        group,
        group.left(topology),
        question=f"Pause rebalance {group.id} before its next move?",
        carry_out=lambda _: groups.record(topology, group, groups.PAUSE),
        done=lambda _: (
            f"rebalance {group.id} stops before its next move; `shardctl rebalance resume` goes on"
        ),
    )


@app.command(cls=Changing)
def resume(ctx: Context) -> None:
    """Go on with the newest rebalance: resume its unfinished moves, and carry out the rest."""
    from shardctl.fleet import group as groups
    from shardctl.moves import service

    topology, group = _newest(ctx)
    for entry in group.open:
        service.require_resumable(topology, entry, service.Given())
    groups.check_first(topology, group, groups.options_of(group))
    left = group.left(topology)
    _change(
        ctx,
        group,
        left,
        question=f"Go on with rebalance {group.id}: {plural(len(left), 'move')}?",
        carry_out=lambda progress: _run(
            ctx, topology, group, groups.begin_again(topology, group), progress
        ),
        result=lambda now: now.as_json(),
        done=ending,
    )


def _change(ctx: Context, group: Group, left: Sequence[Part], **given: Any) -> None:
    """Show what is left of a rebalance, ask, and change it."""
    run_change(
        ctx,
        pending=left,
        header=PARTS,
        rows=part_rows(left),
        plan=group.as_json(),
        nothing=f"rebalance {group.id} is finished",
        **given,
    )


def _newest(ctx: Context) -> tuple[Topology, Group]:
    """Read the newest rebalance; raises no_rebalance_yet."""
    from shardctl.fleet.group import Group

    topology = load_topology(ctx)
    return topology, Group.newest(moving.read(topology))


def planned(ctx: Context, topology: Topology, *emptied: str) -> Plan:
    """Plan moves by the options of the command line; raises UsageError and what `plan` raises."""
    from shardctl.fleet import rebalance
    from shardctl.state import lock

    shared: dict[str, Any] = ctx.obj.shared
    weights = dict([*(shared["node_weight"] or ()), *((node, 0.0) for node in emptied)])
    given = {name: shared[name] for name in Draining.left_out if name in shared}
    return rebalance.plan(topology, weights, purpose=lock.purpose("rebalance"), **given)


def carry_out(
    ctx: Context,
    topology: Topology,
    found: Plan,
    *,
    parallel: int = 1,
    left_out: Sequence[ShardctlError] = (),
) -> None:
    """Show a plan, ask, and carry it out; raises `left_out` at the end."""
    from shardctl.fleet import group as groups
    from shardctl.state import lock

    nodes = dict.fromkeys(node for move in found.moves for node in (move.source, move.target))
    lock.require_all_free(topology, nodes, command=groups.COMMAND)
    options = moving.options_of(ctx.obj, topology)
    group = groups.Group.of(found, parallel)
    groups.check_first(topology, group, options)
    if not ctx.obj.json:
        show_nodes(found)

    shards = sum(len(move.shards) for move in found.moves)
    run_change(
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
    ctx: Context, topology: Topology, group: Group, options: Options, progress: Progress
) -> Group:
    """Carry out the moves of a group that are left."""
    from shardctl.fleet import group as groups

    work = groups.Work(progress, say)
    return groups.run(topology, group, options, work, partial(_apart, verbose=ctx.obj.verbose))


@contextmanager
def _apart(*, verbose: bool) -> Iterator[Work]:
    """Let a process of its own report what a move does, beside other moves."""
    from shardctl.cli import log
    from shardctl.cli.app import Stream
    from shardctl.cli.progress import lines
    from shardctl.fleet.group import Work

    sys.stderr = Stream(sys.stderr, lambda _: None)
    log.open_log(verbose=verbose)
    with lines() as progress:
        yield Work(progress, say)


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
    header = ("node", "weight", "shards", "size", "share")
    print_table(header, [_node_row(node, found) for node in found.nodes])


def _node_row(node: NodeShare, found: Plan) -> tuple[str, ...]:
    came = sum(len(move.shards) for move in found.moves if move.target == node.name)
    left = sum(len(move.shards) for move in found.moves if move.source == node.name)
    count, share = len(node.shards), "-"
    if node.share:
        parts = node.load / node.share, node.load_after / node.share
        share = _now_and_after(*(f"{part:.0%}" for part in parts))
    return (
        node.name,
        "-" if node.weight is None else f"{node.weight:g}",
        _now_and_after(f"{count:,}", f"{count + came - left:,}"),
        _now_and_after(picture.size(node.size_bytes), picture.size(node.size_bytes_after)),
        share,
    )


def _now_and_after(now: str, after: str) -> str:
    return now if now == after else f"{now} -> {after}"


def move_rows(found: Plan) -> list[tuple[str, ...]]:
    """Return a row of each move, in their order."""
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


def _given(ctx: Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
