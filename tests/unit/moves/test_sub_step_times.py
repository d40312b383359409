"""What `moves show --timeline` knows of each method's moves, finished and under way."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import prediction
from shardctl.state import journal
from shardctl.state.journal import MoveState
from tests.unit.moves.test_journal import move
from tests.unit.moves.test_predicted import PLANS
from tests.unit.moves.test_prediction import NEAR, PARTS, topology

if TYPE_CHECKING:
    from shardctl.moves.plan import MovePlan


def noted(plan: MovePlan, **given: Any) -> journal.Move:
    """Give a move as the journal has it."""
    kept: dict[str, Any] = {
        "source": plan.source,
        "target": plan.target,
        "shards": list(plan.shards),
    }
    kept |= {"schemas": list(plan.schemas), "retired": list(plan.retired), "plan": plan.as_json()}
    return move(MoveState.reserved, id=plan.id, method=plan.method, **kept, **given)


@pytest.mark.parametrize("kind", PLANS)
def test_before_a_cutover_there_is_what_is_predicted(kind: str) -> None:
    here, plan = topology(), PLANS[kind]
    found = prediction.sub_step_times(here, noted(plan))
    assert [one.name for one in found] == [row.name for row in prediction.cutover_of(plan).rows]
    assert {one.took_ms for one in found} == {None}
    expected = sum(one.predicted_ms or 0 for one in found)
    assert expected == pytest.approx(prediction.pause_ms(here, plan, NEAR, 0), abs=1)


def test_behind_a_rehearsal_there_is_what_it_has_measured() -> None:
    here, plan = topology(), PLANS["stream"]
    report = {journal.REHEARSAL: {"parts_ms": PARTS}}
    found = prediction.sub_step_times(here, noted(plan, report=report))
    expected = prediction.measured_parts_ms(here, plan, NEAR, PARTS)
    assert {one.name: one.predicted_ms for one in found if one.name in expected} == {
        name: round(ms, 1) for name, ms in expected.items()
    }


@pytest.mark.parametrize("kind", PLANS)
def test_a_cutover_has_what_was_measured_beside_what_was_predicted_then(kind: str) -> None:
    report = {
        "timeline": [["logins", 1.0], ["pause", 2.0], ["fence", 3.0], ["route", 4.0], ["map", 5.0]],
        "predicted_timeline": [["pause", 1.5], ["route", 4.5]],
    }
    found = prediction.sub_step_times(topology(), noted(PLANS[kind], report=report))
    assert [asdict(one) for one in found][1] == {
        "name": "pause",
        "when": "waiting",
        "took_ms": 2.0,
        "predicted_ms": 1.5,
    }
    assert [one.predicted_ms for one in found] == [None, 1.5, None, 4.5, None]
    assert [one.when for one in found][2:] == ["waiting", "waiting", "after"]
