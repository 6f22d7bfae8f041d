// SPDX-License-Identifier: Apache-2.0
#include "fuzz/targets.h"

#include <cstdlib>
#include <iostream>
#include <sstream>

#include "fp8/configs/training/deepspeed_config.h"
#include "fp8/configs/training/gaudi_config.h"
#include "fp8/quant/forms/ignore_list.h"
#include "fp8/quant/names/expert_weights.h"
#include "fp8/runtime/io/idx/idx.h"
#include "fp8/runtime/io/images/image.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/torch_file.h"
#include "fp8/runtime/io/yaml/yaml.h"
#include "fp8/tools/commands/inspect/inspect_trace.h"
#include "fp8/tools/text/files/tokenizer_files.h"
#include "fp8/tools/text/tokenizer.h"
#include "fuzz/folder_targets.h"
#include "support/memory_file.h"

namespace fp8::fuzz {
namespace {

using test::MemoryFile;

void require(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "fuzz: " << what << std::endl;
  std::abort();
}

template <class Work>
void tolerating_errors(Work&& work) {
  try {
    work();
  } catch (const io::Error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos, "a message of several lines");
  }
}

std::string read_all(const io::TensorFile& file, const io::TensorInfo& tensor) {
  require(
      tensor.bytes() == static_cast<std::uint64_t>(tensor.numel()) * static_cast<std::uint64_t>(size_of(tensor.dtype)),
      "size");
  std::string bytes(tensor.bytes(), '\0');
  file.read(tensor, bytes.data());
  return bytes;
}

// Values as bytes, since NaN (which a pickle may hold) equals nothing.
void require_same_pickle(const io::PyValue& value) {
  const std::string written = io::write_pickle(value, "fuzz");
  require(io::write_pickle(io::read_pickle(written, "fuzz"), "fuzz") == written,
          "a value does not survive write and read");
}

/// nlohmann's own parser must read what is accepted as the same value.
void json(std::string_view data) {
  const io::Json value = io::parse_json(data, "fuzz");
  const io::Json theirs = io::Json::parse(data, nullptr, false);
  require(!theirs.is_discarded(), "accepted what nlohmann refuses");
  require(value == theirs, "another value than nlohmann's");
}

/// What is accepted must survive being written and read again.
void yaml(std::string_view data) {
  const std::string written = io::yaml_text(io::parse_yaml(data, "fuzz").value);
  require(io::yaml_text(io::parse_yaml(written, "written").value) == written, "YAML does not survive write and read");
}

/// What is accepted must survive being written and read again.
void idx(std::string_view data) {
  const io::IdxArray array = io::parse_idx(data, "fuzz");
  require(array.elements.size() / 1032 <= data.size(), "more elements than the file can hold");
  const std::string written = io::idx_bytes(array);
  require(io::idx_bytes(io::parse_idx(written, "written")) == written, "IDX does not survive write and read");
}

/// PNG and JPEG: the pixels of what is accepted are as many as its sizes say, and at most 2^16.
void image(std::string_view data) {
  const io::Image image = io::decode_image(data, "fuzz", 1 << 16);
  require(image.width > 0 && image.height > 0 && image.width * image.height <= 1 << 16, "sizes");
  require(image.pixels.size() == static_cast<std::size_t>(image.width * image.height * 3), "pixels");
}

/// Reads every tensor of what is accepted.
void safetensors(std::string_view data) {
  const MemoryFile memory(data);
  const io::SafetensorsFile file(memory.path());
  std::uint64_t sum = 0;
  for (const auto& tensor : file.tensors()) sum += read_all(file, tensor).size();
  require(sum <= data.size(), "more data than the file has");
}

/// A file of torch.save: reads every tensor of what is accepted, whole and in parts.
void torch_file(std::string_view data) {
  const MemoryFile memory(data);
  const io::TorchFile file(memory.path());
  for (const auto& tensor : file.tensors()) {
    require(tensor.bytes() <= data.size(), "more data than the file has");
    const std::string all = read_all(file, tensor);
    std::string part(all.size() / 2, '\0');
    file.read(tensor, part.data(), all.size() / 3, part.size());
    require(all.compare(all.size() / 3, part.size(), part) == 0, "a part differs from the whole");
  }
}

/// What is accepted must survive being written and read again.
void npz(std::string_view data) { require_same_pickle(io::parse_npz(data, "fuzz")); }

/// A JSON that is a QUANT_CONFIG: what is accepted must describe itself and choose modules.
void quant_config(std::string_view data) {
  const configs::ObserverParameter bins{"bins", 2048, 16, 65536, /*integer=*/true};
  const auto config =
      configs::parse_quant_config(io::parse_json(data, "fuzz"), "fuzz", {{{"maxabs"}, {"kl", std::vector{bins}}}});
  for (const auto& key : configs::describe(config))
    require(!key.key.empty() && !key.origin.empty(), "a key without its name or origin");
  auto filter = configs::module_filter(config);
  for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) filter.selects("Linear", name);
  filter.unused_entries();
}

/// A JSON that is a training recipe: what is accepted must survive being written and read again, and choose for
/// modules.
void recipe(std::string_view data) {
  const auto config = configs::parse_recipe(io::parse_json(data, "fuzz"), "fuzz");
  const io::Json written = configs::to_json(config);
  require(configs::to_json(configs::parse_recipe(written, "fuzz")) == written,
          "a recipe does not survive write and read");
  for (const char* name : {"model.layers.0.self_attn.q_proj", "lm_head", ""}) config.for_module(name);
}

void require_lines(const configs::Findings& found) {
  for (const auto* lines : {&found.problems, &found.notes})
    for (const auto& line : *lines) require(line.find('\n') == std::string::npos, "a message of several lines");
}

void use_training_config(const io::Json& json) {
  const auto& readers = enum_names<configs::DeepSpeedReader>;
  const auto reader = readers[json.size() % readers.size()].value;
  require_lines(configs::check_deepspeed(json, "fuzz", {.processes = 3, .reader = reader}));
  configs::key_meanings(json, configs::deepspeed_keys());
  configs::deepspeed_batch(json, {.processes = 3});
  const auto gaudi = configs::check_gaudi_config(json, "fuzz");
  const auto arguments = configs::check_training_arguments(json, "fuzz");
  require_lines(gaudi);
  require_lines(arguments);
  if (gaudi.problems.empty()) configs::gaudi_config_command(json);
  if (arguments.problems.empty()) configs::training_arguments_command(json);
}

/// A JSON as DeepSpeed's, as a strategy's arguments, as a gaudi_config and as training arguments: every message is one
/// line, and what is made of a strategy is right.
void training_config(std::string_view data) {
  const io::Json json = io::parse_json(data, "fuzz");
  use_training_config(json);
  const auto made = configs::deepspeed_json(configs::parse_deepspeed_strategy(json, "fuzz"));
  require(configs::key_problems(made, "fuzz", configs::deepspeed_keys()).empty(), "a JSON that is made has a problem");
}

/// The tree of either form.
io::Json tree_of(std::string_view bytes) {
  return bytes.substr(0, 2) == "PK" ? measure::stats_json(io::parse_npz(bytes, "fuzz")) : io::parse_json(bytes, "fuzz");
}

/// A measurement as .json or (from "PK" on) .npz: what is accepted must survive being written and read in both forms.
void measurement(std::string_view data) {
  const auto file = measure::measurement_from_json(tree_of(data), "fuzz");
  for (const auto& [path, bytes] : measure::measurement_bytes({"fuzz"}, file)) {
    if (path.string().find("_mod_list") != std::string::npos) continue;
    require(measure::measurement_from_json(tree_of(bytes), "fuzz").fingerprint() == file.fingerprint(),
            "a measurement does not survive write and read");
  }
}

/// A scale file, which must survive that too.
void scales(std::string_view data) {
  const auto file = quant::scales_from_json(tree_of(data), "fuzz");
  for (const auto& [path, bytes] : quant::scale_bytes({"fuzz", "maxabs", "UNIT_SCALE"}, file))
    require(quant::scales_from_json(tree_of(bytes), "fuzz").modules == file.modules,
            "scales do not survive write and read");
}

/// The strings of a list, the empty ones left out: no module is called so.
std::vector<std::string> strings_in(const io::Json& json, const char* key) {
  std::vector<std::string> out;
  const auto list = json.find(key);
  if (list == json.end() || !list->is_array()) return out;
  for (const auto& item : *list)
    if (item.is_string() && !item.get_ref<const std::string&>().empty()) out.push_back(item.get<std::string>());
  return out;
}

void check_list(const quant::CheckpointForm& form, const quant::ConfigSpec& spec) {
  const quant::IgnoreList list(form, quant::ignore_entries(form, spec));
  for (const auto& module : spec.kept_linears)
    require(list.entry_for(module) != nullptr, "a kept module is not in the list");
  for (const auto& module : spec.quantized)
    require(list.entry_for(module) == nullptr, "an entry matches a quantized module");
}

/// {"config": a model's config.json, "quantized": names, "kept": names, "ignore": entries}: what a form lists of that
/// must match every kept module and no quantized one.
void model_config(std::string_view data) {
  const io::Json json = io::parse_json(data, "fuzz");
  if (!json.is_object()) return;
  quant::ConfigSpec spec;
  spec.names = quant::ModelNames(json.value("config", io::Json()));
  spec.quantized = strings_in(json, "quantized");
  spec.kept_linears = strings_in(json, "kept");
  spec.ignore = strings_in(json, "ignore");
  spec.names.tied();
  spec.names.refused(spec.quantized);
  quant::expert_family(json.value("config", io::Json()));
  quant::halved_groups(spec.names, spec.quantized, spec.kept_linears);
  for (const auto& form : quant::checkpoint_forms()) {
    try {
      check_list(*form, spec);
    } catch (const std::invalid_argument&) {  // an entry of the user's that is no regular expression
    }
  }
}

void use_tokenizer(const io::Json& json) {
  const text::Tokenizer tokenizer(json, "fuzz");
  for (const char* const line : {"", "a the<s> 12\n", "\xC3\xA9 \xE4\xB8\xAD\xF0\x9F\x98\x80\x01\xff"})
    for (const std::int64_t id : tokenizer.encode(line, true, 1000))
      require(id >= 0 && id < tokenizer.vocab_size(), "an id outside the vocabulary");
  tolerating_errors([&] { tokenizer.decode({0, 1, 2, 3, tokenizer.vocab_size() - 1}); });
}

/// A tokenizer.json: what is accepted must encode and decode, or refuse the text.
void tokenizer(std::string_view data) { use_tokenizer(io::parse_json(data, "fuzz")); }

/// Other files that make a tokenizer, judged as tokenizer() does: vocab.txt, ranks of tiktoken, a sentencepiece model.
void vocabulary(std::string_view data) {
  for (const auto from : {text::from_vocab_txt, text::from_tiktoken, text::from_sentence_piece})
    tolerating_errors([&] { use_tokenizer(from({"fuzz", data}, text::TokenSettings())); });
}

/// Mistral's tekken.json, judged as tokenizer() does.
void tekken(std::string_view data) { use_tokenizer(text::from_tekken({"fuzz", data}, text::TokenSettings())); }

/// A chat template: what is accepted must render, or refuse, within its limits.
void chat_template(std::string_view data) {
  static const io::Json variables = io::parse_json(
      R"({"messages": [{"role": "user", "content": " a</t>b "}, {"role": "assistant", "content": "c"}],
          "bos_token": "<s>", "tools": [{"name": "f", "parameters": {"type": "object", "n": 1.5}}],
          "add_generation_prompt": true})",
      "fuzz");
  const text::jinja::Limits kLimits{.steps = 20'000, .size = 1 << 16, .held = 1 << 18};
  const text::jinja::Template chat(data, "fuzz");
  require(chat.render(variables, kLimits).size() <= kLimits.size, "more text than allowed");
}

/// A file of rows: each is text, or refused.
void data_rows(std::string_view data) {
  const MemoryFile memory(data);
  text::JsonRows rows(memory.path());
  text::RowTexts texts({});
  io::Json row;
  for (std::string where; rows.next(row, where);) {
    tolerating_errors([&] { texts.text_of(row, where); });
    tolerating_errors([&] { text::source_and_answer(row, where); });
  }
}

/// A trace of profilers: the sums of what is accepted must count every event once.
void trace(std::string_view data) {
  std::istringstream file{std::string(data)};
  const auto found = commands::read_trace(file, "fuzz", /*timeline=*/true);
  double count = 0;
  for (const auto& [name, sum] : found.categories) count += sum.count;
  require(count == static_cast<double>(found.events), "the categories are not all of the events");
  for (const auto& [category, rows] : found.rows)
    for (const auto* sums : {&rows.ops, &rows.modules, &rows.phases}) {
      double of_rows = 0;
      for (const auto& [name, sum] : *sums) of_rows += sum.count;
      require(of_rows == found.categories.at(category).count, "the rows are not all of the category");
    }
  require(found.bars.size() <= static_cast<std::size_t>(found.events), "a bar that is no event");
}

/// The pickle alone, past the zip's checksum.
void pickle(std::string_view data) { require_same_pickle(io::read_pickle(data, "fuzz")); }

}  // namespace

void run(const std::string& name, std::string_view data) {
  tolerating_errors([&] { targets().at(name)(data); });
}

const std::map<std::string, Target>& targets() {
  static const std::map<std::string, Target> all = {{"json", json},
                                                    {"yaml", yaml},
                                                    {"idx", idx},
                                                    {"image", image},
                                                    {"safetensors", safetensors},
                                                    {"torch_file", torch_file},
                                                    {"npz", npz},
                                                    {"quant_config", quant_config},
                                                    {"recipe", recipe},
                                                    {"training_config", training_config},
                                                    {"measurement", measurement},
                                                    {"scales", scales},
                                                    {"model_config", model_config},
                                                    {"tokenizer", tokenizer},
                                                    {"vocabulary", vocabulary},
                                                    {"tekken", tekken},
                                                    {"chat_template", chat_template},
                                                    {"data_rows", data_rows},
                                                    {"trace", trace},
                                                    {"pickle", pickle},
                                                    {"checkpoint", checkpoint},
                                                    {"calibrated", calibrated},
                                                    {"resumed", resumed},
                                                    {"joined", joined}};
  return all;
}

}  // namespace fp8::fuzz
