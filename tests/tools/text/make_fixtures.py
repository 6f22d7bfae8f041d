# SPDX-License-Identifier: Apache-2.0
"""Writes fixtures/: three small tokenizers, lines of text, and what Hugging Face's `tokenizers` makes of them.

    python3 make_fixtures.py TRAINING_TEXT        (pip: tokenizers; any English text of about a megabyte)

  llama2.json  metaspace by normalizer, byte fallback, BOS; no pre-tokenizer: a text is one word
  gpt2.json    byte level with GPT-2's expression, no special tokens added
  llama3.json  byte level behind the Split of Llama 3, ignore_merges, BOS, added tokens of every kind
  lines.json   the texts, from fixed seeds and the short strings below
  ids.json     {tokenizer: {"ids": [per line], "decoded": {line number: text, where it is not the line itself}}}
"""
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

VOCAB = 4096
OUT = pathlib.Path(__file__).parent / "fixtures"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def llama2(text):
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    # Trained on words (the normalizer then makes one word of a text); "Metaspace" is taken off again below.
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    specials = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(text, trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False))
    state = json.loads(t.to_str())
    state["added_tokens"] = [a for a in state["added_tokens"] if a["id"] < 3]
    state["pre_tokenizer"] = None
    t = Tokenizer.from_str(json.dumps(state))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
    t.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return t


def byte_trainer(specials):
    return trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False,
                               initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))


def gpt2(text):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.train_from_iterator(text, byte_trainer(["<|endoftext|>"]))
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.decoder = decoders.ByteLevel()
    return t


def llama3(text):
    t = Tokenizer(models.BPE(ignore_merges=True))
    t.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3), behavior="isolated", invert=False),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.train_from_iterator(text, byte_trainer([]))
    t.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    t.add_tokens([AddedToken("<left>", lstrip=True, normalized=False), AddedToken("<right>", rstrip=True, normalized=False),
                  AddedToken("<both>", lstrip=True, rstrip=True), AddedToken("word", single_word=True), AddedToken("<b")])
    begin = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
                                      special_tokens=[("<|begin_of_text|>", begin)])])
    t.decoder = decoders.ByteLevel()
    return t


ENGLISH = """In the beginning God created the heaven and the earth|It was the best of times, it was the worst of times|Call me
Ishmael|To be, or not to be: that is the question|We can't, don't, won't; they'll say we've been I'm I'd he's YOU'RE IT'S CAN'T 'tis|
the quick brown fox jumps over the lazy dog|Mr. & Mrs. O'Neill-Smith (née Müller) paid $1,234.56 (12%) on 2024-02-29 at 09:41:07|
supercalifragilisticexpialidocious|antidisestablishmentarianism internationalization|word wordy sword word.word a-word""".replace("\n", " ").split("|")
FOREIGN = """Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich|Voix ambiguë d’un cœur qui préfère les jattes de kiwis|
Съешь ещё этих мягких французских булок|Ξεσκεπάζω την ψυχοφθόρα βδελυγμία|いろはにほへと ちりぬるを 色は匂へど|天地玄黃宇宙洪荒日月盈昃|
키스의 고유조건은 입술끼리 만나야 하고|נַפְשִׁי תַּחֲנוּן עברית|صِف خَلقَ خَودٍ كَمِثلِ الشَمسِ|ऋषियों को सताने वाले दुष्ट राक्षसों|เป็นมนุษย์สุดประเสริฐ|
ſtrange 'ſ it'ſ ﬁne ﬀ Ǆ ß ẞ İı|Ⅳ ⅷ ² ³ ½ ١٢٣ ৪৫ 四五 ①②③ 𝟘𝟙 𝒳𝓎|𐍈𐌰𐌹 𠀀𠮷 ⵣⴰ""".replace("\n", " ").split("|")
MARKS = ["e\u0301a\u0300", "n\u0303o\u0308\u0323", "a\u0323\u0302 q\u0307\u0323", "\u1100\u1161\u11a8 \u1112\u1161", "\u00e9\u00c5\u212b\u1e9b\u0323",
         "\u0301 starts with a mark", "Z\u0351\u036b\u0343a\u030d\u0321lgo", "\ufb01\u0308", "\u0915\u094d\u0937\u093f"]
EMOJI = ["😀", "👍🏽", "👩‍👩‍👧‍👦", "🇩🇪🇫🇷", "❤️", "☃", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "1️⃣", "🤷🏾‍♀️", "🫠"]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\x85", "\x0b", "\u180e",
          "        ", "\ufeff", "\u1680", "\x1c"]
CODE = ["for (int i = 0; i < n; ++i) {\n\tsum += a[i]*b[i];\n}", "def f(x):\n    return x**2 if x>=0 else -x  # ok", "SELECT * FROM t WHERE a<>'b' -- c",
        "<div class=\"x\">&amp;</div>", "https://example.com/a?b=c&d=%20e#f", "\\frac{a}{b}^2_{ij}", "0x1F 1e-10 3.14159 1_000_000 12345678901234567890",
        "git commit -m 'x' && ls -la | grep \"y\"", "{\"key\": [1, 2.5, null, true]}", "snake_case camelCase PascalCase kConst SCREAMING_CASE", "#include <vector>",
        "a+=b; c->d; e::f; !g; ~h; i%j; k^l; m?n:o", "....... !!!! ???? ---- ____ ====", "C:\\dir\\file.txt ~/home/*.py"]
TOKENS = ["<s>", "</s>", "<unk>", "<|endoftext|>", "<|begin_of_text|>", "<|end_of_text|>", "<0x41>", "<0x0A>", "▁", "▁▁the", "Ġthe", "<left>", "<right>", "<both>",
          "<b", "word", " <left> ", " <right>  ", "  <both>\n", "<s", "s>", "<<s>>", "<|endoftext", "\ue000", "\U0010ffff", "\ufffd", "\x00", "\x7f", "\x01\x02"]
KINDS = [ENGLISH, FOREIGN, MARKS, EMOJI, SPACES, CODE, TOKENS]


def random_line(rng):
    kind = rng.randrange(6)
    if kind == 0:  # words and spaces
        words = rng.choice(ENGLISH + FOREIGN).split(" ")
        rng.shuffle(words)
        return "".join(w + (rng.choice(SPACES) if rng.random() < 0.2 else " ") for w in words[:rng.randrange(1, 10)])
    if kind == 1:  # digits
        return rng.choice(["", " ", "-", "$"]) + "".join(rng.choice("0123456789.,: ") for _ in range(rng.randrange(1, 24)))
    if kind == 2:  # any code points
        ranges = [(0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x5D0, 0x64A), (0x900, 0x97F), (0x1E00, 0x1FFF), (0x2000, 0x20BF),
                  (0x2190, 0x23FF), (0x3040, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0xF900, 0xFA6D), (0x1F300, 0x1F64F), (0x20000, 0x2A6DF)]
        return "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randrange(1, 16)))
    if kind == 3:  # letters, so that merges meet in many orders
        return "".join(rng.choice("etaoinshrdlucmw '") for _ in range(rng.randrange(1, 40)))
    pieces = [rng.choice(rng.choice(KINDS)) for _ in range(rng.randrange(2, 5))]
    if kind == 4:  # pieces of everything
        return "".join(p[a:a + rng.randrange(1, 20)] for p in pieces for a in [rng.randrange(max(1, len(p) - 3))])
    return "".join(p[:12] + rng.choice(SPACES + TOKENS) for p in pieces)


def lines(count=1000):
    rng = random.Random(20)
    result = ["", *sum(KINDS, [])] + [p + "x" for p in SPACES] + ["x" + p for p in SPACES] + ["  two  spaces   three \n\n \n x  ", " " * 40 + "x" * 70 + " " * 40]
    while len(result) < count:
        line = random_line(rng)
        if line not in result:
            result.append(line)
    return result[:count]


def write(name, value):
    (OUT / name).write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf8")


def main():
    text = pathlib.Path(sys.argv[1]).read_text(encoding="utf8").splitlines()
    OUT.mkdir(exist_ok=True)
    samples = lines()
    write("lines.json", samples)
    expected = {}
    for make in (llama2, gpt2, llama3):
        tokenizer = make(text)
        state = json.loads(tokenizer.to_str())
        state["model"]["merges"] = [" ".join(pair) for pair in state["model"]["merges"]] if make is gpt2 else state["model"]["merges"]
        tokenizer = Tokenizer.from_str(json.dumps(state))
        write(f"{make.__name__}.json", state)
        ids = [tokenizer.encode(line).ids for line in samples]
        decoded = [tokenizer.decode(i) for i in ids]
        expected[make.__name__] = {"ids": ids, "decoded": {str(n): d for n, (d, line) in enumerate(zip(decoded, samples)) if d != line}}
    write("ids.json", expected)


if __name__ == "__main__":
    main()
