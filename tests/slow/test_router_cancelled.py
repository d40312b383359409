"""A move whose pause a client meets with a request to cancel: the router's clients wait."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.fixtures.fleets.routed import FACES
from tests.fixtures.moves.stopping import ROLE, finish, patient
from tests.fixtures.straggler import straggling

if TYPE_CHECKING:
    from tests.fixtures.fleets.routed import Open
    from tests.fixtures.moves.stopping import MovingFleet

KEYS = (0, 2, 3, 5)
"""Of the shards that move, one that stays on the source, and one of the other node."""
BEGIN = "span pause begin"


@FACES
def test_a_cancelled_statement_in_a_pause_costs_the_router_no_call(
    fleet_points: MovingFleet, router: Open
) -> None:
    patient(fleet_points)
    pooler = fleet_points.pg_bouncer
    db = router(fleet_points.topology())
    for key in KEYS:
        db.insert("writes", key, {"token": key})
    errors: list[BaseException] = []
    over = threading.Event()

    def client(key: int) -> None:
        while not over.is_set():
            try:
                assert db.select("token", "writes", key, "token = %s", [key]) == [(key,)]
            except BaseException as error:  # noqa: BLE001  # the test tells of it
                errors.append(error)

    clients = [threading.Thread(target=client, args=(key,)) for key in KEYS]
    alias = f"{fleet_points.database}_a"
    with (
        ExitStack() as at_end,
        pooler.console() as console,
        straggling(pooler.connect(alias, ROLE), fleet_points.log_in("a")) as straggler,
    ):
        mover = fleet_points.mover("start", BEGIN)
        mover.at(BEGIN)
        mover.go()
        straggler.cancel(console)
        at_end.callback(over.set)
        for one in clients:
            one.start()
        straggler.end()
        if mover.end() != 0:
            finish(fleet_points, "resume")
        straggler.join()
    for one in clients:
        one.join()
    assert errors == []
    assert any("a client cancelled a statement on moving_a" in line for line in mover.said)
