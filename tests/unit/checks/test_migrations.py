"""What the check `migrations` makes of what ran and of the files, without a server."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.state.migrations import Migration
from shardctl.topology.model import ShardId
from tests.fixtures.fleets.facts import DIRECTORY, PHOTOS, A, B, Facts, healthy
from tests.fixtures.fleets.verify import told

ALL = tuple(range(8))
LIKES = Migration(DIRECTORY / "0002_likes.sql", 2, "CREATE TABLE likes ...", "11c35", True)


def ran(seen: Facts, file: Migration, *shards: int, checksum: str | None = None) -> None:
    """Let a file have run in these shards alone."""
    for node in (A, B):
        live = seen.topology.nodes[node].shards
        there = {ShardId(s): checksum or file.checksum for s in shards if s in live}
        seen.put(node, "migrations", {**seen.seen(node, "migrations"), file.name: there})


@pytest.mark.parametrize(
    ("files", "code", "severity", "file"),
    [
        ((PHOTOS, LIKES), "pending", "warning", LIKES),
        ((), "unknown_file", "warning", PHOTOS),
        ((dataclasses.replace(PHOTOS, checksum="other"),), "checksum_differs", "error", PHOTOS),
    ],
)
def test_a_file_that_is_not_as_it_ran_is_one_finding(
    files: tuple[Migration, ...], code: str, severity: str, file: Migration
) -> None:
    seen = healthy()
    seen.migrations = files
    [finding] = seen.findings()
    assert told([finding]) == [("migrations", code, None, ALL, file.name)]
    assert finding.severity.value == severity


def test_a_new_file_is_told_until_it_has_run() -> None:
    seen = healthy()
    seen.migrations = (PHOTOS, LIKES)
    ran(seen, LIKES, *ALL)
    assert seen.findings() == ()


def test_shards_that_ran_a_file_with_another_checksum_are_told_alone() -> None:
    seen = healthy()
    there = {**seen.seen(B, "migrations")[PHOTOS.name], ShardId(6): "other"}
    seen.put(B, "migrations", {PHOTOS.name: there})
    assert told(seen.findings()) == [("migrations", "checksum_differs", None, (6,), PHOTOS.name)]
