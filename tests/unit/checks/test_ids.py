"""What the check `ids` makes of odd ids; without a server."""

from __future__ import annotations

from shardctl.ids.layout import Layout
from shardctl.state.migrations import Migration
from tests.fixtures.fleets.facts import DIRECTORY, PHOTOS, A, B, healthy
from tests.fixtures.fleets.verify import told


def test_a_key_column_that_was_not_compared_is_a_note_of_deep_alone() -> None:
    seen = healthy()
    text = "-- shardctl: key photos.owner\n"
    keyed = Migration(DIRECTORY / PHOTOS.name, 1, text, PHOTOS.checksum, transactional=True)
    seen.migrations = (keyed,)
    assert seen.findings() == ()
    assert told(seen.findings(deep=True)) == [("ids", "key_unread", None, (), "photos.owner")]
    seen.see(B, "ids", compared=frozenset({"photos"}))
    assert seen.findings(deep=True) == ()


def test_the_end_of_the_layout_is_told_once() -> None:
    seen = healthy()
    last = Layout.of(seen.topology.id).last_ms

    def judged(years: float) -> list[tuple[str, str]]:
        for node in (A, B):
            seen.see(node, "ids", now_ms=int(last - years * 365.25 * 86_400_000))
        return [(f.code, f.severity.value) for f in seen.findings("ids")]

    assert judged(5.1) == []
    assert judged(4.9) == [("years_left", "warning")]
