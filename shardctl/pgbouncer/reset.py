"""Give a server connection its alias's search_path back after a client took it away.

`RESET ALL` and `DISCARD ALL` return a session to what it had at its login, and so take away what
`connect_query` set. With `survive_reset`, the entry of an alias gives its name as
`application_name`, which goes into the login and which no reset removes; and after each
transaction PgBouncer runs `RESTORE`. That compares two settings, and where they differ it sets
`search_path` to the schema that has the alias's name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardctl.ids.generator import quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping

# On connections that no alias of this kind opened, shardctl.alias is NULL, and nothing is set:
# the query runs on every database of the pooler. A reset leaves shardctl.alias empty, which an
# empty search_path would equal. `set_config` with NULL gives a setting the value
# of the login, here only until the end of the statement, and returns that. Every name has its
# schema, for the client before may have left any search_path.
RESTORE = (
    "SELECT pg_catalog.set_config('shardctl.alias', pg_catalog.set_config('search_path', "
    "pg_catalog.quote_ident(pg_catalog.set_config('application_name', NULL, true)), false), "
    "false) WHERE pg_catalog.current_setting('search_path') "
    "OPERATOR(pg_catalog.<>) pg_catalog.current_setting('shardctl.alias', true) "
    "OR pg_catalog.current_setting('shardctl.alias', true) OPERATOR(pg_catalog.=) ''"
)
"""What PgBouncer runs after each transaction of a pooler with `survive_reset`."""
NOTE = (
    "survive_reset: outside transactions, every statement with parameters fails for drivers "
    "that parse it and bind it in two round trips: pg8000, lib/pq without binary_parameters=yes, "
    "pgx with QueryExecModeDescribeExec; see docs/poolers.md"
)
"""What an operator has to know before it is on; every query between transactions does that."""
SETTINGS = {"server_reset_query": RESTORE, "server_reset_query_always": "1"}
"""What the configuration of such a pooler has to contain."""


def connect_query(schema: str, *, survives: bool) -> str:
    """Write what a new connection of a shard's alias begins with."""
    path = f"SET search_path TO {quote_identifier(schema)}"
    if not survives:
        return path
    return f"{path}; SELECT set_config('shardctl.alias', current_setting('search_path'), false)"


def restores(config: Mapping[str, str]) -> bool:
    """Return whether a pooler's `server_reset_query` is ours, which resets nothing."""
    return " ".join(config.get("server_reset_query", "").split()) == RESTORE


def restores_always(config: Mapping[str, str]) -> bool:
    """Return whether it also runs between all clients of a server connection."""
    always = config.get("server_reset_query_always") == "1"
    return restores(config) and (always or config.get("pool_mode") == "session")
