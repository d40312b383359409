"""What a digest of a structure reads is what its versions are of."""

from __future__ import annotations

import re

from shardctl.access import structure_digest


def test_the_versions_are_of_every_catalog_that_a_digest_reads() -> None:
    seen = read("versions") - {"pg_depend"}  # what is made of rare kinds is seen there
    assert read("said") == seen | {*structure_digest.CATALOGS, *structure_digest.RARE}


def read(name: str) -> set[str]:
    text = structure_digest.QUERIES[name].as_string()
    return {*re.findall(r"\b(?:FROM|JOIN) pg_catalog\.(\w+)", text)}
