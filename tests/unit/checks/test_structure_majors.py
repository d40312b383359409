"""Texts of one definition that servers of two major versions write differently."""

from __future__ import annotations

from shardctl.checks.structure_groups import Group, Thing, compare
from shardctl.checks.structure_majors import level
from shardctl.topology.model import ShardId

OLD = "VIEW AS SELECT users.id, users.name FROM users WHERE (users.mail IS NOT NULL);"
NEW = "VIEW AS SELECT id, name FROM users WHERE (mail IS NOT NULL);"
RIGHTS = ("DELETE", "INSERT", "REFERENCES", "SELECT", "TRIGGER", "TRUNCATE", "UPDATE")


def group(shards: range, *texts: str, kind: str = "view") -> Group:
    things = [Thing(kind, "mailed", f"t{n}", "", text) for n, text in enumerate(texts)]
    table = Thing("table", "mailed", "mailed", "", "TABLE")
    return Group(tuple(map(ShardId, shards)), {thing.key: thing for thing in (table, *things)})


def found(**groups: list[Group]) -> list[tuple[tuple[int, ...], str | None, str | None]]:
    leveled = level({int(major.removeprefix("of_")): of for major, of in groups.items()})
    return [
        (d.shards, d.actual and d.actual.description, d.expected and d.expected.description)
        for d in compare(leveled)
    ]


def test_parentheses_and_qualifications_do_not_differ_between_versions() -> None:
    assert found(of_15=[group(range(2), OLD)], of_18=[group(range(2, 4), NEW)]) == []


def test_they_differ_within_a_version() -> None:
    assert found(of_15=[group(range(2), OLD), group(range(2, 3), NEW)]) == [((2,), NEW, OLD)]


def test_another_definition_differs_in_the_words_of_its_own_server() -> None:
    other = OLD.replace("NOT NULL", "NULL")
    assert found(
        of_15=[group(range(1), OLD), group(range(1, 2), other)], of_18=[group(range(2, 6), NEW)]
    ) == [((1,), other, NEW)]


def test_constants_are_compared_as_they_are() -> None:
    one, other = ("CHECK ((mail <> 'a.(b)'::text))", "CHECK ((mail <> 'ab'::text))")
    assert found(of_15=[group(range(1), one)], of_18=[group(range(1, 3), other)]) == [
        ((0,), one, other)
    ]


def test_all_rights_are_all_rights_with_and_without_maintain() -> None:
    before, since = (
        ", ".join(f"app {right}" for right in rights)
        for rights in (RIGHTS, sorted((*RIGHTS, "MAINTAIN")))
    )
    assert (
        found(
            of_16=[group(range(1), before, kind="grant")],
            of_18=[group(range(1, 3), since, kind="grant")],
        )
        == []
    )
    fewer = "app MAINTAIN, app SELECT"
    assert found(
        of_16=[group(range(2), "app SELECT", kind="grant")],
        of_18=[group(range(2, 3), fewer, kind="grant")],
    ) == [((2,), fewer, "app SELECT")]
