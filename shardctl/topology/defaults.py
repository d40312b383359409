"""What a topology file leaves out, for those who read it: all of it, or what applications need."""

from __future__ import annotations

from typing import Literal

SCHEMA = "shard{id}"
EPOCH = "2011-08-24T21:07:01.721Z"
TICK = "1ms"
TIME_BITS, SHARD_BITS, SEQUENCE_BITS = 41, 13, 10
USER = "postgres"
ALIASES: tuple[Literal["node"], ...] = ("node",)
MAX_PAUSE, RETAIN = "5s", "24h"
