"""What commands that move shards have in common: options, the plan that is shown, the end."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardctl.cli import changing, moves_report, picture, values
from shardctl.cli.command import Changing, made
from shardctl.cli.options import DANGEROUS
from shardctl.cli.output import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from shardctl.cli.context import Settings
    from shardctl.fanout import Progress
    from shardctl.moves.plan import MovePlan, Options
    from shardctl.moves.preflight.check import Facts
    from shardctl.state.ledger import Entry
    from shardctl.topology.model import Topology


class Identity(StrEnum):
    """Replica identities that a move can lend to tables without one."""

    full = "full"


def _of_moves(
    *,
    max_pause: Annotated[
        values.Duration | None,
        values.duration_option(
            "--max-pause",
            "The longest time that clients may wait, for example 2s.",
            least=values.MS,
        ),
    ] = None,
    max_wal: Annotated[
        int | None,
        typer.Option(
            "--max-wal",
            metavar="SIZE",
            parser=values.size,
            help="The most WAL that the source keeps for the move.",
        ),
    ] = None,
    terminate: Annotated[
        bool,
        typer.Option(
            "--terminate",
            help="End transactions that block the cutover.",
            rich_help_panel=DANGEROUS,
        ),
    ] = False,
    ignore_standby: Annotated[
        bool,
        typer.Option(
            "--ignore-standby",
            help="Confirm that failover is disabled on the source.",
            rich_help_panel=DANGEROUS,
        ),
    ] = False,
    max_rate: Annotated[
        int | None,
        typer.Option(
            "--max-rate",
            metavar="SIZE",
            parser=values.size,
            help="Limit the copy rate, for example 50M a second.",
        ),
    ] = None,
    identity: Annotated[
        Identity | None,
        typer.Option(
            "--identity",
            help="With stream: tables without a replica identity have REPLICA IDENTITY FULL until "
            "the move and its reverse are over.",
        ),
    ] = None,
) -> None: ...


class Moving(Changing):
    """A command that moves shards: what limits its moves is in the settings."""

    shared = (*made(_of_moves), *Changing.shared)


class Cutover(Moving):
    """A command that moves shards without another copy."""

    left_out = ("max_rate", "identity")


class Resuming(Moving):
    """A command that goes on with a move, which keeps its other options."""

    left_out = (*Cutover.left_out, "ignore_standby")


def max_pause_s(settings: Settings) -> float | None:
    """Return the value of --max-pause in seconds."""
    pause = settings.shared["max_pause"]
    return pause.total_seconds() if pause else None


def options_of(settings: Settings, topology: Topology, **given: Any) -> Options:
    """Return the options of a move: by the command line, then `given`, then the topology."""
    from shardctl.moves.plan import Options

    shared, move = settings.shared, topology.move
    options: dict[str, Any] = {
        "max_pause_s": max_pause_s(settings) or move.max_pause.total_seconds(),
        "retain_s": move.retain.total_seconds(),
        "max_rate": shared.get("max_rate") or None,
        "max_wal_bytes": shared["max_wal"] or move.max_wal,
        "terminate": shared["terminate"],
        "identity_full": shared.get("identity") is not None,
        "ignore_standby": shared["ignore_standby"],
    }
    return Options(**options | given)


def planned(
    topology: Topology, decide: Callable[[Topology], MovePlan]
) -> tuple[Topology, MovePlan, Facts]:
    """Plan a move and check it, again where another command changes the map meanwhile.

    Raises what `decide` and preflight raise, and NodeLocked.
    """
    from shardctl.moves import one_at_a_time, service
    from shardctl.state import lock

    def one(now: Topology) -> tuple[Topology, MovePlan, Facts]:
        decided = decide(now)
        facts = service.preflight(now, decided)
        lock.require_all_free(now, decided.locked, command=service.COMMAND)
        return now, decided, facts

    return one_at_a_time.undisturbed(topology, one)


def start(
    ctx: typer.Context,
    topology: Topology,
    decided: MovePlan,
    facts: Facts,
    *,
    rows: Sequence[tuple[str, str]],
    plan: Mapping[str, Any],
    question: str,
    first: Callable[[], object] | None,
) -> None:
    """Show the plan of a move, ask, call `first`, carry it out and report."""
    from shardctl.moves import service
    from shardctl.topology import ranges

    def carry_out(progress: Progress) -> Entry:
        if first is not None:
            first()
        service.start(topology, decided, progress, say)
        return service.read(topology).entry(decided.id)

    changing.run(
        ctx,
        pending=decided.shards,
        header=("what", "plan"),
        rows=[
            ("move", f"{decided.id}: shards {picture.shorten(ranges.of(decided.shards))}"),
            ("from, to", f"{decided.source} -> {decided.target}"),
            *rows,
            ("WAL kept at most", picture.size(facts.max_wal_bytes)),
            ("clients wait", f"about {facts.predicted_pause_ms:.0f} ms"),
        ],
        notes=facts.notes,
        plan={
            "move": decided.id,
            "source": decided.source,
            "target": decided.target,
            "method": decided.method,
            "shards": list(decided.shards),
            **plan,
            "max_wal_bytes": facts.max_wal_bytes,
            "predicted_pause_ms": facts.predicted_pause_ms,
            "notes": list(facts.notes),
        },
        question=question,
        carry_out=carry_out,
        result=moves_report.as_json,
        report=moves_report.show_end,
        done=moves_report.ending,
    )
