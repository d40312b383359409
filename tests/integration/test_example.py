"""The application of examples/photos, by its pages."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING

from tests.fixtures.photos import people, started

if TYPE_CHECKING:
    from tests.fixtures.photos import Photos


def test_users_post_follow_like_block_and_leave(photos: Photos) -> None:
    photos.act("story")
    assert photos.manage("repair", "--dry-run") == []


def test_it_starts_serves_its_pages_and_ends() -> None:
    """As `make example` does; that nothing is left is seen by `started`."""
    with started() as (address, _):
        assert people(address)
        with urllib.request.urlopen(f"{address}/fleet") as strip:  # noqa: S310  # http, here
            seen = next(line for line in strip if line.startswith(b"data: "))
        nodes = json.loads(seen.removeprefix(b"data: "))["nodes"]
        assert {one["name"]: len(one["owned"]) for one in nodes} == {
            "a": 32,
            "b": 32,
            "c": 0,
            "d": 0,
        }
