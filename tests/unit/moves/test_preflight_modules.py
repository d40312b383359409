"""Libraries of extensions that the target's host may lack, by what was seen there."""

from __future__ import annotations

from tests.fixtures.moves.facts import fit


def test_an_extension_whose_library_the_targets_host_lacks() -> None:
    seen = fit()
    needed = {"$libdir/pg_trgm": "extension pg_trgm", "/srv/own": "function own(oid)"}
    seen.source(modules=needed)
    assert seen.refused() == {}
    seen.target(modules_lacking=list(needed))
    told = seen.only("extension_libraries")
    assert "/pg_trgm" in told


def test_libraries_that_could_not_be_looked_for_are_noted() -> None:
    seen = fit()
    seen.target(modules_lacking=None)
    assert seen.refused() == {}
    assert "node c: not checked: whether it has the extensions' libraries" in seen.notes()
