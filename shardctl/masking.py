"""Passwords in a statement: they are removed from logs and events."""

from __future__ import annotations

import re

# Behind the word a string, in every way that SQL writes one, also within another (`''x''`), or
# what libpq takes.
_PASSWORD = re.compile(
    r"(password\s*=?\s*)(?:(?:''[^']*''|(?:e|u&)?'(?:[^'\\]|''|\\.)*'|(\$\w*\$).*?\2)"
    r"|(?<==)[^\s'\";)]+|(?<==\s)[^\s'\";)]+)",
    re.IGNORECASE | re.DOTALL,
)


def without_passwords(text: str) -> str:
    """Give a text with stars for the passwords that SQL or a connection string has in it.

    >>> without_passwords("ALTER ROLE ann PASSWORD 'it''s'; SELECT 1")
    "ALTER ROLE ann PASSWORD '***'; SELECT 1"
    """
    return _PASSWORD.sub(r"\1'***'", text)
