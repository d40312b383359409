"""How progress is drawn, and what it says where there is no terminal."""

from __future__ import annotations

import io
import sys

import pytest

from shardctl.cli import picture, progress
from shardctl.meter import BYTES, Held, Meters, Reading
from tests.fixtures.servers.postgres import wait_for

GB = 1024**3


def reading(**given: object) -> Reading:
    values: dict[str, object] = {
        "phase": "copying", "unit": BYTES, "done": GB, "total": 2 * GB, "elapsed_s": 12.0
    }  # fmt: skip
    return Reading(**(values | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rate": 88_902_477.0, "eta_s": 11.4}, "c: copying, 1.0/2.0 GB, 85 MB/s, 11 s left"),
        ({"rate": 88_902_477.0, "total": 0}, "c: copying, 1.0 GB, 85 MB/s"),
        ({"stalled_s": 12.3}, "c: copying, 1.0/2.0 GB, stalled for 12 s"),
        ({"done": 0}, "c: copying, 0/2.0 GB, for 12 s"),
        ({"done": 0, "total": 0}, "c: copying, for 12 s"),
        ({"done": 2 * GB}, "c: copying, 2.0/2.0 GB, done"),
        ({"ended": True}, "c: copying, 1.0/2.0 GB, stopped"),
        (
            {"held": Held(3 * GB, 20 * GB, 5_000_000), "rate": 88_902_477.0},
            "c: copying, 1.0/2.0 GB, 85 MB/s, lag 4.8 MB, source keeps 3.0/20 GB of WAL",
        ),
        ({"held": Held(3 * GB, None), "ended": True}, "c: copying, 1.0/2.0 GB, stopped"),
        (
            {"waits": "a lock of session 7", "waits_s": 90.0},
            "c: copying, 1.0/2.0 GB, waits 1 min 30 s for a lock of session 7",
        ),
        (
            {"done": 500, "total": 2000, "unit": "shards", "rate": 120.4, "eta_s": 12.5},
            "c: copying, 500/2,000 shards, 120/s, 12 s left",
        ),
    ],
)
def test_a_line_says_what_is_done_and_how_it_goes_on(given: dict[str, object], said: str) -> None:
    assert picture.line("c", reading(**given)) == said


def meters() -> Meters:
    found = Meters()
    for node in ("database-1", "database-2"):
        found.expect(node, "migrating", 1000, "shards")
        found.advance(node, 500)
    found.waits("database-2", "a lock of session 4711 (user app, query begun 2026-11-21 13:50:33)")
    found.expect("database-3", "waiting for a checkpoint", 0, BYTES)
    return found


def test_without_a_terminal_lines_come_rarely_and_the_last_one_always(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    with progress.bars() as shown:
        shown.expect("a", "migrating", 2, "shards")
        shown.advance("a", 2)
    assert printed.getvalue() == ""  # it was over at once
    monkeypatch.setattr(progress, "_FIRST_S", 0.01)
    with progress.bars() as shown:
        shown.expect("a", "migrating", 2, "shards")
        wait_for(printed.getvalue)
        shown.advance("a", 2)
    assert printed.getvalue() == (
        "progress: a: migrating, 0/2 shards\nprogress: a: migrating, 2/2 shards, done\n"
    )
