"""What the check `migrations` makes of what ran and of the files, without a server."""

from __future__ import annotations

import dataclasses

from shardctl.checks.check import Severity
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


def test_a_new_file_is_a_warning_until_it_has_run() -> None:
    seen = healthy()
    seen.migrations = (PHOTOS, LIKES)
    [finding] = seen.findings()
    assert told([finding]) == [("migrations", "pending", None, ALL, LIKES.name)]
    assert finding.severity is Severity.warning
    assert finding.hint == "run `shardctl migrate`"
    ran(seen, LIKES, *ALL)
    assert seen.findings() == ()


def test_a_file_that_is_gone_from_the_folder_is_a_warning() -> None:
    seen = healthy()
    seen.migrations = ()
    [finding] = seen.findings()
    assert told([finding]) == [("migrations", "unknown_file", None, ALL, PHOTOS.name)]
    assert finding.severity is Severity.warning


def test_a_file_that_changed_after_it_ran_is_an_error() -> None:
    seen = healthy()
    seen.migrations = (dataclasses.replace(PHOTOS, checksum="other"),)
    [finding] = seen.findings()
    assert told([finding]) == [("migrations", "checksum_differs", None, ALL, PHOTOS.name)]
    assert finding.severity is Severity.error


def test_shards_that_ran_a_file_with_another_checksum_are_told_alone() -> None:
    seen = healthy()
    there = {**seen.seen(B, "migrations")[PHOTOS.name], ShardId(6): "other"}
    seen.put(B, "migrations", {PHOTOS.name: there})
    assert told(seen.findings()) == [("migrations", "checksum_differs", None, (6,), PHOTOS.name)]
