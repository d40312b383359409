"""Commands are taken out of pages as a reader would type them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fixtures.network.pages import Command, commands

if TYPE_CHECKING:
    from pathlib import Path

PAGE = """\
<!-- tested: one -->
```console
a# cat > /etc/file <<'EOF'
a line
EOF
b$ true
```

1. In a list:

   <!-- tested: one on a b -->
   ```console
   # first
   # second
     more
   ```

```console
a# not tested
```
"""


def test_commands_come_in_order_with_the_lines_that_belong_to_them(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert commands(page, "one") == [
        Command("a", root=True, text="cat > /etc/file <<'EOF'\na line\nEOF"),
        Command("b", root=False, text="true"),
        Command("a", root=True, text="first"),
        Command("a", root=True, text="second\n  more"),
        Command("b", root=True, text="first"),
        Command("b", root=True, text="second\n  more"),
    ]


def test_a_page_without_the_block_or_with_a_prompt_without_a_machine_is_an_error(
    tmp_path: Path,
) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace("a line", "# a comment"))
    with pytest.raises(AssertionError, match="two"):
        commands(page, "two")
    with pytest.raises(AssertionError, match="comment"):
        commands(page, "one")
