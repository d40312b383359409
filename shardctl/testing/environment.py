"""Hides libpq's environment variables from connections to a test fleet."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from psycopg import pq

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS = ("PGSERVICEFILE", "PGSYSCONFDIR", "PGREQUIRESSL", "PGDATESTYLE", "PGTZ", "PGGEQO")
"""Variables that libpq reads and that have no keyword in a connection string."""


@contextlib.contextmanager
def without_libpq() -> Iterator[None]:
    """Remove libpq's variables from this process's environment during a block.

    They are for other servers: some name those (PGHOSTADDR, PGSERVICE), some require what a test
    fleet lacks (PGSSLMODE), some change a session's behaviour (PGOPTIONS).
    """
    keywords = (option.envvar for option in pq.Conninfo.get_defaults() if option.envvar)
    names = (*map(os.fsdecode, keywords), *_OTHERS)
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
