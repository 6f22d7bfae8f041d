// SPDX-License-Identifier: Apache-2.0
// See tokenizer_files.h. Defaults are transformers': BertTokenizer, GPT2Tokenizer, RobertaTokenizer, CLIPTokenizer,
// Qwen2Tokenizer.

#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/steps/sentence_piece.h"

namespace fp8::text {

io::Json split_at(const std::string& expression, const char* behavior, bool invert) {
  return {{"type", "Split"}, {"pattern", {{"Regex", expression}}}, {"behavior", behavior}, {"invert", invert}};
}

io::Json byte_level(bool prefix, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", regex}};
}

io::Json chain(const char* list, io::Json steps) { return {{"type", "Sequence"}, {list, std::move(steps)}}; }

namespace {

constexpr std::size_t kMaxLines = 1 << 21;
constexpr const char* kClip =
    R"(<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+)";

// A row for each way to cut and surround that the classes of transformers have.
enum class Kind { gpt2, roberta, clip, qwen };

struct Class {
  const char* start;  // of tokenizer_class or model_type
  Kind kind;
};
constexpr Class kClasses[] = {{"Roberta", Kind::roberta},    {"roberta", Kind::roberta},    {"Bart", Kind::roberta},
                              {"bart", Kind::roberta},       {"LED", Kind::roberta},        {"led", Kind::roberta},
                              {"Longformer", Kind::roberta}, {"longformer", Kind::roberta}, {"CLIP", Kind::clip},
                              {"clip", Kind::clip},          {"Qwen", Kind::qwen},          {"qwen", Kind::qwen}};

Kind kind_of(const TokenSettings& settings) {
  const std::string name = settings.kind();
  const auto* const found = std::find_if(std::begin(kClasses), std::end(kClasses),
                                         [&](const Class& row) { return name.starts_with(row.start); });
  return found == std::end(kClasses) ? Kind::gpt2 : found->kind;
}

TokenNames defaults_of(Kind kind) {
  const char* const end = "<|endoftext|>";
  if (kind == Kind::roberta)
    return {{"bos_token", "<s>"},   {"eos_token", "</s>"},  {"sep_token", "</s>"},   {"cls_token", "<s>"},
            {"unk_token", "<unk>"}, {"pad_token", "<pad>"}, {"mask_token", "<mask>"}};
  if (kind == Kind::qwen) return {{"eos_token", end}, {"pad_token", end}, {"unk_token", end}};
  return {{"bos_token", kind == Kind::clip ? "<|startoftext|>" : end}, {"eos_token", end}, {"unk_token", end}};
}

struct Surround {
  std::vector<std::string> before, after;
};

Surround surround_of(Kind kind, const TokenSettings& settings, const TokenNames& defaults) {
  const auto name = [&](const char* key) { return settings.token(key).value_or(defaults.at(key)); };
  Surround result;
  if (kind == Kind::roberta) return {{name("cls_token")}, {name("sep_token")}};
  if (kind == Kind::clip) return {{name("bos_token")}, {name("eos_token")}};
  if (settings.boolean_or("add_bos_token", false) && (kind == Kind::gpt2 || settings.token("bos_token")))
    result.before.push_back(kind == Kind::gpt2 ? name("bos_token") : *settings.token("bos_token"));
  if (settings.boolean_or("add_eos_token", false)) result.after.push_back(name("eos_token"));
  return result;
}

// The pre-tokenizer, and the normalizer where there is one.
void set_steps(io::Json& result, Kind kind, bool prefix) {
  if (kind == Kind::clip) {
    const io::Json replace = {{"type", "Replace"}, {"pattern", {{"Regex", "\\s+"}}}, {"content", " "}};
    result["normalizer"] = chain("normalizers", {{{"type", "NFC"}}, replace, {{"type", "Lowercase"}}});
    result["pre_tokenizer"] = chain("pretokenizers", {split_at(kClip, "Removed", true), byte_level(false, true)});
  } else if (kind == Kind::qwen) {
    result["normalizer"] = {{"type", "NFC"}};
    result["pre_tokenizer"] = chain("pretokenizers", {split_at(kQwenPattern), byte_level(prefix, false)});
  } else {
    result["pre_tokenizer"] = byte_level(prefix, true);
  }
  result["decoder"] = {{"type", "ByteLevel"}};
}

}  // namespace

std::vector<std::string> vocabulary_lines(const NamedBytes& file) {
  const std::string_view text = file.bytes;
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::size_t size = end - begin - (end > begin && text[end - 1] == '\r' ? 1 : 0);
    const std::string where = "line " + std::to_string(lines.size() + 1);
    if (lines.size() == kMaxLines) io::fail_at(file.name, "has more than {} lines", kMaxLines);
    lines.emplace_back(text.substr(begin, size));
    if (!io::is_utf8(lines.back()))
      io::fail_at(file.name, "{} is {}, expected UTF-8", where, io::in_quotes(lines.back()));
    begin = end + 1;
  }
  if (lines.empty()) io::fail_at(file.name, "holds no tokens");
  return lines;
}

io::Json from_vocab_txt(const NamedBytes& file, const TokenSettings& settings) {
  const TokenNames defaults = {{"unk_token", "[UNK]"},
                               {"sep_token", "[SEP]"},
                               {"pad_token", "[PAD]"},
                               {"cls_token", "[CLS]"},
                               {"mask_token", "[MASK]"}};
  const auto name = [&](const char* key) { return settings.token(key).value_or(defaults.at(key)); };
  settings.refuse(file.name,
                  {"MPNet", "mpnet", "Esm", "esm", "BertJapanese", "RoFormer", "roformer", "Tapas", "tapas"});
  TokenTable vocab;
  std::int64_t id = 0;
  for (const std::string& token : vocabulary_lines(file)) vocab.set(token, id++);
  if (!vocab.contains(name("unk_token")))
    io::fail_at(file.name, "has no token {}, which unknown words become (unk_token)", io::in_quotes(name("unk_token")));
  io::Json result;
  result["added_tokens"] = settings.added_tokens(vocab, defaults);
  result["normalizer"] = {{"type", "BertNormalizer"},
                          {"clean_text", true},
                          {"handle_chinese_chars", settings.boolean_or("tokenize_chinese_chars", true)},
                          {"lowercase", settings.boolean_or("do_lower_case", true)}};
  if (const auto strip = settings.boolean("strip_accents")) result["normalizer"]["strip_accents"] = *strip;
  result["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
  result["decoder"] = {{"type", "WordPiece"}, {"prefix", "##"}};
  result["post_processor"] =
      surround(file.name, vocab, result["added_tokens"], {name("cls_token")}, {name("sep_token")});
  result["model"] = {{"type", "WordPiece"}, {"unk_token", name("unk_token")}, {"vocab", vocab.take()}};
  return result;
}

io::Json from_vocab_and_merges(const NamedBytes& vocab_file, const NamedBytes& merges_file,
                               const TokenSettings& settings) {
  io::Json json = io::parse_json(vocab_file.bytes, vocab_file.name);
  settings.refuse(vocab_file.name,
                  {"OpenAIGPT",  "openai-gpt", "XLM",      "xlm",    "CTRL",   "ctrl",     "Blenderbot",
                   "blenderbot", "Phobert",    "Bertweet", "FSMT",   "fsmt",   "Flaubert", "BioGpt",
                   "biogpt",     "Deberta",    "deberta",  "Marian", "marian", "M2M100",   "m2m_100"});
  const JsonPart part(json, vocab_file.name);
  if (!json.is_object()) part.fail("holds no JSON object token -> id");
  for (const auto& [token, id] : json.items()) JsonPart(id, vocab_file.name, token).integer(0, 1 << 24);
  TokenTable vocab(std::move(json));
  io::Json merges = io::Json::array();
  const auto lines = vocabulary_lines(merges_file);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty() || (i == 0 && lines[i].starts_with("#version"))) continue;
    const std::size_t space = lines[i].find(' ');
    if (space == std::string::npos || lines[i].find(' ', space + 1) != std::string::npos)
      io::fail_at(merges_file.name, "line {} is {}, expected \"LEFT RIGHT\"", i + 1, io::in_quotes(lines[i]));
    merges.push_back({lines[i].substr(0, space), lines[i].substr(space + 1)});
  }
  const Kind kind = kind_of(settings);
  const TokenNames defaults = defaults_of(kind);
  io::Json result, model = {{"type", "BPE"}, {"merges", std::move(merges)}};
  result["added_tokens"] = settings.added_tokens(vocab, defaults);
  set_steps(result, kind, settings.boolean_or("add_prefix_space", false));
  const auto [before, after] = surround_of(kind, settings, defaults);
  result["post_processor"] = surround(vocab_file.name, vocab, result["added_tokens"], before, after);
  if (kind == Kind::clip) {
    model["end_of_word_suffix"] = "</w>";
    model["unk_token"] = settings.token("unk_token").value_or(defaults.at("unk_token"));
  }
  model["vocab"] = vocab.take();
  result["model"] = std::move(model);
  return result;
}

// See tokenizer_files.h.

namespace {

using Model = SentencePieceModel;
constexpr const char* kMark = "\xE2\x96\x81";

// The tokens that the classes of transformers put around a text, and their other properties.
struct Around {
  const char* start;  // of tokenizer_class or model_type
  const char *before, *after;
  bool bos;      // begins with bos_token unless add_bos_token is false
  bool fairseq;  // ids as in fairseq: <s> <pad> </s> <unk>, the pieces from the fourth on, <mask>
};
constexpr Around kSurrounds[] = {{"T5", "", "</s>", false, false},
                                 {"t5", "", "</s>", false, false},
                                 {"MT5", "", "</s>", false, false},
                                 {"mt5", "", "</s>", false, false},
                                 {"XLMRoberta", "<s>", "</s>", false, true},
                                 {"xlm-roberta", "<s>", "</s>", false, true},
                                 {"Albert", "[CLS]", "[SEP]", false, false},
                                 {"albert", "[CLS]", "[SEP]", false, false},
                                 {"Deberta", "[CLS]", "[SEP]", false, false},
                                 {"BigBird", "[CLS]", "[SEP]", false, false},
                                 {"big_bird", "[CLS]", "[SEP]", false, false},
                                 {"RemBert", "[CLS]", "[SEP]", false, false},
                                 {"rembert", "[CLS]", "[SEP]", false, false},
                                 {"deberta", "[CLS]", "[SEP]", false, false},
                                 {"", "", "", true, false}};

const Around& around_of(const TokenSettings& settings) {
  const std::string name = settings.kind();
  return *std::find_if(std::begin(kSurrounds), std::end(kSurrounds),
                       [&](const Around& row) { return name.starts_with(row.start); });
}

void to_fairseq(Model& model, const std::string& name) {
  if (model.pieces.size() < 3) io::fail<io::Error>("{}: has less than three pieces", name);
  std::vector<Model::Piece> pieces{{"<s>", 0, Model::kControl},
                                   {"<pad>", 0, Model::kControl},
                                   {"</s>", 0, Model::kControl},
                                   {"<unk>", 0, Model::kUnknown}};
  pieces.insert(pieces.end(), model.pieces.begin() + 3, model.pieces.end());
  pieces.push_back({"<mask>", 0, Model::kControl});
  model.pieces = std::move(pieces);
  model.unk_id = 3;
}

io::Json texts_of(const Model& model, Model::Kind kind) {
  io::Json texts = io::Json::array();
  for (const auto& piece : model.pieces)
    if (piece.kind == kind) texts.push_back(piece.text);
  return texts;
}

io::Json unigram(const Model& model) {
  io::Json vocab = io::Json::array(), kinds = io::Json::array();
  for (const auto& piece : model.pieces) {
    vocab.push_back(io::Json::array({piece.text, piece.score}));
    kinds.push_back(static_cast<int>(piece.kind));
  }
  return {{"type", "Unigram"}, {"vocab", vocab}, {"kinds", kinds}, {"unk_id", model.unk_id}};
}

// The highest score is rank 0, equal scores are one rank.
io::Json bpe(const Model& model, const std::string& name, io::Json vocab) {
  std::vector<float> scores;
  for (const auto& piece : model.pieces) {
    if (piece.kind == Model::kUnused)
      io::fail<io::Error>("{}: piece {} of a BPE is unused, which is not supported", name, io::in_quotes(piece.text));
    if (piece.kind == Model::kNormal) scores.push_back(-piece.score);
  }
  std::sort(scores.begin(), scores.end());
  std::vector<std::int64_t> ranks;
  for (const auto& piece : model.pieces) {
    const auto found = std::lower_bound(scores.begin(), scores.end(), -piece.score);
    ranks.push_back(piece.kind == Model::kNormal ? found - scores.begin() : -1);
  }
  return {{"type", "BPE"},
          {"vocab", std::move(vocab)},
          {"ranks", ranks},
          {"user_defined", texts_of(model, Model::kUserDefined)},
          {"unk_token", model.pieces[model.unk_id].text},
          {"fuse_unk", true}};
}

io::Json replace(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

io::Json normalizer(const Model& model, const TokenSettings& settings) {
  io::Json own = {{"type", "SentencePiece"},
                  {"add_dummy_prefix", model.add_dummy_prefix},
                  {"remove_extra_whitespaces", model.remove_extra_whitespaces},
                  {"escape_whitespaces", model.escape_whitespaces},
                  {"treat_whitespace_as_suffix", model.treat_whitespace_as_suffix},
                  {"user_defined", texts_of(model, Model::kUserDefined)}};
  if (!model.precompiled_charsmap.empty()) own["precompiled_charsmap"] = to_base64(model.precompiled_charsmap);
  const std::string kind = settings.kind();
  io::Json steps = io::Json::array();
  if (kind.starts_with("Albert") || kind.starts_with("albert")) {
    steps = {replace("``", "\""), replace("''", "\"")};
    if (!settings.boolean_or("keep_accents", false)) {
      steps.push_back({{"type", "NFKD"}});
      steps.push_back({{"type", "StripAccents"}});
    }
    if (settings.boolean_or("do_lower_case", true)) steps.push_back({{"type", "Lowercase"}});
  } else if (settings.boolean_or("do_lower_case", false)) {
    steps.push_back({{"type", "Lowercase"}});
  }
  steps.push_back(std::move(own));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

// The space before a text. If tokenizer_config.json says "legacy": false, it is put before the whole text alone, not
// before each stretch behind an added token, and not before one that begins with a space; "add_prefix_space": false
// puts none anywhere.
struct Prefix {
  bool wanted, first_alone;

  Prefix(const Model& model, const TokenSettings& settings, bool of_llama)
      : wanted(model.add_dummy_prefix && !(of_llama && !settings.boolean_or("add_prefix_space", true))),
        first_alone(wanted && of_llama && !model.treat_whitespace_as_suffix && !settings.boolean_or("legacy", true)) {}
};

io::Json metaspace_before_text() {
  return {{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "first"}, {"split", false}};
}

io::Json decoder(const Model& model) {
  io::Json steps = io::Json::array({replace(kMark, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}});
  // Strips leading spaces: all where the normalizer leaves none of the text's, else the one that it put there.
  const int spaces = model.remove_extra_whitespaces ? 1 << 20 : model.add_dummy_prefix ? 1 : 0;
  steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", spaces}, {"stop", 0}});
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

}  // namespace

io::Json from_sentence_piece(const NamedBytes& file, const TokenSettings& settings) {
  const std::string& name = file.name;
  // These count their ids otherwise, or put a language around each text.
  settings.refuse(name, {"Camembert", "camembert", "MBart",  "mbart",       "Nllb",     "nllb",    "M2M100",
                         "m2m_100",   "XGLM",      "xglm",   "Barthez",     "Pegasus",  "pegasus", "XLNet",
                         "xlnet",     "PLBart",    "plbart", "SeamlessM4T", "seamless", "Marian",  "marian"});
  Model model = parse_sentence_piece(file.bytes, name);
  const Around& of = around_of(settings);
  if (of.fairseq) to_fairseq(model, name);
  const Prefix prefix(model, settings, of.bos);
  model.add_dummy_prefix = prefix.wanted;
  TokenTable vocab;
  io::Json result;
  for (std::size_t i = 0; i < model.pieces.size(); ++i) vocab.set(model.pieces[i].text, static_cast<std::int64_t>(i));
  TokenNames defaults{{"unk_token", model.pieces[model.unk_id].text}};
  const io::Json control = texts_of(model, Model::kControl);
  for (const auto& token : control) defaults.emplace("control " + token.get<std::string>(), token.get<std::string>());
  io::Json added = settings.added_tokens(vocab, defaults);
  std::vector<std::string> before, after;
  if (*of.before) before.emplace_back(of.before);
  if (*of.after) after.emplace_back(of.after);
  const auto bos = settings.token("bos_token"), eos = settings.token("eos_token");
  const std::string begin = bos.value_or("<s>");
  if (of.bos && settings.boolean_or("add_bos_token", vocab.contains(begin))) before.push_back(begin);
  if (of.bos && settings.boolean_or("add_eos_token", false)) after.push_back(eos.value_or("</s>"));
  result["post_processor"] = surround(name, vocab, added, before, after);
  result["added_tokens"] = std::move(added);
  result["decoder"] = decoder(model);
  if (prefix.first_alone) {
    model.add_dummy_prefix = false;
    result["pre_tokenizer"] = metaspace_before_text();
  }
  result["normalizer"] = normalizer(model, settings);
  result["normalizer"]["normalizers"].back()["keep_first_space"] = prefix.first_alone;
  result["model"] = model.type == Model::kUnigram ? unigram(model) : bpe(model, name, vocab.take());
  result["model"]["byte_fallback"] = model.byte_fallback;
  return result;
}

}  // namespace fp8::text
