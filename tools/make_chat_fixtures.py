#!/usr/bin/env python3
"""Writes tests/fixtures/chat/ from the reference: Jinja as Hugging Face's `transformers` sets it up for chat templates.

    python3 tools/make_chat_fixtures.py [DATA]

expressions.json    small templates, each line one, over the variables below; what the reference makes of each, or null where it refuses
conversations.json  chat templates of the common shapes, written for this test, and conversations rendered by them
qwen3.json          the same conversations by the template in DATA/tokenizers/qwen3; left alone without DATA
"""
import datetime
import json
import sys
from pathlib import Path

import transformers.utils.chat_template_utils as reference

OUT = Path(__file__).resolve().parent.parent / "tests/fixtures/chat"
NOW = (2026, 11, 30, 7, 0, 0)


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(*NOW)


reference.datetime = FixedTime

VARIABLES = {
    "a": 1, "b": 2.5, "s": "Hello World", "u": "h\u00e9llo \u2603 \"q\" 'x'", "l": [1, 2, 3, "x", None, True], "d": {"x": 1, "y": [1, {"z": "\u00e9"}], "items": "it", "n": None},
    "e": [], "big": "a\n\nb\r\nc", "h": "<b>&\"'",
    "ms": [{"role": "system", "content": " sys "}, {"role": "user", "content": "hi\nthere"},
           {"role": "assistant", "content": "yo", "tool_calls": [{"function": {"name": "f", "arguments": {"q": 1, "r": [1, 2]}}}]}],
}

# One template a line.
LINES = '''
{{ a }} {{ b }} {{ s }} {{ l }} {{ d }} {{ none }} {{ true }} {{ undefinedx }}|{{ u }}|{{ [u] }}
{{ a + 2 }} {{ a - 5 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 if a else 2 }} {{ 1 if not a }}|{{ a == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1,2] < [1,3] }} {{ 1 < 2 < 3 }} {{ 1 < 2 > 3 }}
{{ 'x' in l }} {{ 'q' not in l }} {{ 'ell' in s }} {{ 'x' in d }} {{ 1 in (1,2) }} {{ 'x' in undefinedx }}
{{ s ~ 1 ~ none ~ [1] }} {{ 'a' 'b' }} {{ "a\\n\\tb\\u00e9\\x41\\q" }}
{{ s[0] }} {{ s[-1] }} {{ s[1:4] }} {{ s[::-1] }} {{ l[::2] }} {{ l[-2:] }} {{ l[:100] }} {{ l[100:] }} {{ l[::-1] }} {{ u[1:8:2] }} {{ s[None:3] }} {{ l[99] }}|{{ s[99] }}|{{ l[-99:-3] }} {{ l[5:1:-2] }}
{{ d['items'] }} {{ d.nope }}| {{ d['nope'] }}| {{ d.y[1].z }} {{ d.get('x') }} {{ d.get('q') }} {{ d.get('q', 5) }}
{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %} {% for k in d %}{{ k }},{% endfor %} {{ d.keys()|list }} {{ d.values()|list }} {{ d|length }} {{ d|list }} {{ d|items|list }}
{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }};{% endfor %}
{% for x in e %}x{% else %}empty{% endfor %} {% for x in l if x is number %}{{ x }}/{{ loop.length }} {% endfor %}
{% for x in [1,2,3,4] %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% endfor %}
{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}
{% set ns = namespace(a=1, b='x') %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% set ns.c = i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }}{{ ns.q is defined }}
{% set x, y = 1, 2 %}{{ x }}{{ y }}{% set t = 1, 2 %}{{ t }}{% set t = (1,) %}{{ t }}{{ () }}{{ (1) }}
{% set x %}abc{{ a }}{% endset %}{{ x|upper }}{% set x | trim | upper %}  abc {% endset %}[{{ x }}]
{% if a == 2 %}A{% elif a == 1 %}B{% else %}C{% endif %}{% if e %}x{% elif not e %}y{% endif %}
{% macro m(x, y=2, z=none) %}<{{ x }}{{ y }}{{ z }}{{ q }}>{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(x=4, z='k') }}{% set q = 9 %}{{ m(1) }}{{ m() }}
{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n-1) }}{% endif %}{% endmacro %}{{ r(5) }}
{% macro w(x) %}[{{ x }}:{{ caller() }}]{% endmacro %}{% call w(1) %}in{{ a }}{% endcall %}
{{ s|upper }} {{ s|lower }} {{ 'hello wORLD-foo (bar'|title }} {{ 'hELLO x'|capitalize }} {{ '  x '|trim }}| {{ 'xxaxx'|trim('x') }} {{ s|length }} {{ u|length }} {{ l|count }}
{{ l|join(', ') }} {{ l|join }} {{ ms|join(',', attribute='role') }} {{ l|first }} {{ l|last }} {{ e|first }}| {{ e|last }}|
{{ undefinedx|default('D') }} {{ ''|default('D') }} {{ ''|default('D', true) }} {{ none|d('x') }} {{ undefinedx|default }}|
{{ ms|selectattr('role', 'equalto', 'user')|list }} {{ ms|rejectattr('role', '==', 'user')|map(attribute='role')|list }} {{ ms|selectattr('tool_calls')|list|length }} {{ ms|selectattr('tool_calls', 'defined')|map(attribute='content')|join }}
{{ ms|map(attribute='nope', default='z')|list }} {{ [1,'a','B']|map('string')|map('upper')|list }} {{ l|select('number')|list }} {{ l|reject('none')|list }} {{ [0,1,'']|select|list }} {{ [0,1,'']|reject|list }}
{{ d|tojson }} {{ d|tojson(indent=2) }} {{ ms|tojson(indent=4) }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ d|tojson(sort_keys=true, separators=(',', ':')) }} {{ [1.0, 1e20, 1e-7, 0.1]|tojson }} {{ []|tojson(indent=2) }} {{ {}|tojson }} {{ {1:2, none:3, true:4}|tojson }}
{{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(7) }} {{ '3.7'|int }} {{ 3.9|int }} {{ '2.5'|float }} {{ 'x'|float }} {{ 5|float }} {{ 3|string + 'x' }} {{ ' 1_0 '|int }} {{ none|int }} {{ true|int }}
{{ 'a-b-c'|replace('-', '+') }} {{ 'a-b-c'|replace('-', '+', 1) }} {{ 'abc'.replace('', '-') }} {{ h|safe }} {{ h|e }} {{ h|escape ~ '<' }} {{ (h|safe) ~ '<b>' }} {{ (h|safe) + '<' }}
{{ big|indent }}|{{ big|indent(2, true) }}|{{ big|indent(2, first=true, blank=true) }}|{{ big|indent('>>') }}|{{ ''|indent(first=true) }}|
{{ l|reverse|list }} {{ 'abc'|reverse }} {{ [3,1,2]|sort }} {{ ['b','A','c']|sort }} {{ ['b','A','c']|sort(case_sensitive=true) }} {{ [3,1,2]|sort(reverse=true) }} {{ ms|sort(attribute='role')|map(attribute='role')|list }} {{ {'b':1,'a':2}|dictsort }} {{ {'b':1,'a':2}|dictsort(by='value') }} {{ [1,2,1,'a','A']|unique|list }}
{{ [1,2,3]|sum }} {{ [1,5,3]|max }} {{ [1,5,3]|min }} {{ -3|abs }} {{ (-3)|abs }} {{ 2.5|round }} {{ 2.4|round(0,'ceil') }} {{ 'x'|list }} {{ (1,2)|list }}
{{ a is defined }} {{ q is defined }} {{ q is undefined }} {{ none is none }} {{ s is string }} {{ d is mapping }} {{ l is iterable }} {{ s is iterable }} {{ a is iterable }} {{ l is sequence }} {{ d is sequence }} {{ a is sequence }} {{ q is sequence }} {{ q is iterable }} {{ true is boolean }} {{ 1 is boolean }} {{ true is true }} {{ 1 is true }} {{ false is false }} {{ true is integer }} {{ 1 is integer }} {{ 1.0 is float }} {{ true is number }} {{ 3 is odd }} {{ 4 is even }} {{ 9 is divisibleby(3) }} {{ 9 is divisibleby 3 }} {{ 1 is eq 1 }} {{ 1 is equalto(1) }} {{ 'a' is in ['a'] }} {{ 1 is ne 2 }} {{ 2 is gt 1 }} {{ 1 is le 1 }} {{ none is sameas none }} {{ range is callable }} {{ a is not none }} {{ a is not string and b is float }} {{ 'AB' is upper }} {{ 'ab' is lower }} {{ 'a1' is upper }}
{{ s.startswith('He') }} {{ s.endswith(('x','ld')) }} {{ '  x '.strip() }}| {{ 'xxa'.lstrip('x') }} {{ 'axx'.rstrip('x') }} {{ 'a,b,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.split(',')[-1] }} {{ 'a b c'.split(maxsplit=1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ big.splitlines() }} {{ s.upper() }} {{ s.lower() }} {{ 'they\\'re bill'.title() }} {{ ','.join(['a','b']) }} {{ s.find('o') }} {{ s.rfind('o') }} {{ s.count('l') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ s.index('W') }} {{ 'abc'.capitalize() }}
{{ range(3)|list }} {{ range(1,10,3)|list }} {{ range(3,0,-1)|list }} {% for i in range(2) %}{{ i }}{% endfor %} {{ dict(a=1, b='x') }} {{ strftime_now('%Y-%m-%d %d %b %Y') }}
{{ [1,2] + [3] }} {{ (1,) + (2,) }} {{ 'ab' * 3 }} {{ 3 * 'ab' }} {{ [1] * 2 }} {{ true + 1 }} {{ 1 and 2 }} {{ 0 or 'x' }} {{ not 0 }} {{ none or 'y' }} {{ '' and 'z' }}|
{{ {'a': 1, 'b': {'c': [1, 'x']}} }} {{ {'a': 1}.a }} {{ [[1,2],[3]][1][0] }} {{ l[0] + l[1] * 2 }} {{ (l|length) - 1 }} {{ l|length - 1 }} {{ 'a' ~ 1 + 1 }} {{ 1 ~ 2 * 3 }} {{ -a }} {{ +a }} {{ - a + 3 }} {{ not a == 1 }} {{ not (a is defined) }} {{ a is defined and not b is undefined }}
  {% if true %}
    x
  {% endif %}
y
{%- if true -%}   z   {%- endif -%}   w
a {{- a -}} b   {#- c -#}   c {# d #}
{#+ keep #}d {%+ if true +%}
e{% endif %}
   {{ a }}
	{% set q = 1 %}  
tail {% raw %}{{ x }} {% y %}{% endraw %} {%- raw -%}  {{ z }}  {%- endraw -%} end
{% generation %}gen{{ a }}{% set zz = 4 %}{% endgeneration %}{{ zz }}
{% filter upper %}abc{{ s }}{% endfilter %} {% filter trim|upper %} abc {% endfilter %}|
{% with x = 1, y = a %}{{ x }}{{ y }}{% endwith %}{{ x }}|
{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}{% for i in [1,2] %}{% for j in [1,2] %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}
{{ ms[0].role }}{{ ms[0]['content']|trim }}{{ ms[-1].tool_calls[0].function.arguments|tojson }}{{ ms[1:]|length }}{{ ms.0.role }}
{% set ms2 = ms[1:] %}{{ ms2|length }}{{ (ms|map(attribute='role')|list)[0] }}{{ ms|map(attribute='tool_calls')|select('defined')|first|length }}
{% if ms|selectattr('role','equalto','nope') %}truthy{% endif %}{% if ms|selectattr('role','equalto','nope')|list %}truthy{% endif %}{% set g = ms|map(attribute='role') %}{{ g|list }}{{ g|list }}
{{ loop is defined }}{{ messages is defined and messages }}{{ d.y is iterable and d.y is not mapping and d.y is not string }}
{{ 1e3 }} {{ 1.5e-8 }} {{ 100000000000000000.0 }} {{ 1_000 }} {{ 3.0 }} {{ 0.1 + 0.2 }} {{ 1e16 }} {{ 123456789.123 }}
{{ '\\'' }} {{ "it's" }} {{ ["it's", 'a"b', "both'\\"", '\\n', '\\x7f', '\\u200b'] }}
{{ [undefinedx] }}|{{ undefinedx ~ 'x' }} {{ undefinedx == undefinedx }} {{ undefinedx == none }} {{ undefinedx|length }} {{ undefinedx|upper }}|{{ undefinedx|list }} {% for x in undefinedx %}x{% endfor %}
{% set content = 'a</think>b' %}{{ content.split('</think>')[-1].lstrip('\\n') }}{{ content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') }}
{%- for m in ms %}{%- if m.role == "user" %}{{- '<' + m.content + '>' }}{%- else %}{{ m['content'] }}{%- endif %}{%- endfor %}
{% for m in ms %}{{ loop.cycle('a','b') }}{% endfor %}
{{ ms|map(attribute='content')|map('trim')|join('|') }} {{ ms|map(attribute='content')|map('replace', 'h', 'H')|list }}
{{ 'é'|upper }} {{ 'É'|lower }} {{ 'straße'|upper }} {{ 'ÀB'|title }} {{ 'ИВАН'.lower() }}
{{ "a" "b" 'c' }} {{ ("x" ~ "y")|length }} {{ (a, b)[0] }} {{ {"k": "v"}["k"] }} {{ [1,2,3,][1] }} {{ {'a':1,}|length }}
{{ d.x|string|length }} {{ d.y|length > 1 }} {{ not d.y|length > 1 }} {{ 2 in [1,2] and 3 not in [1,2] }} {{ s == 'Hello World' and a }}
{{ raise_exception('boom') }}
{{ undefinedx.foo }}
{{ undefinedx + 'a' }}
{{ none.foo }}|{{ none['x'] }}
{{ none + 'a' }}
{{ 'a' + 1 }}
{{ none|length }}
{{ 1|length }}
{{ 1 / 0 }}
{{ l.append(1) }}
{{ d.update({}) }}
{{ 'a' < 1 }}
{% for x in 5 %}{% endfor %}
{{ foo() }}
{{ s() }}
{{ q|tojson }}
{% do x %}
{{ x
{% if a %}
{% endif %}
{% endfor %}
{% for x in l %}{% endif %}
{{ a b }}
{{ 'abc }}
{{ [1, 2 }}
{{ a | nofilter }}
{{ a is notest }}
{% set a.b = 1 %}
{% set d.x = 1 %}
{% break %}
{{ ''.join([1]) }}
{{ 'a'.split('') }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(1, 2) }}
{% macro m(x) %}{{ x }}{% endmacro %}{{ m(z=2) }}
{{ range(200000)|list|length }}
{{ [1, 'a']|sort }}
{{ d['x']['y'] }}|{{ s.foo }}|{{ s['foo'] }}|{{ a.foo }}|{{ l.foo }}|{{ l['foo'] }}
{{ l['0'] }}|{{ d[1] }}|{{ d[none] }}
{%- set x -%} a {%- endset -%}{{ x }}|
{{ ms[0].get('role', 'x') ~ ms[0].get('q', 'x') }}{{ 'role' in ms[0] }}{{ ms[0].keys()|list|join(',') }}
{% set x = {'a': 1} %}{% for k, v in x|dictsort %}{{ k }}{{ v }}{% endfor %}{% for k, v in x|items %}{{ k }}{{ v }}{% endfor %}
{{ "{{" }} {{ '%}' }} {{ '}}' }} {{ {'a': {'b': 1}} }}
{{ ['a', 'b']|last }}{{ 'abc'|first }}{{ 'abc'|last }}{{ d|first }}{{ d.items()|list|first }}
{% if x is not defined %}{% set x = 3 %}{% endif %}{{ x }}{% if false %}{% set yy = 1 %}{% endif %}{{ yy is defined }}
{{ 1 if false else 2 if false else 3 }} {{ (1 if a else 2) + 1 }} {{ 'a' if a is string else 'b' }} {{ 'a' if a == 1 and b else 'c' }}
{{ a if a is defined else 'n' }}{{ q if q is defined and q is not none else 'n' }}
'''.strip().split("\n")

# White space around tags.
SPACES = '''  {% if true %}
    x
  {% endif %}
y
{%- if true -%}   z   {%- endif -%}   w
a {{- a -}} b   {#- c -#}   c {# d #}
{# e #}
  {# f #}  
d {%+ if true +%}
e{% endif %}
   {{ a }}
\t{% set q = 1 %}  
{% for x in [1,2] %}
  {{ x }}
{% endfor %}

  {%- for x in [1,2] -%}
  {{ x }}
  {%- endfor -%}

tail {% raw %}{{ x }} {% y %}
{% endraw %}
 {%- raw -%}  {{ z }}  {%- endraw -%} end
   {% raw %}
  r
   {% endraw %}
'''

WHOLE = [SPACES, SPACES+'\n', SPACES+'\n\n', SPACES.replace('\n','\r\n'), SPACES.replace('\n','\r'), '\n', '\n\n', 'a\n', '{% if true %}\n', '{% if true %}\n\n{% endif %}\n', '{{ a }}\n', '   {% if a %}b{% endif %}   \n  c', '\u00a0 {% if a %}b{% endif %}', 'x\u2028  {%- if a %}b{% endif %}', '  {#- a #}  ', '{#a#}\n{#b#}\nx', '{{ a }}\nb', '{{- a }}', '  {{ a }}', '{%- if a %}\n  b\n{%- endif %}\n', '{{ "\r\n" }}', '{{ "a\nb" }}','{{a}}{%if a%}b{%endif%}', '{{ a -}}  \n b', '{% if a -%}  \n b{% endif %}', '{% set x = [\n1,\n2] %}{{ x }}', '{# {{ a }} #}b', '{#- x -#}', '{##}', '{#-#}', '{% raw %}{% endraw %}', '{{ a }}}', '{{ {} }}', '{{ {"a":1} }}', '}}', '%}', '{', '{ {', '{{{ a }}}', '{{ a }} {', 'x{#']

# Shapes in circulation: bare roles, tags around roles, roles that must alternate, tools, thinking that is dropped from earlier turns.
TEMPLATES = {
    "tagged roles": (
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\n' + message['content'] + '\n' }}"
        "{% elif message['role'] == 'user' %}{{ '<|user|>\n' + message['content'] + '\n' }}{% elif message['role'] == 'assistant' %}"
        "{{ '<|assistant|>\n' + message['content'] }}{% if not loop.last %}{{ eos_token + '\n' }}{% else %}{{ eos_token }}{% endif %}{% endif %}"
        "{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"),
    "spoken roles": (
        "{%- if not add_generation_prompt is defined -%}{%- set add_generation_prompt = false -%}{%- endif -%}{{ bos_token }}"
        "{%- for message in messages -%}{%- if message.role == 'user' -%}{{ 'User: ' ~ message.content ~ '\n\n' }}{%- elif message.role == 'assistant' -%}"
        "{{ 'Assistant: ' ~ message.content ~ eos_token }}{%- else -%}{{ message.content ~ '\n\n' }}{%- endif -%}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{ 'Assistant:' }}{%- endif -%}"),
    "instructions that alternate": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or message.tool_calls is defined) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("Roles must alternate: user, assistant, user, ...") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == (loop_messages | selectattr("role", "equalto", "user") | list)[-1]) %}
            {{- "[TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/TOOLS]" }}
        {%- endif %}
        {%- if loop.first and system_message is defined %}
            {{- " [INST] " + system_message + "\\n\\n" + message["content"] + " [/INST]" }}
        {%- else %}
            {{- " [INST] " + message["content"] + " [/INST]" }}
        {%- endif %}
    {%- elif message.role == "assistant" and message.tool_calls is defined %}
        {{- "[TOOL_CALLS] " + message.tool_calls | map(attribute="function") | map("tojson") | join(", ") + eos_token }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- elif message["role"] == "tool" %}
        {{- "[RESULT] " + {"content": message.content, "name": message.name | default("?")} | tojson + "[/RESULT]" }}
    {%- else %}
        {{- raise_exception("Unknown role: " ~ message.role) }}
    {%- endif %}
{%- endfor %}
""",
    "marked turns with a default": (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|start|>system\nYou are helpful.<|stop|>\n' }}{% endif %}"
        "{{'<|start|>' + message['role'] + '\n' + message['content'] + '<|stop|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"),
    "thinking and parts": """{#- Content is a text, or parts. #}
{% macro text_of(content, trims=false) %}
{%- if content is string %}{{ content | trim if trims else content }}
{%- elif content is iterable and content is not mapping %}
    {%- for part in content %}
        {%- if part.type == 'text' %}{{ part['text'] }}
        {%- elif 'image' in part or part.type in ['image', 'image_url'] %}<image {{ loop.index }}>
        {%- else %}{{ raise_exception('part ' ~ part.type ~ ' is unknown') }}
        {%- endif %}
    {%- endfor %}
{%- elif content is none or content is undefined %}
{%- else %}{{ raise_exception('odd content') }}
{%- endif %}
{% endmacro %}
{%- set ns = namespace(last_user=-1, names=[]) %}
{% for message in messages[::-1] %}
{%- if ns.last_user < 0 and message.role == 'user' %}{% set ns.last_user = messages|length - loop.index %}{% break %}{% endif %}
{% endfor %}
Date: {{ strftime_now('%d %b %Y') }}
{% for tool in tools or [] %}
- {{ tool.function.name }}: {{ tool.function.description | default('none', true) | replace('\\n', ' ') }}
{{ tool | tojson(indent=2) | indent(2, first=true) }}
{% endfor %}
{%- for message in messages %}
    {%- set content = text_of(message.content, trims=true) %}
    {%- if message.role == 'assistant' %}
        {%- if loop.index0 > ns.last_user and message.reasoning_content is defined %}
            {%- set thought = message.reasoning_content.strip('\\n') %}
        {%- elif '</think>' in content %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- generation %}
{{- '<assistant>' ~ ('[' ~ thought ~ ']' if thought is defined else '') ~ content }}
        {%- for call in message.tool_calls or [] %}
            {%- set call = call.function or call %}
            {%- set arguments = call.arguments %}
            {{- '\\n>' ~ call.name ~ '(' }}
            {%- if arguments is mapping %}
                {%- for name, value in arguments | dictsort %}
                    {{- name ~ '=' ~ (value if value is string else value | tojson) }}{{ ', ' if not loop.last }}
                {%- endfor %}
            {%- else %}{{ arguments }}
            {%- endif %}
            {{- ')' }}
        {%- endfor %}
        {%- endgeneration %}
        {{- '</assistant>\\n' }}
    {%- else %}
        {{- '<' ~ message.role | title ~ '>' ~ content ~ '</>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}<assistant>{% if enable_thinking is defined and not enable_thinking %}[]{% endif %}{% endif %}
""",
}

SYSTEM = {"role": "system", "content": "You are terse.\n"}
USER = {"role": "user", "content": " Hello, w\u00f6rld! <b> "}
REPLY = {"role": "assistant", "content": "Hi 'there'."}
THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFour."}
REASONED = {"role": "assistant", "content": "Five.", "reasoning_content": "\nSum.\n"}
CALL = {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "weather", "arguments": {"place": "K\u00f6ln", "days": 3, "at": [1.5, None, True]}}}]}
CALL_AS_TEXT = {"role": "assistant", "content": "Let me see.", "tool_calls": [{"function": {"name": "weather", "arguments": '{"place": "here"}'}}]}
RESULT = {"role": "tool", "name": "weather", "content": "22 \u00b0C"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "What is "}, {"type": "image"}, {"type": "text", "text": "this?"}]}
CONVERSATIONS = {
    "one turn": [USER], "with a system": [SYSTEM, USER], "several turns": [SYSTEM, USER, REPLY, USER, REPLY, USER], "ends with a reply": [USER, REPLY],
    "thinking of old": [USER, THOUGHT, USER], "thinking again": [USER, THOUGHT, USER, REASONED], "called by another name": [USER, {"role": "assistant", "content": "x", "thinking": "t"}],
    "a tool": [USER, CALL, RESULT], "tools twice": [SYSTEM, USER, CALL_AS_TEXT, RESULT, RESULT, REPLY, USER], "parts": [PARTS], "out of turn": [REPLY, REPLY],
    "a role of its own": [{"role": "critic", "content": "No."}], "nothing said": [{"role": "user", "content": ""}],
}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Tells the \"weather\"\nat a place.", "parameters": {
    "type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["place"]}, "return": {"type": "string"}}}]
OPTIONS = [{"add_generation_prompt": True}, {"add_generation_prompt": False}, {"add_generation_prompt": True, "tools": TOOLS},
           {"add_generation_prompt": True, "variables": {"enable_thinking": False}}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


def rendered(template, variables):
    """The text, or null where the reference refuses."""
    try:
        return reference._compile_jinja_template(template).render(**variables)
    except Exception:  # of many kinds, all of them refusals
        return None


def conversations_by(template):
    cases = []
    for name, messages in CONVERSATIONS.items():
        for options in OPTIONS:
            chat = reference._alias_reasoning_fields(reference._normalize_chat_messages(messages))
            text = rendered(template, {**SPECIAL, **options.get("variables", {}), "messages": chat, "tools": options.get("tools"), "documents": None,
                                       "add_generation_prompt": options["add_generation_prompt"]})
            cases.append({"name": name, "options": OPTIONS.index(options), "text": text})
    return cases


def write(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=True, indent=0) + "\n")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    write("expressions.json", {"variables": VARIABLES, "cases": [{"template": t, "text": rendered(t, VARIABLES)} for t in LINES + WHOLE]})
    write("conversations.json", {
        "conversations": CONVERSATIONS, "options": OPTIONS, "special": SPECIAL,
        "templates": [{"name": name, "template": template, "cases": conversations_by(template)} for name, template in TEMPLATES.items()]})
    if len(sys.argv) > 1:
        config = json.loads((Path(sys.argv[1]) / "tokenizers/qwen3/tokenizer_config.json").read_text())
        write("qwen3.json", {"cases": conversations_by(config["chat_template"])})


if __name__ == "__main__":
    main()
