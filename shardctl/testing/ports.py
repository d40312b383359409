"""Ports for servers that are yet to start, which nobody else is given meanwhile."""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@contextlib.contextmanager
def held(host: str, count: int) -> Iterator[Sequence[int]]:
    """Hold free ports: a server may listen on them, and the system gives them to no one else.

    A socket that is bound and does not listen keeps its port from all who ask for any port, or
    connect from one; with SO_REUSEADDR, which PostgreSQL sets, too, it lets a listener in.
    """
    with contextlib.ExitStack() as stack:
        found = []
        for _ in range(count):
            holder = stack.enter_context(socket.socket())
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            holder.bind((host, 0))
            found.append(int(holder.getsockname()[1]))
        yield found
