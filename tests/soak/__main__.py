"""Break a fleet at random for an hour, beside clients, and judge its history.

`python -m tests.soak [--seconds N] [--seed N] [--directory DIRECTORY]` prints one page. Exit code
1: a promise was broken, or a client got an error outside the windows that the docs allow.
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from tests.soak import checker, fleet, history, page
from tests.soak.soak import Soak

HOUR_S = 3600.0


def main() -> int:
    """Run it, print the page, and keep the history in files beside it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=HOUR_S)
    parser.add_argument("--seed", type=int, default=None, help="a random one by default")
    parser.add_argument("--directory", type=Path, default=None, help="for the history and page")
    given = parser.parse_args()
    if fleet.PRIVATE not in os.environ:
        argv = [sys.executable, "-m", "tests.soak", *sys.argv[1:]]
        if (private := fleet.in_private(argv)) != argv:
            os.execvp(private[0], private)  # noqa: S606  # this program once more
    seed = secrets.randbelow(2**31) if given.seed is None else given.seed
    directory = given.directory or Path(tempfile.mkdtemp(prefix="shardctl-soak-history-"))
    directory.mkdir(parents=True, exist_ok=True)
    print(f"seed {seed}, {given.seconds:.0f} s; the history is in {directory}", file=sys.stderr)  # noqa: T201
    logging.getLogger("psycopg.pool").setLevel(logging.ERROR)  # servers end, so sessions do
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    found = soak(seed, given.seconds, directory)
    text = page.render(found)
    (directory / "page.md").write_text(text, encoding="utf-8")
    history.write(directory / "violations.jsonl", found.violations)
    print(text)  # noqa: T201
    return 0 if found.ok else 1


def soak(seed: int, seconds: float, directory: Path) -> page.Findings:
    """Run a soak and judge it."""
    with fleet.running() as running:
        began = time.monotonic()
        one = Soak(running, seed, seconds, directory)
        one.run()
        ended = time.monotonic()
    return page.Findings(
        seed=seed,
        seconds=seconds,
        began=began,
        ended=ended,
        disks=running.disks,
        events=one.events,
        moves=Counter(seen.state for seen in one.observer.moves.values()),
        ops=one.history.ops,
        pauses=one.history.pauses,
        windows=one.notes.windows,
        violations=checker.check(one.history),
        connections=one.observer.connections,
        memory=one.measured.memory,
        commands=one.commands,
        broken=one.broken,
    )


if __name__ == "__main__":
    sys.exit(main())
