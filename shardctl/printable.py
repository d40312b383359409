"""Texts of others on a screen or in a log: what a terminal would obey is escaped."""

from __future__ import annotations

import re

_OBEYED = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters but tab and line end; other ends of lines; what reverses letters; halves."""
_BARE = re.compile(r"\n(?!  )")
_LINE_ENDS = str.maketrans({"\n": r"\n", "\r": r"\r", "\t": r"\t"})


def printable(text: str) -> str:
    r"""Escape what a terminal obeys, but not tabs and line ends.

    >>> printable("a\x1b[2J\u202e\tb\r\nc\rd")
    'a\\x1b[2J\\u202e\tb\r\nc\\rd'
    """
    return _OBEYED.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    line_end = match[0] == "\r" and match.string.startswith("\n", match.end())
    return match[0] if line_end else match[0].encode("unicode_escape").decode()


def one_line(text: str) -> str:
    r"""Escape line ends and tabs, too: no text looks like a line of shardctl's own.

    >>> one_line("a\r\nb\x1b\tc")
    'a\\r\\nb\\x1b\\tc'
    """
    return printable(text.translate(_LINE_ENDS))


def message(text: str) -> str:
    r"""Indent the lines behind the first, so that none looks like another message of shardctl.

    >>> message("a\nshardctl: b\n    c\r\x1b")
    'a\n  shardctl: b\n    c\\r\\x1b'
    """
    return printable(_BARE.sub("\n  ", text).replace("\r", r"\r"))


def in_json(text: str) -> str:
    r"""Escape in a JSON value what a terminal obeys; it remains the same value.

    >>> in_json('"\x9b\u202e"')
    '"\\u009b\\u202e"'
    """
    return _OBEYED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def in_copy(text: str) -> str:
    r"""Escape a value as COPY reads it: control characters by the bytes of their UTF-8.

    >>> in_copy("a\tb\\\x1b\x9b")
    'a\\tb\\\\\\x1b\\xc2\\x9b'
    """
    return _OBEYED.sub(
        lambda match: "".join(f"\\x{byte:02x}" for byte in match[0].encode(errors="surrogatepass")),
        text.translate(_COPY),
    )


_COPY = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
