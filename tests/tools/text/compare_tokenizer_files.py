# SPDX-License-Identifier: Apache-2.0
"""As compare_tokenizers.py, of folders without tokenizer.json: vocab.txt, vocab.json with merges.txt against transformers,
files of ranks against tiktoken and mistral-common, sentencepiece models against sentencepiece itself.

    python3 compare_tokenizer_files.py BUILD TRAINING_TEXT [NAME ...] [--lines 2400]
                                                        (pip: tokenizers, transformers, tiktoken, sentencepiece,
                                                              mistral-common)
"""
import base64
import io
import json
import pathlib
import sys
import tempfile

from compare_tokenizers import all_lines, arguments, compare, ours, training_lines
from tokenizer_kinds import KINDS, LLAMA3, O200K, TEKKEN
from tokenizers import pre_tokenizers


def write(folder, name, value):
    (folder / name).write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf8", newline="\n")


def transformers_class(name, kind, files, **config):
    """Writes a kind's vocabulary as `files`; what transformers makes of that folder."""

    def make(folder, lines):
        import transformers

        state = json.loads(KINDS[kind](lines, b"").to_str())["model"]
        by_id = sorted(state["vocab"], key=state["vocab"].get)
        if files == "vocab.txt":
            write(folder, "vocab.txt", "".join(token + "\n" for token in by_id))
        else:
            write(folder, "vocab.json", state["vocab"])
            write(folder, "merges.txt", "#version: 0.2\n" + "".join(" ".join(pair) + "\n" for pair in state["merges"]))
        write(folder, "tokenizer_config.json", {"tokenizer_class": name, **config})
        tokenizer = getattr(transformers, name).from_pretrained(folder)
        backend = tokenizer.backend_tokenizer
        return lambda line: backend.encode(line).ids, backend.__class__.decode.__get__(backend), None

    return make


def ranks_of(lines):
    """{bytes: rank} of a trained BPE; the 256 bytes come first, in their order."""
    state = json.loads(KINDS["llama3"](lines, b"").to_str())["model"]
    letters = {letter: byte for byte, letter in byte_letters().items()}
    spelled = lambda token: bytes(letters[c] for c in token)
    order = sorted(pre_tokenizers.ByteLevel.alphabet(), key=letters.get) + [left + right for left, right in state["merges"]]
    return {spelled(token): rank for rank, token in enumerate(dict.fromkeys(order))}


def ranks(file, expression, **config):
    def make(folder, lines):
        import tiktoken

        table = ranks_of(lines)
        write(folder, file, "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in table.items()))
        write(folder, "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **config})
        special = {t["content"]: int(i) for i, t in config.get("added_tokens_decoder", {}).items()}
        encoding = tiktoken.Encoding("test", pat_str=expression, mergeable_ranks=table, special_tokens=special)
        begin = [special[config["bos_token"]]] if "bos_token" in config else []
        decode = lambda ids: encoding.decode([i for i in ids if i not in special.values()])
        return lambda line: begin + encoding.encode(line, allowed_special="all"), decode, None

    return make


def tekken(listed, version="v3"):
    """Ranks as mistral-common reads them; of the vocabulary the last are left out, as in Mistral's own file."""

    def make(folder, lines):
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        table = ranks_of(lines)
        vocab = [{"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None} for token, rank in table.items()]
        special = [{"rank": n, "token_str": token, "is_control": True} for n, token in enumerate(["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "<pad>"])]
        config = {"pattern": TEKKEN, "num_vocab_tokens": len(vocab), "default_vocab_size": len(vocab) - 9 + 30, "default_num_special_tokens": 30,
                  "version": version}
        write(folder, "tekken.json", {"config": config, "vocab": vocab, **({"special_tokens": special} if listed else {})})
        tokenizer = Tekkenizer.from_file(folder / "tekken.json")
        names = [token["token_str"] for token in tokenizer._all_special_tokens]
        return lambda line: tokenizer.encode(line, bos=True, eos=False), tokenizer.decode, names

    return make


def tekken_published(name):
    """The file that comes with mistral-common."""

    def make(folder, lines):
        import shutil

        import mistral_common
        from mistral_common.tokens.tokenizers.tekken import Tekkenizer

        shutil.copy(pathlib.Path(mistral_common.__file__).parent / "data" / name, folder / "tekken.json")
        tokenizer = Tekkenizer.from_file(folder / "tekken.json")
        return (lambda line: tokenizer.encode(line, bos=True, eos=False)), tokenizer.decode, [t["token_str"] for t in tokenizer._all_special_tokens]

    return make


def byte_letters():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {**{b: chr(b) for b in printable}, **{b: chr(256 + n) for n, b in enumerate(others)}}


def sentence_piece(file="tokenizer.model", config=None, before=(), after=(), shift=False, **training):
    def make(folder, lines):
        import sentencepiece

        model = io.BytesIO()
        options = {"vocab_size": 1500, "hard_vocab_limit": False, "character_coverage": 0.9995, "minloglevel": 2, **training}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines[:6000]), model_writer=model, **options)
        (folder / file).write_bytes(model.getvalue())
        write(folder, "tokenizer_config.json", config or {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True})
        piece = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        begin, end = [piece.piece_to_id(t) for t in before], [piece.piece_to_id(t) for t in after]
        # Only sentencepiece's own text: lines with special tokens in them are cut there.
        special = [piece.id_to_piece(i) for i in range(piece.vocab_size()) if piece.is_control(i) or piece.is_unknown(i)] + ["<mask>"]
        fairseq = {0: 3, 1: 0, 2: 2}
        moved = lambda ids: [fairseq.get(i, i + 1) for i in ids] if shift else ids
        back = {new: old for old, new in fairseq.items()}
        old = lambda ids: [back.get(i, i - 1) for i in ids] if shift else ids
        decode = lambda ids: piece.decode([i for i in old(ids) if not piece.is_unknown(i) and not piece.is_control(i)])
        return lambda line: moved(begin + piece.encode(line) + end), decode, special

    return make


def llama(train, added=(), **config):
    """What transformers' LlamaTokenizer makes of a sentencepiece model that `train` writes: settings say where spaces are put."""

    def make(folder, lines):
        import sentencepiece
        import transformers

        train(folder, lines)
        size = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model")).vocab_size()
        listed = {str(size + n): {"content": token, "special": False, "normalized": False} for n, token in enumerate(added)}
        write(folder, "tokenizer_config.json", {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>",
                                                "unk_token": "<unk>", "added_tokens_decoder": listed, **config})
        backend = transformers.LlamaTokenizer.from_pretrained(folder).backend_tokenizer
        return lambda line: backend.encode(line).ids, backend.decode, None

    return make


BEHIND_TOKENS = ["[INST] a [/INST]b", " [INST]  c</s> d[/INST] ", "<s>[INST][INST] x", "[INST]▁y <s>▁ z</s>"]
LLAMA3_TOKENS = {str(3000 + n): {"content": name, "special": True, "normalized": False}
                 for n, name in enumerate(["<|begin_of_text|>", "<|end_of_text|>"])}
LLAMA = {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
         "split_digits": True, "allow_whitespace_only_pieces": True, "before": ["<s>"], "vocab_size": 2000}


def files(**small):
    """{name: make(folder, lines)}; small: vocab_size (without bytes) and normalization_rule_tsv of sentencepiece's models."""

    def spm(*args, **options):
        if small:
            options["vocab_size"] = small["vocab_size"] + (256 if options.get("byte_fallback") else 0)
            if options.get("normalization_rule_name") != "identity":
                options["normalization_rule_tsv"] = small["normalization_rule_tsv"]
        return sentence_piece(*args, **options)

    return {
        "vocab.txt uncased": transformers_class("BertTokenizer", "bert_uncased", "vocab.txt"),
        "vocab.txt cased": transformers_class("BertTokenizer", "bert_cased", "vocab.txt", do_lower_case=False),
        "vocab.txt accents": transformers_class("BertTokenizer", "bert_keeps_accents", "vocab.txt", strip_accents=False, tokenize_chinese_chars=False),
        "merges.txt gpt2": transformers_class("GPT2Tokenizer", "gpt2", "merges.txt"),
        "merges.txt gpt2 prefix": transformers_class("GPT2Tokenizer", "gpt2_prefix_space", "merges.txt", add_prefix_space=True, add_bos_token=True),
        "merges.txt roberta": transformers_class("RobertaTokenizer", "roberta", "merges.txt"),
        "merges.txt bart": transformers_class("BartTokenizer", "bart_prefix_space", "merges.txt", add_prefix_space=True),
        "merges.txt clip": transformers_class("CLIPTokenizer", "clip", "merges.txt"),
        "merges.txt qwen2": transformers_class("Qwen2Tokenizer", "qwen2", "merges.txt"),
        "tiktoken llama3": ranks("tokenizer.model", LLAMA3, bos_token="<|begin_of_text|>", added_tokens_decoder=LLAMA3_TOKENS),
        "tiktoken cl100k": ranks("cl100k_base.tiktoken", LLAMA3),
        "tiktoken o200k": ranks("o200k_base.tiktoken", O200K),
        "tekken": tekken(True, "v13"),
        "tekken v3": tekken(False),
        **({} if small else {"tekken published": tekken_published("tekken_240911.json")}),
        "spm llama": spm(**LLAMA),
        "spm llama legacy false": llama(spm(**LLAMA), ["[INST]", "[/INST]"], legacy=False),
        "spm llama no prefix": llama(spm(**LLAMA), ["[INST]"], legacy=False, add_prefix_space=False),
        "spm gemma": spm(**{**LLAMA, "add_dummy_prefix": False}, user_defined_symbols=["\n\n", "\n", "<b>", "▁▁", "▁▁▁", "12"]),
        "spm bpe nmt_nfkc": spm(model_type="bpe", before=["<s>"]),
        "spm t5": spm("spiece.model", {"tokenizer_class": "T5Tokenizer"}, after=["</s>"], pad_id=3),
        "spm xlm_r": spm("sentencepiece.bpe.model", {"tokenizer_class": "XLMRobertaTokenizer"}, ["<s>"], ["</s>"], True),
        "spm deberta": spm("spm.model", {"tokenizer_class": "DebertaV2Tokenizer"}, ["[CLS]"], ["[SEP]"],
                           control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["(", ")", "the t"]),
        "spm unigram bytes": spm(byte_fallback=True, normalization_rule_name="nfkc_cf", vocab_size=1800, before=["<s>"]),
        "spm unigram as it is": spm(normalization_rule_name="identity", remove_extra_whitespaces=False, before=["<s>"]),
        "spm suffix": spm(treat_whitespace_as_suffix=True, before=["<s>"]),
    }


def main():
    options = arguments(__doc__)
    program, training, samples = options.build / "bin/tokenizer_lines", training_lines(options.text), all_lines(options.lines) + BEHIND_TOKENS
    wrong = 0
    for name in options.names or files():
        with tempfile.TemporaryDirectory() as made:
            folder = pathlib.Path(made)
            encode, decode, special = files()[name](folder, training)
            lines = [line for line in samples if not any(token in line for token in special or [])]
            ids = [encode(line) for line in lines]
            wrong += compare(name, lines, ours(program, folder, lines), [(i, decode(i)) for i in ids])
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
