"""Which move of a group begins beside those that run, and how one ends."""

from __future__ import annotations

from contextlib import nullcontext
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.errors import Refused
from shardctl.fleet.group import Part, _ended, _next_part, _started
from shardctl.topology.model import NodeName, ShardId

if TYPE_CHECKING:
    import pytest

_LONG = "x" * 1_000_000


def chosen(moves: str, *busy: str) -> str | None:
    """Choose among moves such as `ab`, from a to b."""
    parts = [Part(NodeName(m[0]), NodeName(m[1]), (ShardId(0),)) for m in moves.split()]
    found = _next_part(parts, {*map(NodeName, busy)})
    return None if found is None else f"{found.source}{found.target}"


def test_moves_with_a_common_node_keep_their_order() -> None:
    assert chosen("ac bd") == "ac"
    assert chosen("bd", "a", "c") == "bd"
    assert chosen("ad bd ef", "a", "c") == "ef"  # d is for the move that comes before
    assert chosen("bc cd", "a", "b") is None  # c gives when it has got
    assert chosen("ad ba", "a", "c") is None


def fail(part: Part, *, work: None) -> None:
    del part, work
    raise Refused("refused", _LONG, hint="")


def test_all_that_a_process_has_to_say_is_read(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    part = Part(NodeName("a"), NodeName("b"), (ShardId(0),))
    process = _started(nullcontext, fail, part)  # type: ignore[arg-type]  # no Work
    assert process.stdout is not None
    wait([process.stdout.fileno()])
    assert [one.message for one in _ended(part, process)] == [_LONG]
    assert process.returncode == 0
    assert capfd.readouterr().err == ""
