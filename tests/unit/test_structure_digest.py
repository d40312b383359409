"""What a digest of a structure reads is what its versions are of."""

from __future__ import annotations

import re

from shardctl.access import structure_digest


def test_the_versions_are_of_every_catalog_that_a_digest_reads() -> None:
    rare = {catalog for parts in structure_digest.RARE.values() for catalog in parts}
    seen = read("versions") | {catalog for catalog, _ in structure_digest.CATALOGS} | rare
    assert read("said") == seen - {"pg_depend"}  # where what is made in a schema is seen


def read(name: str) -> set[str]:
    text = structure_digest.QUERIES[name].as_string()
    return {*re.findall(r"\b(?:FROM|JOIN) pg_catalog\.(\w+)", text)}
