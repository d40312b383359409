"""Migrations: which shards are behind, ahead, or ran a file that has changed since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks.check import ERROR, WARNING, Check, Rule, Rules, Severity
from shardctl.state.cluster import QUERIES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.checks.check import Finding, Place, View
    from shardctl.topology.model import ShardId

RULES = Rules(
    "migrations",
    {
        "pending": Rule(
            WARNING + ERROR,
            "it has not run",
            "it runs once in every shard",
            "run `shardctl migrate`; if its objects exist and only its row in shardctl.migration "
            "was deleted, insert that again",
        ),
        "checksum_differs": Rule(
            ERROR,
            "a file with SHA-256 {checksum} ran",
            "SHA-256 {right}, that of the file",
            "restore the file as it ran, and write the change as a new migration",
        ),
        "unknown_file": Rule(
            WARNING,
            "it ran, but the file is missing",
            "a file of this name in the migrations' folder",
            "use the newest migrations' folder, or restore the file from version control",
        ),
    },
)

Ran = dict[str, dict["ShardId", str]]
"""file -> shard -> the checksum with which it ran there"""


def look(place: Place) -> Ran:
    """Read what ran in the shards that live there; one question."""
    live = frozenset(place.shards.values())
    ran: Ran = {}
    if place.basics.state is not None:
        for file, checksum, shards in place.connection.execute(QUERIES["migrations"]):
            for shard in live.intersection(shards):
                ran.setdefault(file, {})[shard] = checksum
    return ran


def judge(view: View[Ran]) -> Iterator[Finding]:
    """Compare what ran with the folder, file by file, over the shards of all nodes."""
    ran: Ran = {}
    live: set[ShardId] = set()
    for name, seen in view.seen.items():
        live.update(view.basics[name].live(view.topology, view.topology.nodes[name]).values())
        for file, checksums in seen.items():
            ran.setdefault(file, {}).update(checksums)
    for migration in view.migrations:
        checksums = ran.pop(migration.name, {})
        if lacking := live - checksums.keys():
            severity = Severity.error if checksums else Severity.warning
            yield RULES.finding("pending", severity, shards=sorted(lacking), object=migration.name)
        others: dict[str, list[ShardId]] = {}
        for shard, checksum in sorted(checksums.items()):
            others.setdefault(checksum, []).append(shard)
        for checksum, shards in others.items():
            if checksum != migration.checksum:
                yield RULES.finding(
                    "checksum_differs",
                    shards=shards,
                    object=migration.name,
                    checksum=checksum,
                    right=migration.checksum,
                )
    for file, checksums in sorted(ran.items()):
        yield RULES.finding("unknown_file", shards=sorted(checksums), object=file)


CHECK = Check(
    RULES, "every migration ran in every shard, with the file's present content", judge, look
)
