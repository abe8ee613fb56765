"""What requests may hold: typed fields with their meaning. Documentation and OpenAPI are made of these classes."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

Text = str | None
TokenIds = Annotated[list[Annotated[int, Meta(ge=0)]], Meta(min_length=1)]


class StreamOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """What a stream holds besides the answer."""

    include_usage: Annotated[bool | None, Meta(description="One more chunk, without choices, with the counts.")] = None
    include_obfuscation: Annotated[bool | None, Meta(description="Accepted; nothing is ever padded.")] = None


class Sampling(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields that chat and plain completions share."""

    model: Annotated[str, Meta(description="Name of a served model, see /v1/models.")]
    max_tokens: Annotated[
        int | None, Meta(description="Tokens to generate at most; default: until the end or a full context.")
    ] = None
    temperature: Annotated[float | None, Meta(description="0 always takes the likeliest token. Default 1.")] = None
    top_p: Annotated[float | None, Meta(description="Only the likeliest tokens up to this probability; 1 is off.")] = (
        None
    )
    top_k: Annotated[int | None, Meta(description="Only the k likeliest tokens; 0 or less is off.")] = None
    min_p: Annotated[float | None, Meta(description="Only tokens of this share of the best probability; 0 is off.")] = (
        None
    )
    typical_p: Annotated[float | None, Meta(description="Locally typical sampling; 1 is off.")] = None
    repetition_penalty: Annotated[
        float | None, Meta(description="Above 1: avoid the last `penalty_last_n` tokens; 1 is off.")
    ] = None
    presence_penalty: Annotated[float | None, Meta(description="-2 to 2: avoid tokens that came before.")] = None
    frequency_penalty: Annotated[float | None, Meta(description="-2 to 2: the same, more with each occurrence.")] = None
    penalty_last_n: Annotated[
        int | None, Meta(description="Tokens that penalties look at: -1 all, 0 none. Default 64.")
    ] = None
    dry_multiplier: Annotated[float | None, Meta(description="Strength of DRY against repetition; 0 is off.")] = None
    dry_base: Annotated[float | None, Meta(description="Growth of DRY with the length repeated. Default 1.75.")] = None
    dry_allowed_length: Annotated[int | None, Meta(description="Tokens that DRY lets repeat. Default 2.")] = None
    dry_sequence_breakers: Annotated[
        Annotated[list[str], Meta(max_length=64)] | None, Meta(description="Texts at which DRY starts anew.")
    ] = None
    xtc_probability: Annotated[float | None, Meta(description="How often XTC drops the top choices; 0 is off.")] = None
    xtc_threshold: Annotated[
        float | None, Meta(description="Probability that makes a top choice for XTC. Default 0.1.")
    ] = None
    logit_bias: Annotated[
        dict[str, float] | None,
        Meta(description="Token id -> -100 to 100, added to the raw logit; -100 bans, 100 forces."),
    ] = None
    seed: Annotated[
        int | None, Meta(description="The same seed gives the same text; 0 is a seed, null or -1 draws one.")
    ] = None
    stop: Annotated[
        Annotated[str, Meta(min_length=1)]
        | Annotated[list[Annotated[str, Meta(min_length=1)]], Meta(max_length=16)]
        | None,
        Meta(description="Texts before which the answer ends; a text or up to 16 of them."),
    ] = None
    ignore_eos: Annotated[bool | None, Meta(description="Go on after the model's own end.")] = None
    n: Annotated[
        Annotated[int, Meta(ge=1, le=64)] | None,
        Meta(description="Answers to the same prompt, with seeds seed, seed + 1, ..."),
    ] = None
    stream: Annotated[bool | None, Meta(description="Send the answer as server-sent events while it grows.")] = None
    stream_options: Annotated[StreamOptions | None, Meta(description="Only with `stream`.")] = None
    priority: Annotated[
        Annotated[int, Meta(ge=-100, le=100)] | None, Meta(description="Higher goes first; default 0.")
    ] = None
    timeout: Annotated[
        Annotated[float, Meta(gt=0, le=86400)] | None,
        Meta(description="Seconds after which the answer is ended as it is."),
    ] = None
    regex: Annotated[
        Annotated[str, Meta(max_length=65536)] | None,
        Meta(description="The answer must match this regular expression."),
    ] = None
    grammar: Annotated[
        Annotated[str, Meta(max_length=262144)] | None,
        Meta(description="The answer must follow this grammar (Lark or GBNF)."),
    ] = None


class TextPart(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A part of a message."""

    text: str
    cache_control: dict[str, Any] | None = None  # sent by some clients; prefixes are always cached


Content = str | list[TextPart]


class SystemMessage(Struct, frozen=True, tag_field="role", tag="system", forbid_unknown_fields=True):
    """Instructions."""

    content: Content
    name: str | None = None


class DeveloperMessage(Struct, frozen=True, tag_field="role", tag="developer", forbid_unknown_fields=True):
    """Instructions, under their newer name."""

    content: Content
    name: str | None = None


class UserMessage(Struct, frozen=True, tag_field="role", tag="user", forbid_unknown_fields=True):
    """What the user said."""

    content: Content
    name: str | None = None


class CalledFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """The function of a call; `arguments` is JSON in a string."""

    name: str
    arguments: str


class PastToolCall(Struct, frozen=True, forbid_unknown_fields=True):
    """A call that an earlier answer made."""

    id: str
    function: CalledFunction
    type: str = "function"
    index: int | None = None


class AssistantMessage(Struct, frozen=True, tag_field="role", tag="assistant", forbid_unknown_fields=True):
    """An earlier answer; the last one is continued. Fields of our own replies are taken back as they are."""

    content: Content | None = None
    reasoning_content: str | None = None
    tool_calls: list[PastToolCall] | None = None
    name: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None
    function_call: None = None


class ToolMessage(Struct, frozen=True, tag_field="role", tag="tool", forbid_unknown_fields=True):
    """What a called tool gave."""

    content: Content
    tool_call_id: str
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class FunctionDefinition(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call; `parameters` is a JSON schema of its arguments."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Struct, frozen=True, forbid_unknown_fields=True):
    """A tool; functions are the only kind."""

    function: FunctionDefinition
    type: Annotated[str, Meta(pattern="^function$")]


class NamedFunction(Struct, frozen=True, forbid_unknown_fields=True):
    """The name of a function."""

    name: str


class NamedTool(Struct, frozen=True, forbid_unknown_fields=True):
    """The tool that must be called."""

    function: NamedFunction
    type: Annotated[str, Meta(pattern="^function$")] = "function"


class TextFormat(Struct, frozen=True, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Free text."""


class JsonObjectFormat(Struct, frozen=True, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class NamedSchema(Struct, frozen=True, forbid_unknown_fields=True):
    """A JSON schema; it is always followed strictly."""

    name: str
    schema: dict[str, Any] | bool | None = None
    description: str | None = None
    strict: bool | None = None


class JsonSchemaFormat(Struct, frozen=True, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON that follows a schema."""

    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class ChatRequest(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Meta(description="The conversation, at least one message.", min_length=1)]
    max_completion_tokens: Annotated[
        int | None, Meta(description="As `max_tokens`, and counts when both are given.")
    ] = None
    logprobs: Annotated[bool | None, Meta(description="Report the log-probability of each token.")] = None
    top_logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=20)] | None,
        Meta(description="0 to 20 likeliest alternatives per token; needs `logprobs`."),
    ] = None
    tools: Annotated[
        Annotated[list[Tool], Meta(max_length=128)] | None, Meta(description="Functions that the model may call.")
    ] = None
    tool_choice: Annotated[
        str | NamedTool | None, Meta(description="`auto`, `none`, `required`, or the function to call.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: at most one call per answer.")] = None
    response_format: Annotated[
        ResponseFormat | None, Meta(description="`text`, `json_object`, or `json_schema` with a schema.")
    ] = None
    reasoning_effort: Annotated[Text, Meta(description="Handed to the chat template under this name.")] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None, Meta(description="More variables for the chat template, such as `enable_thinking`.")
    ] = None


class CompletionRequest(Sampling, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions."""

    prompt: Annotated[
        str | list[Any], Meta(description="A text, token ids, or a list of texts or of lists of token ids.")
    ]
    echo: Annotated[bool | None, Meta(description="Put the prompt in front of the answer.")] = None
    logprobs: Annotated[
        Annotated[int, Meta(ge=0, le=5)] | None,
        Meta(description="0 to 5 alternatives per token; with `echo`, of the prompt's tokens too."),
    ] = None
    best_of: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Only the same as `n`.")] = None


class TokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /tokenize."""

    model: Annotated[str, Meta(description="Name of a served model.")]
    text: Annotated[str, Meta(description="What to encode.")]
    add_bos: Annotated[bool | None, Meta(description="Null does what the model wants.")] = None
    parse_special: Annotated[bool | None, Meta(description="Control tokens in the text count as such.")] = None
    with_pieces: Annotated[bool | None, Meta(description="Give each token's text too.")] = None


class DetokenizeRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /detokenize."""

    model: Annotated[str, Meta(description="Name of a served model.")]
    tokens: Annotated[list[int], Meta(description="Token ids.")]


class ApplyTemplateRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /apply-template."""

    model: Annotated[str, Meta(description="Name of a served model.")]
    messages: Annotated[list[Message], Meta(description="The conversation.", min_length=1)]
    tools: Annotated[Annotated[list[Tool], Meta(max_length=128)] | None, Meta(description="Functions.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Meta(description="More variables.")] = None


class EmbeddingRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/embeddings."""

    model: Annotated[str, Meta(description="Name of a served model.")]
    input: Annotated[
        str | list[Any], Meta(description="A text, token ids, or a list of texts or of lists of token ids.")
    ]
    encoding_format: Annotated[
        Annotated[str, Meta(pattern="^(float|base64)$")] | None,
        Meta(description="`float` (default) or `base64` (little-endian float32)."),
    ] = None


class InputText(Struct, frozen=True, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """A part of what is said to the model."""

    text: str


class OutputText(Struct, frozen=True, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """A part of what the model said."""

    text: str
    annotations: list[Any] | None = None
    logprobs: Any = None


class TextFormats(Struct, frozen=True, forbid_unknown_fields=True):
    """How the text of a response must look; a schema stands right in it."""

    format: dict[str, Any] | None = None
    verbosity: str | None = None


class ReasoningOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How much to think."""

    effort: str | None = None
    summary: str | None = None
    generate_summary: str | None = None


class ResponseTool(Struct, frozen=True, forbid_unknown_fields=True):
    """A function that the model may call."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
    type: Annotated[str, Meta(pattern="^function$")]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ResponsesRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/responses, without state: nothing is stored."""

    model: Annotated[str, Meta(description="Name of a served model.")]
    input: Annotated[
        str | list[dict[str, Any]],
        Meta(
            description="A text, or messages, calls and results of calls as items; earlier output goes back as it is."
        ),
    ]
    instructions: Annotated[str | None, Meta(description="A system message in front.")] = None
    max_output_tokens: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="Tokens to generate at most.")] = (
        None
    )
    temperature: Annotated[float | None, Meta(description="0 always takes the likeliest token. Default 1.")] = None
    top_p: Annotated[float | None, Meta(description="Only the likeliest tokens up to this probability.")] = None
    seed: Annotated[int | None, Meta(description="The same seed gives the same text.")] = None
    stream: Annotated[bool | None, Meta(description="Send events while the answer grows.")] = None
    text: Annotated[TextFormats | None, Meta(description="`format`: text, json_object or json_schema.")] = None
    tools: Annotated[
        Annotated[list[ResponseTool], Meta(max_length=128)] | None, Meta(description="Functions; no built-in tools.")
    ] = None
    tool_choice: Annotated[
        str | dict[str, Any] | None, Meta(description="`auto`, `none`, `required` or the function to call.")
    ] = None
    parallel_tool_calls: Annotated[bool | None, Meta(description="False: at most one call.")] = None
    reasoning: Annotated[ReasoningOptions | None, Meta(description="`effort` goes to the chat template.")] = None
    truncation: Annotated[
        Annotated[str, Meta(pattern="^disabled$")] | None, Meta(description="Only `disabled`: nothing is cut silently.")
    ] = None
    include: Annotated[
        Annotated[list[str], Meta(max_length=0)] | None, Meta(description="Nothing more can be included.")
    ] = None
    top_logprobs: Annotated[Annotated[int, Meta(ge=0, le=0)] | None, Meta(description="Only 0.")] = None
