"""Reserve connections of several nodes at once: all that a caller needs, or none of them.

A caller that held some and waited for the rest could deadlock with another caller.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from shardctl.router.errors import NoConnection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardctl.router.requests import Reserve
    from shardctl.topology.handles import NodeName


class Room:
    """Places for connections, as many a node as its pool may have; the face guards it."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._taken: Counter[NodeName] = Counter()

    def take(self, wanted: Mapping[NodeName, int]) -> bool:
        """Take all of these places; False if one is not free, and then none is taken."""
        if self._full(wanted):
            return False
        self._taken.update(wanted)
        return True

    def take_some(
        self, request: Reserve, seconds: float
    ) -> tuple[dict[NodeName, int], dict[NodeName, str]]:
        """Take what there is when time is over; the rest comes back with a reason for each node.

        Raises NoConnection where all are required.
        """
        full = self._full(request.wanted)
        reason = f"none was free within {seconds:.3g} s"
        if full and not request.some:
            raise NoConnection(full[0], reason)
        taken = {node: count for node, count in request.wanted.items() if node not in full}
        self._taken.update(taken)
        return taken, dict.fromkeys(full, reason)

    def give_back(self, taken: Mapping[NodeName, int]) -> None:
        """Return these places."""
        self._taken.subtract(taken)

    def patience(self, request: Reserve, most: float) -> float:
        """Give how many seconds to wait; raises NoConnection for more than the pool's size."""
        for node, count in request.wanted.items():
            if count > self._places:
                raise NoConnection(
                    node, f"{count} are needed at once, but `max_size` is {self._places}"
                )
        seconds = most if request.seconds is None else min(request.seconds, most)
        return seconds / 2 if request.some else seconds

    def _full(self, wanted: Mapping[NodeName, int]) -> list[NodeName]:
        """List the nodes that do not have enough free places."""
        return [node for node, count in wanted.items() if self._taken[node] + count > self._places]
