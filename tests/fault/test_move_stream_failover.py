"""The source fails over to its synchronous standby in a streamed move, on every version.

Shards are streamed to a node that serves, or by a clone that hands over by stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import pytest

from tests.fixtures.moves import clone_streamed, streamed
from tests.fixtures.moves.busy import Busy, prove_streamed
from tests.fixtures.moves.failover import SLOT, fail_over, make_standby
from tests.fixtures.moves.harm import retry_soon
from tests.fixtures.moves.stopping import finish
from tests.fixtures.moves.stream_versions import VERSIONS
from tests.fixtures.moves.writers import FENCE, GONE
from tests.fixtures.servers.postgres import PgServer, free_ports, stop_all_below

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardctl.postgres.control import Server
    from tests.fixtures.moves.stopping import MovingFleet

pytestmark = pytest.mark.fault


class MakeStandby(Protocol):
    """The type of the `standby_for` fixture."""

    def __call__(self, fleet: MovingFleet) -> Server: ...


@pytest.fixture
def standby_for(server_directory: Path) -> Iterator[MakeStandby]:
    """Give what makes a standby of node a that has all that clients are acknowledged."""

    def make(fleet: MovingFleet) -> Server:
        (port,) = free_ports(1)
        made = make_standby(fleet.servers["a"].server, server_directory / "standby", port)
        fleet.ask("a", f"ALTER SYSTEM SET synchronous_standby_names = '{SLOT}'")
        fleet.ask("a", "SELECT pg_reload_conf()")
        return made

    yield make
    stop_all_below(server_directory)


class Case(NamedTuple):
    """The target of a move, where its source dies, who dies with it, and what is done then."""

    target: str
    point: str
    dies: str = "with the process"
    verb: str = "resume"

    def fits(self, versions: tuple[int, int]) -> bool:
        """Tell whether a fleet of these versions has it: a clone has its source's."""
        return self.target == STREAM or versions[0] == versions[1]


STREAM, CLONE = streamed.TARGET, clone_streamed.TARGET
DIES = ("with the process", "alone")
POINTS = {
    STREAM: ("span decide begin", "span claim begin", "step follow run", "span route begin"),
    CLONE: (
        "span decide begin",  # between fence and decision
        "span claim begin",  # between decision and claim
        "step clone run",  # before there is a clone
        "step promote run",  # before its promotion
        "step rehearse run",  # while it follows
        "step open run",
        "span fence begin",
        "span route begin",
    ),
}
UNDOABLE = ("span decide begin", "step promote run", "step rehearse run", "step open run")
CASES = [
    *(
        Case(target, at, dies)
        for target, points in POINTS.items()
        for at in points
        for dies in DIES
    ),
    *(Case(CLONE, at, verb="abort") for at in UNDOABLE),
]


@pytest.mark.parametrize(
    ("fleet_versions", "case"),
    [
        pytest.param(*versions.values, case, marks=versions.marks, id="-".join((name, *case)))
        for versions in VERSIONS
        for case in CASES
        if (name := str(versions.id)) and case.fits(*versions.values)  # type: ignore[arg-type]
    ],
    indirect=["fleet_versions"],
)
def test_a_source_that_fails_over_loses_nothing(
    standby_for: MakeStandby, fleet_versions: MovingFleet, case: Case
) -> None:
    if case.target == CLONE:
        clone_streamed.use(fleet_versions)
    standby = standby_for(fleet_versions)
    retry_soon(fleet_versions)
    with Busy(fleet_versions, target=case.target) as clients:
        mover = fleet_versions.mover("start", case.point)
        mover.at(case.point)
        if case.dies == DIES[0]:
            mover.kill()
        promoted = fail_over(fleet_versions.servers["a"].server, standby)
        fleet_versions.servers = {**fleet_versions.servers, "a": PgServer(promoted)}
        if case.dies == DIES[1]:
            mover.go()
            mover.end(seconds=120)
        finish(fleet_versions, case.verb)
        clients.wait_served()
    assert clients.codes() <= FENCE | GONE, clients.errors()
    assert fleet_versions.owner == ("a" if case.verb == "abort" else case.target)
    prove_streamed(fleet_versions, clients)
