"""What `rebalance` and `node drain` print: a plan, a rebalance and its moves."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardctl.cli import picture
from shardctl.cli.options import Report
from shardctl.cli.output import plural, print_json, print_table, say
from shardctl.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardctl.balance.carry import Group
    from shardctl.balance.group import GroupPlan, NodePlanned, PlannedMove
    from shardctl.fanout import Progress
    from shardctl.moves.step import Step
    from shardctl.state.rebalances import Known

_NODES = ("node", "share", "now", "after", "size now", "after", "shards now", "after", "")
_MOVES = ("", "from", "to", "shards", "size", "copy", "clients wait", "why")
_GROUP = ("rebalance", "state", "moves done", "size", "by", "started")
_GROUP_MOVES = ("", "move", "state", "from", "to", "shards", "size", "why")


def show_plan(plan: GroupPlan, output: Report) -> None:
    """Print a plan, and what an operator should know besides."""
    if output is Report.json:
        print_json(plan.as_json())
    else:
        print_table(_NODES, [_node(plan, one) for one in plan.nodes])
        if plan.moves:
            print_table(_MOVES, [_move(at, one) for at, one in enumerate(plan.moves, 1)])
        print(summary(plan))
    for one in plan.stuck:
        size = picture.size(one.size_bytes)
        say(f"note: shard {one.shard} ({size}) stays on node {one.node}: {one.why}")
    if plan.moves_left_out:
        say(f"note: {plural(plan.moves_left_out, 'more move')} would follow (--max-moves)")
    for note in plan.notes:
        say(f"note: {note}")


def summary(plan: GroupPlan) -> str:
    """Say in a line what a plan does."""
    if not plan.moves:
        if plan.drain is not None:
            return f"nothing to move: node {plan.drain} has no shards that can leave it"
        return "nothing to move: every node has its share"
    copied = picture.size(sum(one.size_bytes for one in plan.moves))
    lasting = picture.duration(max(1, sum(one.predicted_copy_s for one in plan.moves)))
    moved = plural(sum(len(one.shards) for one in plan.moves), "shard")
    return f"{plural(len(plan.moves), 'move')}: {moved}, {copied} to be copied, about {lasting}"


def save(plan: GroupPlan, path: Path) -> None:
    """Write a plan into a file, a line for each node and move; raises plan_unwritten."""
    parts = [f'"{key}": {_lines(value)}' for key, value in plan.as_json().items()]
    try:
        path.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    except OSError as error:
        raise Refused(
            "plan_unwritten",
            f"{path}: {error.strerror or error}",
            hint="give --out a file in a directory that you can write to",
        ) from error
    say(f"the plan is in {path}: `shardctl rebalance apply --plan {path}` carries it out")


def show_group(group: Group | None, known: Known, output: Report) -> None:
    """Print a rebalance, how far each of its moves is, and the drained nodes."""
    drained = [
        {"node": one.node, "by": one.who, "since": _written(one.at)}
        for one in known.drained.values()
    ]
    if output is Report.json:
        shown = None if group is None else as_json(group)
        print_json({"format": 1, "rebalance": shown, "drained": drained})
        return
    if group is None:
        print("no rebalance has started yet")
    else:
        print_table(_GROUP, [_group(group)], coloured="state")
        moves = [_group_move(at, one, group) for at, one in enumerate(group.plan.moves, 1)]
        print_table(_GROUP_MOVES, moves, coloured="state")
    for one in drained:
        print(f"node {one['node']} is drained: {one['by']} did that at {one['since']}")


def as_json(group: Group) -> dict[str, Any]:
    """Give the shape of docs/reference/json.md."""
    row = group.row
    return {
        "id": row.id,
        "state": group.shown,
        "by": row.who,
        "started": _written(row.started),
        "changed": _written(row.changed),
        "drain": group.plan.drain,
        "moves_done": group.done,
        "moves": [
            {
                "move": one.move,
                "state": group.state_of(one),
                "source": one.source,
                "target": one.target,
                "shards": list(one.shards),
                "size_bytes": one.size_bytes,
                "why": one.why,
            }
            for one in group.plan.moves
        ],
    }


@dataclass(frozen=True, slots=True)
class Printed:
    """Shows a rebalance while it is carried out."""

    progress: Progress

    def on_move(self, number: int, of: int, move: PlannedMove, *, again: bool) -> None:
        """Print which move begins."""
        does = "continue" if again else "begin"
        say(
            f"move {number} of {of}: {does}: shards {_shards(move)} from node {move.source} to "
            f"node {move.target}, {picture.size(move.size_bytes)}"
        )

    def on_step(self, move: str) -> Callable[[Step], None]:
        """Print the steps of a move."""
        from shardctl.cli.moves_found import report_step

        return report_step(move)

    def notice(self, message: str) -> None:
        """Print something else."""
        say(message)


def _node(plan: GroupPlan, one: NodePlanned) -> tuple[str, ...]:
    drained = {plan.drain, *(node.name for node in plan.fleet if node.drained)}
    remark = f"only shard {one.alone}" if one.alone is not None else ""
    return (
        one.name,
        _load(plan, one.share),
        _load(plan, one.load),
        _load(plan, one.load_after),
        picture.size(one.size_bytes),
        picture.size(one.size_after_bytes),
        f"{one.shard_count:,}",
        f"{one.shard_count_after:,}",
        "drained" if one.name in drained else remark,
    )


def _load(plan: GroupPlan, load: float) -> str:
    if plan.by == "size":
        return picture.size(round(load))
    return f"{load:,.1f}/s" if plan.by == "tps" else f"{load:,.1f}"


def _move(number: int, one: PlannedMove) -> tuple[str, ...]:
    return (
        f"{number}",
        one.source,
        one.target,
        _shards(one),
        picture.size(one.size_bytes),
        picture.duration(max(1, one.predicted_copy_s)),
        f"{one.predicted_pause_ms:.0f} ms",
        one.why,
    )


def _group(group: Group) -> tuple[str, ...]:
    moves = group.plan.moves
    return (
        group.row.id,
        group.shown,
        f"{group.done} of {len(moves)}",
        picture.size(sum(one.size_bytes for one in moves)),
        group.row.who,
        _written(group.row.started),
    )


def _group_move(number: int, one: PlannedMove, group: Group) -> tuple[str, ...]:
    size = picture.size(one.size_bytes)
    state, shards = group.state_of(one), _shards(one)
    return (f"{number}", one.move or "-", state, one.source, one.target, shards, size, one.why)


def _shards(one: PlannedMove) -> str:
    from shardctl.topology import ranges

    return f"{len(one.shards):,}: {picture.shorten(ranges.of(one.shards))}"


def _written(moment: Any) -> str:
    from shardctl.state import ledger

    return ledger.written(moment) or "-"


def _lines(value: Any) -> str:
    """Write a value as JSON, and a list of objects with a line for each."""
    if not isinstance(value, tuple) or not value:
        return json.dumps(value, ensure_ascii=False)
    rows = ",\n  ".join(json.dumps(one, ensure_ascii=False) for one in value)
    return f"[\n  {rows}\n]"
