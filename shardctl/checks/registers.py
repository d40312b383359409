"""A shard's register and counter: how many blocks apart they are, and what that means."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from shardctl.checks.findings import ERROR, WARNING, Rule, Rules
from shardctl.ids import generator
from shardctl.ids.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardctl.checks.findings import Finding
    from shardctl.topology.model import ShardId, Topology


RULES = Rules(
    "generator",
    {
        "register_ahead": Rule(
            ERROR,
            f"{{blocks}} ahead of {generator.COUNTER}: the counter was set back",
            "the block of the counter",
            "set the counter to the end of the register's block; the next id then starts a new "
            "block: {setval}{more}",
        ),
        "register_behind": Rule(
            WARNING,
            f"{{blocks}} behind {generator.COUNTER}",
            "the block of the counter, or the one before",
            "the next id fixes this; to fix it now, run on the shard's node: SELECT "
            "shardctl.open_block({shard}){more}",
        ),
    },
)


class Held(NamedTuple):
    """What a shard's register and counter hold; None: nothing was ever drawn or written.

    The register was read first, so one that was read during traffic never seems ahead.
    """

    register: int | None
    counter: int | None


def ahead(layout: Layout, held: Held) -> int:
    """Count the blocks by which the register is ahead of its counter; negative: behind.

    Block numbers wrap around, as in the template: up to half of them lie ahead.

    >>> ahead(Layout(), Held(register=5 << 40, counter=3 << 10))
    2
    >>> ahead(Layout(), Held(register=None, counter=1030))
    -2
    """
    bits = layout.usable_time_bits
    mask = (1 << 63 - bits) - 1
    block = (held.counter or 0) >> layout.sequence_bits
    if held.register is None:
        return 0 if held.counter is None else -block - 1
    behind = (block - (held.register >> bits)) & mask
    return -behind if behind <= mask // 2 else mask + 1 - behind


def judge(topology: Topology, held: Mapping[ShardId, Held]) -> Iterator[Finding]:
    """Find registers ahead of their counters, and ones that are far behind.

    One block behind is how it is for a moment while a block is opened, and after a crash,
    when a counter skips up to 32 values; the next id of any session fixes it.
    """
    layout = Layout.of(topology.id)
    distances = {shard: ahead(layout, one) for shard, one in sorted(held.items())}
    before = {shard: blocks for shard, blocks in distances.items() if blocks > 0}
    after = {shard: -blocks for shard, blocks in distances.items() if blocks < -1}
    if before:
        # open_block() would keep ids apart, but draws up to the register's block
        # would still be thrown away, one by one: the end of that block fixes both.
        shard = next(iter(before))
        last = (held[shard].counter or 0) >> layout.sequence_bits
        end = (last + before[shard] + 1 << layout.sequence_bits) - 1
        yield RULES.finding(
            "register_ahead",
            shards=tuple(before),
            object=generator.REGISTER,
            blocks=_blocks(before),
            setval=_setval(topology, shard, end),
            more=_more(before, shard),
        )
    if after:
        shard = next(iter(after))
        yield RULES.finding(
            "register_behind",
            shards=tuple(after),
            object=generator.REGISTER,
            blocks=_blocks(after),
            shard=shard,
            more=_more(after, shard),
        )


def _setval(topology: Topology, shard: ShardId, value: int) -> str:
    counter = f"{generator.quote_identifier(topology.schema(shard))}.{generator.COUNTER}"
    name = generator.quote_literal(counter).strip()
    # Not where ids were drawn in the meantime: that fixes it too, and it must not be set back
    # again.
    return f"SELECT setval({name}, {value}) WHERE nextval({name}) < {value}"


def _blocks(distances: Mapping[ShardId, int]) -> str:
    low, high = min(distances.values()), max(distances.values())
    if low == high:
        return "1 block" if low == 1 else f"{low} blocks"
    return f"{low} to {high} blocks"


def _more(distances: Mapping[ShardId, int], shard: ShardId) -> str:
    if len(distances) == 1:
        return ""
    return f" (for shard {shard}; then `--check generator` shows the command for the next)"
