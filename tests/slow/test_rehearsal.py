"""A rehearsal alone, one beside a writer that does not end, and what a plan predicts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tests.fixtures.moves.proof import untouched
from tests.fixtures.moves.stream_moves import fill

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_a_rehearsal_alone_reports_and_leaves_nothing(fleet_own: Lab) -> None:
    fill(fleet_own)
    words = ("move-shards", "2-3", "--to", "b", "--rehearse-only", "--yes", "-o", "json")
    done = fleet_own.here(*words)
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["method"], shown["state"]) == ("stream", "aborted")
    found = shown["report"]["rehearsal"]
    assert {
        "time", "first_time", "tables", "rows", "size_bytes", "differing", "elapsed_ms", "attempts",
        "writers_held_ms", "waited_ms", "predicted_pause_ms", "parts_ms",
    } == found.keys()  # fmt: skip
    assert found["rows"] == 7002
    untouched(fleet_own)
    assert fleet_own.copy("a").report["rehearsal"] == found  # type: ignore[index]  # it has one
