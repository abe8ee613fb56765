"""Chats leave as Markdown and JSON, and come in from other programs' files; hostile files change nothing."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localllm.conversations import ConversationStore, import_chats, to_json, to_markdown
from localllm.conversations.importing import parse
from localllm.errors import RequestError


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ConversationStore]:
    store = ConversationStore(tmp_path / "chats.sqlite3")
    yield store
    store.close()


def turns(store: ConversationStore, chat: int) -> list[tuple[str, str]]:
    return [(m.role, m.content) for m in store.path_to(store.conversation(chat).leaf)]


def load(store: ConversationStore, document: Any) -> list[int]:
    return import_chats(store, json.dumps(document).encode(), model="m")


def test_our_own_json_brings_every_branch_back(store: ConversationStore) -> None:
    chat = store.create("smollm2:135m", title="Title", system="be brief", sampling={"temperature": 0.1})
    question = store.add(chat, None, "user", "q")
    first = store.add(chat, question, "assistant", "first")
    store.write(first, "first", reasoning="because", state="complete")
    store.add(chat, question, "assistant", "second", state="partial")
    exported = to_json(store, chat)
    assert json.loads(exported)["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "second"},
    ]
    (copy,) = import_chats(store, exported.encode(), model="other")
    conversation = store.conversation(copy)
    assert (conversation.title, conversation.model, conversation.system) == ("Title", "smollm2:135m", "be brief")
    assert conversation.sampling == {"temperature": 0.1}
    assert turns(store, copy) == [("user", "q"), ("assistant", "second")]
    end = store.path_to(conversation.leaf)[-1]
    assert end.state == "partial"
    assert [(m.content, m.reasoning) for m in store.branches(end.id)] == [("first", "because"), ("second", "")]


def test_markdown_holds_what_a_person_reads(store: ConversationStore) -> None:
    chat = store.create("m", title="A chat", system="sys")
    question = store.add(chat, None, "user", "```py\nx\n```")
    answer = store.add(chat, question, "assistant", "")
    store.write(answer, "**yes**", reasoning="hm", state="partial")
    text = to_markdown(store, chat)
    assert text.startswith("# A chat\n")
    for part in ("## System\n\nsys", "## You\n\n```py\nx\n```", "<summary>Thinking</summary>", "**yes** *(stopped)*"):
        assert part in text


@pytest.mark.parametrize(
    "document",
    [
        [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        {"messages": [{"role": "developer", "content": "s"},
                      {"role": "user", "content": [{"type": "text", "text": "a"}]},
                      {"role": "assistant", "content": "b"}]},
        {"model": "llama3", "stream": False, "system": "s",
         "messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "thinking": "t"}]},
        {"system": "s", "conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    ],
)  # fmt: skip
def test_lists_of_messages(store: ConversationStore, document: Any) -> None:
    (chat,) = load(store, document)
    assert turns(store, chat) == [("user", "a"), ("assistant", "b")]
    assert store.conversation(chat).system == "s"
    assert store.conversation(chat).title == "a"


def test_one_chat_a_line(store: ConversationStore) -> None:
    line = json.dumps({"messages": [{"role": "user", "content": "a"}]})
    assert len(import_chats(store, f"{line}\n{line}\n".encode(), model="m")) == 2


def test_a_chatgpt_tree_with_two_answers(store: ConversationStore) -> None:
    def node(parent: str | None, role: str, *parts: Any) -> dict[str, Any]:
        content = {"content_type": "text", "parts": list(parts)}
        return {"parent": parent, "message": {"author": {"role": role}, "content": content}}

    mapping = {
        "root": {"parent": None, "message": None},
        "sys": node("root", "system", ""),
        "q": node("sys", "user", "question", {"content_type": "image_asset_pointer"}),
        "a1": node("q", "assistant", "one"),
        "a2": node("q", "assistant", "two"),
        "lost": {"parent": "lost", "message": {}},
    }
    (chat,) = load(store, [{"title": "T", "mapping": mapping, "current_node": "a1"}])
    assert turns(store, chat) == [("user", "question\n\n[image_asset_pointer left out]"), ("assistant", "one")]
    assert [m.content for m in store.branches(store.path_to(store.conversation(chat).leaf)[-1].id)] == ["one", "two"]


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"messages": [1]}',
        b'{"messages": [{"role": "user", "content": 5}]}', b'{"format": "localllm-chat", "version": 99}',
        b'{"format": "localllm-chat", "version": 1, "tree": [{"role": "root"}]}', b"a\nb\n", b"null",
    ],
)  # fmt: skip
def test_files_that_are_no_chat_are_refused_with_a_reason(store: ConversationStore, data: bytes) -> None:
    with pytest.raises(RequestError):
        import_chats(store, data, model="m")
    assert store.conversations() == []


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(
                    ["messages", "mapping", "role", "content", "parts", "parent", "message", "author", "x"]
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_any_json_is_read_or_refused(document: Any) -> None:
    with contextlib.suppress(RequestError):
        parse(json.dumps(document).encode())
