"""Split SQL text into statements, as far as the lexer goes; nothing is interpreted.

Passwords in a statement, a command or a connection string become stars in what is recorded.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

# One lexeme that may hold a semicolon without ending a statement, or a word, or one character.
_LEXEME = re.compile(
    r"""
      --[^\n]*
    | /\*
    | (?<![\w$])[eE]'(?:[^'\\]|\\.|'')*'
    | '(?:[^']|'')*'
    | "(?:[^"]|"")*"
    | (?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$
    | (?P<word>[^\W\d][\w$]*)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
_CONTROL = frozenset({"BEGIN", "COMMIT", "ROLLBACK", "ABORT", "END"})
_PAIRS = frozenset({("START", "TRANSACTION"), ("PREPARE", "TRANSACTION")})
_STREAM = re.compile(r"\b(stdin|stdout)\b", re.IGNORECASE)
_COMMENT_EDGE = re.compile(r"/\*|\*/")

_URI = re.compile(r"(\w://[^\s:/?#@'\"]*:)[^\s'\"]*@")
_WORD = re.compile(r"pass(?:word|wd)", re.IGNORECASE)
_VALUE = re.compile(
    r"(pass(?:word|wd)[\"']?\s*(?:[=:>]+|\bto\b)\s*)(?:'[^']*'|\"[^\"]*\"|[^\s'\"]\S*)",
    re.IGNORECASE,
)
_LITERAL = re.compile(
    r"""
      \b[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)
    | '(?:[^']|'')*(?:'|\Z)
    | (?<![\w$])\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)
    | \b\d+\b | "[^"]*'[^"]*" | --[^\n]* | /\*.*?(?:\*/|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_STARS = "'***'"


class Statement(NamedTuple):
    """One statement without its semicolon; `line` (from 1) is the line of its first lexeme."""

    text: str
    line: int
    first_words: tuple[str, ...]
    """Up to two leading words, in capitals."""

    @property
    def ends(self) -> str | None:
        """The first word of what begins or ends a transaction; None for anything else."""
        first = self.first_words[:1]
        return first[0] if first and (first[0] in _CONTROL or self.first_words in _PAIRS) else None

    @property
    def streams(self) -> bool:
        """Whether it is a COPY from or to the client."""
        return self.first_words[:1] == ("COPY",) and _STREAM.search(self.text) is not None


def _matches(text: str) -> Iterator[re.Match[str]]:
    position = 0
    while (match := _LEXEME.match(text, position)) is not None:
        position = match.end()
        if match[0] == "/*":
            position = _end_of_comment(text, position)
        elif not match[0].isspace() and not match[0].startswith("--"):
            yield match


def split(text: str) -> list[Statement]:
    r"""Split at semicolons outside strings, comments, parentheses and BEGIN ATOMIC bodies.

    >>> [s.text for s in split("select ';'; -- a;\nselect $$;$$;")]
    ["select ';'", '-- a;\nselect $$;$$']
    """
    found: list[Statement] = []
    start = 0
    first: int | None = None
    words: list[str] = []
    parentheses = depth = 0
    for match in _matches(text):
        lexeme = match[0]
        if lexeme == ";" and parentheses == 0 and depth == 0:
            if first is not None:
                found.append(_statement(text, start, match.start(), first, words))
            start, first, words = match.end(), None, []
            continue
        if first is None:
            first = match.start()
        parentheses += (lexeme == "(") - (lexeme == ")")
        if match["word"]:
            words.append(lexeme.upper())
            depth = _depth(words, depth)
    if first is not None:
        found.append(_statement(text, start, len(text), first, words))
    return found


def _depth(words: list[str], depth: int) -> int:
    """Count nested BEGIN ATOMIC ... END; CASE ends with END too, so it counts within one."""
    if depth == 0:
        return int(words[0] == "CREATE" and words[-2:] == ["BEGIN", "ATOMIC"])
    return depth + (words[-1] == "CASE") - (words[-1] == "END")


def _statement(text: str, start: int, end: int, first: int, words: list[str]) -> Statement:
    return Statement(text[start:end].strip(), text.count("\n", 0, first) + 1, tuple(words[:2]))


def _end_of_comment(text: str, position: int) -> int:
    """Find the end of a block comment that began before `position`; they nest."""
    depth = 1
    while depth:
        edge = _COMMENT_EDGE.search(text, position)
        if edge is None:
            return len(text)
        depth += 1 if edge[0] == "/*" else -1
        position = edge.end()
    return position


def without_passwords(text: str) -> str:
    """Give a text with stars for the passwords that SQL, a command or a URI has in it.

    Where it names a password at all, every string, number and comment in it may be one.

    >>> without_passwords("ALTER ROLE ann PASSWORD 'it''s'; SELECT 1 AS x -- new")
    "ALTER ROLE ann PASSWORD '***'; SELECT '***' AS x '***'"
    >>> without_passwords("psql postgresql://ann:hunter2@h/app; PGPASSWORD=hunter2 psql")
    "psql postgresql://ann:***@h/app; PGPASSWORD='***' psql"

    A string may have such a value in it, and a value in a shell may have a quote before it.

    >>> without_passwords("CONNECTION 'password=a' PUBLICATION p; ALTER ROLE b PASSWORD 'c'")
    "CONNECTION '***' PUBLICATION p; ALTER ROLE b PASSWORD '***'"
    """
    text = _URI.sub(r"\1***@", text)
    if not _WORD.search(text):
        return text
    spans = [found.span() for found in _LITERAL.finditer(text)]
    spans += [(found.end(1), found.end()) for found in _VALUE.finditer(text)]
    masked, at = "", 0
    for begin, end in sorted(spans):
        if begin >= at:
            masked += text[at:begin] + _STARS
        at = max(at, end)
    return masked + text[at:]
