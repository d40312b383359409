"""The tables of a cutover hold what the driver, the budget and the guards rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardctl.moves import clone_cutover, stream_cutover, undoing

if TYPE_CHECKING:
    from shardctl.moves.sub_step import Cutover

TABLES = pytest.mark.parametrize(
    "table", [clone_cutover.CUTOVER, stream_cutover.CUTOVER], ids=["clone", "stream"]
)


@TABLES
def test_nothing_may_stop_once_it_is_decided(table: Cutover) -> None:
    assert table.undoable[-1].name == "decide"
    assert table.undoable[-1].may_stop
    late = (*table.decided, *table.concluding, *undoing.SUB_STEPS)
    assert [one.name for one in late if one.may_stop] == []


@TABLES
def test_nothing_asks_but_source_target_and_poolers(table: Cutover) -> None:
    assert {letter for one in table.rows for letter in one.asks} <= set("stp ")
    # What is asked before the guards are armed costs clients nothing.
    assert [one.name for one in table.ready if one.asks] == []
