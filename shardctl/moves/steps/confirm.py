"""Confirm: what was moved is on the target, row for row; see `moves.proof`."""

from __future__ import annotations

from shardctl.moves import proof
from shardctl.moves.step import Step

STEP = Step("confirm", "compares every moved table on both sides", proof.stands, proof.make)
