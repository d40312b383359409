"""Follows of examples/photos: whatever is killed or races, both ends of an edge become equal."""

from __future__ import annotations

import itertools
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.photos import ACTS, EXAMPLE, ended

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet
    from tests.fixtures.photos import Photos


def repaired(photos: Photos) -> list[str]:
    """Repair, and see that a second time finds nothing; give what the first has found."""
    found = photos.manage("repair")
    assert photos.manage("repair") == []
    return found


def kill(photos: Photos, *words: str) -> None:
    assert ended(photos.start(ACTS, "killed", *words)) == (-signal.SIGKILL, "")


def test_a_follow_that_was_killed_is_listed_and_completed(photos: Photos) -> None:
    a, b = photos.act("users", "ann", "bob")
    kill(photos, "follow", a, b)
    assert photos.act("ends", a, b) == ["(1, 0)", ""]
    listed = photos.manage("repair", "--dry-run")
    assert listed == [
        f"undelivered: user {a}, following {b}",
        f"ends differ: user {a}, following {b}: [1, 0], and there None",
    ]
    assert repaired(photos) == listed[:1]
    assert photos.act("ends", a, b) == ["(1, 0)", "(1, 0)"]


def test_an_end_that_was_lost_without_an_outbox_row_is_made_again(
    photos: Photos, new_fleet: Fleet
) -> None:
    a, b = photos.act("users", "ann", "bob")
    photos.act("begun", "follow", a, b, "yes")
    photos.act("deliver", a)
    for node, run in (("a", range(2)), ("b", range(2, 4))):
        for shard in run:
            new_fleet.execute(node, f"DELETE FROM shard{shard}.photos_follower")
    assert repaired(photos) == [f"ends differ: user {a}, following {b}: [1, 0], and there None"]
    assert photos.act("ends", a, b) == ["(1, 0)", "(1, 0)"]


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_block_while_a_follow_is_under_way(photos: Photos, order: str) -> None:
    a, b = photos.act("users", "ann", "bob")
    photos.act("begun", "follow", a, b, "yes")
    photos.act("begun", "block", b, a, "yes")
    photos.act("deliver", *({"a": a, "b": b}[one] for one in order))
    assert photos.act("ends", a, b) == ["(2, 1)", "(2, 1)"]
    photos.act("begun", "block", b, a, "no")
    photos.act("deliver", b)
    assert photos.act("ends", a, b) == ["(2, 2)", "(2, 2)"]
    assert repaired(photos) == []


@pytest.mark.timeout(900)
def test_storms_of_follows_blocks_kills_and_repairs(photos: Photos) -> None:
    users = photos.act("users", "ann", "bob", "cleo")
    reader = photos.start(ACTS, "watch_feed", users[0], stdin=subprocess.PIPE)
    assert reader.stdout is not None
    assert reader.stdout.readline() == "reads\n"
    for pair in itertools.permutations(users, 2):
        kill(photos, "follow", *pair)
    both = [photos.start(EXAMPLE / "manage.py", "repair") for _ in range(2)]
    storms = [photos.start(ACTS, "storm", str(n), "25", *users) for n in range(2)]
    assert [ended(one)[0] for one in (*both, *storms)] == [0, 0, 0, 0]
    leaving = photos.start(ACTS, "leave", users[2])
    last = photos.start(ACTS, "storm", "3", "10", *users)
    assert [ended(one)[0] for one in (leaving, last)] == [0, 0]
    assert ended(reader, "") == (0, "")
    repaired(photos)
    for pair in itertools.permutations(users, 2):
        one, other = photos.act("ends", *pair)
        assert one == other
        if users[2] in pair:
            assert eval(one or "(0, 0)")[0] % 2 == 0 or eval(one)[1] % 2 == 1  # noqa: S307
