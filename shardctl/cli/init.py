"""`shardctl init`: bring the fleet to what the topology says."""

from __future__ import annotations

from typing import Annotated

import typer

from shardctl.cli.command import command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import (
    LOCK_TIMEOUT,
    AllOrNothingOption,
    AttemptsOption,
    DryRunOption,
    JobsOption,
    LockTimeoutOption,
    LockWaitOption,
    Report,
    ReportOption,
    YesOption,
)

app = command_app()


@app.command()
def init(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take over schemas that shardctl did not make."),
    ] = False,
    without_poolers: Annotated[
        bool, typer.Option("--without-poolers", help="Leave the poolers as they are.")
    ] = False,
    all_or_nothing: AllOrNothingOption = False,
    jobs: JobsOption = 4,
    lock_wait: LockWaitOption = None,
    lock_timeout: LockTimeoutOption = LOCK_TIMEOUT,
    attempts: AttemptsOption = 10,
) -> None:
    """Bring the fleet to what the topology says; a second run changes nothing.

    Makes what is missing: database and roles, schema `shardctl`, and for each shard its
    schema, sequences, next_id(), grants and migrations; then the map; at last the aliases that
    the poolers offer. Shows the plan and asks first.
    Killed at any moment and run again, it completes (but for a migration that asks for no
    transaction: what its statements did stays done). It never gives a shard to another node
    than the databases say, and never touches a schema that it did not make (but see --adopt).
    Nodes that cannot be read are left out and named, exit code 3, if the others agree on the map.
    """
    from shardctl.cli import provision
    from shardctl.provision.fleet import Options, plan_init
    from shardctl.provision.job import Retrying

    options = Options(
        jobs=jobs,
        retrying=Retrying(lock_timeout_ms=lock_timeout.ms, attempts=attempts),
        adopt=adopt,
    )
    provision.run(
        ctx,
        lambda: plan_init(
            load_topology(ctx, lock_wait=lock_wait),
            adopt=adopt,
            poolers=not without_poolers,
            strict=all_or_nothing,
        ),
        options,
        output,
        dry_run=dry_run,
        yes=yes,
    )
