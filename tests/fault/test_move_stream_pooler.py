"""The pooler ends, another operator is at its console, or its guard ends, in a streamed move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.topology.model import ShardId
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.harm import retry_soon
from tests.fixtures.moves.loads import log_in_fully
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.writers import FENCE

if TYPE_CHECKING:
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault

LOST = {"", "08001", "08006"}
"""The SQLSTATEs of connections that break off, and of logins that find nobody."""
CLOSED = LOST | {"08P01", "3D000"}
"""The same of a pooler that closes or refuses connections to an alias."""
RESUMED = CLOSED | FENCE
"""What a RESUME or RECONNECT in the middle of a move lets clients meet.

With a RESUME they go on to the source, where they find the fence. Both also let logins to the
source begin; the pause or the move's RELOAD breaks these off, and PgBouncer takes that for a node
that is away.
"""


@pytest.mark.parametrize(
    ("point", "command", "codes"),
    [
        ("span pause begin", "PAUSE shard2", set()),
        ("span fence begin", "RESUME shard2", RESUMED),
        ("span claim begin", "RESUME shard2", RESUMED),
        ("span serve begin", "PAUSE shard2", set()),
        ("span arrive begin", "KILL shard2", CLOSED | FENCE),
        ("span drain begin", "RECONNECT", RESUMED),
        ("span decide begin", "RELOAD", set()),
    ],
)
def test_another_operator_at_the_console_keeps_no_client_waiting(
    fleet_stream: MovingFleet, point: str, command: str, codes: set[str]
) -> None:
    retry_soon(fleet_stream)
    with Busy(fleet_stream) as clients:
        mover = fleet_stream.mover("start", point)
        mover.at(point)
        if command.startswith("PAUSE"):
            log_in_fully(fleet_stream, ShardId(2))
        fleet_stream.pg_bouncer.admin(command)
        mover.go()
        if mover.end() != 0:
            finish(fleet_stream, "resume")
        if (point, command) == ("span serve begin", "PAUSE shard2"):
            # Behind the move's own RESUME it is that operator's to end.
            fleet_stream.pg_bouncer.admin("RESUME shard2")
        clients.wait_served()
    assert clients.codes() <= codes, clients.errors()
    assert fleet_stream.owner == "b"
    prove_streamed(fleet_stream, clients)
