"""Schemas' names: from a shard's number and back, live and retired."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardctl.topology import names
from shardctl.topology.names import SchemaPattern


@pytest.mark.parametrize("schema", ["shard017", "shard", "shard-1", "shard1x", "xshard1", "shard²"])
def test_what_the_pattern_did_not_make_is_no_shard(schema: str) -> None:
    assert SchemaPattern.parse("shard{id}").shard(schema) is None


@pytest.mark.parametrize("text", ["shard", "{id}{id}", "{id}}", "{id:4}"])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        SchemaPattern.parse(text)


@given(st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=40))
def test_a_retired_name_fits_63_bytes_and_is_known_again(schema: str) -> None:
    name = names.retired(schema, "5f3a9c1e")
    assert len(name.encode()) <= names.MAX_IDENTIFIER
    assert names.is_retired(name)
