"""`move-shards --rehearse-only`: a move that ends with its rehearsal."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from shardctl.moves import rehearsal, service
from shardctl.moves.stopped import MoveStopped
from tests.fixtures import commands
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.rehearsals import fill, untouched
from tests.fixtures.moves.stream_moves import left, planned, replace_step

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.moves.own import Lab


def command(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    """Rehearse a move as a user does."""
    topology = ("--topology", str(lab.file))
    state = str(lab.directory / "state")
    return commands.here(*topology, *words, "--yes", XDG_STATE_HOME=state)


def test_a_rehearsal_alone_reports_and_leaves_nothing(fleet_own: Lab) -> None:
    fill(fleet_own)
    words = ("move-shards", "2-3", "--to", "b", "--rehearse-only")
    done = command(fleet_own, *words, "-o", "json")
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
    done = command(fleet_own, *words)
    assert done.returncode == 0, done.stderr
    assert "rehearsed: 3 tables, 7,003 rows" in done.stdout
    assert "clients are predicted to wait" in done.stdout
    assert "both nodes are as they were before it" in done.stderr
    assert done.stderr.count("subscribes to the source") == 1
    assert "fences the source" not in done.stderr
    untouched(fleet_own)


def test_a_rehearsal_that_was_interrupted_ends_when_it_is_resumed(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its proof, and when all is compared."""
    with monkeypatch.context() as patch:
        replace_step(patch, rehearsal.STEP, lose)
        with pytest.raises(MoveStopped):
            fleet_own.start(planned(fleet_own, [2, 3], "b", rehearse_only=True))
    with monkeypatch.context() as patch:
        patch.setattr(service, "undo", lose)
        with pytest.raises(MoveStopped):
            fleet_own.resume()
    assert left(fleet_own)
    fleet_own.resume()
    untouched(fleet_own)
