"""What `init` and `migrate` share: show the plan, carry it out, report."""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING

from shardctl.cli.options import Report
from shardctl.cli.output import always_json, plural, print_json, print_table, say
from shardctl.errors import Problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardctl.provision.fleet import FleetPlan, Options
    from shardctl.provision.plan import Change


def run(
    make_plan: Callable[[], FleetPlan], options: Options, output: Report, *, dry_run: bool
) -> None:
    """Observe, plan, show, and unless `dry_run`, apply and report."""
    from shardctl.cli.progress import bars
    from shardctl.provision.fleet import carry_out, require_free

    began = time.monotonic()
    with always_json(output):
        plan = make_plan()
        require_free(plan)
        for note in (*plan.notes, *(plan.poolers.costs() if plan.poolers else ())):
            say(f"note: {note}")
        show(plan, output)
    if not dry_run and plan.changes():
        with bars() as progress:
            carry_out(plan, options, progress, say)
        _report(plan, time.monotonic() - began)
    if plan.left_out:
        raise Problems(list(plan.left_out))


def _report(plan: FleetPlan, took_s: float) -> None:
    shards = {shard for change in plan.changes() for shard in change.shards}
    what = plural(len(shards), "shard") if shards else plural(len(plan.changes()), "change")
    poolers = len(plan.poolers.changes()) if plan.poolers else 0
    where = [plural(len(plan.nodes), "node")] if plan.nodes else []
    where += [plural(poolers, "pooler")] if poolers else []
    say(f"done: {what} on {' and '.join(where)} in {took_s:.1f} s")


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
                "left_out": [one.as_json() for one in plan.left_out],
            }
        )
    elif changes:
        print_table(("where", "action", "what", "name", "shards"), _rows(changes))
    elif plan.left_out:
        print("nothing to do on the nodes that can be read")
    else:
        topology = plan.topology
        poolers = f" and {plural(len(topology.poolers), 'pooler')}" if plan.poolers else ""
        print(
            f"nothing to do: {topology.shard_count} shards on "
            f"{len(topology.owning())} nodes{poolers} are as the topology says"
        )


def _rows(changes: list[Change]) -> Iterator[tuple[str, str, str, str, str]]:
    """Give a line for each change, and one for all functions that are made together."""
    from shardctl.topology import ranges

    def key(change: Change) -> tuple[str, str, str]:
        return str(change.pooler or change.node), change.action, change.kind

    for (node, action, kind), same in groupby(changes, key):
        lines = list(same)
        if kind == "function" and len(lines) > 1:
            yield node, action, kind, f"shardctl.* ({len(lines)})", ""
            continue
        for line in lines:
            shards = ranges.of(line.shards) if line.shards else ""
            yield node, action, kind, line.name or "", shards
