"""Write the router for threads from that for asyncio: `python -m tests.router_face`.

One is written by hand, and this is all that the other one differs in. psycopg makes its
synchronous half in the same way (its `tools/async_to_sync.py`). What threads and tasks do
differently has two names in `concurrency.py` and `connections.py`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parents[1] / "shardctl" / "router"
SOURCE = _PACKAGE / "tasks"
TARGET = _PACKAGE / "threads"

_RULES = (
    (r'\A"""The router for asyncio, from .*?"""', '"""The router for threads."""'),
    (r'\A"""(.*?)"""', r'"""\1"""\n\n# `make docs` writes this from router/tasks: do not edit.'),
    (r"; it belongs to one event loop\.", ", which may share it."),
    (r"applications with asyncio", "applications with threads"),
    (r"\n\n +Raises AnotherLoop, .*?\n +\"\"\"", '"""'),
    (r", AnotherLoop\b", ""),
    (r"  # noqa: ASYNC109  # .*", ""),
    (r"\bAwaitable\[((?:[^\[\]]|\[[^\]]*\])*)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\bAsync(?=[A-Z])", ""),
    (r"\basynccontextmanager", "contextmanager"),
    (r"\bpush_async_callback\b", "callback"),
    (r"\bA(Lock|Loop)\b", r"\1"),
    (r"\ba_self\b", "myself"),
    (r"\ba_(held|first|together)\b", r"\1"),
    (r"\basleep\b", "sleep"),
    (r"router\.tasks", "router.threads"),
    (r"__a(enter|exit)__", r"__\1__"),
    (r"\basync (def|with|for)\b", r"\1"),
    (r"\ban `with`", "a `with`"),
    (r"\(await ([\w.]+\([^()]*\))\)", r"\1"),
    (r"\bawait ", ""),
)


def written(name: str) -> str:
    """Give the text of a file of the router for threads, as ruff formats it."""
    text = (SOURCE / name).read_text()
    for pattern, new in _RULES:
        text = re.sub(pattern, new, text)
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check", "--select", "I", "--fix-only", "--quiet"], ["format"]):
        given = [*ruff, *command, "--stdin-filename", str(TARGET / name), "-"]
        done = subprocess.run(given, input=text, capture_output=True, text=True, check=True)
        text = done.stdout
    return text


def names() -> list[str]:
    """List the files."""
    return sorted(path.name for path in SOURCE.glob("*.py"))


if __name__ == "__main__":
    for name in names():
        (TARGET / name).write_text(written(name))
