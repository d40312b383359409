"""`shardctl migrate`: run new migrations on every shard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli.command import Changing, command_app
from shardctl.cli.context import load_topology
from shardctl.cli.options import (
    LOCK_TIMEOUT,
    AllOrNothingOption,
    AttemptsOption,
    FinishReverseOption,
    JobsOption,
    LockTimeoutOption,
)

if TYPE_CHECKING:
    from shardctl.provision.fleet import FleetPlan

app = command_app()


@app.command(cls=Changing)
def migrate(
    ctx: typer.Context,
    *,
    shards: Annotated[
        str | None,
        typer.Option("--shards", metavar="LIST", help="For example 0-3,17; all by default."),
    ] = None,
    all_or_nothing: AllOrNothingOption = False,
    jobs: JobsOption = 4,
    lock_timeout: LockTimeoutOption = LOCK_TIMEOUT,
    attempts: AttemptsOption = 10,
    finish_reverse: FinishReverseOption = False,
) -> None:
    """Run new migrations on every shard; shows pending migrations and asks first.

    With --shards it runs them on these only, for example to try them on a few; without, later,
    on the rest.

    A migration never waits longer for a lock than --lock-timeout. Then it releases its locks,
    waits and tries again, so that the application's sessions do not queue behind it.
    While a move can be reversed, migrations of its shards are refused: rows that go back would not
    fit. `shardctl moves finish` gives that up, and so does --finish-reverse.
    It skips and lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.cli import provision
    from shardctl.provision.failures import Retrying
    from shardctl.provision.fleet import Options, plan_migrate
    from shardctl.topology import routes

    retrying = Retrying(lock_timeout_ms=lock_timeout.ms, attempts=attempts)
    options = Options(jobs=jobs, retrying=retrying)

    def plan() -> FleetPlan:
        topology = load_topology(ctx)
        return plan_migrate(
            topology,
            strict=all_or_nothing,
            finish_reverse=finish_reverse,
            only=None if shards is None else frozenset(routes.listed(topology, shards)),
        )

    provision.run(
        ctx,
        plan,
        options,
    )
