#!/usr/bin/env python3
"""Writes cases.json: what Python's jinja2 (with the settings Hugging Face's apply_chat_template uses) makes of the templates in this folder
and of the snippets below. Run: python3 tests/golden/templates/make_cases.py
A case is {template | source, case, input, expected | error}; an error that is a bare class name comes from Python itself, not jinja2."""
import json
import pathlib

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent


class GenerationTag(Extension):
    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def make_environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"])

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda form: {"%Y-%m-%d": "2024-07-26", "%d %B %Y": "26 July 2024", "%a, %b %d": "Fri, Jul 26", "%y%%": "24%"}[form]
    return env


WEATHER = {"type": "function", "function": {"name": "weather", "description": "Looks up\nthe weather \u2602", "parameters": {
    "type": "object", "required": ["place"], "properties": {
        "place": {"type": "string"}, "Days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}, "tags": {"type": "array", "items": {"type": "string"}},
        "more": {"type": "object", "properties": {"deep": {"type": "boolean"}, "odd": {"type": ["string", "null"]}}}}}}}
PING = {"type": "function", "function": {"name": "ping", "parameters": {"type": "object", "properties": {}}}}
SYSTEM = {"role": "system", "content": "  You are terse.\nAnswer in \u00fcmlauts. "}
USER = {"role": "user", "content": "Is it raining in K\u00f6ln? \U0001f327"}
ANSWER = {"role": "assistant", "content": "Yes."}
ARGUMENTS = {"place": "K\u00f6ln \"Mitte\"", "Days": 2, "flag": True, "none": None, "list": [1, 2.5, "x"], "more": {"deep": False}}


def call(arguments, content="", **more):
    return dict({"role": "assistant", "content": content, "tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "weather", "arguments": arguments}}]}, **more)


RESULT = {"role": "tool", "tool_call_id": "call00001", "content": "{\"rain\": true}"}
CONVERSATIONS = {
    "one user": dict(messages=[USER]),
    "system and user": dict(messages=[SYSTEM, USER], add_generation_prompt=False),
    "three turns": dict(messages=[SYSTEM, USER, ANSWER, {"role": "user", "content": "And tomorrow?\n"}]),
    "two users": dict(messages=[USER, {"role": "user", "content": "Hello?"}]),
    "assistant first": dict(messages=[ANSWER, USER]),
    "only system": dict(messages=[SYSTEM]),
    "tools": dict(messages=[SYSTEM, USER], tools=[WEATHER, PING]),
    "call and result": dict(messages=[USER, call(ARGUMENTS), RESULT], tools=[WEATHER]),
    "two results": dict(messages=[USER, call({}, "Looking."), RESULT, dict(RESULT, content="again"), ANSWER], tools=[WEATHER, PING]),
    "thoughts": dict(messages=[USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes."}, USER, dict(ANSWER, reasoning_content="wet streets\n")]),
    "no thinking": dict(messages=[USER], enable_thinking=False),
    "parts": dict(messages=[{"role": "user", "content": [{"type": "text", "text": "a\nb"}, {"type": "image"}, {"type": "text", "text": "c"}]}]),
    "markers in text": dict(messages=[{"role": "user", "content": "<|end|> {{ 1 }} {% if %} {# #} </think> & \"<b>'"}]),
}

DATA = {
    "s": "Hello, W\u00f6rld", "empty": "", "n": 7, "neg": -3, "f": 2.5, "t": True, "no": False, "nil": None, "big": 12345678901234567890,
    "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "nested": [[1, 2], [3, [4, "x"]]],
    "d": {"b": 1, "A": 2, "c": {"x": [1, 2]}, "items": "shadow"}, "people": [
        {"name": "Ann", "age": 31, "team": {"id": 2}}, {"name": "bob", "age": 25, "team": {"id": 1}}, {"name": "Cy", "age": 31}],
    "html": "<a href=\"x\">'&'</a>", "multi": "one\ntwo\n\n  three\r\nfour", "emoji": "a\U0001f600b\u0301c", "spaces": "  a  b   c ",
}

SNIPPETS = {
    # ---- expressions
    "arithmetic": "{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2 ** 3 ** 2 }}",
    "float arithmetic": "{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1e15 }} {{ 1.0 }} {{ 1e-5 }} {{ 0.0001 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }} {{ 3 * 1.5 }} {{ f / 0.5 }} {{ 1e300 * 1e10 }}",
    "numbers": "{{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 1.5e3 }} {{ 0 }} {{ big }} {{ big + 1 }} {{ -neg }} {{ +n }}",
    "unary": "{{ -n }} {{ - -n }} {{ not t }} {{ not not empty }} {{ -n|abs }} {{ (-n)|abs }} {{ -f }} {{ +t }} {{ -t }}",
    "comparison": "{{ 1 < 2 }} {{ 1 <= 1 }} {{ 2 > 3 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' != 'b' }} {{ none == false }}",
    "chained comparison": "{{ 1 < n < 10 }} {{ 1 < n > 3 == 3 }} {{ 10 > n >= 7 != 6 }} {{ 1 < 2 < 2 }}",
    "membership": "{{ 'ell' in s }} {{ 3 in list }} {{ 'b' in d }} {{ 'z' not in d }} {{ 4 not in [1, 2] }} {{ (1, 2) in [(1, 2)] }} {{ 'x' in nothing }} {{ '' in '' }}",
    "logic": "{{ t and n }} {{ no or s }} {{ nil or no }} {{ empty and x.y }} {{ not no and t or no }} {{ 1 and 0 or 'z' }}",
    "concatenation": "{{ 1 ~ 'a' ~ nil ~ t ~ 2.0 ~ [1, 'b'] ~ nothing }} {{ 'x' + 'y' ~ 'z' }} {{ 1 ~ 2 * 3 }}",
    "ternary": "{{ 'a' if t else 'b' }} {{ 'a' if no else 'b' }} [{{ 'a' if no }}] {{ 1 if no else 2 if no else 3 }} {{ ('x' if t) ~ '!' }}",
    "literals": "{{ [1, 'a', none, true, 2.5] }} {{ (1,) }} {{ () }} {{ (1, 'b') }} {{ {} }} {{ {'a': 1, 2: [3], none: true} }} {{ [] }} {{ {'k': 'v',} }}",
    "tuples without brackets": "{{ 1, 2 }} {% set a, b = 1, 'x' %}{{ b }}{{ a }} {% for k, v in [(1, 2), (3, 4)] %}{{ k }}-{{ v }};{% endfor %}",
    "string escapes": r"""{{ 'a\nb\tc\\d\'e"' }} {{ "\x41\u00e9\U0001F600\101\q" }} {{ 'con' 'cat' "ed" }} {{ '\
joined' }}""",
    "repr of strings": r"""{{ ['a\'b', "q\"q", 'both\'"', 'tab\tnl\n\\', 'é\u200b\x01', emoji] }}""",
    "subscripts": "{{ list[0] }} {{ list[-1] }} {{ s[4] }} {{ s[-1] }} {{ d['b'] }} {{ d.A }} {{ d['c'].x[1] }} {{ nested.1.0 }} {{ emoji[1] }} [{{ list[9] }}] [{{ s[99] }}]",
    "slices": "{{ list[1:] }} {{ list[:-1] }} {{ list[::-1] }} {{ list[::2] }} {{ s[1:4] }} {{ s[::-1] }} {{ s[-3:] }} {{ s[:100] }} {{ list[5:] }} {{ emoji[1:3] }} {{ s[7:2:-2] }} {{ list[-2:][0] }}",
    "attributes fall back to items": "{{ d.b }} {{ d['missing'] is defined }} {{ d.missing is defined }} {{ people[0].name }} {{ people[0]['team'].id }} {{ d['items'] }}",
    "methods shadow items": "{% for k, v in d.items() %}{{ k }};{% endfor %} {{ d.get('b') }} {{ d.get('zz') }} {{ d.get('zz', 5) }} {{ d.keys() | list }} {{ d.values() | length }}",
    "filter precedence": "{{ 1 + 2 | string | length }} {{ 'a' + 'b' | upper }} {{ ('a' + 'b') | upper }} {{ 'x' ~ 3 | string }} {{ not 'a' | length == 1 }} {{ 2 * 3 | float }}",
    "test precedence": "{{ 1 + 1 is odd }} {{ not 1 is odd }} {{ n is odd and n is not even }} {{ 'x' if n is divisibleby 7 else 'y' }} {{ n is divisibleby(2) }} {{ [1] is iterable == true }}",
    "calls on results": "{{ s.upper().lower().title() }} {{ 'a,b'.split(',')[1].upper() }} {{ (s ~ '!').endswith('!') }} {{ 'abc'[1:].upper() }}",
    "string repetition": "{{ 'ab' * 3 }} {{ 3 * '-' }} {{ [0] * 3 }} {{ 'x' * 0 }} {{ 'x' * -1 }} {{ (1, 2) * 2 }}",
    "list addition": "{{ list + [9] }} {{ (1, 2) + (3,) }} {{ [] + [] }}",
    # ---- undefined and none
    "undefined prints nothing": "[{{ nothing }}] [{{ d.nothing }}] [{{ list[10] }}] {{ nothing is undefined }} {{ nothing == none }} {{ nothing == other }} {{ nothing | length }}",
    "none prints": "{{ nil }} {{ none }} {{ nil ~ 'x' }} {{ [nil] }} {{ nil is none }} {{ nothing is none }} {{ nil | string }}",
    "undefined loops": "{% for x in nothing %}{{ x }}{% else %}empty{% endfor %} {{ nothing | list }} {{ nothing | join(',') }}[{{ nothing | upper }}]",
    "default": "{{ nothing | default('d') }} {{ nil | default('d') }} {{ nil | default('d', true) }} {{ empty | default('e', boolean=true) }} {{ no | d(1) }} [{{ nothing | default }}] {{ d.x.y | default('deep') if d.x is defined else 'no x' }}",
    "undefined add": "{{ 'a' + nothing }}",
    "undefined attribute": "{{ nothing.attribute }}",
    "undefined of dict": "{{ d.nope.more }}",
    "undefined item of dict": "{{ d['nope']['more'] }}",
    "undefined index": "{{ list[7].x }}",
    "undefined call": "{{ nothing('x') }}",
    "undefined method": "{{ s.no_such_method() }}",
    "undefined arithmetic": "{{ nothing * 2 }}",
    "undefined comparison": "{{ nothing < 2 }}",
    "none attribute": "{{ nil.x.y }}",
    "add string and number": "{{ 'a' + 1 }}",
    "add number and string": "{{ 1 + 'a' }}",
    "add none": "{{ 'a' + nil }}",
    "iterate number": "{% for x in 5 %}{{ x }}{% endfor %}",
    "iterate none": "{% for x in nil %}{{ x }}{% endfor %}",
    "number in string": "{{ 1 in 'abc' }}",
    "member of none": "{{ 1 in nil }}",
    "compare str and int": "{{ 'a' < 1 }}",
    "length of number": "{{ 5 | length }}",
    "length of none": "{{ nil | length }}",
    "division by zero": "{{ 1 / 0 }}",
    "call a string": "{{ 'a'() }}",
    "unpack too few": "{% for a, b in [[1]] %}{{ a }}{% endfor %}",
    "raise": "before {{ raise_exception('my words: ' ~ n ~ ' \u00fc') }}",
    "raise in a macro": "{% macro m() %}{{ raise_exception('inside') }}{% endmacro %}{{ m() }}",
    # ---- statements
    "if chain": "{% for x in [0, 1, 2, 'a', '', none] %}{% if x == 0 %}zero{% elif x is string and x %}text{% elif not x %}falsy{% else %}other{% endif %} {% endfor %}",
    "for else": "{% for x in [] %}{{ x }}{% else %}none{% endfor %}{% for x in [1] %}{{ x }}{% else %}none{% endfor %}",
    "for with condition": "{% for x in range(10) if x % 3 == 0 %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %} {% for x in list if x > 9 %}{{ x }}{% else %}nothing{% endfor %}",
    "for over mapping": "{% for k in d %}{{ k }} {% endfor %}{% for k, v in d.items() %}{{ loop.index }}{{ k }}={{ v }} {% endfor %}",
    "for over string": "{% for c in emoji %}<{{ c }}>{% endfor %}",
    "loop variables": "{% for x in words %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "loop neighbours": "{% for x in list %}{{ loop.previtem | default('^') }}<{{ x }}>{{ loop.nextitem | default('$') }} {% endfor %}",
    "loop cycle and changed": "{% for x in [1, 1, 2, 2, 1] %}{{ loop.cycle('a', 'b', 'c') }}{{ loop.changed(x) }} {% endfor %}",
    "nested loops": "{% for row in nested %}{% set outer = loop %}{% for x in row %}{{ outer.index }}.{{ loop.index }}={{ x }} {% endfor %}{% endfor %}",
    "recursive loop": "{% for x in nested recursive %}{% if x is iterable and x is not string %}[{{ loop(x) }}]{% else %}{{ x }}@{{ loop.depth }} {% endif %}{% endfor %}",
    "break and continue": "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}{% endif %}{{ x }}{% endfor %}|{% for i in range(2) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}",
    "set scoping": "{% set x = 1 %}{% for i in [1, 2] %}{{ x }}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}{% if t %}{% set x = 9 %}{% endif %}{{ x }}",
    "loop variable does not leak": "{% for y in [1] %}{% set z = y %}{% endfor %}[{{ y }}][{{ z }}]",
    "namespace": "{% set ns = namespace(a=1, b='x') %}{% for i in range(3) %}{% set ns.a = ns.a + i %}{% set ns.c = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}[{{ ns.d }}]{{ ns.d is defined }}",
    "namespace from mapping": "{% set ns = namespace({'q': 1}, r=2) %}{{ ns.q + ns.r }} {{ ns['q'] is defined }}",
    "assign to no namespace": "{% set x = {} %}{% set x.y = 1 %}",
    "set block": "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x is string }}{% set y | upper | replace('B', '#') %}b{{ x }}{% endset %}{{ y }}",
    "set tuple": "{% set a, b = [1, 2] %}{{ a + b }}{% set (c, d2), e = [(1, 2), 3] %}{{ c }}{{ d2 }}{{ e }}",
    "with": "{% set a = 1 %}{% with a = 2, b = a %}{{ a }}{{ b }}{% set a = 5 %}{% endwith %}{{ a }}{% with %}{% set q = 1 %}{% endwith %}[{{ q }}]",
    "filter block": "{% filter upper | replace('L', '_') %}hello {{ s }}{% endfilter %}{% filter trim %}  x  {% endfilter %}.",
    "raw": "{% raw %}{{ x }}{% if %}{# c #}{% endraw %}{{ n }}{%- raw -%}  a  {%- endraw -%}  b",
    "generation": "a{% generation %}b{{ n }}{% set g = 4 %}{% endgeneration %}c{{ g }}",
    "comments": "a{# {{ x }} {% if %} #}b{#- c -#}  d\n{# line #}\ne",
    "autoescape block": "{% autoescape false %}{{ html }}{% endautoescape %}",
    "named block": "{% block title %}in {{ n }}{% endblock %} {% block other %}{% endblock other %}",
    # ---- macros
    "macro": "{% macro m(a, b=2, c='z') %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='q') }}{{ m(b=5, a=4) }}{{ m() }}",
    "macro defaults see arguments": "{% macro m(a, b=a ~ '!') %}{{ b }}{% endmacro %}{{ m('x') }}{{ m('x', 'y') }}",
    "macro varargs": "{% macro m(a) %}{{ a }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, 3, k='v') }}{{ m(1) }}",
    "macro star arguments": "{% macro m(a, b, c) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(*list) }}{{ m(1, **{'b': 2, 'c': 3}) }}{{ m(*[1], **{'c': 3, 'b': 5}) }}",
    "macro recursion": "{% macro fact(k) %}{{ 1 if k < 2 else k * fact(k - 1) | int }}{% endmacro %}{{ fact(6) }}",
    "macro forward reference": "{% macro a(x) %}{{ b(x) }}{% endmacro %}{% macro b(x) %}<{{ x }}>{% endmacro %}{{ a(1) }}",
    "macro scope": "{% set g = 'g1' %}{% macro m() %}{{ g }}{{ l }}{% set g = 'inner' %}{{ g }}{% endmacro %}{% set g = 'g2' %}{% for l in [1] %}{{ m() }}{% endfor %}{{ g }}",
    "macro returns text": "{% macro m() %} x {% endmacro %}{{ m() | trim | length }}{{ m() is string }}{{ m().strip() ~ '.' }}{{ m is callable }}",
    "macro too many arguments": "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}",
    "macro unknown keyword": "{% macro m(a) %}{% endmacro %}{{ m(b=2) }}",
    "call block": "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in{{ n }}{% endcall %}",
    "call block with arguments": "{% macro each(xs) %}{% for x in xs %}{{ caller(x, loop.index) }}{% endfor %}{% endmacro %}{% call(a, b) each(list) %}({{ a }}/{{ b }}){% endcall %}",
    "macro in a loop": "{% for i in [1, 2] %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}",
    # ---- filters
    "filter abs round": "{{ neg | abs }} {{ -2.5 | abs }} {{ 2.567 | round(2) }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.1 | round(method='ceil') }} {{ 2.9 | round(0, 'floor') }} {{ 7 | round }} {{ 1234 | round(-2) }}",
    "filter int float": "{{ '42' | int }} {{ '42.9' | int }} {{ 'x' | int }} {{ 'x' | int(5) }} {{ '0x1f' | int(base=16) }} {{ 3.9 | int }} {{ '2.5' | float }} {{ 'x' | float(1.5) }} {{ t | int }} {{ '1e3' | float }} {{ nil | int }} {{ ' 12 ' | int }}",
    "filter case": "{{ s | upper }} {{ s | lower }} {{ 'hELLO wORLD' | capitalize }} {{ 'hello wor-ld (x) i\u00df' | title }} {{ 'stra\u00dfe \u01c6' | upper }} {{ 'A\u03a3 \u0130' | lower }} {{ n | upper }}",
    "filter trim": "[{{ spaces | trim }}] [{{ 'xxaxx' | trim('x') }}] [{{ '\n\t a' | trim }}] [{{ 5 | trim }}]",
    "filter replace": "{{ s | replace('l', 'L') }} {{ 'aaaa' | replace('a', 'b', 2) }} {{ 'abc' | replace('', '-') }} {{ 112 | replace(1, 3) }} {{ s | replace('zz', 'y') }}",
    "filter center": "[{{ 'ab' | center(7) }}] [{{ 'abc' | center(6) }}] [{{ 'abcdef' | center(3) }}]",
    "filter indent": "{{ multi | indent }}|{{ multi | indent(2, true) }}|{{ multi | indent('> ', blank=true) }}|{{ 'a\n' | indent(3) }}|{{ '' | indent(first=true) }}",
    "filter truncate": "{{ 'The quick brown fox jumps' | truncate(12) }} {{ 'The quick brown fox jumps' | truncate(12, true) }} {{ 'short' | truncate(3) }} {{ 'The quick brown fox' | truncate(10, false, '~', 0) }}",
    "filter wordcount": "{{ spaces | wordcount }} {{ 'a-b c_d \u00e9t\u00e9 1' | wordcount }} {{ '' | wordcount }}",
    "filter string": "{{ 5 | string ~ 1 }} {{ nil | string | length }} {{ [1, 'a'] | string }} {{ 2.0 | string }}",
    "filter escape": "{{ html | escape }} {{ html | e | e }} {{ html | safe }} {{ html | safe | e }} {{ html | forceescape }} {{ (html | safe) + '<' }} {{ '<' + (html | e) }} {{ '<' ~ (html | safe) }}",
    "filter format": "{{ '%s-%d-%5.2f|%-4s|%04d|%x|%%|%r' | format('a', 3, 2.345, 'b', 42, 255, 'q') }} {{ '%(k)s' | format(k='v') }} {{ '%s' % n }} {{ '%s %s' % ('a', nil) }} {{ '%+d' % 3 }} {{ '%e' % 12345.678 }} {{ '%g' % 0.00001 }}",
    "filter length": "{{ s | length }} {{ emoji | length }} {{ list | count }} {{ d | length }} {{ '' | length }} {{ range(4) | length }}",
    "filter first last": "{{ list | first }} {{ list | last }} {{ s | first }} {{ s | last }} [{{ [] | first }}] [{{ [] | last }}] {{ d | first }} {{ d | last }}",
    "filter list": "{{ 'abc' | list }} {{ d | list }} {{ range(3) | list }} {{ (1, 2) | list }} {{ d.items() | list }}",
    "filter join": "{{ list | join }} {{ list | join(', ') }} {{ people | join('; ', attribute='name') }} {{ [1, none, 'a', 2.5] | join('|') }} {{ 'abc' | join('.') }} {{ d | join('+') }}",
    "filter items": "{% for k, v in d | items %}{{ k }}={{ v }};{% endfor %}{{ nothing | items | list }}",
    "filter items of list": "{{ list | items | list }}",
    "filter dictsort": "{{ d | dictsort }} {{ d | dictsort(true) }} {{ {'b': 2, 'a': 3} | dictsort(false, 'value') }} {{ {'b': 2, 'a': 3} | dictsort(reverse=true) }} {{ {'b': 'Z', 'a': 'y'} | dictsort(by='value') }}",
    "filter sort": "{{ list | sort }} {{ list | sort(true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ people | sort(attribute='age,name', reverse=true) | map(attribute='name') | list }}",
    "filter unique": "{{ words | unique | list }} {{ words | unique(true) | list }} {{ [1, 1.0, true, 2] | unique | list }} {{ people | unique(attribute='age') | map(attribute='name') | list }}",
    "filter min max sum": "{{ list | min }} {{ list | max }} {{ words | min }} {{ words | max(case_sensitive=true) }} {{ list | sum }} {{ people | sum('age') }} {{ people | max(attribute='age') }} {{ [] | sum }} {{ list | sum(start=10) }} [{{ [] | min }}]",
    "filter map": "{{ words | map('upper') | list }} {{ people | map(attribute='team.id', default=0) | list }} {{ ['1', 'x'] | map('int', 9) | list }} {{ words | map('replace', 'p', 'P') | join(' ') }} {{ nested | map('first') | list }} {{ words | map('length') | sum }}",
    "filter select": "{{ [0, 1, '', 'a', none] | select | list }} {{ range(6) | select('odd') | list }} {{ range(6) | reject('divisibleby', 3) | list }} {{ [1, 'a', 2] | select('string') | list }} {{ list | select('gt', 1) | list }} {{ list | reject('in', [1, 2]) | list }}",
    "filter selectattr": "{{ people | selectattr('team') | map(attribute='name') | list }} {{ people | rejectattr('team') | map(attribute='name') | list }} {{ people | selectattr('age', 'equalto', 31) | list | length }} {{ people[:2] | selectattr('team.id', 'gt', 1) | list | length }} {{ people | rejectattr('name', '==', 'bob') | map(attribute='age') | list }}",
    "filter selectattr reaches into undefined": "{{ people | selectattr('team.id', 'defined') | list | length }}",
    "filter reverse": "{{ s | reverse }} {{ list | reverse | list }} {{ range(3) | reverse | join }} {{ emoji | reverse }}",
    "filter batch slice": "{{ range(7) | batch(3) | list }} {{ range(7) | batch(3, 'x') | list }} {{ range(7) | slice(3) | list }} {{ range(7) | slice(3, '-') | list }}",
    "filter groupby": "{% for age, ps in people | groupby('age') %}{{ age }}:{{ ps | map(attribute='name') | join(',') }};{% endfor %}{% for g in words | groupby(0) %}{{ g.grouper }}{{ g.list }}{% endfor %}",
    "filter attr": "[{{ d | attr('b') }}] {{ s | attr('upper') is callable }}",
    "filter tojson": "{{ s | tojson }} {{ html | tojson }} {{ list | tojson }} {{ d | tojson }} {{ nested | tojson }} {{ nil | tojson }} {{ t | tojson }} {{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ big | tojson }} {{ (1, 2) | tojson }}",
    "filter tojson escapes": r"""{{ 'a"b\\c\n\t\r\b\f\x01\x7f\u2028é' | tojson }} {{ emoji | tojson(ensure_ascii=true) }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}""",
    "filter tojson indent": "{{ d | tojson(indent=2) }} {{ [] | tojson(indent=4) }} {{ {} | tojson(indent=4) }} {{ nested | tojson(indent=0) }} {{ [1, {'a': []}] | tojson(indent='\t') }}",
    "filter tojson options": "{{ d | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': {'d': 1, 'c': 2}} | tojson(sort_keys=true) }} {{ d | tojson(indent=1, separators=(' ; ', '=')) }} {{ 'é' | tojson(true) }}",
    "filter tojson of undefined": "{{ nothing | tojson }}",
    "generators are consumed": "{% set g = list | select('gt', 1) %}{{ g | first }}{{ g | list }}{{ g | list }}{{ g is sequence }}{{ g is iterable }}",
    # ---- tests
    "tests of kind": "{% for x in [s, empty, n, neg, f, t, no, nil, list, d, nothing, (1,), range(2), d.items()] %}{{ x is string }},{{ x is number }},{{ x is integer }},{{ x is float }},{{ x is boolean }},{{ x is mapping }},{{ x is sequence }},{{ x is iterable }},{{ x is none }},{{ x is defined }},{{ x is undefined }},{{ x is true }},{{ x is false }}\n{% endfor %}",
    "tests of number": "{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby(3) }} {{ 3 is eq 3 }} {{ 3 is equalto(4) }} {{ 3 is ne 4 }} {{ 3 is lt 4 }} {{ 3 is le(3) }} {{ 3 is gt 4 }} {{ 3 is ge 3 }} {{ 3 is greaterthan 2 }} {{ 3 is lessthan 2 }}",
    "tests of text": "{{ 'ABC' is upper }} {{ 'abc' is lower }} {{ 'aBc' is upper }} {{ '1' is lower }} {{ 'a' is in 'abc' }} {{ 5 is in [1] }} {{ 'x' is sameas 'x' }} {{ nil is sameas none }} {{ t is sameas true }} {{ 1 is sameas true }}",
    "tests of names": "{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ 'nope' is test }} {{ range is callable }} {{ s is callable }} {{ (html | e) is escaped }} {{ html is escaped }}",
    "negated tests": "{{ n is not defined }} {{ nothing is not defined }} {{ s is not string }} {{ n is not none and n is not mapping }}",
    # ---- methods
    "split": "{{ 'a,b,,c'.split(',') }} {{ spaces.split() }} {{ 'a b c'.split(' ', 1) }} {{ 'a-b-c'.rsplit('-', 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ ' a b '.split(none, 1) }} {{ ' a b '.rsplit(none, 1) }} {{ 'abc'.split('abc') }} {{ 'a\tb\nc'.split() }} {{ 'x'.split(sep='x', maxsplit=0) }}",
    "strip": "[{{ spaces.strip() }}] [{{ spaces.lstrip() }}] [{{ spaces.rstrip() }}] [{{ 'xyaxy'.strip('yx') }}] [{{ '\n\na\n'.strip('\n') }}] [{{ '\u3000a\u00a0'.strip() }}] [{{ 'aé'.rstrip('é') }}]",
    "find": "{{ s.find('o') }} {{ s.rfind('l') }} {{ s.find('zz') }} {{ s.index('W') }} {{ s.count('l') }} {{ 'aaa'.count('aa') }} {{ 'é1é'.find('1') }} {{ s.find('o', 5) }} {{ 'abc'.count('') }} {{ 'abcabc'.rindex('b') }}",
    "starts and ends": "{{ s.startswith('Hell') }} {{ s.endswith('ld') }} {{ s.startswith(('x', 'H')) }} {{ s.endswith('') }} {{ s.startswith('ello', 1) }} {{ 'a' in s.lower() }}",
    "case methods": "{{ s.upper() }} {{ s.lower() }} {{ 'ab cd'.capitalize() }} {{ \"they're bill's\".title() }} {{ 'aBc'.swapcase() }} {{ 'ß'.casefold() == 'ss' or true }}",
    "replace method": "{{ s.replace('l', '') }} {{ 'aaa'.replace('a', 'b', 1) }} {{ 'abc'.replace('', '.') }}",
    "join method": "{{ ', '.join(words) }} {{ ''.join(['a', 'b']) }} {{ '-'.join('abc') }}",
    "partition": "{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }}",
    "justify": "[{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '*') }}] [{{ '-5'.zfill(4) }}] [{{ 'ab'.center(5, '.') }}]",
    "affix removal": "{{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ 'abc'.removeprefix('z') }}",
    "string predicates": "{{ 'abc'.isalpha() }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ ' '.isspace() }} {{ ''.isalpha() }} {{ 'A'.isupper() }} {{ 'a'.islower() }} {{ 'Ab Cd'.istitle() }} {{ '½'.isnumeric() }} {{ 'é'.isascii() }} {{ '²'.isdecimal() }}",
    "splitlines": "{{ multi.splitlines() }} {{ 'a\n'.splitlines(true) }} {{ ''.splitlines() }}",
    "format method": "{{ '{} {}'.format(1, 'a') }} {{ '{1}{0}{1}'.format('x', 'y') }} {{ '{k}'.format(k=2) }} {{ '{:>5}|{:<5}|{:^5}'.format('a', 'b', 'c') }} {{ '{:.2f} {:05d} {:,}'.format(3.14159, 42, 1234567) }} {{ '{{}} {!r}'.format('q') }}",
    "list methods": "{{ list.index(1) }} {{ list.count(3) }} {{ (1, 2, 1).count(1) }} {{ list.copy() }}",
    "list append is refused": "{% set x = list.append(4) %}",
    "dict methods": "{{ d.get('c').x }} {{ d.items() | list | length }} {{ d.keys() }} {{ d.values() | list | first }} {{ d.copy() == d }}",
    "dict update is refused": "{% set x = d.update({'a': 1}) %}",
    # ---- functions
    "range": "{{ range(3) | list }} {{ range(1, 4) | list }} {{ range(5, 0, -2) | list }} {{ range(0) | list }} {{ range(3) }} {{ range(10)[2:4] | list }} {{ range(5)[-1] }} {{ 3 in range(5) }}",
    "range too big": "{{ range(100001) | length }}",
    "dict function": "{{ dict(a=1, b='x') }} {{ dict({'q': 1}, r=2) }} {{ dict([('a', 1)]) }}",
    "strftime_now": "{{ strftime_now('%Y-%m-%d') }} {{ strftime_now('%d %B %Y') }} {{ strftime_now('%a, %b %d') }} {{ strftime_now('%y%%') }}",
    # ---- the sandbox
    "hidden attributes print nothing": "[{{ ''.__class__ }}] [{{ s.__doc__ }}] [{{ list.__len__ }}]",
    "hidden attributes cannot be used": "{{ ''.__class__.__mro__ }}",
    "hidden attributes cannot be called": "{{ s.__class__() }}",
    "hidden attributes through subscripts": "{{ s['__class__']['__mro__'] }}",
    "namespace has no insides": "{% set ns = namespace() %}{{ ns.__init__.__globals__ }}",
    # ---- whitespace
    "trim and lstrip": "  {% if t %}\n  a\n  {% endif %}\nb\n\n{% set x = 1 %}\nc\n",
    "minus strips": "a  \n {%- if t -%} \n b \n {%- endif -%} \n c  {{- n -}}  d",
    "plus keeps": "  {%+ if t +%}\n  a\n  {%+ endif %}\nb",
    "one final newline goes": "a\n\n",
    "windows newlines": "a\r\n{% if t %}\r\nb\r\n{% endif %}\r\nc\rd",
    "braces in expressions": "{{ {'a': {'b': 1}} }}{{ '}}' }}{{ {'}}': 1}['}}'] }}{% set x = {'k': '%}'} %}{{ x.k }}",
    "lone braces": "{ } {x} %} }} #} { {a} {{ '{' }}{{ '%' }}",
    "tabs before a tag": "\t{% if t %}x{% endif %}\n\t{{ n }}\n text {% if t %}y{% endif %}\n",
}

cases = []


def add(entry, source, variables):
    try:
        entry["expected"] = make_environment().from_string(source).render(**variables)
    except jinja2.exceptions.TemplateError as e:
        entry["error"] = str(e)
    except Exception as e:  # a Python error: only its class is comparable
        entry["error"] = type(e).__name__
    cases.append(entry)


for path in sorted(HERE.glob("*.jinja")):
    for name, conversation in CONVERSATIONS.items():
        variables = dict({"add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}, **conversation)
        add({"template": path.name, "case": name, "input": variables}, path.read_text(encoding="utf-8"), variables)
for name, source in SNIPPETS.items():
    add({"template": "", "source": source, "case": name}, source, DATA)

(HERE / "cases.json").write_text(json.dumps({"jinja2": jinja2.__version__, "data": DATA, "cases": cases}, ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
print(len(cases), "cases,", sum("error" in c for c in cases), "of them errors")
