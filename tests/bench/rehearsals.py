"""The rehearsal of streamed moves: how long it holds writers, and how well it predicts."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from tests.bench import moving
from tests.bench.measure import Row, compare, limit, rounds, say, seconds
from tests.bench.moves import _listed
from tests.bench.stream_moves import FILLED, fill

if TYPE_CHECKING:
    from tests.bench.measure import Scale
    from tests.bench.moving import Moved

HELD_MS = 15
"""How long writers may be held, beyond waiting for open transactions."""
NEAR, NEAR_MS = 0.3, 15
"""How near a prediction is to the pause, whichever is larger."""
RIGHT = 0.8
COMPARED = 1.1
"""How long the comparison may take, of the same sums asked for by hand on both nodes at once."""


def rehearse(scale: Scale) -> list[Row]:
    """Move 2 of 8 shards ten times, with 8 clients who never rest; half of them with more shards.

    The prediction of each rehearsal stands against the pause of its move.
    """

    def once(number: int) -> Moved:
        shards = 8 if number % 2 == 0 else scale.of(200, 16)
        say(f"  move {number + 1}, {shards // 4} of {shards} shards ({moving.busy()})")
        with moving.sandbox(shards, 2, 0) as fleet:
            fleet.settle()
            with fleet.load("shard" if shards == 8 else "node") as load:
                moved = fleet.move(f"0-{shards // 4 - 1}", "--to", "b", "--method", "stream")
                load.end(0)
            return moved

    done = rounds(scale.of(10, 2), once)
    found = [moved.report["rehearsal"] for moved in done]
    held = [one["writers_held_ms"] - one["waited_ms"] for one in found]
    pairs = [
        (one["predicted_pause_ms"], moved.pause * 1000)
        for moved, one in zip(done, found, strict=True)
    ]
    near = [abs(said - was) <= max(NEAR * was, NEAR_MS) for said, was in pairs]
    least = round(RIGHT * len(near))
    return [
        limit(
            "rehearse: writers held beyond open transactions",
            statistics.median(held),
            HELD_MS,
            "ms",
            note=f"{_listed(held)}; open transactions: "
            + _listed([one["waited_ms"] for one in found]),
        ),
        Row(
            "  predicted pause against the actual",
            f"{sum(near)} of {len(near)} near",
            f"{NEAR:.0%} or {NEAR_MS} ms",
            target=f">= {least} of {len(near)}",
            met=sum(near) >= least,
            note=", ".join(f"{said:.0f}/{was:.0f}" for said, was in pairs) + " ms",
        ),
    ]


def comparison(scale: Scale) -> list[Row]:
    """Compare 2 GB in the rehearsal of a move, and sum up the same by hand on both nodes at once.

    By hand, one session with each node asks for one table after the other.
    """
    ours, hands, sizes = [], [], []
    with moving.sandbox(8, 2, 0) as fleet:
        fill(fleet, scale.of(900_000, 2_000))
        for number in range(scale.of(3, 1)):
            say(f"  comparison {number + 1} ({moving.busy()})")
            target = "ba"[number % 2]
            fleet.settle()
            moved = fleet.move("2-3", "--to", target, "--method", "stream", "--keep-reverse", "0")
            report = moved.report["rehearsal"]
            ours.append(report["elapsed_ms"] / 1000)
            sizes.append(report["size_bytes"])
            live = [fleet.topology().schema(shard) for shard in FILLED]
            source = "ab"[target == "a"]
            hands.append(moving.sum_by_hand(fleet, moved, source, target, live))
            say(f"  ours {ours[-1]:.2f} s, by hand {hands[-1]:.2f} s")
            fleet.call("prune", "--now", "--yes")
    return [
        compare(
            f"rehearse-compare: {sizes[0] / 1e9:.2f} GB on both nodes",
            ours,
            hands,
            against="the same sums by hand",
            shown=seconds,
            target=COMPARED,
        )
    ]
