"""Measure what the documentation claims: `python tests/bench/run.py [NAME...] [--quick]`."""

from __future__ import annotations

import argparse
import os
import pkgutil
import platform
import signal
import sys
import time
import traceback
from dataclasses import replace
from typing import TYPE_CHECKING

from shardctl.errors import Interrupted
from tests.bench import fleet
from tests.bench.measure import BROKEN, Row, Scale, say

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BENCHES = {
    "next-id": "ids:one_session",
    "duplicates": "ids:many_sessions",
    "insert": "insert:single_rows",
    "init": "init:two_thousand",
    "growth": "init:growth",
    "verify": "verify:many_shards",
    "verify-deep": "looks:every_row",
    "shards-list": "looks:shards_list",
    "metrics": "looks:metrics",
    "reload": "poolers:reload",
    "pause": "floors:floors",
    "pause-aliases": "pauses:pause",
    "move": "moves:move",
    "move-many": "moves:many",
    "stream-move": "moves:stream",
    "stream-many": "stream_moves:many",
    "stream-slowed": "stream_moves:slowed",
    "rehearse": "rehearsals:rehearse",
    "rehearse-compare": "rehearsals:comparison",
    "reverse": "reversing:back",
    "move-logins": "logins:logins",
    "clone": "cloning:clone",
    "back-and-forth": "cloning:back_and_forth",
    "stream-copy": "streams:copy",
    "router-row": "routing:one_row",
    "router-look": "routing:looks",
    "router-keys": "routing:many_keys",
    "router-insert-many": "routing:many_rows",
    "router-top": "routing:top_of_all",
    "router-tasks": "routing:tasks",
    "sqlalchemy-row": "mapping:sessions",
    "router-connections": "routing:connections",
    "router-spare": "stream_moves:beside_a_spare",
    "django-row": "framework:django_row",
    "example-feed": "example:feed",
    "rebalance-plan": "balance:planner",
    "rebalance-beside": "rebalancing:side_by_side",
    "rebalance-apply": "rebalancing:to_four",
    "starts": "cli:starts",
    "decode-many": "cli:many_ids",
    "test-fleet": "testing:start",
}
"""Every bench by name, with its module and function; all run unless some are named."""


def bench(name: str) -> Callable[[Scale], list[Row]]:
    """Import a bench, and nothing that others need."""
    found: Callable[[Scale], list[Row]] = pkgutil.resolve_name(f"tests.bench.{BENCHES[name]}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benches and print one table; 1 when a bench broke, 0 also for missed targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHES)}")
    parser.add_argument("--quick", action="store_true", help="small counts: no measurement")
    given = parser.parse_args(arguments)
    if unknown := set(given.names) - set(BENCHES):
        parser.error(f"no bench is named {', '.join(sorted(unknown))}")
    for each in fleet.ENDING:
        signal.signal(each, signal.default_int_handler)
    rows: list[Row] = []
    broken: list[str] = []
    stopped = False
    began = time.monotonic()
    for name in given.names or BENCHES:
        say(f"{name} ... (load {os.getloadavg()[0]:.1f})")
        try:
            rows += bench(name)(Scale(quick=given.quick))
        except (KeyboardInterrupt, Interrupted):
            stopped = True
            break
        except Exception:  # noqa: BLE001  # one bench that breaks leaves the others their time
            traceback.print_exc()
            broken.append(name)
        broken += [f"{name}, {one}" for one in BROKEN]
        BROKEN.clear()
    took = time.monotonic() - began
    if given.quick:
        rows = [replace(row, met=None) for row in rows]
    summary = _summary(rows, broken, took=took, quick=given.quick)
    print(f"{_table(rows)}\n\n{summary}")  # noqa: T201  # the result
    if stopped:
        return 130
    return 1 if broken else 0


def _table(rows: list[Row]) -> str:
    lines = [
        ("", "ours", "reference", "ratio", "rounds", "target", "", ""),
        *(
            (
                row.name,
                row.ours,
                row.reference,
                "" if row.ratio is None else f"{row.ratio:.3f}",
                "" if row.spread is None else f"{row.spread[0]:.3f}-{row.spread[1]:.3f}",
                row.target,
                row.verdict,
                row.note,
            )
            for row in rows
        ),
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _summary(rows: list[Row], broken: list[str], *, took: float, quick: bool) -> str:
    missed = [row.name.strip() for row in rows if row.met is False]
    machine = f"{os.cpu_count()} cores, Python {platform.python_version()}, {platform.platform()}"
    lines = [f"{took:.0f} s on {machine}; ratio: median of the rounds, then lowest-highest"]
    if quick:
        lines.append("--quick: a smoke test of the benches; these numbers mean nothing")
    if missed:
        lines.append(f"MISSED: {'; '.join(missed)}")
    if broken:
        lines.append(f"BROKEN: {', '.join(broken)}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
