"""Write the router's face for threads from that for asyncio: `python -m tests.router_face`.

One face is written by hand, and this is all that the other one differs in. psycopg makes its
synchronous half in the same way (its `tools/async_to_sync.py`).
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import shardctl.router

_PACKAGE = Path(shardctl.router.__path__[0])
SOURCE = _PACKAGE / "asynchronous.py"
FILE = _PACKAGE / "database.py"

_HEAD = '"""The face for threads; `make docs` writes it from that for asyncio: do not edit."""'

_RULES = (
    (r'^""".*?"""', _HEAD),
    (r"; it belongs to one event loop\.", ", which may share it."),
    (r"applications with asyncio", "applications with threads"),
    (r"\n\n +Raises AnotherLoop, .*?\n +\"\"\"", '"""'),
    (r": for an `async for`", ""),
    (r"  # noqa: ASYNC109  # .*", ""),
    (r"AsyncGenerator\[Any, None\]", "Generator[Any, None, None]"),
    (r"asynccontextmanager", "contextmanager"),
    (r"        Awaitable,\n", ""),
    (r"Awaitable\[(\w+)\]", r"\1"),
    (r"AsyncShardedDatabase", "ShardedDatabase"),
    (r"Async(Connection|Generator|Iterator|Leased|Scattered)", r"\1"),
    (r"InTasks", "InThreads"),
    (r"router\.tasks", "router.threads"),
    (r"__a(enter|exit|iter)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\ban `(with|for)`", r"a `\1`"),
    (r"\bawait ", ""),
)


def written() -> str:
    """Give the text of the face for threads, as ruff formats it."""
    text = SOURCE.read_text()
    for pattern, new in _RULES:
        text = re.sub(pattern, new, text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format"]):
        given = [*ruff, *command, "--stdin-filename", str(FILE), "-"]
        done = subprocess.run(given, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


if __name__ == "__main__":
    FILE.write_text(written())
