"""How far a clone is, as another terminal sees it while the clone is made."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from shardctl.moves.plan import Options
from tests.fixtures import commands
from tests.fixtures.moves.stopping import Mover
from tests.fixtures.servers.postgres import wait_for

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

OPTIONS = Options(max_pause_s=5.0, retain_s=0.0, max_rate="8M")


def test_another_terminal_shows_how_far_a_clone_is(fleet_own: Lab) -> None:
    arguments = ["--topology", str(fleet_own.file), "moves", "show"]
    mover = Mover([str(fleet_own.file), "start", json.dumps(dataclasses.asdict(OPTIONS))])
    copied = "SELECT 1 FROM shardctl.move_progress WHERE eta_s IS NOT NULL AND phase = 'copying'"
    wait_for(lambda: fleet_own.ask("a", copied))
    shown = json.loads(commands.here(*arguments, "-o", "json").stdout)
    assert (shown["state"], shown["step"]) == ("running", "clone")
    assert 0 < shown["progress"]["bytes"] <= shown["progress"]["total_bytes"]
    assert shown["progress"]["eta_s"] >= 0
    assert "\ncopying: " in commands.here(*arguments).stdout
    assert fleet_own.ask("a", "SELECT revision FROM shardctl.move") == [(1,)]
    assert mover.end() == 0
    for node in "ac":
        assert fleet_own.ask(node, "SELECT count(*) FROM shardctl.move_progress") == [(0,)]
    assert json.loads(commands.here(*arguments, "-o", "json").stdout)["progress"] is None
