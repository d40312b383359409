"""`shardctl init`: bring the fleet to the state of the topology file."""

from __future__ import annotations

from typing import Annotated

import typer

from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import (
    LOCK_TIMEOUT,
    AllOrNothingOption,
    AttemptsOption,
    JobsOption,
    LockTimeoutOption,
)

app = command_app()


@app.command(cls=Changing)
def init(
    ctx: typer.Context,
    *,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Take over schemas that shardctl did not create."),
    ] = False,
    without_poolers: Annotated[
        bool, typer.Option("--without-poolers", help="Do not change the poolers.")
    ] = False,
    all_or_nothing: AllOrNothingOption = False,
    jobs: JobsOption = 4,
    lock_timeout: LockTimeoutOption = LOCK_TIMEOUT,
    attempts: AttemptsOption = 10,
) -> None:
    """Bring the fleet to the state of the topology file; a second run changes nothing.

    Creates what is missing on every running node, with or without shards: database and roles,
    schema `shardctl`, and for each shard its schema, sequences, next_id(), grants and migrations;
    then the map, and last the aliases of the poolers. Shows the plan and asks first.
    If it is killed at any moment, the next run completes it (except a migration that asks for no
    transaction: its finished statements stay done). It never gives a shard to another node than
    the one in the map, and never changes a schema that it did not create (except with --adopt).
    It skips and lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.cli import provision
    from shardctl.provision.failures import Retrying
    from shardctl.provision.fleet import Options, plan_init

    options = Options(
        jobs=jobs,
        retrying=Retrying(lock_timeout_ms=lock_timeout.ms, attempts=attempts),
        adopt=adopt,
    )
    provision.run(
        ctx,
        lambda: plan_init(
            load_topology(ctx),
            adopt=adopt,
            poolers=not without_poolers,
            strict=all_or_nothing,
        ),
        options,
    )
