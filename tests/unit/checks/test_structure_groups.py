"""The majority, thing by thing, and each fault once."""

from __future__ import annotations

from shardctl.checks.structure_groups import Difference, Group, Thing, compare
from shardctl.topology.model import ShardId


def table(name: str) -> Thing:
    return Thing("table", name, name, "", "TABLE")


def column(relation: str, name: str, kind: str = "bigint", more: str = "") -> Thing:
    return Thing("column", relation, name, kind, kind + more)


def index(relation: str, name: str, *columns: str) -> Thing:
    needs = frozenset(f"column:{relation}.{column}" for column in columns)
    return Thing("index", relation, name, "", f"CREATE INDEX {name}", needs)


def group(shards: range, *things: Thing) -> Group:
    return Group(tuple(map(ShardId, shards)), {thing.key: thing for thing in things})


def told(differences: list[Difference]) -> list[tuple[str, str, str, tuple[int, ...]]]:
    return [
        (
            d.key.kind,
            d.key.name,
            "missing" if d.actual is None else "extra" if d.expected is None else "differs",
            d.shards,
        )
        for d in differences
    ]


FULL = (table("t"), column("t", "a"), column("t", "b"), index("t", "i", "a"))


def test_shards_that_are_alike_have_no_differences() -> None:
    assert compare([group(range(9), *FULL)]) == []
    assert compare([]) == []


def test_the_majority_is_asked_for_each_thing_alone() -> None:
    a, b = group(range(3), *FULL[:3]), group(range(3, 6), *FULL[:2], FULL[3])
    whole = group(range(6, 8), *FULL)
    assert told(compare([a, b, whole])) == [
        ("column", "b", "missing", (3, 4, 5)),
        ("index", "i", "missing", (0, 1, 2)),
    ]


def test_of_a_tables_parts_those_decide_that_have_the_table() -> None:
    without = group(range(3))
    five = [group(range(3, 6), *FULL), group(range(6, 8), *FULL[:3])]
    assert told(compare([without, *five])) == [
        ("index", "i", "missing", (6, 7)),
        ("table", "t", "missing", (0, 1, 2)),
    ]


def test_a_tie_goes_to_the_lowest_shard() -> None:
    low, high = group(range(2), *FULL[:3]), group(range(2, 4), *FULL)
    assert told(compare([high, low])) == [("index", "i", "extra", (2, 3))]


def test_an_index_over_a_column_of_another_type_is_not_told_but_one_over_a_default_is() -> None:
    usual = group(range(5), *FULL)
    other = Thing("index", "t", "i", "", "CREATE INDEX i ...", frozenset({"column:t.a"}))
    typed = group(range(5, 6), table("t"), column("t", "a", "text"), column("t", "b"), other)
    assert told(compare([usual, typed])) == [("column", "a", "differs", (5,))]
    default = column("t", "a", more=" DEFAULT 1")
    with_default = group(range(5, 6), table("t"), default, column("t", "b"), other)
    assert told(compare([usual, with_default])) == [
        ("column", "a", "differs", (5,)),
        ("index", "i", "differs", (5,)),
    ]


def test_a_difference_is_told_once_for_shards_of_several_groups() -> None:
    usual = group(range(5), *FULL)
    one = group(range(5, 6), *FULL[:3])
    two = group(range(6, 7), *FULL[:3], column("t", "c"))
    assert told(compare([usual, one, two])) == [
        ("column", "c", "extra", (6,)),
        ("index", "i", "missing", (5, 6)),
    ]
