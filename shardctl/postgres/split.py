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
_KEY = re.compile(r"pass(?:word|wd)[\"']?\s*([=:>]*)\s*(?:[\"']|\$\w*\$)?$", re.IGNORECASE)
"""At the end of a word, or of what looks like a string in a command of a shell."""
_VALUE = re.compile(r"(?:\([^()]*(?:\([^()]*\)[^()]*)*\)|\S)+")
_QUOTED = re.compile(r"([eE]?'|\"|(?P<tag>\$\w*\$)|--|/\*)(.*?)((?P=tag)|['\"]|\*/)?", re.DOTALL)
_SET = re.compile(r"\bSET\s+(?:(?:SESSION|LOCAL)\s+)?(?:[\w\"$]+\s*\.\s*)*$", re.IGNORECASE)
"""Before the name of a setting."""
_STRING = re.compile(r"[eE]?'|\$")
_SET_LENGTH = 200
_LEADS = "=:>&\\|"
_PREFIXES = frozenset({"e", "n", "u"})
"""Of a string."""
_TYPE = re.compile(r"[\w.()\[\]]+|\"[^\"]*\"")
_NUMBER = re.compile(r"[\d.]+")
_ENDS = frozenset({",", ";", "from", "as"})
"""Of an argument, or of a column."""
_DEEPEST = 8
"""So many quotations within each other are read; what is deeper is left out."""
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


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Give the beginning and the end of each lexeme, comment and white space: all of the text."""
    return ((match.start(), end) for match, end in _found(text))


def _matches(text: str) -> Iterator[re.Match[str]]:
    return (
        match
        for match, _ in _found(text)
        if not match[0].isspace() and not match[0].startswith(("--", "/*"))
    )


def _found(text: str) -> Iterator[tuple[re.Match[str], int]]:
    position = 0
    while (match := _LEXEME.match(text, position)) is not None:
        position = match.end()
        if match[0] == "/*":
            position = _end_of_comment(text, position)
        yield match, position


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
    reader = _Reader(text, depth)
    for start, stop in spans(text):
        if start >= end:  # not within a value
            told, end = reader.read(start, stop)
            shown.append(told)
    return "".join(shown) + text[end:]


class _Reader:
    """Reads one lexeme after the other, and knows whether it can be a password's value."""

    def __init__(self, text: str, depth: int) -> None:
        self._text, self._depth = text, depth
        self._key: int | None = None
        """Where the name of a password is, which the value may follow."""
        self._operator = self._cast = False
        self._argument: int | None = None
        """How deep in parentheses of the argument that follows the name of a password."""

    def read(self, start: int, stop: int) -> tuple[str, int]:
        """Give what is shown of a lexeme, or of the value that begins there, and where it ends."""
        lexeme = self._text[start:stop]
        quoted = _QUOTED.fullmatch(lexeme)
        if not (lexeme.isspace() or lexeme.startswith(("--", "/*"))):
            value = self._value(lexeme, start, stop, string=quoted is not None)
            if value is not None:
                return _STARS, value
            self._step(lexeme, start)
        return _inner(quoted, self._depth) if quoted else lexeme, stop

    def _value(self, lexeme: str, start: int, stop: int, *, string: bool) -> int | None:
        """Give where the value of a password ends that begins here; None where none does."""
        if lexeme in "'$":  # a quotation that does not end
            return len(self._text) if self._key is not None or self._argument is not None else None
        if self._argument is not None:
            number = _NUMBER.match(self._text, start)
            return number.end() if number else stop if string and lexeme[0] != '"' else None
        if self._key is None or self._cast:
            return None
        if string and (self._operator or lexeme[0] != '"'):
            self._operator = False
            return stop
        leads = lexeme in _LEADS or lexeme.lower() in _PREFIXES
        if self._operator and not leads and (found := _VALUE.match(self._text, start)):
            self._key, self._operator = None, False
            return found.end()
        return None

    def _step(self, lexeme: str, start: int) -> None:
        """Note what a lexeme says of those that follow."""
        if self._argument is not None:
            depth = self._argument + (lexeme in "([") - (lexeme in ")]")
            over = depth < 0 or (depth == 0 and lexeme.lower() in _ENDS)
            self._argument = None if over else depth
        elif self._key is None or not self._leads(lexeme, start, self._key):
            found = _KEY.search(lexeme)
            self._key = start if found else None
            self._operator, self._cast = bool(found and found[1]), False

    def _leads(self, lexeme: str, start: int, key: int) -> bool:
        """Return whether the value may still follow."""
        if lexeme == "," and _STRING.match(self._text, key):
            self._key, self._operator, self._cast, self._argument = None, False, False, 0
        elif lexeme in _LEADS:
            self._cast = lexeme == ":" and self._text[start - 1] == ":"
            self._operator = not self._cast and (self._operator or lexeme in "=:>")
        elif lexeme.lower() == "to":
            before = max(0, key - _SET_LENGTH)
            self._operator = _SET.search(self._text, before, key) is not None
            return self._operator
        else:
            typed = self._cast and _TYPE.fullmatch(lexeme) is not None
            return typed or lexeme.lower() in _PREFIXES
        return True


def _inner(quoted: re.Match[str], depth: int) -> str:
    """Mask what is in a string, a quoted name or a comment."""
    opening, _, text, closing = quoted.groups(default="")
    if not opening.endswith("'"):
        return f"{opening}{without_passwords(text, depth=depth + 1)}{closing}"
    masked = without_passwords(text.replace("''", "'"), depth=depth + 1).replace("'", "''")
    return f"{opening}{masked}{closing}"
