"""`shardctl migrate status`: which migration is in which shards, and the open rollout."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from shardctl.cli import picture
from shardctl.cli.context import load_topology
from shardctl.cli.options import Report, ReportOption
from shardctl.cli.output import print_json, print_table, say
from shardctl.errors import Problems

if TYPE_CHECKING:
    from shardctl.rollout.status import Status
    from shardctl.state.rollouts import Rollout


def status(ctx: typer.Context, *, output: ReportOption = Report.table) -> None:
    """Show each migration's state in the shards, and the rollouts; changes nothing.

    Every terminal shows the same: the nodes keep it. Exit code 3 if a node is unreachable.
    """
    from shardctl.rollout import status as looking

    found = looking.look(load_topology(ctx), command="migrate status")
    if output is Report.json:
        _print_json(found)
    else:
        _show(found)
    if found.unread:
        raise Problems(list(found.unread), exit_code=3)


def _print_json(found: Status) -> None:
    print_json(
        {
            "format": 1,
            "migrations": [one.as_json() for one in found.files],
            "rollouts": [one.as_json() for one in found.rollouts],
            "running": [
                {"node": node, "command": holder} for node, holder in found.holders.items()
            ],
        }
    )


def _show(found: Status) -> None:
    from shardctl.topology import ranges

    if not found.files:
        print("no migrations")
    else:
        print_table(
            ("migration", "state", "done", "pending", "shards", "down part"),
            [
                (
                    one.name,
                    one.state,
                    f"{len(one.done):,}",
                    f"{len(one.pending) + len(one.differing):,}",
                    picture.shorten(ranges.of([*one.pending, *one.differing]))
                    if one.done or one.differing
                    else "",
                    "yes" if one.migration is not None and one.migration.down else "",
                )
                for one in found.files
            ],
            coloured="state",
        )
    if found.open is not None:
        _show_open(found, found.open)


def _show_open(found: Status, rollout: Rollout) -> None:
    from shardctl.cli.migrate_rollout import show_waves

    print()
    print(
        f"rollout {rollout.id} of {', '.join(sorted(rollout.files))}: "
        f"{'interrupted' if found.killed else rollout.state}, wave {rollout.wave} of "
        f"{len(rollout.waves)}, by {rollout.who} at {rollout.changed:%Y-%m-%d %H:%M:%S %Z}"
    )
    show_waves(rollout)
    if rollout.reason:
        print(f"stopped: {rollout.reason}")
    for node, holder in found.holders.items():
        say(f"node {node} is being changed by {holder}")
    if not found.holders:
        print(
            "`shardctl migrate --continue` goes on, `shardctl migrate rollback "
            f"{max(rollout.files)}` undoes it"
        )
