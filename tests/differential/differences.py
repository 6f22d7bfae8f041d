# SPDX-License-Identifier: Apache-2.0
"""The differences that are meant, and why."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Difference:
    way: str  # "we refuse", "they refuse", "other values"
    pattern: str  # of our message; where we read it, of the input
    why: str


STRICT_JSON = [
    Difference("we refuse", "duplicate key", "a key twice, of which Python takes the last"),
    Difference("we refuse", "is out of range", "a number beyond the doubles, of which Python makes an infinity"),
    Difference("we refuse", "surrogate", "half a pair of surrogates, which is no character"),
    Difference("we refuse", "depth|nested", "more than 64 levels"),
]
MORE = "what the reference does not look at: sizes twice, fields of the directory, bytes behind the end"
LESS = "what we do not look at: local headers of a zip, whose directory counts, and sizes of a pickle's frames"
MEANT = {
    "json": STRICT_JSON,
    "floats": STRICT_JSON,
    "yaml": [
        Difference("we refuse", "duplicate key", "a key twice, of which PyYAML takes the last"),
        Difference("we refuse", "", "the rest of YAML, by line"),
        Difference("they refuse", r"\t", "a tab between words, which libyaml and PyYAML with it read"),
        Difference("they refuse", r"[|>][-+0-9]*#", "a comment just behind the sign of a block of text; likewise"),
    ],
    "pickle": [
        Difference("we refuse", "", "opcodes and types that measurements do not have, by name"),
        Difference("they refuse", "", LESS),
    ],
    "npz": [Difference("we refuse", "", MORE), Difference("they refuse", "", LESS)],
    "zip": [Difference("we refuse", "", MORE), Difference("they refuse", "", LESS)],
    "zip64": [Difference("we refuse", "", MORE), Difference("they refuse", "", LESS)],
    "safetensors": [
        Difference("we refuse", "header is not a JSON object", "a blank before the header's brace, which the format does not allow"),
        Difference("we refuse", "duplicate", "a tensor twice"),
    ],
    "torch": [
        Difference("we refuse", "", MORE),
        Difference("they refuse", "", "checksums of tensors are not computed, which are read in parts; " + LESS),
        Difference("other values", "", "a changed BOOL that is neither 0 nor 1: torch makes it 1 where it copies"),
    ],
    "chat": [
        Difference("we refuse", "^template", "the language of templates is a part of Jinja's: the rest is refused by name"),
        Difference("they refuse", r"splitlines\(|sort\(", "a switch may be any value, as in Python from 3.12 on; before, it must be an integer"),
    ],
}
