"""Benches by their names: `make bench` imports each when its turn comes."""

from __future__ import annotations

import pytest

from tests.bench import run


@pytest.mark.parametrize("name", run.BENCHES)
def test_a_bench_is_where_its_name_says_and_tells_what_it_measures(name: str) -> None:
    assert run.bench(name).__doc__
