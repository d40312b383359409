"""`moves doctor` beside a real streamed move: it takes nothing from it, and clears its remains."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tests.fixtures.moves import streamed

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet


def doctor(fleet: MovingFleet, *arguments: str) -> list[dict[str, Any]]:
    run = fleet.here("moves", "doctor", "-o", "json", *arguments)
    assert run.returncode == 0, run.stderr
    found: list[dict[str, Any]] = json.loads(run.stdout)["left"]
    return found


def test_a_killed_move_is_left_alone_and_cleared_when_its_journal_is_lost(
    fleet_stream: MovingFleet,
) -> None:
    mover = fleet_stream.mover("start", "step cutover run")
    mover.at("step cutover run")
    assert doctor(fleet_stream) == []
    mover.kill()
    made = streamed.left(fleet_stream)
    assert {kind for _, kind, _ in made} >= {"slot", "publication", "subscription", "trigger"}
    assert doctor(fleet_stream, "--yes") == []
    assert streamed.left(fleet_stream) == made

    for node in "ab":  # as when they were restored from an older backup
        fleet_stream.ask(node, "TRUNCATE shardctl.move, shardctl.move_step")
    found = doctor(fleet_stream, "--yes")
    assert {one["why_not"] for one in found} == {None}
    assert {one["kind"] for one in found} >= {"slot", "publication", "subscription", "schema"}
    assert streamed.left(fleet_stream) == []
    assert fleet_stream.owner == "a"
    assert doctor(fleet_stream) == []
    mover = fleet_stream.mover("start")
    assert mover.end() == 0, mover.said
    assert fleet_stream.owner == "b"
    assert streamed.left(fleet_stream) == []
