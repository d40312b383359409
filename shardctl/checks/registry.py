"""All checks, in the order in which they are reported."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import (
    clock,
    connection,
    generator,
    identity,
    ids,
    leftovers,
    map,  # noqa: A004  # the check's name
    migrations,
    poolers,
    settings,
    structure,
)

if TYPE_CHECKING:
    from shardctl.checks.check import Check

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        connection.CHECK,
        identity.CHECK,
        map.CHECK,
        generator.CHECK,
        structure.CHECK,
        migrations.CHECK,
        ids.CHECK,
        clock.CHECK,
        leftovers.CHECK,
        settings.CHECK,
        poolers.CHECK,
    )
}
