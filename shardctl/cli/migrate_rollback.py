"""`shardctl migrate rollback` and `abandon`: undo a migration, or end a rollout as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import picture
from shardctl.cli.context import load_topology, note_changes
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
from shardctl.cli.output import confirm, plural, print_json, print_table, say
from shardctl.errors import Problems, ShardctlError

if TYPE_CHECKING:
    from shardctl.rollout.rollback import Undoing


def rollback(
    ctx: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="The migration's number or file name.")
    ],
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
    """Undo a migration by its down part, in exactly the shards that have it.

    The down part is below a line `-- shardctl: down` in the file. The shards of the last wave come
    first; if the down part fails in one, the earlier waves keep the migration. It ends the rollout
    of the file. The file is pending again then: change or remove it before the next `migrate`.
    """
    from shardctl.cli import provision
    from shardctl.cli.progress import bars
    from shardctl.provision.fleet import Options, require_free
    from shardctl.provision.job import Retrying
    from shardctl.rollout import rollback as undoing

    wait_s = lock_wait.total_seconds() if lock_wait else None
    timeout_ms = min(lock_timeout.ms, lock_wait.ms if lock_wait else lock_timeout.ms)
    retrying = Retrying(lock_timeout_ms=timeout_ms, attempts=attempts, wait_s=wait_s)
    topology = load_topology(ctx, lock_wait=lock_wait)
    planned: Undoing | None = None
    try:
        planned = undoing.plan(topology, file, strict=all_or_nothing, finish_reverse=finish_reverse)
        plan = planned.plan
        require_free(plan)
        note_changes(ctx, plan.changes())
        for note in plan.notes:
            say(f"note: {note}")
        if output is Report.table:
            _show(planned)
        if not dry_run and (planned.waves or planned.rollout is not None):
            count = plural(sum(map(len, planned.waves)), "shard")
            confirm(f"Undo {planned.migration.name} in {count}?", yes=yes)
            provision.finish_reverses(plan)
            with bars() as progress:
                undoing.carry_out(planned, Options(jobs=jobs, retrying=retrying), progress, say)
            say(f"done: {planned.migration.name} was undone in {count}")
        if plan.left_out:
            raise Problems(list(plan.left_out))
    except ShardctlError as error:
        if output is Report.json:
            print_json(_json(planned, error, dry_run=dry_run))
        raise
    if output is Report.json:
        print_json(_json(planned, None, dry_run=dry_run))


def _json(
    planned: Undoing | None, error: ShardctlError | None, *, dry_run: bool
) -> dict[str, object]:
    from shardctl.cli import provision

    shape = provision.as_json(planned.plan if planned else None, error, dry_run=dry_run)
    return shape | ({"waves": [list(wave) for wave in planned.waves]} if planned else {})


def _show(planned: Undoing) -> None:
    from shardctl.cli import provision
    from shardctl.topology import ranges

    if not planned.waves:
        print(f"{planned.migration.name} is in no shard that can be reached")
        return
    provision.show(planned.plan)
    if len(planned.waves) > 1:
        print_table(
            ("order", "count", "shards"),
            [
                (str(number), f"{len(wave):,}", picture.shorten(ranges.of(wave)))
                for number, wave in enumerate(planned.waves, 1)
            ],
        )


def abandon(
    ctx: typer.Context,
    *,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    all_or_nothing: AllOrNothingOption = False,
    lock_wait: LockWaitOption = None,
) -> None:
    """End the open rollout where it is: the shards keep what they have.

    Then `shardctl migrate` runs the files in the other shards, and `migrate rollback` undoes them.
    """
    from shardctl.cli.migrate_rollout import show_waves
    from shardctl.provision.fleet import require_free
    from shardctl.rollout import rollback as undoing

    topology = load_topology(ctx, lock_wait=lock_wait)
    plan, rollout = undoing.abandon(topology, strict=all_or_nothing)
    require_free(plan)
    note_changes(ctx, rollout)
    show_waves(rollout)
    if dry_run:
        return
    confirm(f"End rollout {rollout.id} after wave {rollout.wave}?", yes=yes)
    undoing.end(plan, rollout, say)
    say(f"done: rollout {rollout.id} has ended; its shards keep what they have")
