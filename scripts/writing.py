"""Conversations that a ChatML model has with itself: the text that a drafter learns from.

Questions as in Magpie (https://arxiv.org/abs/2406.08464): the model goes on behind the mark of a user's turn, here with
the first words given, for left to itself a small model asks little else than for essays.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

import torch
from torch_llama import Model, Written, write

if TYPE_CHECKING:
    from localllm.tokenizer import Tokenizer

SYSTEM = "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
QUESTION, ANSWER, END = "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n", "<|im_end|>"
OPENERS = (
    "",
    "What is",
    "What is the difference between",
    "What are the main",
    "What happens if",
    "How do I",
    "How does",
    "How can I",
    "How do I learn to",
    "Why",
    "Why do",
    "When was",
    "Who was",
    "Where",
    "Which",
    "Explain",
    "Explain how",
    "Explain in simple terms what",
    "Describe",
    "Describe a",
    "Write a short story about",
    "Write a poem about",
    "Write a short",
    "Write an email to",
    "Write a letter to",
    "Write a function that",
    "Write a Python function that",
    "Write a program in",
    "Fix this code:\n",
    "Give me some advice on",
    "Give me five ideas for",
    "Give me three",
    "Give an example of",
    "Make a plan for",
    "Make a list of",
    "Summarise the following text:",
    "Rewrite this in plain words:",
    "Translate",
    "Compare",
    "Tell me about",
    "Tell me a",
    "Can you help me",
    "Can you explain",
    "Could you",
    "I am",
    "I want to",
    "I have a",
    "I need a recipe for",
    "My",
    "Is it",
    "Is it true that",
    "Are",
    "Do",
    "Does",
    "Should I",
    "List",
    "List the",
    "Name",
    "Suggest",
    "Recommend",
    "Help me",
    "Calculate",
    "Solve",
    "If",
    "The following",
    "Imagine",
    "Please",
    "Hello",
)
QUESTION_TOKENS, QUESTION_WARMTH, ANSWER_WARMTH = 64, 0.9, 0.7


def converse(model: Model, tokenizer: Tokenizer, batch: int, answer: int, device: str) -> Written:
    """Rows of answers to questions that the model asks itself; three of four answers are greedy."""

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_bos=False, parse_special=True))

    then, end = encode(ANSWER), encode(END)[0]
    openings = [encode(SYSTEM + QUESTION + OPENERS[index % len(OPENERS)]) for index in range(batch)]
    warmth = torch.full((batch,), QUESTION_WARMTH, device=device)
    asked = write(model, *padded(openings, device), QUESTION_TOKENS, warmth, end, vectors=False)
    questions: dict[int, list[int]] = defaultdict(list)
    for text, token in zip(asked.text.tolist(), asked.token.tolist(), strict=True):
        questions[text].append(token)
    whole = [openings[text] + own[:-1] + then for text, own in questions.items() if own[-1] == end]
    cut = [openings[text] + own + then for text, own in questions.items()]
    prompts = whole or cut  # in a tiny run no question may have come to its end
    temperature = torch.where(torch.arange(len(prompts), device=device) % 4 == 3, ANSWER_WARMTH, 0.0)
    return write(model, *padded(prompts, device), answer, temperature, end, vectors=True)


def padded(texts: list[list[int]], device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(tokens [B, T] with zeros in front, lengths [B])."""
    width = max(map(len, texts))
    tokens = torch.tensor([[0] * (width - len(text)) + text for text in texts], device=device)
    return tokens, torch.tensor([len(text) for text in texts], device=device)
