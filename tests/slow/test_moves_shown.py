"""What `moves show` prints of a move that was aborted, and of the sub-steps of cutovers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.moves import cutover, stream
from shardctl.moves.steps import subscribe
from shardctl.moves.stopped import MoveStopped
from tests.fixtures import commands
from tests.fixtures.moves.own import lose
from tests.fixtures.moves.stream_moves import planned, replace_step
from tests.fixtures.terminal import on_terminal

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab


def test_an_aborted_move_shows_where_it_stopped_and_what_was_undone(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps that never began are not among them, and the error remains to be read."""
    replace_step(monkeypatch, subscribe.STEP, lose)
    with pytest.raises(MoveStopped) as caught:
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    fleet_own.abort()
    done = commands.here("--topology", str(fleet_own.file), "moves", "show", "-o", "json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert (shown["state"], shown["step"]) == ("aborted", "follow")
    assert [one["name"] for one in shown["steps"]] == ["reserve", "copy", "follow"]
    steps = {one["name"]: one for one in shown["steps"]}
    assert [steps[name]["state"] for name in ("reserve", "copy")] == ["undone"] * 2
    assert all(one["elapsed_ms"] > 0 for one in steps.values())
    assert steps["follow"]["error"] in str(caught.value.error)


def timeline(lab: Lab, *, width: int) -> tuple[list[str], list[dict[str, Any]]]:
    """Give what `moves show --timeline` draws on a terminal, and its JSON."""
    words = ("--topology", str(lab.file), "moves", "show", "--timeline")
    drawn = on_terminal(*words, width=width).splitlines()
    told = commands.here(*words, "-o", "json")
    assert told.returncode == 0, told.stderr
    found: list[dict[str, Any]] = json.loads(told.stdout)["timeline"]
    return [line.rstrip() for line in drawn], found


def require_drawn(lines: list[str], found: list[dict[str, Any]], *, width: int) -> None:
    """See that each sub-step has a line with the figures of the JSON, which fits."""
    assert all(len(line) <= width for line in lines), lines
    for one in found:
        line = next(line for line in lines if line.strip().startswith(f"{one['name']}  "))
        figures = (one["elapsed_ms"], one["predicted_ms"])
        assert all("-" if ms is None else f"{ms:,.1f}" in line for ms in figures), line


@pytest.mark.parametrize("width", [60, 80])
def test_a_move_shows_each_sub_step_beside_what_was_predicted(fleet_own: Lab, width: int) -> None:
    fleet_own.start(planned(fleet_own, [2, 3], "b"))
    lines, found = timeline(fleet_own, width=width)
    require_drawn(lines, found, width=width)
    waiting = [one for one in found if one["when"] == "waiting"]
    assert [one["name"] for one in waiting] == [
        row.name for row in cutover.STREAM.between("pause", "route")
    ]
    assert all(one["elapsed_ms"] is not None for one in found)
    assert all(one["predicted_ms"] is not None for one in waiting)
    report = fleet_own.copy("b").report or {}
    assert sum(one["predicted_ms"] for one in waiting) == pytest.approx(
        report["predicted_pause_ms"], abs=1
    )


def test_a_move_whose_cutover_was_undone_shows_how_far_it_came(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "hold_snapshot", lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    lines, found = timeline(fleet_own, width=80)
    require_drawn(lines, found, width=80)
    names = [one["name"] for one in found]
    assert names.index("fence") < names.index("snapshot") < names.index("undo: resume")
    assert "decide" not in names
    monkeypatch.undo()
    fleet_own.resume()
    names = [one["name"] for one in timeline(fleet_own, width=80)[1]]
    assert "decide" in names
    assert "undo: resume" not in names


def test_a_move_before_its_cutover_shows_what_is_predicted(
    fleet_own: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_step(monkeypatch, subscribe.STEP, lose)
    with pytest.raises(MoveStopped):
        fleet_own.start(planned(fleet_own, [2, 3], "b"))
    lines, found = timeline(fleet_own, width=80)
    require_drawn(lines, found, width=80)
    assert {one["elapsed_ms"] for one in found} == {None}
    assert sum(one["predicted_ms"] or 0 for one in found) > 0
