"""A template in a model's file is a stranger's program: it reaches nothing, and it stops."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from localllm.chat_template import LONGEST_SOURCE, ChatTemplate
from localllm.errors import RequestError
from localllm.templates import budget

USER = [{"role": "user", "content": "hi"}]
STATE = "{% set ns = namespace(x='a', l=[1], t=(1,), d={}) %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ lipsum.__globals__['os'].popen('touch FILE').read() }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'a': 1}) }}",
        "{{ cycler.__init__.__globals__['os'].popen('touch FILE') }}",
        "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
        "{{ '{0[0]}'.format(messages) }}",
        "{{ 'x'.strip.func.__self__ }}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
        "{% for x in [1] %}{{ loop._iterator.gi_frame.f_globals }}{% endfor %}",
        "{{ (1).to_bytes(8, 'big') }}",
        "{{ 'x'.encode('utf-8') }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{% extends 'base' %}",
        "{% set messages.x = 1 %}",
        "{{ undefined_function() }}",
        "{{ messages + 1 }}",
        "{{ 1 // 0 }}",
        "{{ 'x'.join([1]) }}",
        "{{ messages|nosuchfilter }}",
    ],
)
def test_attacks_and_mistakes_are_short_errors(source: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(RequestError) as raised:
        ChatTemplate(source.replace("FILE", str(mark))).render(messages)
    assert messages == USER
    assert not mark.exists()
    assert 10 < len(str(raised.value)) < 500
    assert "Traceback" not in str(raised.value)


@pytest.mark.parametrize(
    "expression",
    [
        "''['__class__']",
        "messages|attr('__class__')",
        "strftime_now.__globals__",
        "raise_exception.__code__",
        "'x'.strip.args",
        "messages|map(attribute='__class__')|first",
        "(messages|map('upper')).gi_frame",
        "(1).__class__",
        "{}.update",
        "[].append",
        "range.__class__",
        "(cycler(1)).__init__",
        "namespace(a=1)._Namespace__attrs",
    ],
)
def test_what_is_out_of_reach_is_undefined(expression: str) -> None:
    """Reading it shows nothing, as any missing attribute does; using it is an error."""
    assert ChatTemplate("{{ " + expression + " }}").render(USER) == ""
    with pytest.raises(RequestError):
        ChatTemplate("{{ (" + expression + ").more }}").render(USER)


BOMBS = {
    "loops": "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}",
    "empty loops": "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
    "filtered loops": "{% for i in range(99999) %}{% for x in range(99999) if false %}{% endfor %}{% endfor %}",
    "long range": "{% for i in range(10**9) %}x{% endfor %}",
    "repeat": "{{ 'x' * 10**10 }}",
    "repeat list": "{{ [1] * 10**9 }}",
    "power": "{{ 10**10**10 }}{{ 2**100000 }}",
    "large constant filter": "{{ 'x'|center(1000000000) }}",
    "double": STATE + "{% for i in range(999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "double by tilde": STATE + "{% for i in range(999) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "double by block": STATE
    + "{% for i in range(999) %}{% set y %}{{ ns.x ~ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "replace": STATE + "{% for i in range(999) %}{% set ns.x = ns.x.replace('a', 'aaaa') %}{% endfor %}",
    "join": STATE + "{% for i in range(999) %}{% set ns.x = [ns.x, ns.x]|join(ns.x) %}{% endfor %}",
    "nested lists": STATE + "{% for i in range(999) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
    "nested tuples": STATE + "{% for i in range(999) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ ns.t == 1 }}",
    "nested dicts": STATE + "{% for i in range(999) %}{% set ns.d = {1: ns.d, 2: ns.d} %}{% endfor %}{{ ns.d|tojson }}",
    "dict calls": STATE + "{% for i in range(999) %}{% set ns.d = dict(a=ns.d, b=ns.d) %}{% endfor %}",
    "grow list": STATE + "{% for i in range(99999) %}{% set ns.l = ns.l + [i] %}{% endfor %}",
    "sum of lists": "{{ ([[1]] * 100000)|sum(start=[])|length }}",
    "long list": "{{ ('x' * 10000000)|list|length }}",
    "macro": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "branching macro": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loop": "{% set l = [1] %}{% for x in [l] recursive %}{{ loop([l]) }}{% endfor %}",
    "recursive block": "{% block a %}{{ self.a() }}{% endblock %}",
    "wide format": "{{ '%1000000000d' % 1 }}",
    "wide new format": "{{ '{:1000000000}'.format(1) }}",
    "wide star format": "{{ '%*d' % (1000000000, 1) }}",
    "nested format": "{{ '{:{}}'.format(1, 1000000000) }}",
    "indent": "{{ 'x\ny'|indent(1000000000) }}",
    "json indent": "{{ [1]|tojson(indent=1000000000) }}",
    "round": "{{ 5|round(-1000000000) }}",
    "batch": "{{ [1]|batch(1000000000, 1)|list }}",
    "slow filter": "{{ ('a ' * 5000000)|title|length }}",
    "chain of filters": "{{ range(100000)" + "|map('upper')" * 60 + "|list|length }}",
    "parentheses": "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "attributes": "{{ a" + ".b" * 50000 + " }}",
    "sums": "{{ 1" + "+1" * 50000 + " }}",
    "ifs": "{% if a %}" * 5000 + "{% endif %}" * 5000,
    "number": "{{ " + "9" * 100000 + " }}",
    "long source": "x" * (LONGEST_SOURCE + 1),
    "syntax": "{% for %}",
    "unknown tag": "{% nosuchtag %}",
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_stop(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a thread, as in a server; the time allowed is shortened to keep the test short."""
    monkeypatch.setattr(budget, "SECONDS", 0.3)
    errors: list[BaseException] = []

    def render() -> None:
        try:
            ChatTemplate(BOMBS[name]).render(USER)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=render)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert [type(error) for error in errors] != []
    assert isinstance(errors[0], RequestError)
    assert len(str(errors[0])) < 500


def test_a_syntax_error_names_its_line() -> None:
    with pytest.raises(RequestError, match="line 3"):
        ChatTemplate("one\ntwo\n{% if %}").check()


def test_long_conversations_are_no_bombs() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ '<|start|>' + m['role'] + '\n' + m['content'] | trim + '<|end|>\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": f" {'word ' * 400}"} for _ in range(2000)]
    assert len(template.render(messages)) > 4_000_000


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{{ messages[0].content|upper }} {{ [1, none, true, 1.5] }}", "HI [1, None, True, 1.5]"),
        ("{{ {'a': 'é<&>', 'b': [1]}|tojson }}", '{"a": "é<&>", "b": [1]}'),
        ("{{ {'b': 1, 'a': 2}|tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ ['a', 'b']|tojson(separators=(',', ':')) }}", '["a","b"]'),
        ("{% for x in [0, 1, 2] %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "02"),
        ("{% for x in [0, 1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "01"),
        ("{% generation %}{{ 'x' }}{% endgeneration %}", "x"),
        ("{% set x = 'a' %}{% generation %}{% set x = 'b' %}{% endgeneration %}{{ x }}", "a"),
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent('> ', first=true) }}", "a\n  b\n\n  c|> a\n> b"),
        ("{{ 'a'|indent(2, true) }}{{ ''|indent }}", "  a"),
        ("{{ messages|map(attribute='role')|join(', ') }}", "user"),
        ("{{ messages|join('-', attribute='content') }}", "hi"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        ("{{ missing }}{{ missing is defined }}{{ none }}", "FalseNone"),
        ("{{ 'Hello %s, %d' % ('you', 3) }} {{ '{} {x}'.format(1, x=2) }}", "Hello you, 3 1 2"),
        ("{{ 'abc'[::-1] }}{{ 'abc'[0] }}{{ 'abc'[1:] }}{{ 'abc'.upper()[:2] }}", "cbaabcAB"),
        ("{{ 'abc' in 'xabcx' }}{{ 'a,b'.split(',')[-1] }}{{ ' x '.strip() ~ 1 }}", "Trueb" + "x1"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3"),
        ("{% macro m(a, b='d') %}{{ a ~ b }}{% endmacro %}{{ m('c') }}{{ m('x', b='y') }}", "cdxy"),
        ("{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 3 * 'ab' }}{{ [1] * 2 }}{{ [1] + [2] }}", "102433ababab[1, 1][1, 2]"),
        ("{{ {'a': 1}.items()|list }}{{ {'a': 1}.get('b', 'c') }}", "[('a', 1)]c"),
        ("{% for k, v in {'x': 2}.items() %}{{ k }}{{ v }}{% endfor %}", "x2"),
        ("{{ '<b>'|e }}{{ '<b>'|safe }}{{ 5|string }}{{ 3.456|round(1) }}", "&lt;b&gt;<b>53.5"),
        ("{{ [3, 1]|sort }}{{ [1, 2]|sum }}", "[1, 3]3"),
        ("{{ documents is none }}{{ tools is none }}{{ add_generation_prompt }}", "TrueTrueTrue"),
        ("{{ ('a', 'b')|last }}{{ 'x'|center(3) }}{{ [1, 2, 3]|batch(2)|list }}", "b x [[1, 2], [3]]"),
        ("{{ {'role': 'x'}.role }}{{ {'items': 1}['items'] }}{{ messages[-1]['content'] }}", "x1hi"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, shown: str) -> None:
    assert ChatTemplate(source).render(USER) == shown
