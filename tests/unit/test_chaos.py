"""The checker of chaos: a history that keeps the promises, and one that breaks each of them."""

from __future__ import annotations

import io
import subprocess
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from tests.chaos import checker, page, run, schedule
from tests.chaos import history as histories
from tests.chaos.checker import Ended
from tests.chaos.clients import Client
from tests.chaos.faults import FAULTS
from tests.chaos.history import Operation, Pause, Row
from tests.chaos.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.chaos.history import Kind

UNUSED: Any = None
History = tuple[list[Operation], list[Row]]

WRITTEN = Operation(
    "c", "alias", "insert", 0, "c-1", 1.0, 1.1, "acknowledged", 1, "a", id=10, serial=1
)
CHANGED = replace(WRITTEN, kind="update", begin=5.0, end=5.1, version=2, node="b")
READ = replace(CHANGED, kind="read", begin=6.0, end=6.1)
OTHER = replace(WRITTEN, row="c-2", begin=2.0, end=2.1, id=11, serial=2)
LOST = replace(WRITTEN, row="c-3", outcome="unknown", node=None, id=None, serial=None)
REFUSED = replace(LOST, row="c-4", outcome="refused")
ROW = Row("b", 0, "c-1", 2, 10, 1, twins=(2, 2, 2))
ENDED = [ROW, replace(ROW, row="c-2", version=1, id=11, serial=2, twins=(1, 1, 1))]
RETIRED = [replace(row, node="a", live=False, version=1) for row in ENDED]


def judge(operations: list[Operation], rows: list[Row]) -> set[str]:
    """Shard 0 has moved from a to b."""
    return {one.code for one in checker.check(operations, Ended(rows, {0: ["a", "b"]}))}


def history() -> History:
    return [WRITTEN, OTHER, LOST, REFUSED, CHANGED, READ], [*ENDED, *RETIRED]


def test_what_keeps_the_promises_passes() -> None:
    operations, rows = history()
    assert judge(operations, rows) == set()
    unknown = replace(ROW, row="c-3", version=1, id=12, serial=3, twins=(1, 1, 1))
    assert judge(operations, [*rows, unknown]) == set()


def without(row: Row) -> Callable[[History], History]:
    return lambda of: (of[0], [one for one in of[1] if one != row])


def with_rows(*rows: Row) -> Callable[[History], History]:
    return lambda of: (of[0], [*of[1], *rows])


def with_operations(*operations: Operation) -> Callable[[History], History]:
    return lambda of: ([*of[0], *operations], of[1])


BREAKS: dict[str, tuple[str, Callable[[History], History]]] = {
    "a row is gone": ("lost", without(ENDED[1])),
    "a change is gone": (
        "lost",
        lambda of: (of[0], [replace(one, version=1, twins=(1,)) for one in of[1]]),
    ),
    "a row is there twice": ("twice", with_rows(replace(ROW, node="a"))),
    "a row is where its shard is not": (
        "elsewhere",
        lambda of: (of[0], [replace(one, node="a") if one.live else one for one in of[1]]),
    ),
    "a retired copy knows more": ("newer_retired", with_rows(replace(RETIRED[0], version=3))),
    "what a reader saw of an unknown outcome is gone": (
        "lost",
        with_operations(replace(READ, row="c-3", version=1, id=12, serial=3)),
    ),
    "a reader saw what was refused": (
        "refused_but_read",
        with_operations(replace(READ, row="c-1", version=3)),
    ),
    "a row has other numbers than it was given": (
        "renumbered",
        lambda of: (of[0], [replace(one, id=one.id + 7, serial=one.serial + 7) for one in of[1]]),
    ),
    "a refused row was written": (
        "refused_but_written",
        with_rows(replace(ROW, row="c-4", version=1, id=14, serial=4, twins=(1,))),
    ),
    "half of an operation was written": (
        "torn",
        lambda of: (of[0], [replace(one, twins=(one.version, 0)) for one in of[1]]),
    ),
    "a row of the table without a key was applied twice": (
        "torn",
        lambda of: (of[0], [replace(one, twins=(*one.twins, one.version)) for one in of[1]]),
    ),
    "a row is in one of the tables only": (
        "refused_but_written",
        with_rows(replace(ROW, row="c-4", version=0, id=0, serial=0, twins=(0, 0, 1))),
    ),
    "two rows have one id": (
        "id_twice",
        with_operations(replace(WRITTEN, row="c-5", serial=5)),
    ),
    "two rows have one serial number": (
        "serial_twice",
        with_operations(replace(WRITTEN, row="c-5", id=15)),
    ),
    "a reader does not see what was acknowledged": (
        "unseen",
        with_operations(replace(READ, version=1)),
    ),
    "the old owner acknowledges after the new one": (
        "not_the_owner",
        with_operations(replace(OTHER, kind="read", begin=7.0, end=7.1)),
    ),
}


@pytest.mark.parametrize("name", BREAKS)
def test_what_breaks_a_promise_is_found(name: str) -> None:
    code, spoil = BREAKS[name]
    assert code in judge(*spoil(history()))


def test_a_client_does_not_try_a_refused_version_again(tmp_path: Path) -> None:
    def run(_shard: int, kind: Kind, _values: dict[str, Any]) -> tuple[Any, ...]:
        if kind == "update":
            raise psycopg.errors.ReadOnlySqlTransaction
        return 1, "a", 1, 1

    client = Client("c", "alias", UNUSED, tmp_path, range(1))
    client.run = run  # type: ignore[method-assign, assignment]
    with client._file:
        for _ in range(40):
            client._do(*client._next())
    tried = [(one.row, one.version) for one in histories.read(tmp_path) if one.kind == "update"]
    assert len(tried) == len(set(tried)) > 5


def test_a_run_that_did_nothing_does_not_pass() -> None:
    operations, rows = history()
    silent = [replace(one, outcome="refused") for one in operations]
    assert "idle" in judge([*operations, replace(REFUSED, client="d")], rows)
    assert judge(silent, []) >= {"idle"}
    assert checker.check([], Ended([], {0: ["a", "b"]})) != []
    assert [one.code for one in checker.check([OTHER], Ended([], {0: ["a"]}))] == ["idle", "lost"]


def test_a_client_that_fails_is_not_silent(tmp_path: Path) -> None:
    world: Any = SimpleNamespace(first=tmp_path / "is-not-there.yaml")
    with pytest.raises(RuntimeError, match="exit code 1"), run.clients(world, tmp_path):
        pass


def after(*ended: tuple[str, str, bool]) -> list[str]:
    """End moves by commands for a move each, which say this, and end it or not."""
    rest = list(ended)

    def moves() -> list[dict[str, Any]]:
        can = ["resume", "abort"]
        return [{"id": name, "state": "unfinished", "can": can} for name, *_ in rest[:1]]

    def call(*_: str) -> tuple[int, str]:
        name, said, ends = rest.pop(0)
        if not ends:
            rest.insert(0, (name, said, True))
        return 0 if ends else 3, said

    world: Any = SimpleNamespace(moves=moves, call=call)
    of = run.Run(world, Path(), io.StringIO())
    of._end("resume")
    return [one.code for one in of.found]


def test_each_move_has_to_end_by_the_first_command_that_can_end_it() -> None:
    assert after(("x", "", True), ("y", "", True), ("z", "", True)) == []
    assert after(("x", "run `moves abort`; it cannot be resumed", False)) == []
    assert after(("x", "something went wrong", False)) == ["unfinished"]


@pytest.mark.parametrize(("name", "codes"), [("pooler_killed", []), ("command_killed", ["x"])])
def test_an_error_beside_a_fault_that_clients_do_not_feel_has_no_excuse(
    name: str, codes: list[str], tmp_path: Path
) -> None:
    of = run.Run(World(UNUSED, tmp_path), tmp_path, UNUSED, windows=[(0.0, 9.0, name)])
    page.write(tmp_path / "page", of, [replace(REFUSED, error="no connection")], [], 1)
    assert [one.code for one in of.found] == ["error_without_a_fault" for _ in codes]


def test_what_a_move_lost_of_a_table_is_found_beside_what_faults_changed() -> None:
    found = {"check": "structure", "object": "chaos_rows", "actual": "absent", "severity": "error"}
    left = {"check": "leftovers", "object": "5f3a9c1e", "actual": "left", "severity": "warning"}
    changed = [found | {"code": "column_extra"}, left | {"code": "x", "severity": "note"}]
    assert run.wrong(changed) == []
    missing = [found | {"code": "index_missing"}, left | {"code": "left_by_move"}]
    assert len(run.wrong([*changed, *missing])) == 2


@pytest.mark.parametrize(("made_on", "found"), [("e", 0), ("a", 1)])
def test_a_table_made_in_a_closed_copy_explains_that_copies_differ(
    made_on: str, found: int
) -> None:
    said = f"from a to e: the copies of shard1.made_{made_on}_7, shard2.made_e_42 differ"
    one = {"check": "leftovers", "object": "5f3a9c1e", "actual": said, "severity": "error"}
    assert len(run.wrong([one | {"code": "copies_differ"}])) == found


def test_of_what_moves_leave_only_closed_retired_copies_are_expected() -> None:
    retired = "schema shard1__retired_563afdd4"
    kept = {"node": "b", "kind": "triggers", "name": retired, "move": "0e1f2a3b"}
    slot = {"node": "b", "kind": "slot", "name": "shardctl_563afdd4", "move": "563afdd4"}
    rows = {"node": "b", "kind": "records", "name": "shardctl.stream", "move": "0e1f2a3b"}
    reverse = {"move": "0e1f2a3b", "state": "finished"}
    ended = {"id": "563afdd4", "source": "b", "target": "a", "reverse": reverse}
    other = {"id": "1c2d3e4f", "source": "a", "target": "b", "reverse": None}
    assert run.unowned([kept, rows], [ended, other]) == []
    wrong = [kept | {"name": "schema shard1"}, slot]
    assert len(run.unowned([*wrong, rows | {"node": "a"}], [ended, other])) == 3
    assert len(run.unowned([rows], [other])) == 1


def test_a_shard_that_comes_back_is_served_by_its_first_owner_again() -> None:
    back = replace(OTHER, kind="read", begin=7.0, end=7.1)
    owners = {0: ["a", "b", "a"]}
    rows = [replace(one, node="a") for one in ENDED]
    assert checker.check([*history()[0], back], Ended(rows, owners)) == []
    again = replace(back, node="b", begin=8.0, end=8.1)
    [found] = checker.check([*history()[0], back, again], Ended(rows, owners))
    assert found.code == "not_the_owner"


def test_a_pause_that_outlasts_its_guard_is_found() -> None:
    short, middle, long = (Pause("p1 shard0", 1.0, end) for end in (6.0, 9.0, 14.0))
    found = checker.pauses([short, middle, long], 12, [(8.0, 20.0)])
    assert [one.what for one in found] == ["p1 shard0 for 13.0 s at 1.0"]
    assert len(checker.pauses([short, middle, long], 12, [(20.0, 30.0)])) == 2


def looked(*answers: list[dict[str, str]] | Exception) -> World:
    """Give a world whose poolers answer so, one after the other, and are then watched no more."""
    world = World(UNUSED, Path())

    def console(*_: str) -> list[dict[str, str]]:
        if not rest[1:]:
            world._ended.set()
        if isinstance(answer := rest.pop(0), Exception):
            raise answer
        return answer

    rest = list(answers)
    world.console = console  # type: ignore[method-assign, assignment]
    return world


PAUSED = {"name": "shard0", "port": "1", "paused": "1"}


@pytest.mark.parametrize("last", [[psycopg.OperationalError("gone")], []])
def test_a_pause_counts_that_ends_with_its_pooler_or_not_at_all(last: list[Exception]) -> None:
    world = looked([PAUSED], [PAUSED], *last)
    world._watch("p1")
    assert [one.pooler for one in world.pauses] == ["p1 shard0"]


@pytest.mark.parametrize(
    ("does", "found"),
    [("pass", 0), ("sys.exit('no')", 0), ("1 / 0", 1), ("signal.pause()", 1)],
)
def test_a_command_that_breaks_or_does_not_end_is_found(does: str, found: int) -> None:
    world = World(UNUSED, Path())
    argv = [sys.executable, "-c", f"import signal, sys; {does}"]
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as one:
        world.finish(one, 60 if "pause" not in does else 0.1)
    assert len(world.broken) == found


def test_a_staged_file_is_left_over(tmp_path: Path) -> None:
    world = World(UNUSED, Path())
    world.nodes = dict  # type: ignore[method-assign]
    world.owners = list  # type: ignore[method-assign]
    config = tmp_path / "pgbouncer.ini"
    world.written = lambda: {"poolers": {"p1": {"config": config}}}  # type: ignore[method-assign]
    assert world.left_over() == []
    (tmp_path / "pgbouncer.databases.ini.5f3a9c1e.staged").touch()
    assert len(world.left_over()) == 1


def test_a_pooler_that_lacks_an_alias_disagrees() -> None:
    right = [PAUSED | {"name": f"shard{n}", "port": "1", "paused": "0"} for n in (0, 1)]
    for rows, found in [(right, False), (right[:1], True), ([], True)]:
        world = looked(rows)
        world.maps = lambda: {"a": (1, ["a", "a"])}  # type: ignore[method-assign]
        world.nodes = lambda: {"a": 1}  # type: ignore[method-assign]
        world.written = lambda: {  # type: ignore[method-assign]
            "nodes": {"a": {"shards": "0-1"}}, "poolers": {"p1": {}},
        }  # fmt: skip
        assert bool(world.disagreements()) == found


def test_a_seed_repeats_the_schedule_in_which_every_fault_comes() -> None:
    first = list(islice(schedule.rounds(7), 60))
    assert first == list(islice(schedule.rounds(7), 60))
    assert first != list(islice(schedule.rounds(8), 60))
    assert {name for one in first for _, name in one.faults} == set(FAULTS)
    stops = {one.at[0] for one in islice(schedule.rounds(7), 200) if one.at is not None}
    assert stops == set(range(1, schedule.SUBSTEPS + 1))
