"""What a report says of a load, and when all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardctl.topology.model import NodeName, ShardId
from shardctl.traffic import report
from shardctl.traffic.proof import Verdict
from shardctl.traffic.record import OK, Kind, Record
from shardctl.traffic.report import Failure, Report


def made() -> Report:
    """Make the report of a load whose shard 2 moved, after a wait of 90 ms."""
    record = Record(0)
    record.done(ShardId(2), Kind.insert, OK, 0.09, 0.4)
    record.done(ShardId(5), Kind.update, OK, 0.002, 1.3)
    return Report(
        clients=1,
        aliases="node",
        elapsed_s=1.3,
        operations=report.operations([record]),
        acknowledged_inserts=1,
        acknowledged_updates=1,
        failures=(),
        fenced=1,
        latencies=report.measure([record], {ShardId(2)}),
        held_up_ms=1.5,
        moved=(ShardId(2),),
        unserved=(),
        unseen={NodeName("c"): "a standby"},
        verdict=Verdict({"stale": 0}, ()),
    )


def test_an_error_is_not_well_though_all_rows_are_there() -> None:
    found = replace(made(), failures=(Failure("08006", 2, "gone", 0.5),))
    assert (found.errors, found.intact, found.ok) == (2, True, False)


@pytest.mark.parametrize("flaw", ["lost", "duplicate", "misplaced", "unknown", "astray", "stale"])
def test_any_flaw_is_not_well(flaw: str) -> None:
    found = replace(made(), verdict=Verdict({flaw: 1}, ("one",)))  # type: ignore[dict-item]  # one of the literals
    assert (found.intact, found.ok) == (False, False)
    names = ("lost", "duplicates", "misplaced", "unknown", "astray", "stale")
    assert sum(found.as_json()[name] for name in names) == 1
