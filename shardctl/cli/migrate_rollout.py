"""Rollouts as `shardctl migrate` shows them: the waves, the question, where it ends."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.cli import picture, provision
from shardctl.cli.context import load_topology, note_changes
from shardctl.cli.options import Report
from shardctl.cli.output import confirm, plural, print_json, print_table, say
from shardctl.errors import Problems, ShardctlError

if TYPE_CHECKING:
    import typer

    from shardctl.cli.migrate_lint import Linted
    from shardctl.provision.fleet import FleetPlan, Options
    from shardctl.rollout.run import Result
    from shardctl.rollout.waves import Wanted
    from shardctl.state.rollouts import Brakes, Rollout
    from shardctl.topology.model import Topology


def run(
    ctx: typer.Context,
    topology: Topology,
    wanted: Wanted | None,
    *,
    brakes: Brakes,
    options: Options,
    output: Report,
    linted: Linted,
    dry_run: bool,
    yes: bool,
    strict: bool,
    finish_reverse: bool,
) -> None:
    """Plan a rollout, or with `wanted` None the rest of the open one; show, ask, carry out.

    JSON is one object, printed at the end.
    """
    plan: FleetPlan | None = None
    rollout: Rollout | None = None
    try:
        plan, rollout = _planned(
            topology, wanted, brakes, strict=strict, finish_reverse=finish_reverse
        )
        _show(ctx, plan, rollout, output, linted)
        if rollout is not None and not dry_run:
            confirm(_question(rollout), yes=yes)
            provision.finish_reverses(plan)
            result = _carry_out(ctx, rollout, plan, options, strict=strict)
            rollout = result.rollout
            _report(rollout)
            if result.left_out:
                raise Problems(list(result.left_out))
        elif plan.left_out:
            raise Problems(list(plan.left_out))
    except ShardctlError as error:
        if output is Report.json:
            _print_json(plan, _newest(topology, rollout), error, dry_run=dry_run)
        raise
    if output is Report.json:
        _print_json(plan, rollout, None, dry_run=dry_run)


def _planned(
    topology: Topology,
    wanted: Wanted | None,
    brakes: Brakes,
    *,
    strict: bool,
    finish_reverse: bool,
) -> tuple[FleetPlan, Rollout | None]:
    from shardctl.rollout import run as rolling

    if wanted is not None:
        return rolling.plan(topology, wanted, brakes, strict=strict, finish_reverse=finish_reverse)
    plan, rollout = rolling.plan_rest(topology, strict=strict, finish_reverse=finish_reverse)
    if brakes.soak_ms is not None:
        rollout = replace(rollout, brakes=replace(rollout.brakes, soak_ms=brakes.soak_ms))
    return plan, rollout


def _show(
    ctx: typer.Context,
    plan: FleetPlan,
    rollout: Rollout | None,
    output: Report,
    linted: Linted,
) -> None:
    """Show plan and waves, and refuse what may not run."""
    from shardctl.provision.fleet import require_free

    require_free(plan)
    note_changes(ctx, rollout)
    if rollout is None or not rollout.wave:  # what was accepted when it began stays accepted
        linted.look(plan)
    for note in plan.notes:
        say(f"note: {note}")
    if output is Report.table:
        provision.show(plan)
        if rollout is not None:
            show_waves(rollout)
    linted.require_accepted()


def show_waves(rollout: Rollout) -> None:
    """Print the waves of a rollout, and which of them have begun."""
    from shardctl.topology import ranges

    rows = []
    for number, wave in enumerate(rollout.waves, 1):
        state = "" if number > rollout.wave else "begun" if number == rollout.wave else "done"
        if rollout.state in ("waiting", "done") and number == rollout.wave:
            state = "done"
        rows.append((str(number), f"{len(wave):,}", picture.shorten(ranges.of(wave)), state))
    print_table(("wave", "count", "shards", "state"), rows)


def _question(rollout: Rollout) -> str:
    if not rollout.wave:
        first = plural(len(rollout.waves[0]), "shard")
        return f"Roll out {_files(rollout)}, first to {first}?"
    return (
        f"Continue rollout {rollout.id} of {_files(rollout)} after wave {rollout.wave} of "
        f"{len(rollout.waves)}?"
    )


def _files(rollout: Rollout) -> str:
    return ", ".join(sorted(rollout.files))


def _carry_out(
    ctx: typer.Context, rollout: Rollout, plan: FleetPlan, options: Options, *, strict: bool
) -> Result:
    from shardctl.cli.progress import bars
    from shardctl.rollout import run as rolling

    with bars() as progress:
        way = rolling.Way(
            lambda: load_topology(ctx), options, strict=strict, progress=progress, notice=say
        )
        return rolling.advance(way, rollout, plan)


def _report(rollout: Rollout) -> None:
    if rollout.state == "done":
        count = sum(map(len, rollout.waves))
        say(f"done: rollout {rollout.id} of {_files(rollout)}, {plural(count, 'shard')}")
        return
    say(
        f"rollout {rollout.id} waits after wave {rollout.wave} of {len(rollout.waves)}; "
        "the checks hold"
    )
    say("  run `shardctl migrate --continue` to go on")


def _newest(topology: Topology, rollout: Rollout | None) -> Rollout | None:
    """Read the rollout as it is after an error, where a node can be asked."""
    from shardctl.rollout import status

    if rollout is None:
        return None
    try:
        known = status.look(topology, command="migrate").rollouts
    except ShardctlError:
        return rollout
    return next((one for one in known if one.id == rollout.id), rollout)


def _print_json(
    plan: FleetPlan | None,
    rollout: Rollout | None,
    error: ShardctlError | None,
    *,
    dry_run: bool,
) -> None:
    shape = provision.as_json(plan, error, dry_run=dry_run)
    if rollout is not None:
        if shape["state"] == "done" and rollout.state == "waiting":
            shape["state"] = "waiting"
        shape["rollout"] = rollout.as_json()
    print_json(shape)
