"""Chats on disk: a tree of messages for each conversation, searchable, never half-written."""

from .caches import ChatCaches
from .exporting import to_json, to_markdown
from .importing import import_chats
from .records import Conversation, Message, SearchHit
from .store import ConversationStore

__all__ = [
    "ChatCaches",
    "Conversation",
    "ConversationStore",
    "Message",
    "SearchHit",
    "import_chats",
    "to_json",
    "to_markdown",
]
