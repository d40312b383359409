"""Passwords in a statement, a command or a connection string: stars replace them in records."""

from __future__ import annotations

import re

from shardctl.postgres import split

_URI = re.compile(r"(\w://[^\s:/?#@'\"]*:)[^\s'\"]*@")
_WORD = re.compile(r"pass(?:word|wd)", re.IGNORECASE)
_KEY = re.compile(r"pass(?:word|wd)[\"']?\s*([=:>]*)\s*[\"']?$", re.IGNORECASE)
"""At the end of a word, or of what looks like a string in a command of a shell."""
_VALUE = re.compile(r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")
_QUOTED = re.compile(r"([eE]?'|\"|(?P<tag>\$\w*\$)|--|/\*)(.*?)((?P=tag)|['\"]|\*/)?", re.DOTALL)
_DEEPEST = 8
"""So many quotations within each other are read; what is deeper is left out."""
_STARS = "'***'"


def without_passwords(text: str, *, depth: int = 0) -> str:
    """Give a text with stars for the passwords that SQL or a connection string has in it.

    >>> without_passwords("ALTER ROLE ann PASSWORD /* new */ 'it''s'; SELECT 1")
    "ALTER ROLE ann PASSWORD /* new */ '***'; SELECT 1"
    >>> without_passwords("psql postgresql://ann:hunter2@h/app 'host=h password=hunter2'")
    "psql postgresql://ann:***@h/app 'host=h password=''***'''"
    """
    text = _URI.sub(r"\1***@", text)
    if not _WORD.search(text):
        return text
    if depth > _DEEPEST:
        return "***"
    shown: list[str] = []
    end = 0
    key = operator = False
    for start, stop in split.spans(text):
        if start < end:  # within a value
            continue
        lexeme, end = text[start:stop], stop
        quoted = _QUOTED.fullmatch(lexeme)
        if lexeme.isspace() or lexeme.startswith(("--", "/*")):
            shown.append(_inner(quoted, depth) if quoted else lexeme)
        elif key and (lexeme in "'$" or (quoted and (operator or lexeme[0] != '"'))):
            shown.append(_STARS)
            operator = False
            end = len(text) if len(lexeme) == 1 else stop  # a quotation that does not end
        elif key and (lexeme in "=:>&\\" or lexeme.lower() in ("e", "n", "u")):
            operator = operator or lexeme in "=:>"
            shown.append(lexeme)
        elif operator and (value := _VALUE.match(text, start)):
            shown.append(_STARS)
            key, operator, end = False, False, value.end()
        else:
            found = _KEY.search(lexeme)
            key, operator = found is not None, bool(found and found[1])
            shown.append(_inner(quoted, depth) if quoted else lexeme)
    return "".join(shown) + text[end:]


def _inner(quoted: re.Match[str], depth: int) -> str:
    """Mask what is in a string, a quoted name or a comment."""
    opening, _, text, closing = quoted.groups(default="")
    if not opening.endswith("'"):
        return f"{opening}{without_passwords(text, depth=depth + 1)}{closing}"
    masked = without_passwords(text.replace("''", "'"), depth=depth + 1).replace("'", "''")
    return f"{opening}{masked}{closing}"
