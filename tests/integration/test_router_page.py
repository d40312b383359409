"""The examples of docs/router.md and docs/sqlalchemy.md, run as they stand there."""

from __future__ import annotations

import doctest
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.fixtures.fleets.fleet import Fleet

ROOT = Path(__file__).parents[2]
PAGES = {
    "router": ROOT / "docs/router.md",
    "sqlalchemy": ROOT / "docs/sqlalchemy.md",
    "hash": ROOT / "docs/ids.md",
}


def blocks(name: str, kind: str) -> list[str]:
    text = PAGES[name].read_text()
    found: list[str] = re.findall(rf"<!-- tested: {name} -->\n```{kind}\n(.*?)```", text, re.DOTALL)
    assert found
    return found


@pytest.mark.parametrize("name", ["router", "sqlalchemy"])
def test_the_examples_of_the_page_are_true(
    new_fleet: Fleet, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.rmtree(new_fleet.directory / "migrations")
    shutil.copytree(ROOT / "migrations", new_fleet.directory / "migrations")
    new_fleet.init()
    monkeypatch.chdir(new_fleet.directory)
    names: dict[str, object] = {}
    page = "".join(blocks(name, "pycon"))
    test = doctest.DocTestParser().get_doctest(page, names, f"{name}.md", f"{name}.md", 0)
    assert len(test.examples) > 15
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.REPORT_NDIFF)
    try:
        runner.run(test, out=said.append, clear_globs=False)
    finally:
        test.globs["db"].close()  # the page's database
    assert runner.failures == 0, "".join(said)


def test_sql_gives_strings_and_uuids_the_same_shard(fleet_8: Fleet) -> None:
    from shardctl.topology.keys import read, shard_of

    (expression,) = blocks("hash", "sql")
    keys = ["ann", "Zoë", "", "6f9619ff-8b86-d011-b42d-00cf4fc964ff", *(f"k{n}" for n in range(99))]
    with fleet_8.connect("a") as connection:
        for count in (8, 2000):
            text = expression.replace("count", str(count)).replace("key", "k").replace("%", "%%")
            query = f"SELECT k, {text} FROM unnest(%s::text[]) AS k"
            found = connection.execute(query.encode(), [keys])
            assert found.fetchall() == [(key, shard_of(read(key), count)) for key in keys]
            one = connection.execute(
                f"SELECT {text} FROM (SELECT %s::uuid AS k) AS s".encode(), [keys[3].upper()]
            ).fetchone()
            assert one == (shard_of(read(keys[3]), count),)
