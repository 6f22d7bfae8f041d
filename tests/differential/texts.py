# SPDX-License-Identifier: Apache-2.0
"""JSON, YAML, numbers, chat templates: inputs, and what the reference makes of them."""

import fractions
import functools
import json
import math
import pathlib
import re
import struct
import sys

from common import changed, double, half_changed, written


def some_number(rng):
    return rng.choice(
        (
            lambda: str(rng.randint(-20, 20)),
            lambda: str(rng.randint(-(2**66), 2**66)),
            lambda: repr(rng.uniform(-1, 1)),
            lambda: repr(struct.unpack("<d", rng.randbytes(8))[0]),
            lambda: f"{rng.randint(0, 99)}e{rng.randint(-330, 330)}",
            lambda: f"{rng.randint(0, 9)}.{rng.randint(0, 10**18)}E{rng.choice('+-')}{rng.randint(0, 30)}",
            lambda: rng.choice(("-0", "0.0", "-0.0", "1e5", "NaN", "Infinity", "-Infinity", "nan", "inf", "01", "1.", ".5", "+1", "0x1", "1_0", "-")),
        )
    )()


def some_text(rng):
    pieces = ("a", "key", "\\n", "\\u00e4", "\\ud83d\\ude00", "\\ud800", "ä", "😀", '\\"', "\\/", "\\x", "\t", "\\u0000", " ", "\u2028", "\\udc00")
    return '"' + "".join(rng.choice(pieces[: rng.choice((3, 10, len(pieces)))]) for _ in range(rng.randint(0, 4))) + '"'


def some_json(rng, depth=0):
    way = rng.randrange(8 if depth < 4 else 4)
    if way < 2:
        return some_number(rng)
    if way == 2:
        return some_text(rng)
    if way == 3:
        return rng.choice(("null", "true", "false"))
    space = rng.choice(("", "", " ", "\n", "\t ", "\r\n"))
    items = [some_json(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    if way < 6:
        return "[" + ("," + space).join(items) + space + "]"
    return "{" + space + ("," + space).join(some_text(rng) + space + ":" + item for item in items) + "}"


JSON_SIGNS = b'[]{}:,"\\ \n0123456789.eE+-truefalsnINaity/u'


def json_cases(rng):
    yield half_changed(rng, some_json(rng).encode(), JSON_SIGNS if rng.random() < 0.8 else None)


def whole(text):
    """An integer of 64 bits; a larger one is a double here, and so is -0."""
    return int(text) if text != "-0" and -(2**63) <= int(text) < 2**64 else float(text)


def python_json(case):
    return written(json.loads(case.decode("utf-8"), parse_int=whole))


# YAML


def yaml_scalar(rng):
    return rng.choice(
        (
            lambda: some_number(rng),
            lambda: rng.choice(
                (
                    "yes",
                    "No",
                    "on",
                    "OFF",
                    "~",
                    "null",
                    "Null",
                    "True",
                    "y",
                    "n",
                    "0o17",
                    "017",
                    "0x1F",
                    "0b11",
                    "1_000",
                    ".5",
                    "5.",
                    "1e3",
                    "1.5e+3",
                    ".inf",
                    "-.INF",
                    ".NaN",
                    "12:30:45",
                    "2001-12-14",
                    "a: b",
                    "a #b",
                    "a#b",
                    "- a",
                    "'it''s'",
                    '"a\\nb"',
                    '"\\x41\\u00e4"',
                    "!!str 5",
                    "!!int '5'",
                    "!!float 1",
                    "plain text",
                    "a\n    b",
                    "|\n    a\n    b",
                    ">-\n    a\n    b",
                    "[1, 2, a]",
                    "{a: 1, b: [x, y]}",
                    "=",
                    "<<",
                    "*a",
                    "&a 5",
                    "@a",
                    "`b",
                    "%c",
                    "? a",
                    "''",
                    '""',
                    "+12",
                    "-0",
                    "1__0",
                    "0.1_5",
                    "1e",
                    "e1",
                    "0o8",
                    "08",
                    "1:2",
                    "--- a",
                    "... ",
                )
            ),
            lambda: json.dumps(rng.choice(("ä", "a\nb", "", "5", "true", "\t"))),
        )
    )()


def yaml_block(rng, indent=0):
    space, lines = " " * indent, []
    sequence = rng.random() < 0.3
    for number in range(rng.randint(1, 4)):
        key = rng.choice(("a", "b", "key", "max_steps", "'q'", "5", "x y", "true", f"k{number}"))
        head = space + ("- " if sequence else f"{key}: ")
        if indent < 6 and rng.random() < 0.25:
            lines.append(head.rstrip() + rng.choice(("", " &a", "  # note")))
            lines.append(yaml_block(rng, indent + rng.choice((2, 2, 4))))
        else:
            lines.append(head + yaml_scalar(rng))
    return "\n".join(lines)


def yaml_cases(rng):
    yield half_changed(
        rng, (rng.choice(("", "", "---\n", "# note\n", "%YAML 1.1\n---\n")) + yaml_block(rng) + "\n").encode(), b" \n:-#&*!|>'\"[]{},ab01.~<?\t"
    )


@functools.cache
def yaml_loader():
    """PyYAML's own parser, for its other one is libyaml, as ours is; with four rules of ours: a number with an exponent is one, as in YAML 1.2; a number beyond 64 bits is text,
    and so are keys and dates."""
    import yaml

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node, deep=False):
            self.flatten_mapping(node)
            if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise yaml.constructor.ConstructorError(None, None, "a key that is no text")
            return {key.value: self.construct_object(value, deep=deep) for key, value in node.value}

        def construct_yaml_int(self, node):
            value = super().construct_yaml_int(node)
            return value if -(2**63) <= value < 2**64 else node.value

        def construct_yaml_float(self, node):
            value = super().construct_yaml_float(node)
            return node.value if math.isinf(value) and "inf" not in node.value.lower() else value

    Loader.add_constructor("tag:yaml.org,2002:float", Loader.construct_yaml_float)
    Loader.add_constructor("tag:yaml.org,2002:int", Loader.construct_yaml_int)
    for kind in ("timestamp", "merge", "value"):
        Loader.add_constructor(f"tag:yaml.org,2002:{kind}", Loader.construct_yaml_str)
    Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789"))
    return Loader


def pyyaml(case):
    import yaml

    return written(yaml.load(case.decode("utf-8"), yaml_loader()))


# Numbers


def float_cases(rng):
    """Decimal texts: of doubles, and of what lies halfway between two f32 or bf16, and just beside that."""
    way = rng.randrange(4)
    if way == 0:
        yield some_number(rng).encode()
    elif way == 1:
        yield repr(struct.unpack("<f", rng.randbytes(4))[0]).encode()
    else:
        bits = rng.getrandbits(31) & (0x7FFF0000 if way == 2 else 0x7FFFFFFF)
        low, high = (struct.unpack("<f", struct.pack("<I", min(one, 0x7F7FFFFF)))[0] for one in (bits, bits + (1 << 16 if way == 2 else 1)))
        if math.isnan(low) or math.isnan(high):
            return
        middle = (low + high) / 2
        yield (f"{middle:.60e}" if rng.random() < 0.5 else f"{middle:.17e}").replace("e", rng.choice(("e", "0001e", "e"))).encode()


def float_reference(case):
    import numpy

    value = json.loads(case, parse_int=whole)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError
    value = float(value)
    with numpy.errstate(all="ignore"):
        single = numpy.float32(value)
    bits = int(single.view(numpy.uint32))
    half = bits >> 16 | 0x40 if math.isnan(value) else nearest_bf16(single)
    return double(value) + b"%08x%04x" % (bits, half)


def nearest_bf16(single):
    """The bf16 nearest to a float32, ties to the even one: by distances, not by bits."""
    import numpy

    bits = int(single.view(numpy.uint32))
    if math.isinf(single):
        return bits >> 16
    below = bits >> 16
    above = below + 1
    exact = [
        fractions.Fraction(2) ** 128 if one & 0x7FFF == 0x7F80 else fractions.Fraction(abs(float(numpy.uint32(one << 16).view(numpy.float32))))
        for one in (below, above)
    ]
    value = fractions.Fraction(abs(float(single)))
    down, up = value - exact[0], exact[1] - value
    return below if down < up or (down == up and below % 2 == 0) else above


def number_bytes(rng):
    data = rng.randbytes(4)
    return data if not math.isnan(struct.unpack("<f", data)[0]) else number_bytes(rng)


def cast_cases(rng):
    """64 f32: codes' values, what lies between them, and any bits; no NaN, which has several codes."""
    yield b"".join(
        rng.choice(
            (
                lambda: number_bytes(rng),
                lambda: struct.pack("<f", rng.choice((-1, 1)) * math.ldexp(rng.randint(0, 32) / 16, rng.randint(-18, 17))),
                lambda: struct.pack(
                    "<i", struct.unpack("<i", struct.pack("<f", math.ldexp(rng.randint(8, 32) / 16, rng.randint(-18, 17))))[0] + rng.randint(-1, 1)
                ),
            )
        )()
        for _ in range(64)
    )


def ml_dtypes_casts(case):
    """The largest number stands for what is larger, as saturating casts have it; a NaN has one code here."""
    import ml_dtypes
    import numpy

    x, out = numpy.frombuffer(case, numpy.float32), b""
    for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        most = float(ml_dtypes.finfo(kind).max)
        out += numpy.clip(x, -most, most).astype(kind).tobytes()
    return out


# Chat templates

STATEMENTS = (
    "{{% for x in {} %}}{{{{ x }}}}{{% if not loop.last %}},{{% endif %}}{{% else %}}none{{% endfor %}}",
    "{{% if {} %}}yes{{% elif {} %}}or{{% else %}}no{{% endif %}}",
    "{{% set y = {} %}}{{{{ y }}}}",
    "{{%- macro m(a, b={}) -%}}[{{{{ a }}}}{{{{ b }}}}]{{%- endmacro -%}}{{{{ m({}) }}}}",
    " {{%- set ns = namespace(n={}) %}}\n{{{{ ns.n }}}}\n",
    "{{{{ {} if {} else 'z' }}}}",
    "{{% for m in messages if m.role != {} %}}{{{{ m['content'] }}}}{{{{ loop.index0 }}}}{{% endfor %}}",
)


@functools.cache
def golden():

    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tools/text"))
    import make_jinja_fixtures

    expressions = [line for line in make_jinja_fixtures.EXPRESSIONS.strip().splitlines() if line]
    words = sorted({word for line in expressions for word in re.findall(r"[\w.]+|\W", line)})
    return make_jinja_fixtures, expressions, words


def kind_of(word):
    return (
        "number"
        if word[0].isdigit()
        else "word"
        if word[0].isalpha() or word[0] == "_"
        else "sign"
        if word in "+-*/%~<>=!|"
        else "space"
        if word == " "
        else word
    )


def some_expression(rng):
    _, expressions, words = golden()
    parts = re.findall(r"[\w.]+|\W", rng.choice(expressions))
    if rng.random() < 0.6:
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(parts))
            parts[at] = rng.choice([word for word in words if kind_of(word) == kind_of(parts[at])])
    return (
        "".join(parts)
        if rng.random() < 0.8
        else f"({''.join(parts)}) {rng.choice(('~', '+', '==', 'and', 'or', 'in', '|', '<', '*'))} {rng.choice(expressions)}"
    )


def chat_cases(rng):
    template = ""
    for _ in range(rng.randint(1, 3)):
        template += (
            "{{ " + some_expression(rng) + " }}"
            if rng.random() < 0.6
            else re.sub(r"\{\}", lambda _: some_expression(rng), rng.choice(STATEMENTS)).replace("{{", "{").replace("}}", "}")
        )
        template += rng.choice(("", " ", "\n", "text\n"))
    yield json.dumps(
        {
            "template": changed(rng, template.encode(), b"{}%-| ()'\"ab.,1").decode(errors="replace") if rng.random() < 0.1 else template,
            "variables": golden()[0].VARIABLES,
        },
        ensure_ascii=False,
    ).encode()


def jinja(case):
    given = json.loads(case)
    return golden()[0].environment().from_string(given["template"]).render(**given["variables"]).encode()
