"""Confirm: compares the moved tables on both nodes, row by row; see `moves.proof`."""

from __future__ import annotations

from shardctl.moves import proof
from shardctl.moves.step import Step

STEP = Step("confirm", "compares every moved table on both nodes", proof.stands, proof.make)
