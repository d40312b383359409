"""What a digest of a structure reads is what its versions are of."""

from __future__ import annotations

import re

from shardctl.access import structure_digest


def test_the_versions_are_of_every_catalog_that_a_digest_reads() -> None:
    seen = read("versions") | {catalog for catalog, _ in structure_digest.CATALOGS}
    seen |= {catalog for _, catalog, _ in structure_digest.PARTS}
    # With the kinds that few schemas have, pg_default_acl is read where pg_depend has a row of it.
    assert read("said") <= seen | {"pg_default_acl"}


def read(name: str) -> set[str]:
    text = structure_digest.QUERIES[name].as_string()
    return {*re.findall(r"\b(?:FROM|JOIN) pg_catalog\.(\w+)", text)}
