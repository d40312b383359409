"""What is predicted for each sub-step adds up to the predicted pause."""

from __future__ import annotations

import pytest

from shardctl.moves import prediction, stream_cutover
from shardctl.moves.sub_step import RoundTrips
from tests.unit.moves.test_prediction import FAR, NEAR, PARTS, moving, streaming, topology

NEARER = RoundTrips(source=3, target=20, pooler=7)


PLANS = {"clone": moving(topology()), "stream": streaming(topology())}


@pytest.mark.parametrize("kind", PLANS)
@pytest.mark.parametrize("ways", [NEAR, NEARER, FAR])
@pytest.mark.parametrize("tables", [0, 3000])
def test_the_sub_steps_take_as_long_as_the_pause(kind: str, ways: RoundTrips, tables: int) -> None:
    here = topology(ssh=", ssh: {}")
    found = prediction.parts_ms(here, PLANS[kind], ways, tables)
    assert sum(found.values()) == pytest.approx(
        prediction.pause_ms(here, PLANS[kind], ways, tables)
    )


@pytest.mark.parametrize("parts", [{}, {"structure": 50.0}, {"arrive": 50.0, "commit": 7.0}])
def test_measured_sub_steps_take_as_long_as_the_measured_pause(parts: dict[str, float]) -> None:
    here = topology()
    found = prediction.measured_parts_ms(here, streaming(here), NEARER, PARTS | parts)
    whole = prediction.measured_ms(here, streaming(here), NEARER, PARTS | parts)
    assert sum(found.values()) == pytest.approx(whole)


@pytest.mark.parametrize("kind", PLANS)
def test_only_sub_steps_of_the_cutover_are_predicted(kind: str) -> None:
    names = {row.name for row in prediction.cutover_of(PLANS[kind]).between("pause", "route")}
    assert {*prediction._FIXED[kind]} <= names
    assert {*prediction._REST} <= {
        row.name for row in stream_cutover.CUTOVER.between("pause", "route")
    }
