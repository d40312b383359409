"""Follows of examples/photos: whatever is killed or races, both ends of an edge become equal."""

from __future__ import annotations

import itertools
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.fixtures.photos import ACTS, EXAMPLE, ended

if TYPE_CHECKING:
    from tests.fixtures.photos import Photos


def kill(photos: Photos, *words: str) -> None:
    assert ended(photos.start(ACTS, "killed", *words)) == (-signal.SIGKILL, "")


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
    photos.manage("repair")
    assert photos.manage("repair") == [], "a second time finds nothing"
    for pair in itertools.permutations(users, 2):
        one, other = photos.act("ends", *pair)
        assert one == other
        if users[2] in pair:
            assert eval(one or "(0, 0)")[0] % 2 == 0 or eval(one)[1] % 2 == 1  # noqa: S307
