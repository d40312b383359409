"""Options that `rebalance` and `node drain` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardctl.cli import completion, values

if TYPE_CHECKING:
    from shardctl.moves.plan import Options
    from shardctl.topology.model import Topology

SAMPLE = values.Duration(seconds=5)
THRESHOLD = 0.1

ThresholdOption = Annotated[
    float,
    typer.Option(
        "--threshold",
        metavar="PERCENT",
        parser=values.percent,
        help="By how much a node may miss its share before anything moves; a plan ends within half "
        "of that.",
    ),
]
WeightOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node-weight",
        metavar="NODE=WEIGHT",
        help="The share of a node, where every other node has 1; 0 empties it. Can be repeated.",
    ),
]
RoomOption = Annotated[
    list[str] | None,
    typer.Option(
        "--node-room",
        metavar="NODE=SIZE",
        help="The most that a node can receive, for example c=500GB, in place of its free disk. "
        "Can be repeated.",
    ),
]
LeaveOutOption = Annotated[
    list[str] | None,
    typer.Option(
        "--leave-out",
        metavar="NODE",
        autocompletion=completion.nodes,
        help="A node that neither gives nor gets shards. Can be repeated.",
    ),
]
MostOption = Annotated[
    int | None,
    typer.Option("--max-moves", min=1, metavar="N", help="Plan the first N moves only."),
]
SampleOption = Annotated[
    values.Duration,
    typer.Option(
        "--sample",
        metavar="DURATION",
        parser=values.duration(plain="s", least=values.Duration(milliseconds=100)),
        help="With --by tps: how long to count operations. A plain number is in seconds.",
    ),
]
MaxRateOption = Annotated[
    int | None,
    typer.Option(
        "--max-rate",
        metavar="SIZE",
        parser=values.size(plain="K"),
        help="Limit the copy rate of each move, for example 50M a second; a plain number is in kB.",
    ),
]
RetainOption = Annotated[
    values.Duration | None,
    typer.Option(
        "--retain",
        metavar="DURATION",
        parser=values.duration(),
        help="How long to keep retired schemas, for example 7d.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option("--out", metavar="FILE", help="Save the plan, for `rebalance apply --plan`."),
]


def weights(given: list[str] | None) -> dict[str, float]:
    """Parse --node-weight; raises UsageError."""
    return values.of_nodes(given or [], "--node-weight", values.weight)


def rooms(given: list[str] | None) -> dict[str, int]:
    """Parse --node-room; raises UsageError."""
    from shardctl.topology import fields

    return values.of_nodes(given or [], "--node-room", fields.size)


def of_moves(
    topology: Topology,
    *,
    max_rate: int | None,
    max_pause: values.Duration | None = None,
    retain: values.Duration | None = None,
    max_wal: int | None = None,
    terminate: bool = False,
    ignore_standby: bool = False,
    finish_reverse: bool = False,
) -> Options:
    """Give the options of every move; none can be reversed."""
    from shardctl.moves.plan import Options

    move = topology.move
    return Options(
        (max_pause or move.max_pause).total_seconds(),
        (move.retain if retain is None else retain).total_seconds(),
        max_rate=f"{max_rate // 1024}k" if max_rate else None,
        max_wal_bytes=max_wal or move.max_wal,
        terminate=terminate,
        ignore_standby=ignore_standby,
        finish_reverse=finish_reverse,
    )
