"""What `init` and `migrate` share: show the plan, carry it out, report."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING

from shardctl.cli.options import Report
from shardctl.cli.output import always_json, print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.provision.fleet import FleetPlan, Options
    from shardctl.provision.plan import Change


def run(
    make_plan: Callable[[], FleetPlan], options: Options, output: Report, *, dry_run: bool
) -> None:
    """Observe, plan, show, and unless `dry_run`, apply and report."""
    from shardctl.cli.progress import bars
    from shardctl.provision.fleet import carry_out

    began = time.monotonic()
    with always_json(output):
        plan = make_plan()
        for note in plan.notes:
            say(f"note: {note}")
        show(plan, output)
    if dry_run or not plan.nodes:
        return
    with bars() as progress:
        carry_out(plan, options, progress)
    shards = {shard for change in plan.changes() for shard in change.shards}
    what = f"{len(shards)} shards" if shards else f"{len(plan.changes())} changes"
    took = time.monotonic() - began
    say(f"done: {what} on {len(plan.nodes)} nodes in {took:.1f} s")


def show(plan: FleetPlan, output: Report) -> None:
    """Print the plan; a table with no lines becomes a sentence."""
    from shardctl.provision.plan import summary

    changes = plan.changes()
    if output is Report.json:
        print_json(
            {
                "format": 1,
                "cluster": plan.topology.cluster,
                "changes": [change.as_json() for change in changes],
                "summary": summary(changes),
            }
        )
        return
    if not changes:
        topology = plan.topology
        print(
            f"nothing to do: {topology.shard_count} shards on "
            f"{len(topology.owning())} nodes are as the topology says"
        )
        return
    print_table(("node", "action", "what", "name", "shards"), _rows(changes))


def _rows(changes: list[Change]) -> Iterator[tuple[str, str, str, str, str]]:
    """Give a line for each change, and one for all functions that are made together."""
    from shardctl.topology import ranges

    for (node, action, kind), same in groupby(changes, lambda c: (c.node, c.action, c.kind)):
        lines = list(same)
        if kind == "function" and len(lines) > 1:
            yield node, action, kind, f"shardctl.* ({len(lines)})", ""
            continue
        for line in lines:
            shards = ranges.of(line.shards) if line.shards else ""
            yield node, action, kind, line.name or "", shards
