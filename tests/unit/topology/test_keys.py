"""From keys to shards: the rules that every language has to agree on."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology import keys
from tests.fixtures.refusals import raises_code

if TYPE_CHECKING:
    from uuid import UUID

PAGE = Path(__file__).parents[3] / "docs/ids.md"


def vectors() -> list[tuple[str, int, int, int]]:
    """Give the rows of the page's table."""
    found = re.search(r"<!-- tested: vectors -->\n((?:\|.*\n)+)", PAGE.read_text())
    assert found
    rows = [line.strip("|").split("|") for line in found[1].splitlines()[2:]]
    made = []
    for key, *numbers in rows:
        text = re.search(r"`(.*)`", key)
        one, two, three = (int(number) for number in numbers)
        made.append((text[1] if text else "", one, two, three))
    return made


@pytest.mark.parametrize(("key", "hashed", "of_8", "of_2000"), vectors())
def test_strings_have_the_shards_that_the_page_says(
    key: str, hashed: int, of_8: int, of_2000: int
) -> None:
    assert keys.stable_hash(key) == hashed
    assert (keys.shard_of(key, 8), keys.shard_of(key, 2000)) == (of_8, of_2000)


@given(st.uuids(), st.integers(1, 5000))
def test_a_uuid_has_the_shard_of_its_text(uuid: UUID, count: int) -> None:
    assert keys.shard_of(uuid, count) == keys.shard_of(str(uuid), count)
    assert keys.read(str(uuid).upper()) == uuid


@given(st.one_of(st.integers(), st.text(), st.uuids()), st.integers(1, 5000))
def test_every_key_has_one_of_the_shards(key: keys.Key, count: int) -> None:
    assert 0 <= keys.shard_of(key, count) < count


@pytest.mark.parametrize("key", [None, True, 1.5, b"ann", ("ann",)])
def test_what_is_no_key_is_refused(key: object) -> None:
    with raises_code("key_unsupported"):
        keys.shard_of(key, 8)  # type: ignore[arg-type]
