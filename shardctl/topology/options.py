"""The keywords of libpq that a topology may use, and where the rest belong."""

from __future__ import annotations

import re

NO_PASSWORDS = "the topology cannot contain passwords; use a passfile (~/.pgpass, PGPASSFILE)"
NO_SECRETS = (
    "the topology cannot contain secrets; use a service file (~/.pg_service.conf, with "
    "`service: NAME` here)"
)

ELSEWHERE = {
    "host": "nodes.NAME.host",
    "hostaddr": "nodes.NAME.host",
    "port": "nodes.NAME.port",
    "dbname": "database.name",
    "user": "database.user",
}
SECRETS = frozenset({"oauth_client_secret", "scram_client_key", "scram_server_key"})
KEYWORDS = frozenset(
    {
        "application_name",
        "channel_binding",
        "client_encoding",
        "connect_timeout",
        "fallback_application_name",
        "gssdelegation",
        "gssencmode",
        "gsslib",
        "keepalives",
        "keepalives_count",
        "keepalives_idle",
        "keepalives_interval",
        "krbsrvname",
        "load_balance_hosts",
        "max_protocol_version",
        "min_protocol_version",
        "oauth_client_id",
        "oauth_issuer",
        "oauth_scope",
        "options",
        "passfile",
        "replication",
        "require_auth",
        "requirepeer",
        "service",
        "ssl_max_protocol_version",
        "ssl_min_protocol_version",
        "sslcert",
        "sslcertmode",
        "sslcompression",
        "sslcrl",
        "sslcrldir",
        "sslkey",
        "sslkeylogfile",
        "sslmode",
        "sslnegotiation",
        "sslrootcert",
        "sslsni",
        "target_session_attrs",
        "tcp_user_timeout",
    }
)
"""What libpq 18 knows, without `ELSEWHERE`, `SECRETS` and the two passwords."""

# Server parameters that speak of passwords and hold none.
_HARMLESS = re.compile(
    r"password_encryption|md5_password_warnings|passwordcheck\..*", re.IGNORECASE
)
_ASSIGNED = re.compile(r"password\s*=", re.IGNORECASE)


def asks_password(key: str) -> bool:
    """Return whether the value of a key would be a password.

    >>> asks_password("sslpassword"), asks_password("passfile"), asks_password("PGPASSWORD")
    (True, False, True)
    """
    return "password" in key.lower() and not _HARMLESS.fullmatch(key)


def holds_password(text: str) -> bool:
    """Return whether a value has a password within, such as `host=a password=...`."""
    return _ASSIGNED.search(text) is not None
