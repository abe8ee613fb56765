"""A chat without a screen: a model behind a small protocol, turns kept as they grow, thinking told from answering."""

from .backend import ChatBackend, ContextState
from .reasoning import ReasoningSplitter
from .session import AnswerDelta, AnswerFinished, ChatSession, PromptRead

__all__ = [
    "AnswerDelta",
    "AnswerFinished",
    "ChatBackend",
    "ChatSession",
    "ContextState",
    "PromptRead",
    "ReasoningSplitter",
]
