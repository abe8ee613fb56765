"""Markdown that grows: however it is cut, the rows are those of the whole text; no row is wider than the screen."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len

from localllm.tui.markdown import MarkdownDocument

SAMPLE = """# Title

A paragraph with **strong**, *em*, `code` and [a link](https://example.org/x) that is
long enough to be wrapped, and 漢字かな交じり文 and 👨‍👩‍👧 too.

1. one
   ```python
   def f(x):
       return x  # [red]not markup[/red]
   ```
2. two
   - a
   - b

> quoted
> text

| name | value |
|------|-------|
| a | 1 |
| long name | `2` |

```text
first
\ttabbed
  ``
```

~~~
open [@click=app.quit]q[/]
"""


def shown(document: MarkdownDocument, width: int = 60) -> list[str]:
    return [row.text for row in document.rows(width)]


def grown(text: str, size: int) -> MarkdownDocument:
    document = MarkdownDocument(finished=False)
    for start in range(0, len(text), size):
        document.append(text[start : start + size])
        document.rows(33)
    document.finish()
    return document


def test_a_page(data_folder: object) -> None:
    rows = shown(MarkdownDocument(SAMPLE), 46)
    assert rows[:6] == [
        "Title",
        "",
        "A paragraph with strong, em, code and a link",
        "(https://example.org/x) that is long enough to",
        "be wrapped, and 漢字かな交じり文 and 👨‍👩‍👧 too.",
        "",
    ]
    text = "\n".join(rows)
    for part in (
        "1. one",
        "    def f(x):",
        "2. two",
        "   ◦ a",
        "▎ quoted",
        "long name │ 2",
        "    tabbed",
        "open [@click",
    ):
        assert part in text


@pytest.mark.parametrize("size", [1, 2, 3, 7, 50, 1000])
def test_the_cuts_do_not_matter(size: int) -> None:
    document = grown(SAMPLE, size)
    whole = MarkdownDocument(SAMPLE)
    assert document.rows(60) == whole.rows(60)
    assert [code.text for code in document.codes] == [code.text for code in whole.codes]
    assert [code.language for code in whole.codes] == ["python", "text", ""]


markdown = st.lists(
    st.sampled_from(
        ["\n", "\n\n", "# ", "- ", "1. ", "> ", "```", "```py\n", "~~~", "`", "**", "| a | b |\n|-|-|\n",
         "    ", "\t", "word ", "漢字", "x" * 30, "---\n", "*",
         "[a](b)", "![a](b)", "<b>", "\\", "👍🏽", "e\u0301", "[/red]"]
    ),
    max_size=25,
).map("".join)  # fmt: skip


@given(markdown, st.integers(1, 9), st.integers(1, 50))
@example("```\na\n``\n```", 1, 10)
@example("- a\n\n  - b\n\n```x", 2, 4)
def test_any_text_any_cut_any_width(text: str, size: int, width: int) -> None:
    document = grown(text, size)
    rows = document.rows(width)
    assert document.source == text
    if width >= 30:
        assert all(cell_len(row.text) <= width for row in rows)
    for row in rows:
        assert all(0 <= start <= end <= len(row.text) or row.fill for start, end, _ in row.spans)


lists = st.lists(
    st.sampled_from(
        ["\n", "\n\n", "- ", "* ", "1. ", "7) ", "> ", "```\n", "  ", "   ", "    ", "word ", "**b**",
         "---\n", "# ", "x\n", "- a\n", "1. b\n", "2. c\n"]
    ),
    max_size=30,
).map("".join)  # fmt: skip


@given(lists, st.integers(1, 9))
def test_items_that_settle_early_look_like_those_of_the_whole_list(text: str, size: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("localllm.tui.markdown.document.LONGEST_LIST", 0)
        document = grown(text, size)
    rows = [row.text.strip() for row in document.rows(60)]
    whole = [row.text.strip() for row in MarkdownDocument(text).rows(60)]
    assert [row for row in rows if row] == [row for row in whole if row]  # blank ones depend on later items


def test_code_is_coloured_when_it_is_done_and_now_and_then_before() -> None:
    document = MarkdownDocument(finished=False)
    document.append("```python\n")
    for number in range(7):
        document.append(f"def f{number}(): pass\n")
    assert not any("code-keyword" in str(row.spans) for row in document.rows(80))
    for number in range(30):
        document.append(f"def g{number}(): pass\n")
    coloured = sum("code-keyword" in str(row.spans) for row in document.rows(80))
    assert 7 < coloured < 38
    document.append("```\n")
    assert sum("code-keyword" in str(row.spans) for row in document.rows(80)) == 37


def coloured_lines(document: MarkdownDocument) -> int:
    return sum("code-keyword" in str(row.spans) for row in document.rows(80))


def test_a_long_block_is_coloured_slice_by_slice_and_ends_as_if_at_once() -> None:
    lines = [f"def f{number}(): pass  # " + "x" * (number % 90) for number in range(600)]
    document = MarkdownDocument("```python\n" + "\n".join(lines) + "\n```\n\nand more")
    first = coloured_lines(document)
    assert 0 < first < 600
    assert document.uncoloured
    counts = [first]
    while document.uncoloured:
        counts.append(coloured_lines(document))
    assert counts == sorted(counts)
    assert counts[-1] == coloured_lines(document) >= 600
    other = MarkdownDocument("```python\n" + "\n".join(lines) + "\n```\n\nand more")
    while other.rows(50) and other.uncoloured:
        pass
    assert other.rows(80) == document.rows(80)


@pytest.mark.parametrize("mark", ["-", "1."])
def test_of_a_long_list_only_the_last_item_is_open(mark: str) -> None:
    text = "".join(f"{mark} item {number}\n\n  ```py\n  x = {number}\n  ```\n" for number in range(200))
    text = text.replace("\n\n  ", "\n   ")
    grown_one = MarkdownDocument(finished=False)
    parsed = []
    for start in range(0, len(text), 40):
        grown_one.append(text[start : start + 40])
        parsed.append(len(grown_one.open_source))
    grown_one.append("\nAfter the list.\n\n- another\n")
    grown_one.finish()
    whole = MarkdownDocument(text + "\nAfter the list.\n\n- another\n")
    assert max(parsed) < 4000 < len(text)
    assert [row.text.strip() for row in grown_one.rows(60)] == [row.text.strip() for row in whole.rows(60)]
    assert [code.text for code in grown_one.codes] == [code.text for code in whole.codes]


def test_an_open_fence_is_never_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    document = MarkdownDocument("text\n\n```\n", finished=False)
    document.rows(80)
    (code,) = document.codes
    monkeypatch.setattr(document, "_parse", lambda **_: pytest.fail("parsed"))
    for number in range(100):
        document.append(f"line {number}\n")
    assert len(document.rows(80)) == 2 + 1 + 100 + 1
    assert document.codes == [code]
    assert code.text.startswith("line 0\nline 1\n")


def test_links_and_html_are_text() -> None:
    (row,) = MarkdownDocument("<script>x</script> [t](javascript:alert) [b](http://x.y)").rows(80)
    assert row.text == "<script>x</script> [t](javascript:alert) b (http://x.y)"
    assert all(not row.actions for row in MarkdownDocument(SAMPLE).rows(40) if "copy" not in row.text)
