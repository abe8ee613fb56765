"""Chats on disk: a tree of messages for each conversation, searchable, never half-written."""

from .records import Conversation, Message, SearchHit
from .store import ConversationStore

__all__ = ["Conversation", "ConversationStore", "Message", "SearchHit"]
