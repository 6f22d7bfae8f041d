# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/jinja.json: templates, what they see, and what Jinja makes of them with transformers' settings.

    python3 make_jinja_fixtures.py            (pip: jinja2)

  cases      [{"template", "text"}, or {"template", "error": true} where Jinja refuses it as well]
  variables  what all of them see
  chats      [{"name", "template", "chats": [{"messages", "tools", "add_generation_prompt", "text" or "error"}]}]: chat
             templates in the shapes of the common families
"""
import datetime
import itertools
import json
import pathlib
import textwrap

import jinja2
import jinja2.ext
import jinja2.sandbox

OUT = pathlib.Path(__file__).parent / "fixtures" / "jinja.json"
DAY = datetime.datetime(2024, 7, 26)
VARIABLES = {
    "name": "world", "empty": "", "text": "  a b\tc \n", "umlaut": "größe 😀", "quote": "it's \"so\"\\\n", "n": 7, "zero": 0,
    "half": 0.5, "big": 1e22, "small": 1e-7, "yes": True, "no": False, "nothing": None, "list": [3, 1, 2], "words": ["b", "A", "c"],
    "mixed": [1, "a", None, True, 2.5, [1], {"k": "v"}], "map": {"b": 1, "a": {"c": [1, 2]}, "items": 5}, "messages": [
        {"role": "system", "content": "S"}, {"role": "user", "content": "U"}, {"role": "assistant", "content": "A"},
        {"role": "user", "content": "V"}],
}


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                                       extensions=[Generation, jinja2.ext.loopcontrols])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = DAY.strftime
    return env


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


EXPRESSIONS = r"""
name|upper ~ '!' ~ n
1 + 2 * 3 - 4 // 3 % 2
7 // -2
-7 % 3
7 / 2
2 ** 10
-2 ** 2
1.5 * 2
7.5 // 2
-7.5 % 2
big
small
1e16
123456789012345680.0
0.1 + 0.2
100.0
yes and no or name
no or empty or 'x'
not yes
not no and yes
1 < 2 < 3
1 < 2 > 3
1 == 1.0 == true
'a' in 'abc'
'a' not in list
3 in list
'b' in map
none in mixed
undefined_thing in list
'x' in undefined_thing
list
mixed
map
(1,)
(1, 'a')
[]
{}
{'a': 1, 'b': [none, true]}
[1, 2] + [3]
'ab' * 3
[0] * 2
'é' * 2
quote
[quote]
[umlaut, '\x7f', '​']
'\n\t\\ \x41 é \q'
'a' 'b' "c"
umlaut|length
umlaut[0] ~ umlaut[-1] ~ umlaut[2:4]
umlaut[::-1]
text|trim
text.strip() ~ '|'
text.rstrip() ~ '|'
text.lstrip() ~ '|'
'xxaxx'.strip('x')
'xyaxy'.lstrip('yx')
'a,b,,c'.split(',')
'a,b,,c'.split(',', 1)
'a,b,,c'.rsplit(',', 1)
' a  b c '.split()
' a  b c '.split(none, 1)
' a  b c '.rsplit(none, 1)
'a\nb\r\nc\n'.splitlines()
'a\nb'.splitlines(true)
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('x')
'abc'.rpartition('x')
'hello'.replace('l', 'L')
'hello'.replace('l', 'L', 1)
'ab'.replace('', '-')
'größe'.find('e')
'größe'.find('x')
'hello'.rfind('l')
'hello'.index('l')
'hello'.count('l')
'aaa'.count('')
'hello'.startswith('he') and 'hello'.endswith(('x', 'lo'))
'Hello World'.upper() ~ 'Hello'.lower() ~ 'hELLO'.capitalize() ~ "it's a_b-c".title()
"it's a_b-c (d) e.f"|title
'hELLO wORLD'|capitalize
', '.join(words)
'ab'.join('xyz')
'prefix-x'.removeprefix('prefix-') ~ 'x.json'.removesuffix('.json')
'12'.isdigit() ~ 'a1'.isalnum() ~ 'ab'.isalpha() ~ ' '.isspace() ~ ''.isdigit()
map.get('a') ~ map.get('x') ~ map.get('x', 3)
map['items'] ~ (map.items() | list)
map.keys() | list
map.values() | list
map.a.c[1]
map.a.d is defined
map['nope'] is defined
map.b.c is defined
list[5] is defined
list['x'] is defined
name.foo is defined
nothing.foo is defined
n.foo is defined
list[-1]
list[1:]
list[:-1]
list[::2]
list[::-1]
list[10:]
list[-10:2]
(1, 2, 3)[1:]
list.index(1) ~ list.count(9)
list|length ~ map|length ~ undefined_thing|length ~ empty|count
list|first ~ list|last ~ name|first ~ name|last
[]|first is defined
list|join ~ list|join(', ') ~ messages|join('-', attribute='role')
list|sort ~ words|sort ~ words|sort(case_sensitive=true) ~ list|sort(reverse=true)
messages|sort(attribute='content')|map(attribute='content')|list
list|reverse|list
name|reverse
messages|map(attribute='role')|list
messages|map(attribute='nope', default='-')|list
words|map('upper')|list
[' a ', 'b ']|map('trim')|join('|')
messages|selectattr('role', 'equalto', 'user')|list|length
messages|selectattr('role', '==', 'user')|map(attribute='content')|join
messages|rejectattr('role', 'in', ['user', 'system'])|list
messages|selectattr('content')|list|length
mixed|select('string')|list
mixed|reject('none')|list
mixed|select|list
['a', 'A', 'b', 'a']|unique|list
map|items|list
map|dictsort
{'b': 1, 'C': 0, 'a': 2}|dictsort
{'b': 1, 'C': 0, 'a': 2}|dictsort(true)
{'b': 1, 'a': 2}|dictsort(by='value')
{'b': 1, 'a': 2}|dictsort(false, 'key', true)
undefined_thing|default('d') ~ empty|default('d') ~ empty|default('d', true) ~ nothing|d('d') ~ no|default('d', boolean=true)
undefined_thing ~ nothing ~ yes
undefined_thing|trim ~ '|' ~ nothing|trim
'3'|int + 1
'3.7'|int
'x'|int
'x'|int(9)
' +5 '|int
none|int
half|int ~ 2.9|int ~ -2.9|int
'2.5'|float ~ 'x'|float ~ n|float ~ 'x'|float(1.5)
-3|abs
(-3.5)|abs
n|string + 'x'
'hello'|replace('l', 'L') ~ 'hello'|replace('l', 'L', 1)
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent('> ', first=false, blank=true)
mixed|tojson
map|tojson(indent=2)
map|tojson(indent=4)
{}|tojson(indent=2) ~ []|tojson(indent=2)
map|tojson(separators=(',', ':'))
{'b': 1, 'a': 2}|tojson(sort_keys=true)
umlaut|tojson
umlaut|tojson(ensure_ascii=true)
quote|tojson
[0.1, 1e22, 1.0, 1e-7]|tojson
'<a href="x">&'|tojson
'\u2028\x7f\x01'|tojson
'\u2028\x7f\x01'|tojson(ensure_ascii=true)
n is number and half is number and yes is number
n is integer ~ half is integer ~ yes is integer
half is float ~ n is float
yes is boolean ~ n is boolean
yes is true ~ n is true ~ no is false
name is string ~ list is string
map is mapping ~ list is mapping
list is iterable ~ name is iterable ~ n is iterable ~ undefined_thing is iterable
list is sequence ~ map is sequence ~ name is sequence ~ n is sequence
nothing is none ~ undefined_thing is none
undefined_thing is undefined ~ name is not undefined
n is odd ~ n is even ~ n is divisibleby 7 ~ n is divisibleby(2)
n is eq 7 ~ n is ne(8) ~ n is gt 6 ~ n is lessthan 8 ~ n is ge 7 ~ n is le 7 ~ name is in ['world']
nothing is sameas none
range is callable ~ name is callable
'a' if yes else 'b'
'a' if no
'a' if no else 'b' if no else 'c'
('x' if yes) ~ ('y' if no) ~ 'z'
range(4)|list ~ range(1, 4)|list ~ range(5, 0, -2)|list
range(3)|length
dict(a=1, b='x')
namespace(a=1).a
strftime_now('%d %b %Y') ~ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j')
-n ~ +n ~ -half
- 3 + 1
[1, 2] == [1, 2] and (1, 2) != [1, 2] and {'a': 1} == {'a': 1.0}
'a' < 'b' and 'Z' < 'a'
true + true
messages[0].role ~ messages[0]['role'] ~ messages.0.role
messages[0].content[0]
messages[-1]['content'] is string
name is defined and name is not none and name
list[true]
'x'.join([])
[[1, [2]], {'a': {'b': (1,)}}]
loop is defined
''|length == 0
none is undefined
'%d'
"""

ERRORS = r"""
undefined_thing.x
undefined_thing['x']
undefined_thing()
undefined_thing + 1
nothing + 'x'
'a' + 1
name()
1 // 0
'a' < 1
list|tojson(bad=1)
n|length
none|length
mixed|sort
{'a': 1}['a']['b'].c
messages|map(attribute='role')|length
map.items()[0].x
raise_exception('no')
list.append(1)
'x'.nope()
undefined_thing|tojson
undefined_thing|indent
range(1000000)
map.pop('a')
1 is divisibleby(0)
'a' in 1
1 in 'a'
1 +
(1
[1
{1
'abc
name|nope
name is nope
a b
name.
"""

STATEMENTS = [
    "a\n{% if yes %}\nb\n{% endif %}\nc\n",
    "a\n  {% if yes %}  \n  b\n  {%- endif %}\n c\n\n",
    "a \n {%- if yes -%} \n b \n {%- endif -%} \n c",
    "a\n  {%+ if yes +%}\n  b\n{% endif %}c",
    "  {{ name }}  \n  {{- name -}}  \n x",
    "a{# comment #}\nb\n  {#- c -#}\n  d {# e\nf #} g",
    "{% raw %}{{ x }} {% if %}{% endraw %}!",
    "a\n {%- raw -%} \n {{ }} \n {%- endraw -%} \n b",
    "a\n  {% raw %}\n  x\n  {% endraw %}\nb",
    "x\r\ny\rz\n\n",
    "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}c{% endif %}",
    "{% for x in list %}{{ loop.index }}/{{ loop.length }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in list %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }} {% endfor %}",
    "{% for x in [] %}a{% else %}none{% endfor %}{% for x in undefined_thing %}a{% else %}u{% endfor %}",
    "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }}{% else %}no{% endfor %}",
    "{% for m in messages if m.role == 'tool' %}x{% else %}no{% endfor %}",
    "{% for k, v in map.items() %}{{ k }}={{ v }};{% endfor %}{% for k in map %}{{ k }}{% endfor %}{% for c in 'aé' %}[{{ c }}]{% endfor %}",
    "{% for (a, b) in [(1, 2), [3, 4]] %}{{ a + b }} {% endfor %}",
    "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in list %}{% for y in words %}{{ loop.index }}{% if loop.last %}{% break %}{% endif %}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x > 1) }}{% endfor %}",
    "{% set a = 1 %}{% for x in list %}{% set a = x %}{{ a }}{% endfor %}{{ a }}",
    "{% set a = 1 %}{% for x in list %}{{ a }}{% set a = a + x %}{{ a }} {% endfor %}{{ a }}",
    "{% for x in list %}{% if loop.first %}{% set y = 1 %}{% endif %}[{{ y }}]{% endfor %}[{{ y }}]",
    "{% if yes %}{% set y = 1 %}{% endif %}{{ y }}{% if no %}{% set z = 1 %}{% endif %}[{{ z }}]",
    "{% set ns = namespace(n=0, s='') %}{% for x in list %}{% set ns.n = ns.n + x %}{% set ns.s = ns.s ~ x %}{% endfor %}{{ ns.n }}{{ ns.s }}{{ ns.nope is defined }}",
    "{% set a, b = 1, 'x' %}{{ a }}{{ b }}{% set c = 1, 2 %}{{ c }}{% set d %} x {{ name }}{% endset %}[{{ d }}]{% set e | trim | upper %} y {% endset %}[{{ e }}]",
    "{% set x = 5 %}{% with x = 1, y = x %}{{ x }}{{ y }}{% set x = 9 %}{{ x }}{% endwith %}{{ x }}",
    "{% macro m(a, b=2, c=b) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(b=4, a=0) }} {{ m() }}",
    "{% macro m() %}{{ late }}{% endmacro %}{% set late = 1 %}{{ m() }}",
    "{% macro m(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ m(1) }}[{{ y }}]",
    "{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
    "{% macro v() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ v(1, 2, a=3) }}{{ v() }}",
    "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}x{{ name }}{% endcall %}",
    "{% macro each(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) each(list) %}({{ x }}){% endcall %}",
    "{% for x in list %}{% macro inner() %}{{ x }}{% endmacro %}{{ inner() }}{% endfor %}",
    "{% macro m() %}{{ x }}{% endmacro %}{% for x in list %}{{ m() }}{% endfor %}[]",
    "{% filter upper %}a{{ name }}{% endfilter %}{% filter trim | replace('a', 'b') %}  aXa  {% endfilter %}",
    "{% generation %}a{{ name }}{% endgeneration %}\nx{%- generation %}\nb{% endgeneration -%}\n y",
    "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    "{{ {'a': {'b': 1}} }}{{ {'a': 1}['a'] }}{{ '}}' }}{{ \"%}\" }}",
    "{{ name\n  | upper }}{%- if\n yes\n %}y{% endif %}",
    "{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list | tojson }}",
    "{% set loop_messages = messages[1:] if messages[0]['role'] == 'system' else messages %}{% for m in loop_messages %}{{ m.role }} {% endfor %}",
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ loop.index0 }}{% endif %}{% endfor %}",
    "{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ [1] }}",
    "{%- set x = [] -%}{%- for m in messages -%}{%- set x = x + [m.role] -%}{%- endfor -%}{{ x }}",
    "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [m.role] %}{% endfor %}{{ ns.l | join(' ') }}",
    "{{ messages | length }}{{ (messages | last).content }}{{ messages[-1:] }}",
    "{% if messages is sequence and messages is not string and messages[0] is mapping and 'role' in messages[0] %}ok{% endif %}",
    "{{- '' }}\n\n{{- name }}\n",
    "  {% set a = 1 %}\n  {{ a }}\n",
    "{%if yes%}a{%endif%}{{name}}{{-name-}}",
    "{% for m in messages %}\n<{{ m.role }}>\n{{ m.content }}\n{% endfor %}\nend",
    "{% for x in range(3) %}{{ x }}{% endfor %}",
    "{{ name | safe }}{{ (quote | safe) ~ '<' }}{% set x = map | tojson | safe if map is mapping else map | string %}{{ x }}",
    "{% if name %}a{% endif %}{# x #}{% if empty %}b{% endif %}",
]
STATEMENT_ERRORS = [
    "{% if yes %}a", "{% endif %}", "{% for x in list %}a", "{% nope %}", "{{ name", "{% set x %}a", "{# a", "{% raw %}a",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}", "{% break %}",
    "{% for a, b in [[1]] %}{% endfor %}", "{% set x.y = 1 %}", "{% set a = 1 %}{% set a.b = 2 %}", "{% set none = 1 %}",
    "{{ raise_exception('Conversation roles must alternate') }}", "{% for x in n %}{% endfor %}", "{% if yes %}{% endfor %}",
    "{{ name }} {{ }} ", "{% set a, b = 1 %}", "{% call name %}{% endcall %}",
]

CHATS = {
    "chatml": """
        {% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}
        {%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "two-turns": """
        {% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}
        {%- else %}{% set rest = messages %}{% set system = false %}{% endif %}
        {%- for message in rest %}
        {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate user/assistant') }}{% endif %}
        {%- if loop.index0 == 0 and system != false %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
        {%- else %}{% set content = message['content'] %}{% endif %}
        {%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
        {%- elif message['role'] == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}""",
    "headers": """
        {{- bos_token }}
        {%- if not date_string is defined %}
            {%- if strftime_now is defined %}
                {%- set date_string = strftime_now("%d %b %Y") %}
            {%- else %}
                {%- set date_string = "26 Jul 2024" %}
            {%- endif %}
        {%- endif %}
        {%- if not tools is defined %}{%- set tools = none %}{%- endif %}
        {%- if messages[0]['role'] == 'system' %}
            {%- set system_message = messages[0]['content']|trim %}
            {%- set messages = messages[1:] %}
        {%- else %}
            {%- set system_message = "" %}
        {%- endif %}
        {{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
        {{- "Today Date: " + date_string + "\\n\\n" }}
        {%- if tools is not none %}
            {{- "You have these functions:\\n\\n" }}
            {%- for t in tools %}
                {{- t | tojson(indent=4) }}
                {{- "\\n\\n" }}
            {%- endfor %}
        {%- endif %}
        {{- system_message }}
        {{- "<|eot_id|>" }}
        {%- for message in messages %}
            {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
                {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
            {%- elif 'tool_calls' in message %}
                {%- if not message.tool_calls|length == 1 %}
                    {{- raise_exception("This model only supports single tool-calls at once!") }}
                {%- endif %}
                {%- set tool_call = message.tool_calls[0].function %}
                {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
                {{- '{"name": "' + tool_call.name + '", ' }}
                {{- '"parameters": ' }}
                {{- tool_call.arguments | tojson }}
                {{- "}" }}
                {{- "<|eot_id|>" }}
            {%- elif message.role == "tool" or message.role == "ipython" %}
                {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
                {%- if message.content is mapping or message.content is iterable %}
                    {{- message.content | tojson }}
                {%- else %}
                    {{- message.content }}
                {%- endif %}
                {{- "<|eot_id|>" }}
            {%- endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}
            {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
        {%- endif %}
        """,
    "turns": """
        {{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
        {%- for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
        {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
        {%- if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}""",
    "thinking": """
        {%- if tools %}
            {{- '<|im_start|>system\\n' }}
            {%- if messages[0].role == 'system' %}
                {{- messages[0].content + '\\n\\n' }}
            {%- endif %}
            {{- "# Tools\\n\\n<tools>" }}
            {%- for tool in tools %}
                {{- "\\n" }}
                {{- tool | tojson }}
            {%- endfor %}
            {{- "\\n</tools><|im_end|>\\n" }}
        {%- else %}
            {%- if messages[0].role == 'system' %}
                {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
            {%- endif %}
        {%- endif %}
        {%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
        {%- for message in messages[::-1] %}
            {%- set index = (messages|length - 1) - loop.index0 %}
            {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
                {%- set ns.multi_step_tool = false %}
                {%- set ns.last_query_index = index %}
            {%- endif %}
        {%- endfor %}
        {%- for message in messages %}
            {%- if message.content is string %}
                {%- set content = message.content %}
            {%- else %}
                {%- set content = '' %}
            {%- endif %}
            {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
                {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
            {%- elif message.role == "assistant" %}
                {%- set reasoning_content = '' %}
                {%- if message.reasoning_content is string %}
                    {%- set reasoning_content = message.reasoning_content %}
                {%- else %}
                    {%- if '</think>' in content %}
                        {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
                    {%- endif %}
                {%- endif %}
                {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
                    {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
                {%- else %}
                    {{- '<|im_start|>' + message.role + '\\n' + content }}
                {%- endif %}
                {%- if message.tool_calls %}
                    {%- for tool_call in message.tool_calls %}
                        {%- if (loop.first and content) or (not loop.first) %}
                            {{- '\\n' }}
                        {%- endif %}
                        {%- if tool_call.function %}
                            {%- set tool_call = tool_call.function %}
                        {%- endif %}
                        {{- '<tool_call>\\n{"name": "' }}
                        {{- tool_call.name }}
                        {{- '", "arguments": ' }}
                        {%- if tool_call.arguments is string %}
                            {{- tool_call.arguments }}
                        {%- else %}
                            {{- tool_call.arguments | tojson }}
                        {%- endif %}
                        {{- '}\\n</tool_call>' }}
                    {%- endfor %}
                {%- endif %}
                {{- '<|im_end|>\\n' }}
            {%- elif message.role == "tool" %}
                {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
                    {{- '<|im_start|>user' }}
                {%- endif %}
                {{- '\\n<tool_response>\\n' }}
                {{- content }}
                {{- '\\n</tool_response>' }}
                {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
                    {{- '<|im_end|>\\n' }}
                {%- endif %}
            {%- endif %}
        {%- endfor %}
        {%- if add_generation_prompt %}
            {{- '<|im_start|>assistant\\n' }}
            {%- if enable_thinking is defined and enable_thinking is false %}
                {{- '<think>\\n\\n</think>\\n\\n' }}
            {%- endif %}
        {%- endif %}
        """,
    "macros": """
        {%- macro type_of(spec) -%}
            {%- if spec.type == "array" -%}
                {{- type_of(spec['items']) + "[]" if spec['items'] else "any[]" -}}
            {%- elif spec.type == "object" and spec.properties is defined -%}
                {{- "{" -}}
                {%- for name, inner in spec.properties|items -%}
                    {{- name -}}{%- if name not in (spec.required or []) -%}?{%- endif -%}: {{ type_of(inner) }}
                    {%- if not loop.last -%}, {% endif -%}
                {%- endfor -%}
                {{- "}" -}}
            {%- else -%}
                {{- spec.type | default('any') -}}
            {%- endif -%}
        {%- endmacro -%}
        {%- for tool in tools or [] %}
        type {{ tool.function.name }} = (_: {{ type_of(tool.function.parameters) }}) => any;
        {% endfor -%}
        {%- for message in messages %}<|{{ message.role | replace('assistant', 'bot') }}|>{{ message.content or '' }}<|end|>
        {% endfor %}
        {%- if add_generation_prompt %}<|bot|>{% endif %}""",
    "mixed-roles": """
        {%- set system_message = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | join('\\n') -%}
        {%- if system_message %}{{ 'SYSTEM: ' ~ system_message | trim ~ '\\n' }}{% endif -%}
        {%- for message in messages if message.role != 'system' -%}
        {{ message.role | upper }}: {% generation %}{{ message.content | default('', true) | trim }}{% endgeneration %}{{ eos_token if message.role == 'assistant' }}
        {% endfor -%}
        {{ 'ASSISTANT:' if add_generation_prompt }}""",
}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Größe & \"mehr\"", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {"type": "integer"}},
                                     "items": {"type": "object", "properties": {"x": {"type": "number"}}}}, "required": ["city"]}}}]
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hello "}]},
    {"messages": [{"role": "system", "content": " Be brief.\n"}, {"role": "user", "content": "Größe?"},
                  {"role": "assistant", "content": "<think>\nhm\n</think>\n\n 42"}, {"role": "user", "content": "Why?"}]},
    {"messages": [{"role": "user", "content": "Weather in Köln?"},
                  {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {
                      "name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2.5, None, True]}}}]},
                  {"role": "tool", "content": "{\"t\": 3}"}, {"role": "assistant", "content": "3 °C", "reasoning_content": "easy"}],
     "tools": TOOLS},
    {"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]},
]


def outcome(template, variables):
    try:
        return {"text": environment().from_string(template).render(**variables)}
    except Exception:  # noqa: BLE001  whatever Jinja and Python refuse with
        return {"error": True}


def main():
    cases = []
    for line in EXPRESSIONS.strip().split("\n"):
        template = "{{ " + line + " }}"
        cases.append({"template": template, **outcome(template, VARIABLES)})
        if "error" in cases[-1]:
            raise SystemExit(f"Jinja refuses {line}")
    for template in STATEMENTS:
        cases.append({"template": template, **outcome(template, VARIABLES)})
        if "error" in cases[-1]:
            raise SystemExit(f"Jinja refuses {template}")
    for template in ["{{ " + line + " }}" for line in ERRORS.strip().split("\n")] + STATEMENT_ERRORS:
        cases.append({"template": template, **outcome(template, VARIABLES)})
        if "text" in cases[-1]:
            raise SystemExit(f"Jinja takes {template}: {cases[-1]['text']}")
    chats = []
    for name, source in CHATS.items():
        template = textwrap.dedent(source.lstrip("\n"))
        rows = []
        for conversation, prompt in itertools.product(CONVERSATIONS, (False, True)):
            given = {"messages": conversation["messages"], "tools": conversation.get("tools"), "add_generation_prompt": prompt,
                     "documents": None, "bos_token": "<s>", "eos_token": "</s>"}
            rows.append({**{k: given[k] for k in ("messages", "tools", "add_generation_prompt")}, **outcome(template, given)})
        chats.append({"name": name, "template": template, "chats": rows})
    OUT.write_text(json.dumps({"variables": VARIABLES, "cases": cases, "chats": chats}, ensure_ascii=False, indent=1) + "\n")
    print(len(cases), "cases,", sum(len(c["chats"]) for c in chats), "chats")


if __name__ == "__main__":
    main()
