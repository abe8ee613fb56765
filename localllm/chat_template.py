"""From a conversation to the ids that a model was trained to read, by the template in the model's file.

Templates are untrusted code: they run in a sandbox with limits of time and size (`localllm.templates`). Messages are
untrusted text: whatever they contain, no letter of theirs becomes part of a control token.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localllm.errors import ConfigurationError, RequestError
from localllm.tokenizer import Segment, Tokenizer

if TYPE_CHECKING:
    from os import PathLike
    from types import CodeType

    from localllm.gguf_io import GGUFFile, Metadata
    from localllm.templates.text import Text

__all__ = ["ChatTemplate", "RenderedChat", "Segment", "check_variables", "encode_chat", "render_chat", "template_names"]

LONGEST_SOURCE = 128 * 1024
_KEY = "tokenizer.chat_template"
_TOOL_USE = "tool_use"
_GUESS = "The model's file has no chat template. ChatML is used, because its vocabulary has <|im_start|>."
_PROBE = ({"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "x"})
_CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True, slots=True)
class RenderedChat:
    """A rendered conversation. `notes` say, in words for the user, how it had to be changed for the template."""

    segments: tuple[Segment, ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The whole prompt, as one string."""
        return "".join(segment.text for segment in self.segments)


class ChatTemplate:
    """A template, compiled when it is first used.

    `bos_token`, `eos_token` and `special_tokens` (more of them, by the name that templates use) are texts; `now` fixes
    the clock. `warning` is set where the template is a guess; `tool_use` is the one to take when there are tools.
    """

    def __init__(
        self,
        source: str,
        bos_token: str = "",
        eos_token: str = "",
        now: datetime | None = None,
        *,
        special_tokens: Mapping[str, str] | None = None,
        warning: str | None = None,
        tool_use: ChatTemplate | None = None,
    ) -> None:
        self.source = source
        self.warning = warning
        self.tool_use = tool_use
        self._special_tokens = {**(special_tokens or {}), "bos_token": bos_token, "eos_token": eos_token}
        self._now = now
        self._code: CodeType | None = None
        self._keeps_track: bool | None = None

    @classmethod
    def from_gguf(
        cls, file: str | Path | GGUFFile, tokenizer: Tokenizer, name: str | None = None, now: datetime | None = None
    ) -> ChatTemplate:
        """The template of a model file: the default one, which uses `tool_use` where the file has it, or one by name.

        A file without a template gives ChatML, with a warning, if its vocabulary has <|im_start|>. RequestError: no
        template, or none of this name; the text says what to do.
        """
        if not isinstance(file, (str, Path)):
            return cls._from_metadata(file.metadata, tokenizer, name, now)
        from localllm.gguf_io import open_gguf

        with open_gguf(file, metadata_only=True) as opened:
            return cls._from_metadata(opened.metadata, tokenizer, name, now)

    @classmethod
    def from_file(cls, path: str | PathLike[str], tokenizer: Tokenizer) -> ChatTemplate:
        """A template of the user's own; ConfigurationError when the file cannot be read."""
        try:
            with Path(path).open(encoding="utf-8", newline="") as file:
                source = file.read(LONGEST_SOURCE + 1)
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"the chat template {path} cannot be read: {error}") from None
        return cls(source, *_bos_and_eos(tokenizer))

    @classmethod
    def _from_metadata(
        cls, metadata: Metadata, tokenizer: Tokenizer, name: str | None, now: datetime | None
    ) -> ChatTemplate:
        def make(source: str, **more: Any) -> ChatTemplate:
            return cls(source, *_bos_and_eos(tokenizer), now, **more)

        names = template_names(metadata)
        if name is not None and name not in names:
            found = ", ".join(names) or "none at all"
            raise RequestError(f"the model has no chat template named {name!r}", hint=f"It has: {found}.")
        if name is not None and name != "default":
            return make(metadata.string(f"{_KEY}.{name}"))
        tool_use = make(metadata.string(f"{_KEY}.{_TOOL_USE}")) if _TOOL_USE in names else None
        if "default" in names:
            return make(metadata.string(_KEY), tool_use=tool_use if name is None else None)
        if "<|im_start|>" in tokenizer.special_tokens:
            return make(_CHATML, warning=_GUESS)
        raise RequestError(
            "the model's file has no chat template, so it is not known how to put a conversation to it",
            hint="Give a Jinja template with --chat-template FILE (or the setting chat_template), or do without chat: "
            "`localllm run --raw`, or /v1/completions.",
        )

    def keeps_track(self, tokenizer: Tokenizer) -> bool:
        """Whether the control tokens that the template writes are known to be its own.

        A template that builds them in a way that loses their origin (by `format`, say) is found out on a small
        conversation; the answer is remembered.
        """
        if self._keeps_track is None:
            try:
                segments = self.render_segments(_PROBE)
            except RequestError:
                return True
            text = "".join(segment.text for segment in segments)
            self._keeps_track = tokenizer.encode_segments(segments) == tokenizer.encode(text, parse_special=True)
        return self._keeps_track

    def check(self) -> None:
        """Compile the template now; RequestError says what is wrong with it and in which line."""
        self._compiled()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation, exactly as the template makes it of these messages.

        More keywords are variables for the template. RequestError: the template refuses the messages, fails, or needs
        too much time or space.
        """
        return "".join(
            segment.text for segment in self.render_segments(messages, tools, add_generation_prompt, **kwargs)
        )

    def render_segments(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> list[Segment]:
        """As `render`, in parts: those that the template wrote, and those that come from messages and tools."""
        if tools and self.tool_use is not None:
            return self.tool_use.render_segments(messages, tools, add_generation_prompt, **kwargs)
        from localllm.templates.messages import with_trusted_roles

        variables = {
            "documents": None,
            **kwargs,
            "messages": with_trusted_roles(messages),
            "tools": tools or None,
            "add_generation_prompt": add_generation_prompt,
        }
        return _segments(self._run(variables))

    def _run(self, variables: dict[str, Any]) -> Text:
        from localllm.templates.rendering import run
        from localllm.templates.text import trust

        special = {name: trust(text) for name, text in self._special_tokens.items()}
        return run(self._compiled(), {**special, **variables}, self._clock())

    def _clock(self) -> Callable[[], datetime]:
        fixed = self._now
        return datetime.now if fixed is None else lambda: fixed

    def _compiled(self) -> CodeType:
        if self._code is None:
            from localllm.templates.rendering import compile_source

            self._code = compile_source(self.source, LONGEST_SOURCE)
        return self._code


def _bos_and_eos(tokenizer: Tokenizer) -> tuple[str, str]:
    bos, eos = ("" if token is None else tokenizer.token_text(token) for token in (tokenizer.bos_id, tokenizer.eos_id))
    return bos, eos


def check_variables(variables: Mapping[str, Any]) -> dict[str, Any]:
    """A request's own variables for a template; RequestError for a name that is taken."""
    taken = sorted(name for name in ("messages", "tools", "add_generation_prompt") if name in variables)
    if taken:
        raise RequestError(f"{taken[0]!r} cannot be set as a variable of the chat template", parameter=taken[0])
    return dict(variables)


def template_names(metadata: Metadata) -> list[str]:
    """The names of a file's templates; the one without a name is "default"."""
    named = [key.removeprefix(_KEY + ".") for key in metadata if key.startswith(_KEY + ".")]
    return (["default"] if _KEY in metadata else []) + named


def render_chat(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    /,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **kwargs: Any,
) -> RenderedChat:
    """Render messages as an application gives them: content may be None or a list of text parts, tool arguments JSON.

    A template that refuses the conversation gets it once more with system texts folded into the user's messages, or
    neighbours of one role joined, or both; the notes say so. RequestError: a message is wrong, or nothing helped (then
    it is the template's first answer).
    """
    from localllm.templates.environment import TemplateRefusal
    from localllm.templates.messages import check_messages, variants
    from localllm.templates.rendering import TemplateFailure

    chosen = template.tool_use if tools and template.tool_use is not None else template
    checked = check_messages(messages, knows_developer="developer" in chosen.source)
    first_answer: RequestError | None = None
    for variant, notes in variants(checked):
        try:
            segments = chosen.render_segments(variant, tools, add_generation_prompt, **kwargs)
        except (TemplateRefusal, TemplateFailure) as answer:
            first_answer = first_answer or answer
        else:
            return RenderedChat(tuple(segments), notes)
    raise first_answer or RequestError("the conversation could not be rendered", parameter="messages")


def encode_chat(
    template: ChatTemplate,
    tokenizer: Tokenizer,
    messages: Sequence[Mapping[str, Any]],
    /,
    tools: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = True,
    **kwargs: Any,
) -> list[int]:
    """Ids of a conversation (see `render_chat`).

    Control tokens stand only where the template wrote them, and there is one beginning token, or none where the model
    has none. Where a template mixes its words with those of messages beyond recognition, a message that contains the
    text of a control token is a RequestError.
    """
    rendered = render_chat(template, messages, tools, add_generation_prompt, **kwargs)
    chosen = template.tool_use if tools and template.tool_use is not None else template
    if chosen.keeps_track(tokenizer):
        return tokenizer.encode_chat_segments(rendered.segments)
    harmless = render_chat(template, _without_texts(messages), tools, add_generation_prompt, **kwargs)
    everything_counts = [tokenizer.encode_prompt(prompt.text) for prompt in (rendered, harmless)]
    controls = [[token for token in ids if tokenizer.is_control(token)] for ids in everything_counts]
    if controls[0] != controls[1]:
        raise RequestError(
            "a message contains the text of a control token, and this model's chat template mixes its own text with "
            "that of messages so that the two cannot be told apart",
            hint="Leave the control token out of the message.",
            parameter="messages",
        )
    return everything_counts[0]


def _without_texts(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [{**message, "content": "x" if message.get("content") else message.get("content")} for message in messages]


def _segments(text: Text) -> list[Segment]:
    from localllm.templates.text import plain

    letters = plain(text)
    segments, position = [], 0
    for start, end in (*text.trusted, (len(letters), len(letters))):
        if position < start:
            segments.append(Segment(letters[position:start], False))
        if start < end:
            segments.append(Segment(letters[start:end], True))
        position = end
    return segments
