"""What the page about real hosts grants is enough, on a server that grants nothing else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from shardctl.fanout import Silent
from shardctl.moves import prune, service
from shardctl.sandbox import poolers, servers
from shardctl.state.journal import MoveState

if TYPE_CHECKING:
    from tests.fixtures.moves.own import Lab

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "real-hosts.md"


def test_a_role_with_the_pages_grants_and_no_more_carries_out_moves(fleet_own_bare: Lab) -> None:
    lab = fleet_own_bare
    lab.write()
    servers.up(lab.topology, Silent())  # with the superuser postgres
    lab.file.write_text(lab.file.read_text().replace("{name: app,", "{name: app, user: shardctl,"))
    poolers.up(lab.topology, Silent())
    before, after = _granted().split("\\connect app\n")
    for node in "ab":
        for database, statements in (("postgres", before), ("app", after)):
            with lab.connect(node, dbname=database) as session:
                for statement in re.split(r";\n", statements):
                    session.execute(statement.encode())
    lab.provision()
    lab.put(2)
    lab.move([2, 3], "c")
    assert lab.leads("shard2") == "c"
    assert lab.copy("c").state is MoveState.done
    lab.put(2)
    lab.move([6, 7], "d")
    assert lab.copy("d").state is MoveState.done
    lab.put(6)
    found = prune.plan(
        lab.topology, service.read(lab.topology), accept_unconfirmed=False, now=True, purpose="test"
    )
    prune.carry_out(lab.topology, found, Silent())
    assert lab.schemas("c") == {"shard2", "shard3"}
    assert lab.schemas("d") == {"shard6", "shard7"}
    assert lab.left() == set()
    assert lab.problems() == []


def _granted() -> str:
    found = re.search(r"ON_ERROR_STOP=1 <<'EOF'\n(.*?)EOF\n", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]
