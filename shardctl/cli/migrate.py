"""`shardctl migrate`: run new migrations on every shard."""

from __future__ import annotations

import typer

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

app = command_app()


@app.command()
def migrate(
    ctx: typer.Context,
    *,
    output: ReportOption = Report.table,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
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
    While a move can be reversed, migrations of its shards are refused: rows that go back would not
    fit. `shardctl moves finish` gives that up, and so does --finish-reverse.
    It skips and lists unreachable nodes, exit code 3, if the reachable nodes agree on the map.
    """
    from shardctl.cli import provision
    from shardctl.provision.fleet import Options, plan_migrate
    from shardctl.provision.job import Retrying

    retrying = Retrying(lock_timeout_ms=lock_timeout.ms, attempts=attempts)
    options = Options(jobs=jobs, retrying=retrying)
    provision.run(
        ctx,
        lambda: plan_migrate(
            load_topology(ctx, lock_wait=lock_wait),
            strict=all_or_nothing,
            finish_reverse=finish_reverse,
        ),
        options,
        output,
        dry_run=dry_run,
        yes=yes,
    )
