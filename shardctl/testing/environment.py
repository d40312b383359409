"""Keep libpq's variables from the connections with a test fleet."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from psycopg import pq

if TYPE_CHECKING:
    from collections.abc import Iterator

_OTHERS = ("PGSERVICEFILE", "PGSYSCONFDIR", "PGREQUIRESSL", "PGDATESTYLE", "PGTZ", "PGGEQO")
"""Variables that libpq reads and that stand for no keyword of a connection string."""


@contextlib.contextmanager
def without_libpq() -> Iterator[None]:
    """Take libpq's variables out of this process's environment for a while.

    They are for other servers: some lead to these (PGHOSTADDR, PGSERVICE), some want what a test
    fleet does not have (PGSSLMODE), some change what a session does (PGOPTIONS).
    """
    keywords = (option.envvar for option in pq.Conninfo.get_defaults() if option.envvar)
    names = (*map(os.fsdecode, keywords), *_OTHERS)
    taken = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(taken)
