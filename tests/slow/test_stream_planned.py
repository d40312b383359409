"""What the plan of a streamed move predicts and refuses, and what its rehearsal then measures."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import prediction, sub_step
from shardctl.moves.preflight import check as preflight
from tests.fixtures import commands
from tests.fixtures.moves.stream_moves import planned

if TYPE_CHECKING:
    import subprocess

    from tests.fixtures.moves.own import Lab

TABLES = 400
STREAM = ("move-shards", "2-3", "--to", "b", "--method", "stream")


def run(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return commands.here("--topology", str(lab.file), *words)


def predicted(lab: Lab) -> float:
    decided = planned(lab, [2, 3], "b")
    return preflight.check(lab.topology, decided, purpose="test").predicted_pause_ms


def test_the_plan_counts_tables_and_the_rehearsal_measures_them(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Count every round trip as near: on a busy machine, even one to its own servers is not.
    monkeypatch.setattr(sub_step, "NEAR_MS", float("inf"))
    few = predicted(fleet_own)
    made = (f"CREATE TABLE shard2.t{n} (id bigint PRIMARY KEY)" for n in range(TABLES))
    with fleet_own.connect("a") as session:
        session.execute(";".join(made).encode())
    more = TABLES * prediction.LOCKED_TABLE_MS
    assert predicted(fleet_own) == pytest.approx(few + more)

    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    report = fleet_own.copy("b").report
    assert report is not None
    shown = report["rehearsal"]["predicted_pause_ms"]
    assert report["predicted_pause_ms"] == shown
    parts = report["rehearsal"]["parts_ms"]
    # What was measured has the tables in it: they do not count again.
    nodes = sum(parts.values()) - min(parts["arrive"], parts["structure"])
    assert shown < nodes + prediction.REST_MS + prediction.REST_COMMITS * parts["commit"] + 10
