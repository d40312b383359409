"""The cutover: its round trips, and whether the topology file is writable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.moves import file
from shardctl.moves.preflight import clocks, member, poolers, target
from shardctl.moves.sub_step import RoundTrips

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardctl.moves.preflight.subject import Context
    from shardctl.moves.refusals import PreflightRefused


def round_trips(context: Context) -> RoundTrips:
    """Return the cutover's round trips; one that was not measured counts as 0."""
    clock = context.of(clocks.of_source)
    return RoundTrips.of(
        source=2 * clock.uncertainty * 1000 if clock is not None else 0.0,
        target=context.of(target.measure) or context.of(member.measure) or 0.0,
        pooler=max((one.round_trip_ms for one in context.of(poolers.look) or ()), default=0.0),
    )


def look_at_file(context: Context) -> list[PreflightRefused]:
    """Check whether the new owners could be written into the topology file."""
    return file.problems(context.topology, context.plan)


def judge_file(context: Context) -> list[PreflightRefused]:
    """Refuse a file that could not be written."""
    return context.need(look_at_file)


def notes(context: Context) -> Iterator[str]:
    """Report what the new node will not have."""
    yield f"node {context.plan.target} will have no standby and no backup"
