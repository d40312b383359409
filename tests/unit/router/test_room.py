"""Places for connections: all that are wanted, or none."""

from __future__ import annotations

import pytest

from shardctl.router.errors import NoConnection
from shardctl.router.requests import Reserve
from shardctl.router.room import Room
from shardctl.topology.model import NodeName

A, B = map(NodeName, "ab")


def test_places_are_taken_all_or_none() -> None:
    room = Room(2)
    assert room.take({A: 1, B: 2})
    assert not room.take({A: 1, B: 1})
    assert room.take({A: 1})
    assert not room.take({A: 1})
    room.give_back({A: 1, B: 2})
    assert room.take({A: 1, B: 2})


def test_some_are_enough_for_partial_results_when_half_the_time_is_over() -> None:
    room = Room(1)
    assert room.take({A: 1})
    wanted = {A: 1, B: 1}
    some = Reserve(wanted, 3.0, some=True)
    seconds = room.patience(some, 10.0)
    assert seconds == 1.5
    assert room.take_some(some, seconds) == ({B: 1}, {A: "none was free within 1.5 s"})
    assert not room.take({B: 1})
    whole = Reserve(wanted, None, some=False)
    assert room.patience(whole, 10.0) == 10.0
    with pytest.raises(NoConnection, match="node a: no connection: none was free within 10 s"):
        room.take_some(whole, 10.0)


def test_more_than_there_ever_are_is_refused() -> None:
    with pytest.raises(NoConnection, match=r"node b: .* 3 are needed at once, but `max_size` is 2"):
        Room(2).patience(Reserve({A: 1, B: 3}, None, some=True), 10.0)
