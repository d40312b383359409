"""All checks, in the order in which they are told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.checks import connection, identity, map  # noqa: A004  # the check's name

if TYPE_CHECKING:
    from shardctl.checks.check import Check

CHECKS: dict[str, Check] = {
    check.name: check
    for check in (
        connection.CHECK,
        identity.CHECK,
        map.CHECK,
    )
}
