"""`shardctl migrate`: run new migrations on every shard, at once or in waves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, migrate_rollback, migrate_status, values
from shardctl.cli.acting import OWN, Acting, Own
from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import (
    LOCK_TIMEOUT,
    AllOrNothingOption,
    AttemptsOption,
    DryRunOption,
    FinishReverseOption,
    JobsOption,
    LockTimeoutOption,
    LockWaitOption,
    Report,
    ReportOption,
    YesOption,
)

if TYPE_CHECKING:
    from shardctl.topology.model import ShardId, Topology

app = command_app(cls=Acting, help="Run new migrations on every shard, at once or in waves.")
app.command("status")(migrate_status.status)
app.command("rollback")(migrate_rollback.rollback)
app.command("abandon")(migrate_rollback.abandon)

CHECK_TIMEOUT = values.Duration(seconds=10)


@app.command(OWN, cls=Own)
def migrate(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    canary: Annotated[
        int | None,
        typer.Option(
            "--canary", min=1, metavar="N", help="First N shards, of all nodes alternately."
        ),
    ] = None,
    shards: Annotated[
        str | None,
        typer.Option("--shards", metavar="SHARDS", help="First these shards, for example 2-3,17."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(
            "--node",
            metavar="NODE",
            autocompletion=completion.nodes,
            help="First all shards of this node.",
        ),
    ] = None,
    waves: Annotated[
        str | None,
        typer.Option(
            "--waves", metavar="PERCENTS", help="The part after each wave, for example 1%,10%,100%."
        ),
    ] = None,
    soak: Annotated[
        values.Duration | None,
        typer.Option(
            "--soak",
            metavar="DURATION",
            parser=values.duration(),
            help="Continue after this time if the checks hold, for example 10m.",
        ),
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            "--check", metavar="SQL", help="A query that must return true in each changed shard."
        ),
    ] = None,
    check_timeout: Annotated[
        values.Duration,
        typer.Option(
            "--check-timeout",
            metavar="DURATION",
            parser=values.duration(least=values.Duration(milliseconds=1)),
            help="How long a check may take in a shard.",
        ),
    ] = CHECK_TIMEOUT,
    go_on: Annotated[
        bool,
        typer.Option("--continue", help="Continue the open rollout: check it, run the next wave."),
    ] = False,
    accept: Annotated[
        list[str] | None,
        typer.Option(
            "--accept",
            metavar="FILE[:RULE]",
            help="Accept warnings about a file, for example 0003:ban-drop-column.",
        ),
    ] = None,
    all_or_nothing: AllOrNothingOption = False,
    jobs: JobsOption = 4,
    lock_wait: LockWaitOption = None,
    lock_timeout: LockTimeoutOption = LOCK_TIMEOUT,
    attempts: AttemptsOption = 10,
    finish_reverse: FinishReverseOption = False,
) -> None:
    """Run new migrations on every shard; shows pending migrations and asks first.

    A migration never waits longer for a lock than --lock-timeout. Then it releases its locks,
    waits and tries again, so that the application's sessions do not queue behind it.
    --lock-wait also limits all of these attempts together.

    With --canary, --shards, --node or --waves it is a rollout: it runs on the shards of the first
    wave, checks them, and waits for `migrate --continue`, or for --soak. Between waves it compares
    the structure of the changed shards and the nodes' counters of errors and lock waits, and asks
    every --check in every changed shard. A check that fails stops the rollout.

    Warnings about slow or dangerous statements have to be accepted (--accept).
    While a move can be reversed, migrations of its shards are refused: rows that go back would not
    fit. `shardctl moves finish` gives that up, and so does --finish-reverse.
    It skips and lists unreachable nodes and nodes of streamed moves, exit code 3, if the reachable
    nodes agree on the map.
    """
    from shardctl.cli import migrate_rollout, provision
    from shardctl.cli.migrate_lint import Linted
    from shardctl.errors import UsageError
    from shardctl.provision.fleet import Options, plan_migrate
    from shardctl.provision.job import Retrying
    from shardctl.rollout import operator_checks
    from shardctl.rollout.waves import Wanted, parse
    from shardctl.state.rollouts import Brakes

    wait_s = lock_wait.total_seconds() if lock_wait else None
    timeout_ms = min(lock_timeout.ms, lock_wait.ms if lock_wait else lock_timeout.ms)
    retrying = Retrying(lock_timeout_ms=timeout_ms, attempts=attempts, wait_s=wait_s)
    options = Options(jobs=jobs, retrying=retrying)
    linted = Linted(tuple(accept or ()))
    given = [canary is not None, shards is not None, node is not None]
    if sum(given) > 1:
        raise UsageError("--canary, --shards and --node exclude each other", hint="specify one")
    percents = () if waves is None else parse(waves)
    for one in check or ():
        operator_checks.require_query(one)
    if go_on and (any(given) or percents or check):
        raise UsageError(
            "--continue takes the waves and checks of the open rollout",
            hint="leave out --canary, --shards, --node, --waves and --check",
        )
    in_waves = any(given) or bool(percents)
    if soak is not None and not (in_waves or go_on):
        raise UsageError("--soak needs waves", hint="add --canary 3, or --waves 1%,10%,100%")
    if not (in_waves or check or go_on):
        provision.run(
            ctx,
            lambda: linted.look(
                plan_migrate(
                    load_topology(ctx, lock_wait=lock_wait),
                    strict=all_or_nothing,
                    finish_reverse=finish_reverse,
                )
            ),
            options,
            output,
            dry_run=dry_run,
            yes=yes,
            before=linted.require_accepted,
        )
        return
    topology = load_topology(ctx, lock_wait=lock_wait)
    wanted = None if go_on else Wanted(canary, _named(topology, shards, node), percents)
    soak_ms = None if soak is None else soak.ms
    migrate_rollout.run(
        ctx,
        topology,
        wanted,
        brakes=Brakes(tuple(check or ()), check_timeout.ms, soak_ms),
        options=options,
        output=output,
        linted=linted,
        dry_run=dry_run,
        yes=yes,
        strict=all_or_nothing,
        finish_reverse=finish_reverse,
    )


def _named(topology: Topology, shards: str | None, name: str | None) -> tuple[ShardId, ...] | None:
    """Return the shards of the first wave that are named; raises UsageError."""
    from shardctl.errors import UsageError
    from shardctl.topology import routes
    from shardctl.topology.model import NodeName

    if shards is not None:
        return routes.listed(topology, shards)
    if name is None:
        return None
    node = topology.nodes.get(NodeName(name))
    if node is None:
        raise UsageError(f"unknown node {name!r}", hint=f"nodes: {', '.join(topology.nodes)}")
    return node.shards
