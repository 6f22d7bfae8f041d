# SPDX-License-Identifier: Apache-2.0
"""Every character between two letters, through each step that looks at characters, as Hugging Face's makes of it.

    python3 compare_characters.py BUILD        (pip: tokenizers)

Runs BUILD/bin/tokenizer_lines with tokenizers whose ids are bytes, so that they show what a step wrote. Prints a row for each
step with the ranges that differ. Of the normalizers and of BERT's words none may: exit code 1 else. What regular expressions
and numbers say of characters later than Unicode 14 depends on PCRE2's version.
"""
import json
import pathlib
import sys
import tempfile

from compare_tokenizers import ours
from tokenizers import Tokenizer

VOCAB = {f"<0x{byte:02X}>": byte for byte in range(256)}
MODEL = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
         "byte_fallback": True, "vocab": VOCAB, "merges": []}
EMPTY = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
         "decoder": None, "model": MODEL}
BERT = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True}
CLEAN = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
NORMALIZERS = [BERT, CLEAN] + [{"type": name} for name in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt")]
WORDS = [{"type": "BertPreTokenizer"}, {"type": "Punctuation", "behavior": "Isolated"}, {"type": "WhitespaceSplit"}, {"type": "UnicodeScripts"}]
BY_VERSION = [{"type": "Whitespace"}, {"type": "Digits", "individual_digits": True},
              *({"type": "Split", "pattern": {"Regex": name}, "behavior": "Removed", "invert": False} for name in (r"\w", r"\p{L}", r"\p{N}", r"\p{P}"))]
# A word's start is marked, so that ids show where words are.
MARKED = {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": False}


def ranges(codes):
    found = []
    for code in codes:
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        else:
            found.append([code, code])
    return " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in found[:40])


def different(program, state, codes):
    lines = [f"a{chr(code)}b" for code in codes]
    if "UnicodeScripts" in json.dumps(state):  # beside some scripts, and the one of the character before it
        lines = [f"a{chr(b)}.{chr(b)}\u0301{chr(b)}字{chr(b)}{chr(a)}" for a, b in zip(codes[:1] + codes, codes)]
    tokenizer = Tokenizer.from_str(json.dumps(state))
    with tempfile.TemporaryDirectory() as made:
        folder = pathlib.Path(made)
        (folder / "tokenizer.json").write_text(json.dumps(state), encoding="utf8")
        found = ours(program, folder, lines)["ids"]
    return [code for code, line, ids in zip(codes, lines, found) if tokenizer.encode(line).ids != ids]


def main():
    program = pathlib.Path(sys.argv[1]) / "bin/tokenizer_lines"
    codes = [c for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000 and not 0x323B0 <= c < 0xE0000 and c < 0xF0010]
    failed = 0
    for steps, must in ((NORMALIZERS, True), (WORDS, True), (BY_VERSION, False)):
        for step in steps:
            cut = {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [step, MARKED]}}
            wrong = different(program, {**EMPTY, **({"normalizer": step} if steps is NORMALIZERS else cut)}, codes)
            name = step["type"] + (" " + step["pattern"]["Regex"] if "pattern" in step else "")
            print(f"{name:20} {len(codes)} characters, different {len(wrong)} {ranges(wrong)}", flush=True)
            failed += must and bool(wrong)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
