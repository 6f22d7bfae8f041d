# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/steps.json: what Hugging Face's single normalizers, pre-tokenizers and decoders, and small tokenizers with
unusual settings, make of some lines of make_fixtures.py.

    python3 make_step_fixtures.py        (pip: tokenizers)

  {"texts": [...], "mark_texts": [...], "token_lists": [...],                      inputs of all; of NFC, too; of decoders
   "pre_tokenizers" | "normalizers" | "decoders" | "tokenizers": [[configuration, [an output per input]], ...]}
"""
import json
import random

from tokenizers import Tokenizer, models

from make_fixtures import SPACES, TOKENS, lines, write
from tokenizer_kinds import BLOOM, O200K

MARK = "▁"


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def metaspace(scheme, split=True):
    return {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": split}


def byte_level(prefix=True, regex=True):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": regex}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


def replace(kind, pattern, content):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def bert(**changes):
    return {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None, "lowercase": True, **changes}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
            r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SCRIPTS = ["ひらがなカタカナーー漢字ーa", "Абв abc αβγ，。", "  a 1ب٢ב", " ", "a\u0301\u0378б\ue000б", "\u0589\u061c\u0953\u0301अॐ\u0964", "ไทย한국어ພາສາ\u08a0\u0861\U00011900x"]
BEHAVIORS = ["Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"]
PRE_TOKENIZERS = [
    byte_level(), byte_level(regex=False), digits(True), digits(False),
    *(metaspace(scheme, cut) for scheme in ("first", "always", "never") for cut in (True, False)),
    *(split({"Regex": r"[a-e\s]"}, behavior, invert) for invert in (False, True) for behavior in BEHAVIORS),
    split({"String": " t"}, "MergedWithNext"),
    split({"Regex": "x*"}),
    split({"Regex": r"^\w|\W$|(?<=o)(?=u)|[\w\s]{3,4}?"}),
    split({"Regex": QWEN}),
    split({"Regex": BLOOM}),
    split({"Regex": O200K}),
    {"type": "BertPreTokenizer"}, {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "CharDelimiterSplit", "delimiter": "e"},
    {"type": "UnicodeScripts"}, {"type": "FixedLength", "length": 3}, *({"type": "Punctuation", "behavior": behavior} for behavior in BEHAVIORS),
    sequence("pretokenizers", {"type": "UnicodeScripts"}, digits(True), metaspace("first")),
    sequence("pretokenizers", {"type": "WhitespaceSplit"}, metaspace("always")),
    sequence("pretokenizers", digits(True), metaspace("first")),
    sequence("pretokenizers", split({"Regex": r"\p{N}{1,3}"}), split({"Regex": "[一-龥぀-ゟ゠-ヿ]+"}), split({"Regex": DEEPSEEK}),
             byte_level(prefix=False, regex=False)),
]
PREPEND = sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace("String", " ", MARK))
NORMALIZERS = [
    {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"}, {"type": "Nmt"},
    {"type": "ByteLevel"}, *({"type": "Strip", "strip_left": left, "strip_right": right} for left in (True, False) for right in (True, False)),
    bert(), bert(lowercase=False), bert(clean_text=False), bert(handle_chinese_chars=False), bert(strip_accents=False),
    bert(lowercase=False, strip_accents=True),
    {"type": "Prepend", "prepend": MARK}, PREPEND, replace("Regex", r" {2,}|\d", "#"), replace("String", "e", ""),
    sequence("normalizers", {"type": "NFC"}, {"type": "Prepend", "prepend": "x"}, replace("String", "xt", "yy")),
]
DECODERS = [
    byte_level(), {"type": "ByteFallback"}, {"type": "Fuse"}, metaspace("always"), metaspace("never"), replace("String", MARK, " "),
    {"type": "Strip", "content": " ", "start": 2, "stop": 0},
    *({"type": "WordPiece", "prefix": "##", "cleanup": cleanup} for cleanup in (True, False)), {"type": "BPEDecoder", "suffix": "</w>"},
    *({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": cleanup} for cleanup in (True, False)),
    sequence("decoders", {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": MARK, "start": 1, "stop": 0}),
]
TOKEN_LISTS = [
    ["▁▁a", "▁b", "c▁"], ["<0xE2>", "<0x82>", "<0xAC>", "x"], ["<0xE2>", "<0x82>", "x", "<0x4a>", "<0x4G>"], ["Ġthe", "ĠcafÃ©", "Ċ"],
    ["ð", "ŁĺĢ", "Ã"], ["é", "Ġ€", "ł"], ["  two", " one", "   three "], [], [""], ["a", "", "b"], ["▁"], ["<0x>", "<0xAAA>"],
    ["un", "##able", "##s", "do", "not", "##x", ".", "it", "'", "s", "n", "'", "t", "we", "'m", "!", "?", " ."], ["##a", "b</w>", "c", "</w>", "d</w>"],
    ["h", "h", "<pad>", "e", "|", "|", "<pad>", "|", "l", "l", "<pad>", "l", " .", " do not"],
]
# Letters that compose, decompose, reorder, are excluded from composition, or are left by themselves.
MARK_LETTERS = ("aeiouAEO\u0300\u0301\u0302\u0307\u0308\u0323\u0328\u0327\u0345\u00e9\u1ea5\u212b\u1100\u1161\u11a8\uac00\u0f73\u0f71\u0344\u0958"
                "\u09c7\u09be\u3099\u304b\u2adc\uf900\U0002f800\U0001d15e\U00011099\U000110ba\u0338\u2260\u05d0\u05bc\ufb2e\u0cc6\u0cc2\u0cd5")
MARK_TEXTS = ["".join(random.Random(n).choices(MARK_LETTERS, k=8)) for n in range(200)]


FORMS = ("NFC", "NFD", "NFKC", "NFKD")


def tokenizers():
    words = ["th", "the", "▁the", "▁▁", "ou", "our", "<0xC3>", "<0xBC>", "<0x20>", "<0x0A>", "in", "ing", "▁t", "▁a"]
    vocab = {token: n for n, token in enumerate(["<unk>", *map(chr, range(0x21, 0x7F)), MARK, "é", *words])}
    merges = [["t", "h"], ["th", "e"], [MARK, "t"], [MARK, "the"], [MARK, MARK], ["o", "u"], ["ou", "r"], ["i", "n"], ["in", "g"], [MARK, "a"]]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges}
    # s: special, n: normalized, w: single_word, l: lstrip, r: rstrip
    contents = [("<s>", "s"), ("the", "nw"), ("<left>", "ln"), ("<right>", "r"), ("<both>", "lrn"), ("ou", "n"), ("<s", ""), ("  ", "n"), ("word", "w")]
    names = {"single_word": "w", "lstrip": "l", "rstrip": "r", "normalized": "n", "special": "s"}
    added, next_id = [], len(vocab)
    for content, flags in contents:
        added.append({"id": vocab.get(content, next_id), "content": content, **{name: flag in flags for name, flag in names.items()}})
        next_id += content not in vocab
    unk = {"unk_token": "<unk>"}
    for changes, normalizer, pre_tokenizer, tokens in [
            ({**unk, "fuse_unk": True}, PREPEND, None, []), (unk, PREPEND, None, added), ({}, PREPEND, None, added[:2]),
            ({**unk, "fuse_unk": True, "byte_fallback": True}, PREPEND, None, added), ({"byte_fallback": True}, None, metaspace("first"), added),
            ({**unk, "ignore_merges": True}, None, metaspace("first"), added), (unk, {"type": "NFC"}, metaspace("always"), added[:1])]:
        yield {"version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, "normalizer": normalizer,
               "pre_tokenizer": pre_tokenizer, "post_processor": None, "decoder": {"type": "Fuse"}, "model": {**model, **changes}}
    a = {"Sequence": {"id": "A", "type_id": 0}}
    s, out = ({"SpecialToken": {"id": name, "type_id": 0}} for name in ("S", "the"))
    names = {"S": {"id": "S", "ids": [3, 5], "tokens": ["$", "&"]}, "the": {"id": "the", "ids": [vocab["the"]], "tokens": ["the"]}}
    template = {"type": "TemplateProcessing", "single": [s, a, out, s], "pair": [a, {"Sequence": {"id": "B", "type_id": 1}}], "special_tokens": names}
    roberta = {"type": "RobertaProcessing", "sep": ["#", 2], "cls": ["!", 1], "trim_offsets": True, "add_prefix_space": True}
    for processor in (template, roberta, {"type": "BertProcessing", "sep": ["#", 2], "cls": ["!", 1]}, byte_level(),
                      sequence("processors", byte_level(), template), sequence("processors", roberta, template)):
        yield {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added[:1], "normalizer": None, "pre_tokenizer": metaspace("always"),
               "post_processor": processor, "decoder": None, "model": model}


def main():
    samples = [line for line in lines() if 0 < len(line) < 60]
    texts = random.Random(4).sample(samples, 70) + TOKENS + SPACES + ["a word\u200d x", "the\u200cword", "the. word\u0301", "(word)"]
    texts += SCRIPTS
    empty = json.loads(Tokenizer(models.BPE()).to_str())

    def step(key, config):
        return getattr(Tokenizer.from_str(json.dumps({**empty, key: config})), key)

    result = {"texts": texts, "mark_texts": MARK_TEXTS, "token_lists": TOKEN_LISTS,
              "pre_tokenizers": [], "normalizers": [], "decoders": [], "tokenizers": []}
    for config in PRE_TOKENIZERS:
        cut = step("pre_tokenizer", config).pre_tokenize_str
        result["pre_tokenizers"].append([config, [[word for word, _ in cut(text)] for text in texts]])
    for config in NORMALIZERS:
        inputs = texts + MARK_TEXTS if config["type"] in FORMS else texts
        result["normalizers"].append([config, list(map(step("normalizer", config).normalize_str, inputs))])
    for config in DECODERS:
        result["decoders"].append([config, list(map(step("decoder", config).decode, TOKEN_LISTS))])
    for config in tokenizers():
        encode = Tokenizer.from_str(json.dumps(config)).encode
        inputs = texts[:20] if config["post_processor"] else texts
        result["tokenizers"].append([config, [encode(text).ids for text in inputs]])
    write("steps.json", result)


if __name__ == "__main__":
    main()
