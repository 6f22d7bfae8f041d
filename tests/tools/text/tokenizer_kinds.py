# SPDX-License-Identifier: Apache-2.0
"""Small tokenizers in the configurations of the families' tokenizer.json files, trained with `tokenizers` on a text.

    KINDS[name](lines, charsmap) -> Tokenizer      charsmap: a precompiled_charsmap (bytes), which few of them use
"""
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 3000
MARK = "▁"
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace("{1,3}", "")
WORD = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
O200K = (rf"{WORD}*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|{WORD}+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*"
         r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (rf"{WORD}*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]+|{WORD}+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}]*"
          r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_V3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
               r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""")
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
BYTES = [f"<0x{b:02X}>" for b in range(256)]


def split(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


def byte_level(prefix=False, regex=True):
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=regex)


def template(tokenizer, single):
    names = [name for name in single.split() if name[0] != "$"]
    return processors.TemplateProcessing(single=single, special_tokens=[(n, tokenizer.token_to_id(n)) for n in dict.fromkeys(names)])


def changed(tokenizer, **changes):
    """The tokenizer with members of its JSON exchanged: {"model.dropout": ...}."""
    state = json.loads(tokenizer.to_str())
    for key, value in changes.items():
        *path, last = key.split("__")
        part = state
        for name in path:
            part = part[name]
        part[last] = value
    return Tokenizer.from_str(json.dumps(state))


# Words of WordPiece.
def bert(lines, normalizer, processor="template", cleanup=True, prefix="##"):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizer, pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    t.train_from_iterator(lines, trainers.WordPieceTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False,
                                                           continuing_subword_prefix=prefix))
    if prefix != "##":
        t = changed(t, model__continuing_subword_prefix=prefix)
    cls, sep = t.token_to_id("[CLS]"), t.token_to_id("[SEP]")
    t.post_processor = (template(t, "[CLS] $A [SEP]") if processor == "template" else
                        processors.BertProcessing(("[SEP]", sep), ("[CLS]", cls)))
    t.decoder = decoders.WordPiece(prefix=prefix, cleanup=cleanup)
    return t


# BPE over bytes.
def byte_bpe(lines, pre_tokenizer, normalizer=None, specials=("<|endoftext|>",), single=None, added=(), **model):
    t = Tokenizer(models.BPE(**model))
    t.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        t.normalizer = normalizer
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=list(specials), show_progress=False,
                                                     initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    t.add_tokens(list(added))
    t.decoder = decoders.ByteLevel()
    t.post_processor = template(t, single) if single else processors.ByteLevel(trim_offsets=False)
    return t


def roberta(lines, prefix=False, mask=True):
    t = byte_bpe(lines, byte_level(prefix), specials=["<s>", "<pad>", "</s>", "<unk>"])
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)] if mask else [])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")),
                                                    trim_offsets=True, add_prefix_space=prefix)
    return t


def spaces(count, **options):
    return [AddedToken(" " * n, **options) for n in range(count, 1, -1)]


def clip(lines):
    t = Tokenizer(models.BPE(unk_token="<|endoftext|>", end_of_word_suffix="</w>"))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = pre_tokenizers.Sequence([split(CLIP, "removed", True), byte_level()])
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB, show_progress=False, end_of_word_suffix="</w>",
                                                     initial_alphabet=alphabet, special_tokens=["<|startoftext|>", "<|endoftext|>"]))
    t.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False, add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    return t


def openai_gpt(lines):
    t = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>"], show_progress=False, end_of_word_suffix="</w>"))
    t.decoder = decoders.BPEDecoder(suffix="</w>")
    return t


def prefixed_bpe(lines):
    t = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", fuse_unk=True))
    t.pre_tokenizer = pre_tokenizers.Whitespace()
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=["<unk>"], show_progress=False,
                                                     continuing_subword_prefix="##"))
    t.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return t


# BPE over characters with bytes for what is not in the vocabulary, as sentencepiece trains it.
def character_bpe(lines, normalizer, pre_tokenizer, strip, single="<s> $A", added=(), specials=("<unk>", "<s>", "</s>"), **model):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model))
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")  # for the training
    t.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=VOCAB + 256, special_tokens=[*specials, *BYTES], show_progress=False))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["id"] < len(specials)]
    t = Tokenizer.from_str(json.dumps({**state, "pre_tokenizer": None}))
    if normalizer is not None:
        t.normalizer = normalizer
    if pre_tokenizer is not None:
        t.pre_tokenizer = pre_tokenizer
    t.add_tokens(list(added))
    t.post_processor = template(t, single)
    steps = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    t.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))
    return t


def prepended():
    return normalizers.Sequence([normalizers.Prepend(MARK), normalizers.Replace(" ", MARK)])


# Unigram.
def unigram(lines, normalizer, pre_tokenizer, specials, single, byte_fallback=False, decoder=None):
    t = Tokenizer(models.Unigram())
    t.normalizer = normalizer
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    unk = next(s for s in specials if "unk" in s.lower())
    t.train_from_iterator(lines, trainers.UnigramTrainer(vocab_size=VOCAB, special_tokens=specials + (BYTES if byte_fallback else []),
                                                         unk_token=unk, show_progress=False))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["content"] in specials]
    state["model"]["byte_fallback"] = byte_fallback
    t = Tokenizer.from_str(json.dumps(state))
    t.pre_tokenizer = pre_tokenizer
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False)])
    t.post_processor = template(t, single)
    t.decoder = decoder or decoders.Metaspace()
    return t


def xlm_r(lines, charsmap, pre_tokenizer):
    n = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")])
    return unigram(lines, n, pre_tokenizer, ["<s>", "<pad>", "</s>", "<unk>"], "<s> $A </s>")


def t5(lines, charsmap):
    n = normalizers.Sequence([normalizers.Precompiled(charsmap), normalizers.Strip(left=False, right=True),
                              normalizers.Replace(Regex(" {2,}"), MARK)])
    return unigram(lines, n, pre_tokenizers.Metaspace(), ["<pad>", "</s>", "<unk>"], "$A </s>")


def albert(lines, charsmap):
    n = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"'), normalizers.NFKD(), normalizers.StripAccents(),
         normalizers.Lowercase(), normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]
    return unigram(lines, normalizers.Sequence(n), pre_tokenizers.Metaspace(), ["<pad>", "<unk>", "[CLS]", "[SEP]"], "[CLS] $A [SEP]")


def deberta_v3(lines, charsmap, punctuation=False):
    n = [normalizers.Strip(), normalizers.Precompiled(charsmap), normalizers.Replace(Regex(" {2,}"), " ")]
    cut = [pre_tokenizers.Punctuation("isolated")] if punctuation else []
    pre = pre_tokenizers.Sequence(cut + [pre_tokenizers.Metaspace()])
    return unigram(lines, normalizers.Sequence(n), pre, ["[PAD]", "[CLS]", "[SEP]", "[UNK]"], "[CLS] $A [SEP]")


def plain_unigram(lines):
    n = normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    return unigram(lines, n, pre_tokenizers.Metaspace(prepend_scheme="first"), ["<unk>", "<s>", "</s>"], "<s> $A", byte_fallback=True,
                   decoder=decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))


def word_level(lines):
    t = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation("merged_with_previous")])
    t.train_from_iterator(lines, trainers.WordLevelTrainer(vocab_size=VOCAB, special_tokens=["[UNK]"], show_progress=False))
    return t


def sequence(*steps):
    return pre_tokenizers.Sequence(list(steps))


BERT = normalizers.BertNormalizer
DIGIT_GROUPS = split("[0-9][0-9][0-9]")
SPLIT_BYTES = byte_level(regex=False)
LLAMA2_ADDED = [AddedToken("<|user|>", rstrip=True, normalized=False), AddedToken("<|end|>", rstrip=True, normalized=False)]
KINDS = {
    "bert_uncased": lambda x, _: bert(x, BERT(lowercase=True)),
    "bert_cased": lambda x, _: bert(x, BERT(lowercase=False), "bert"),
    "bert_multilingual": lambda x, _: bert(x, BERT(lowercase=False, strip_accents=True, handle_chinese_chars=True), cleanup=False),
    "bert_keeps_accents": lambda x, _: bert(x, BERT(clean_text=False, lowercase=True, strip_accents=False, handle_chinese_chars=False)),
    "gpt2": lambda x, _: byte_bpe(x, byte_level()),
    "gpt2_prefix_space": lambda x, _: byte_bpe(x, byte_level(True)),
    "roberta": lambda x, _: roberta(x),
    "bart_prefix_space": lambda x, _: roberta(x, True),
    "phi_codegen": lambda x, _: byte_bpe(x, byte_level(), added=spaces(31, normalized=True) + [AddedToken("\t\t"), AddedToken("\t\t\t")]),
    "gpt_neox": lambda x, _: byte_bpe(x, byte_level(), normalizers.NFC(), ["<|endoftext|>", "<|padding|>"], added=spaces(24, normalized=True)),
    "modernbert": lambda x, _: byte_bpe(x, byte_level(), normalizers.NFC(), ["[UNK]", "[CLS]", "[SEP]", "[PAD]"], "[CLS] $A [SEP]",
                                        [AddedToken("[MASK]", lstrip=True, normalized=False), AddedToken("|||IP_ADDRESS|||")] + spaces(24)),
    "starcoder": lambda x, _: byte_bpe(x, sequence(pre_tokenizers.Digits(individual_digits=True), byte_level())),
    "cohere": lambda x, _: byte_bpe(x, sequence(pre_tokenizers.Digits(individual_digits=True), byte_level()), normalizers.NFC(),
                                    ["<PAD>", "<BOS_TOKEN>"], "<BOS_TOKEN> $A"),
    "falcon": lambda x, _: byte_bpe(x, sequence(pre_tokenizers.Punctuation("contiguous"), byte_level(), pre_tokenizers.Digits(False), DIGIT_GROUPS)),
    "bloom": lambda x, _: byte_bpe(x, sequence(split(BLOOM), SPLIT_BYTES)),
    "llama3": lambda x, _: byte_bpe(x, sequence(split(LLAMA3), SPLIT_BYTES), specials=["<|begin_of_text|>"], single="<|begin_of_text|> $A",
                                    ignore_merges=True),
    "qwen2": lambda x, _: byte_bpe(x, sequence(split(QWEN), SPLIT_BYTES), normalizers.NFC()),
    "gpt4_phi4_glm4": lambda x, _: byte_bpe(x, sequence(split(CL100K, "removed", True), SPLIT_BYTES), ignore_merges=True),
    "gpt_oss_llama4": lambda x, _: byte_bpe(x, sequence(split(O200K), SPLIT_BYTES), ignore_merges=True),
    "mistral_tekken": lambda x, _: byte_bpe(x, sequence(split(TEKKEN), SPLIT_BYTES), specials=["<unk>", "<s>"], single="<s> $A", ignore_merges=True),
    "deepseek_v3": lambda x, _: byte_bpe(x, sequence(split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"), split(DEEPSEEK_V3), SPLIT_BYTES),
                                         normalizers.Sequence([]), ["<|begin|>"], "<|begin|> $A"),
    "deepseek_coder": lambda x, _: byte_bpe(x, sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"), split("[一-龥ࠀ-一가-퟿]+"),
                                                        pre_tokenizers.Digits(True), SPLIT_BYTES)),
    "dropout_is_ignored": lambda x, _: byte_bpe(x, byte_level()),
    "clip": lambda x, _: clip(x),
    "openai_gpt": lambda x, _: openai_gpt(x),
    "prefixed_bpe": lambda x, _: prefixed_bpe(x),
    "llama2": lambda x, _: character_bpe(x, prepended(), None, True),
    "llama2_metaspace": lambda x, _: character_bpe(x, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True),
    "mistral_v3": lambda x, _: character_bpe(x, None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), True, added=["[INST]", "[/INST]"]),
    "phi3": lambda x, _: character_bpe(x, prepended(), None, True, added=LLAMA2_ADDED),
    "gemma": lambda x, _: character_bpe(x, normalizers.Replace(" ", MARK), pre_tokenizers.Split(" ", "merged_with_previous"), False,
                                        "<bos> $A", specials=["<unk>", "<bos>"], added=[AddedToken("\n" * n, normalized=False) for n in range(2, 12)]),
    "xlm_r": lambda x, c: xlm_r(x, c, pre_tokenizers.Metaspace()),
    "xlm_r_older": lambda x, c: xlm_r(x, c, sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace())),
    "t5": t5,
    "albert": albert,
    "deberta_v3": deberta_v3,
    "deberta_v2_punctuation": lambda x, c: deberta_v3(x, c, True),
    "unigram_nmt": lambda x, _: plain_unigram(x),
    "word_level": lambda x, _: word_level(x),
    "scripts": lambda x, _: byte_bpe(x, sequence(pre_tokenizers.UnicodeScripts(), byte_level()), normalizers.NFKC()),
}
