"""What the check `ids` makes of odd ids; without a server."""

from __future__ import annotations

import pytest

from shardctl.checks.ids import Ruler
from shardctl.ids.layout import MILLISECONDS_PER_YEAR, Layout
from shardctl.state.migrations import Migration
from tests.fixtures.fleets.facts import DIRECTORY, NOW, PHOTOS, A, B, healthy
from tests.fixtures.fleets.verify import told

OF_SHARD_6 = Layout().floor(1_400_000_000_000, 6)
NOW_MS = int(NOW.timestamp() * 1000)


@pytest.mark.parametrize(
    ("number", "fault"),
    [
        (OF_SHARD_6, "other_shard"),
        (-5, "not_generated"),
        (Layout().floor(2_208_988_800_000, 2), "not_generated"),
        (Layout().floor(NOW_MS + 8000, 2), None),
    ],
)
def test_an_id_is_measured_by_its_shard_and_the_clock(number: int, fault: str | None) -> None:
    ruler = Ruler.at(Layout(), NOW_MS)
    assert ruler.fault(number, 2) == fault


def test_a_key_column_that_is_not_there_is_a_warning_of_deep_alone() -> None:
    seen = healthy()
    text = "-- shardctl: key photos.owner\n"
    keyed = Migration(DIRECTORY / PHOTOS.name, 1, text, PHOTOS.checksum, transactional=True)
    seen.migrations = (keyed,)
    assert seen.findings() == ()
    assert told(seen.findings(deep=True)) == [("ids", "key_unread", None, (), "photos.owner")]
    seen.see(B, "ids", keyed={"photos": True})
    assert seen.findings(deep=True) == ()
    seen.see(B, "ids", keyed={"photos": False})
    assert told(seen.findings(deep=True)) == [("ids", "key_unread", None, (), "photos.owner")]


def test_the_end_of_the_layout_is_told_once() -> None:
    seen = healthy()
    last = Layout.of(seen.topology.id).last_ms

    def judged(years: float) -> list[tuple[str, str]]:
        for node in (A, B):
            seen.see(node, "ids", now_ms=int(last - years * MILLISECONDS_PER_YEAR))
        return [(f.code, f.severity.value) for f in seen.findings("ids")]

    assert judged(5.1) == []
    assert judged(4.9) == [("years_left", "warning")]
