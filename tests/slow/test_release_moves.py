"""Release 0.1: moves that it left are resumed and aborted, and its JSON is printed still."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest

from shardctl.state.format import FORMAT
from shardctl.state.states import MoveState
from tests.fixtures import commands
from tests.fixtures.moves.release import AFTER, BEFORE, RELEASE, Recorded, shapes
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import free_run, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

POINTS = {
    "promoting": "span promote begin",
    "claimed": "span route begin",
    "routed": "step confirm run",
}
"""Where a process is killed that leaves a move in a state."""
HELD = "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"


@pytest.fixture
def left(server_directory: Path) -> Iterator[Recorded]:
    """Give a fleet with servers of the test's own, without databases."""
    made = Recorded(server_directory, free_run(5))
    made.write()
    yield made
    made.end()


@pytest.mark.parametrize("state", [s for s in MoveState if s.undoable])
def test_a_move_of_the_release_is_resumed(left: Recorded, state: MoveState) -> None:
    left.stand_up(state)
    left.resume()
    assert {left.copy(node).state for node in "ac"} == {MoveState.done}
    assert left.leads("shard2") == "c"
    assert left.problems() == []


@pytest.mark.parametrize("state", [s for s in MoveState if s.undoable])
def test_a_move_of_the_release_is_aborted(left: Recorded, state: MoveState) -> None:
    left.stand_up(state)
    left.abort()
    assert left.copy("a").state is MoveState.aborted
    assert left.schemas("a") == {f"shard{n}" for n in range(4)}
    assert left.leads("shard2") == "a"
    left.put(2)
    left.provision()
    assert left.problems() == []


@pytest.mark.parametrize("state", POINTS)
def test_a_move_of_the_release_is_resumed_past_its_decision(left: Recorded, state: str) -> None:
    """The target's journal is a copy of the source's, in the release's format."""
    left.stand_up(MoveState.reserved)
    mover = Mover([str(left.file), "resume", "", POINTS[state]])
    mover.at(POINTS[state])
    mover.kill()
    wait_for(lambda: not left.ask("a", HELD))
    shown = left.ask("a" if state == "promoting" else "c", "SELECT state FROM shardctl.move")
    assert shown == [(state,)]
    left.resume()
    assert {left.copy(node).state for node in "ac"} == {MoveState.unconfirmed}
    assert left.leads("shard2") == "c"
    left.provision()
    assert left.problems() == []
    for node in "ac":
        assert left.ask(node, "SELECT format FROM shardctl.cluster") == [(FORMAT,)]


def test_what_the_release_printed_as_json_is_printed_still(left: Recorded) -> None:
    """Every key is there, with values of the same kind; there may be more."""
    left.init()
    for shard in (2, 3):
        left.put(shard)
    printed = told(left, BEFORE)
    left.move([2, 3], "c", retain_s=86400.0)
    left.later()
    printed |= told(left, AFTER)
    for name, now in printed.items():
        recorded = (RELEASE / "json" / f"{name}.json").read_text().splitlines()
        then = [json.loads(line) for line in recorded]
        assert [one.get("format") for one in now] == [one.get("format") for one in then], name
        found = shapes(now)
        for place, kinds in shapes(then).items():
            assert kinds - {"null"} <= found.get(place, set()), f"{name}: {place}: {kinds}"


def told(fleet: Recorded, lines: Mapping[str, str]) -> dict[str, list[Any]]:
    """Give what commands print, a document for each line."""
    found = {}
    for name, line in lines.items():
        done = commands.here("--topology", str(fleet.file), *shlex.split(line), "-o", "json")
        found[name] = [json.loads(one) for one in done.stdout.splitlines()]
    return found
