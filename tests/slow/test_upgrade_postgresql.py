"""docs/howto/upgrade-postgresql.md, command by command, on servers of both versions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardctl.hosts import accounts
from shardctl.postgres import binaries
from tests.bench import moving
from tests.fixtures.network.pages import block, commands
from tests.fixtures.network.sandboxed import Sandboxed
from tests.fixtures.servers.postgres import free_ports

if TYPE_CHECKING:
    from tests.bench.moving import Sandbox

pytestmark = [pytest.mark.embedded, pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "upgrade-postgresql.md"
OLD, NEW = 15, 18
"""The versions of the page."""
NODES = {"a": "c", "b": "d"}
"""Old nodes, and the new ones that take their place."""
SHARDS = 16
RATE = 100
"""Operations a second of each client."""


def test_the_page_upgrades_a_fleet_under_load() -> None:
    older, newer = (binaries.of_major(major) for major in (OLD, NEW))
    if older is None or newer is None:
        pytest.skip(f"PostgreSQL {OLD} and {NEW} are not both installed here")
    newer = binaries.find(newer.directory, account=accounts.server_account(None))
    programs = {"db1": older, "db3": newer}
    said: list[str] = []
    with moving.sandbox(SHARDS, len(NODES), 0, programs=older.directory) as fleet:
        fleet.path.write_text(f"{fleet.path.read_text()}\nmove: {{retain: 0s}}\n")
        pairs = {
            old: Sandboxed(
                fleet,
                {"db1": fleet.node(old).port, "db3": free_ports(1)[0]},
                {"db1": old, "db3": new},
                programs,
            )
            for old, new in NODES.items()
        }

        def follow(name: str, *olds: str) -> None:
            for old in olds:
                said.extend(
                    pairs[old].type(one.host, _of(one.text, old)) for one in commands(PAGE, name)
                )

        for old, pair in pairs.items():
            follow("restart", old)
            _add(fleet, old, pair.ports["db3"])  # the load has to know all nodes from the begin
        with fleet.load("shard", RATE) as load:
            follow("commands", *NODES)
            found = load.end(0)
        text = fleet.path.read_text()
        fleet.path.write_text(re.sub(rf"(?m)^  [{''.join(NODES)}]: \{{.*\n", "", text))
        follow("end", "a")
        pairs["b"].server("db1").stop(mode="fast")
    flaws = ("lost", "duplicates", "misplaced", "astray", "stale", "unserved", "errors")
    assert {flaw: found[flaw] for flaw in flaws if found[flaw]} == {}
    assert found["acknowledged"]["inserts"] > 0
    assert sorted(found["moved"]) == list(range(SHARDS))
    assert sum(" is done; " in one for one in said) == 4


def _add(fleet: Sandbox, old: str, port: int) -> None:
    """Write the new node's line into the topology, as the page has it."""
    line = _of(block(PAGE, "node").rstrip(), old)
    line, count = re.subn(r"host: [\d.]+, port: \d+", f"host: 127.0.0.1, port: {port}", line)
    assert count == 1, line
    text = fleet.path.read_text()
    fleet.path.write_text(text.replace("\npoolers:", f"{line}\n\npoolers:"))


def _of(text: str, old: str) -> str:
    """Let a command of the page, about nodes a and c, be about others."""
    names = {"a": old, "c": NODES[old]}
    text = re.sub(r"(--from|--to) ([ac])\b", lambda m: f"{m[1]} {names[m[2]]}", text)
    text = re.sub(r"(?m)^  c: \{", f"  {names['c']}: {{", text)
    return text.replace("move-shards 0 ", f"move-shards {0 if old == 'a' else SHARDS // 2} ")
