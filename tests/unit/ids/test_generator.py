"""The SQL of the generator as text: its functions, its numbers, its quoting."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.ids import generator
from shardctl.ids.layout import Layout
from tests.unit.ids.test_layout import SMALL, layouts

FUNCTIONS = {
    "next_id(regclass, regclass, integer)",
    "next_id_of_new_block(regclass, regclass, integer, bigint, bigint)",
    "open_drawn_block(regclass, regclass, bigint)",
    "open_block_at(regclass, bigint, bigint)",
    "open_block(integer, timestamp with time zone)",
    "id_time(bigint)",
    "id_shard(bigint)",
    "id_sequence(bigint)",
    "id_floor(timestamp with time zone, integer)",
    "shard_of(smallint)",
    "shard_of(integer)",
    "shard_of(bigint)",
    "shard_of(numeric)",
    "shard_of(text)",
    "shard_of(uuid)",
}
KINDS = ["strict", "classic"]
SPLITS = [Layout(), SMALL, Layout(time_bits=42, shard_bits=12), Layout(0, 10, 30, 1, 1)]
names = st.text(st.sampled_from("ab\"'\\$%{} .é"), min_size=1, max_size=20)


def unquoted(literal: str) -> str:
    """Read a SQL string literal as the server does, standard_conforming_strings on."""
    literal = literal.strip()
    escaped = literal.startswith("E")
    text = literal.removeprefix("E")
    assert text[0] == text[-1] == "'"
    text = text[1:-1]
    assert text.count("'") == 2 * text.count("''")
    text = text.replace("''", "'")
    return text.replace("\\\\", "\\") if escaped else text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", SPLITS)
def test_the_rendered_sql_has_exactly_these_functions(kind: str, layout: Layout) -> None:
    rendered = generator.render(layout, kind, 2000)
    assert set(generator.bodies(rendered)) == FUNCTIONS
    assert rendered.count("CREATE OR REPLACE FUNCTION") == len(FUNCTIONS)
    assert rendered.count("$shardctl$") == 2 * len(FUNCTIONS)


@pytest.mark.parametrize("kind", KINDS)
@given(layout=layouts())
def test_any_layout_renders_without_a_trace_of_the_template(kind: str, layout: Layout) -> None:
    rendered = generator.render(layout, kind, 2000)
    assert not re.search(r"\{[{%#]|[}%#]\}|None|Undefined", rendered)
    assert rendered == generator.render(layout, kind, 2000)


@pytest.mark.parametrize("kind", KINDS)
def test_bodies_are_what_stands_between_the_dollar_quotes(kind: str) -> None:
    rendered = generator.render(Layout(), kind, 2000)
    for body in generator.bodies(rendered).values():
        # After its body come a line with its setting, and one of how it is declared.
        before, _, declared = body.rpartition("\n")
        assert declared in {
            "VOLATILE PARALLEL UNSAFE", "IMMUTABLE STRICT PARALLEL SAFE", "IMMUTABLE PARALLEL SAFE"
        }  # fmt: skip
        text, _, setting = before.partition("\nsearch_path=")
        assert f"$shardctl${text}$shardctl$;" in rendered
        assert setting in {"", "pg_catalog, pg_temp", "pg_catalog, pg_temp\nSECURITY DEFINER"}


def test_only_next_id_differs_between_the_generators() -> None:
    strict, classic = (generator.bodies(generator.render(Layout(), kind, 2000)) for kind in KINDS)
    assert generator.names(one for one in FUNCTIONS if strict[one] != classic[one]) == ["next_id"]


def test_the_shard_count_changes_shard_of_only() -> None:
    few, many = (generator.bodies(generator.render(Layout(), "strict", n)) for n in (8, 2000))
    assert generator.names(one for one in FUNCTIONS if few[one] != many[one]) == ["shard_of"]


@given(layouts())
def test_the_register_fits_a_positive_bigint(layout: Layout) -> None:
    bodies = generator.bodies(generator.render(layout, "strict", 2000))
    body = bodies["open_block_at(regclass, bigint, bigint)"]
    [mask] = {int(found) for found in re.findall(r"BETWEEN 1 AND (\d+)", body)}
    assert 2 * mask + 1 == (1 << 63 - layout.usable_time_bits) - 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layout", SPLITS)
def test_functions_that_keep_the_callers_search_path_qualify_their_operators(
    kind: str, layout: Layout
) -> None:
    rendered = generator.render(layout, kind, 2000)
    bodies = generator.bodies(rendered)
    pinned = set(
        re.findall(r"FUNCTION shardctl\.(\w+)\(.*\n.*SET search_path = pg_catalog", rendered)
    )
    assert pinned == {
        "next_id_of_new_block", "open_drawn_block", "open_block_at", "open_block"
    }  # fmt: skip
    for name in FUNCTIONS:
        if name.partition("(")[0] in pinned:
            continue
        body, _, _ = bodies[name].rpartition("\n")
        body = re.sub(r"--.*|:=|::|OPERATOR\(pg_catalog\.\S+?\)|'[^']*'", "", body)
        assert not re.search(r"[-+*/<>=&|%]", body), name
        calls = set(re.findall(r"(?<![\w.])(\w+)\(", body))
        assert calls <= {"greatest", "extract", "coalesce", "least", "bit"}, name


@given(names)
def test_an_identifier_is_quoted_so_that_it_reads_back(name: str) -> None:
    quoted = generator.quote_identifier(name)
    assert re.fullmatch(r'"(?:[^"]|"")*"', quoted)
    assert quoted[1:-1].replace('""', '"') == name


@given(names)
def test_a_literal_is_quoted_so_that_it_reads_back(text: str) -> None:
    assert unquoted(generator.quote_literal(text)) == text
    # A backslash outside E'' would depend on standard_conforming_strings.
    assert ("\\" in text) == generator.quote_literal(text).startswith(" E'")


@given(names, st.integers(0, 8191))
def test_the_wrapper_names_the_shards_sequences_and_its_number(schema: str, shard: int) -> None:
    body = generator.wrapper_body(schema, shard)
    quoted = generator.quote_identifier(schema)
    counter = generator.quote_literal(f"{quoted}.next_id_seq")
    register = generator.quote_literal(f"{quoted}.next_id_block")
    assert body == (
        f"SELECT shardctl.next_id({counter}::pg_catalog.regclass, "
        f"{register}::pg_catalog.regclass, {shard})"
    )
