"""How many locks one statement may take: the lock table belongs to the applications."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from shardctl.postgres import queries

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from shardctl.postgres.connection import Connection

Item = TypeVar("Item")

_SHARE = 4
"""A session that finds the table full fails, so a statement takes a fourth of it at most."""


def of(connection: Connection) -> int:
    """Ask how many relations one statement may lock."""
    (slots,) = queries.one(
        connection,
        "SELECT current_setting('max_locks_per_transaction')::integer"
        " * (current_setting('max_connections')::integer"
        " + current_setting('max_prepared_transactions')::integer)",
    )
    return max(1, int(slots) // _SHARE)


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Part items into lists of `size` at most, in their order.

    >>> list(chunks("abcde", 2))
    [['a', 'b'], ['c', 'd'], ['e']]
    """
    rest = iter(items)
    while chunk := list(islice(rest, max(1, size))):
        yield chunk


def batches(
    items: Sequence[Item], most: int, weight: Callable[[Item], int]
) -> Iterator[list[Item]]:
    """Part items into lists that weigh at most `most` together, and hold one item at the least.

    >>> list(batches([3, 3, 3, 9, 1], 7, lambda item: item))
    [[3, 3], [3], [9], [1]]
    """
    batch: list[Item] = []
    weighs = 0
    for item in items:
        if batch and weighs + weight(item) > most:
            yield batch
            batch, weighs = [], 0
        batch.append(item)
        weighs += weight(item)
    if batch:
        yield batch
