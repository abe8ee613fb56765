"""The sandbox that every chat template runs in.

Jinja's immutable sandbox keeps a template away from Python's internals. This one also allows only attributes on a list,
makes every loop, call, filter and operation pay from a budget, and marks what the template itself wrote as trusted.
The variables, filters and tags are those of Hugging Face's templates:
https://huggingface.co/docs/transformers/chat_templating_writing
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from types import CodeType
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Cycler, Joiner, Namespace

from localllm.errors import RequestError

from .budget import Budget, LimitError
from .filters import filters
from .strings import Strings
from .text import Text, join, plain, trust
from .values import to_text

_JINJA_TYPES = (Cycler, Joiner, LoopContext, Macro, Namespace, Undefined)
_ATTRIBUTES: dict[type, frozenset[str]] = {
    dict: frozenset(("copy", "get", "items", "keys", "values")),
    list: frozenset(("count", "index")),
    tuple: frozenset(("count", "index")),
}
_LONGEST_DATE = 1000
_MOST_BITS = 4096  # of an integer that a multiplication or power makes


class TemplateRefusal(RequestError):
    """The template itself refused the conversation, through `raise_exception`."""


class _Generator(CodeGenerator):
    """Writes code in which texts of the template are trusted, and loops and new lists are counted."""

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.literal({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.literal({node.data!r})")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return f"environment.literal({''.join(group)!r})"

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.join_values((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._made(super().visit_Dict, node, frame)

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("environment.budget.made(")
        visit(node, frame)
        self.write(")")


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's words for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class TemplateEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox of one rendering; nothing is shared with another. `now` gives the time to `strftime_now`."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "%", "**"))

    def __init__(self, budget: Budget, now: Callable[[], datetime]) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            optimized=False,  # folding constants would compute before there is a budget
            finalize=_shown,
            cache_size=0,
        )
        self.budget = budget
        self.strings = Strings(budget, self)
        self.filters = filters(budget, self.strings)
        self._literals: dict[str, Text] = {}
        del self.globals["lipsum"]
        self.globals["raise_exception"] = _refuse
        self.globals["strftime_now"] = lambda format: now().strftime(plain(format)[:_LONGEST_DATE])

    def code(self, source: str) -> CodeType:
        """Compile a template; it runs in any environment of this class."""
        tree = self._parse(source, None, None)
        for loop in list(tree.find_all(nodes.For)):
            count = nodes.ExprStmt(nodes.EnvironmentAttribute("budget.step()"), lineno=loop.lineno)
            loop.body.insert(0, count.set_environment(self))
        return self._compile(self._generate(tree, None, None), "<chat template>")

    def run(self, code: CodeType, variables: dict[str, object]) -> Text:
        """Run compiled code."""
        template = self.template_class.from_code(self, code, self.make_globals(None))
        return self.concat(template.root_render_func(template.new_context(variables)))

    def literal(self, letters: str) -> Text:
        """A text that stands in the template."""
        text = self._literals.get(letters)
        if text is None:
            text = self._literals[letters] = trust(letters)
        return text

    def concat(self, parts: Iterable[str]) -> Text:
        """Everything that a template wrote, paid for and joined."""
        return join(self._paid(parts))

    def join_values(self, values: Iterable[object]) -> Text:
        """The operator `~`."""
        return join(self._paid(to_text(self.budget, value) for value in values))

    def _paid(self, parts: Iterable[str]) -> Iterator[str]:
        total = 0
        for part in parts:
            total += len(part)
            self.budget.step()
            self.budget.letters(len(part))
            if total > self.budget.longest_output:
                raise LimitError("it makes too much text")
            yield part

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """An operator of the template: strings keep their trusted parts, products are bounded."""
        if isinstance(left, str) and not hasattr(left, "__html__"):
            if operator == "+" and isinstance(right, str) and not hasattr(right, "__html__"):
                self.budget.letters(len(left) + len(right))
                return join((left, right))
            if operator == "%":
                return self.strings.percent(left, right)
        if operator in ("*", "**"):
            self._check_product(operator, left, right)
            if isinstance(left, str) and isinstance(right, int):
                return self.strings.repeat(left, right)
            if isinstance(left, int) and isinstance(right, str):
                return self.strings.repeat(right, left)
        return self.budget.made(super().call_binop(context, operator, left, right))

    def _check_product(self, operator: str, left: Any, right: Any) -> None:
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() + right.bit_length() if operator == "*" else left.bit_length() * max(right, 1)
            if bits > _MOST_BITS:
                raise LimitError("it computes too large a number")
        for many, times in ((left, right), (right, left)):
            if isinstance(many, (list, tuple)) and isinstance(times, int):
                self.budget.check_weight(self.budget.weigh(many) * times)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """A call by the template: counted, nested no deeper than the budget allows, its result paid for."""
        budget = __self.budget
        budget.step()
        budget.enter()
        try:
            return budget.made(super().call(__context, __obj, *args, **kwargs))
        finally:
            budget.leave()

    def getattr(self, obj: Any, attribute: str) -> Any:
        """`value.name`: methods of strings are ours, the rest is what the sandbox allows."""
        if isinstance(obj, str):
            method = self.strings.method(attribute)
            return self.undefined(obj=obj, name=attribute) if method is None else functools.partial(method, obj)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """`value[argument]`, then `value.argument`; undefined where there is neither."""
        try:
            return obj[argument]
        except (TypeError, LookupError):
            if isinstance(argument, str):
                return self.getattr(obj, plain(argument))
        return self.undefined(obj=obj, name=argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Only the attributes that are named for a type; Jinja's own objects as Jinja has it."""
        if isinstance(obj, _JINJA_TYPES):
            return super().is_safe_attribute(obj, attr, value)
        return attr in _ATTRIBUTES.get(type(obj), ())


@pass_context
def _shown(context: Context, value: object) -> str:
    environment = context.environment
    return to_text(environment.budget, value)  # type: ignore[attr-defined]


def _refuse(message: object = "") -> None:
    raise TemplateRefusal(plain(str(message))[:1000], parameter="messages")
