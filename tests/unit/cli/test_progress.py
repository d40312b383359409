"""How progress is drawn, and what it says where there is no terminal."""

from __future__ import annotations

import pytest

from shardctl.cli import picture
from shardctl.meter import BYTES, Held, Reading

GB = 1024**3


def reading(**given: object) -> Reading:
    values: dict[str, object] = {
        "phase": "copying", "unit": BYTES, "done": GB, "total": 2 * GB, "elapsed_s": 12.0
    }  # fmt: skip
    return Reading(**(values | given))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"rate": 88_902_477.0, "eta_s": 11.4},
            "c: copying, 1,024 MB of 2,048 MB, 85 MB/s, 11 s left",
        ),
        ({"done": 0, "total": 0}, "c: copying, for 12 s"),
        (
            {"held": Held(3 * GB, 20 * GB, 5_000_000), "rate": 88_902_477.0},
            (
                "c: copying, 1,024 MB of 2,048 MB, 85 MB/s, lag 4,883 kB, "
                "source keeps 3,072 MB of 20 GB of WAL"
            ),
        ),
        ({"held": Held(3 * GB, None), "ended": True}, "c: copying, 1,024 MB of 2,048 MB, stopped"),
        (
            {"waits": "a lock of session 7", "waits_s": 90.0},
            "c: copying, 1,024 MB of 2,048 MB, waits 1 min 30 s for a lock of session 7",
        ),
        (
            {"done": 500, "total": 2000, "unit": "shards", "rate": 120.4, "eta_s": 12.5},
            "c: copying, 500/2,000 shards, 120/s, 12 s left",
        ),
    ],
)
def test_a_line_says_what_is_done_and_how_it_goes_on(given: dict[str, object], said: str) -> None:
    assert picture.line("c", reading(**given)) == said
