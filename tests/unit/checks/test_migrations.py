"""What the check `migrations` makes of what ran and of the files, without a server."""

from __future__ import annotations

import dataclasses

import pytest

from shardctl.state.migrations import Migration
from tests.fixtures.fleets.facts import DIRECTORY, PHOTOS, healthy
from tests.fixtures.fleets.verify import told

ALL = tuple(range(8))
LIKES = Migration(DIRECTORY / "0002_likes.sql", 2, "CREATE TABLE likes ...", "11c35", True)


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
