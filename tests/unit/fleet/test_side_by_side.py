"""Which move of a group begins beside those that run."""

from __future__ import annotations

from shardctl.fleet.group import Part, _next_part
from shardctl.topology.model import NodeName, ShardId


def chosen(moves: str, *busy: str) -> str | None:
    """Choose among moves such as `ab`, from a to b."""
    parts = [Part(NodeName(m[0]), NodeName(m[1]), (ShardId(0),)) for m in moves.split()]
    found = _next_part(parts, {*busy})
    return None if found is None else f"{found.source}{found.target}"


def test_moves_with_a_common_node_keep_their_order() -> None:
    assert chosen("ac bd") == "ac"
    assert chosen("bd", "a", "c") == "bd"
    assert chosen("ad bd ef", "a", "c") == "ef"  # d is for the move that comes before
    assert chosen("bc cd", "a", "b") is None  # c gives when it has got
    assert chosen("ad ba", "a", "c") is None
