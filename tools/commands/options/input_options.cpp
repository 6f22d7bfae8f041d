// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/options/input_options.h"

#include <fnmatch.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <system_error>

#include "fp8/runtime/io/base/fail.h"

namespace fp8::commands {

std::int64_t default_batch(std::int64_t seq_len) { return std::clamp<std::int64_t>(kTokensPerForward / seq_len, 1, 8); }

void add_data_option(Options& options, const std::string& name, text::DataFiles& target, const std::string& help,
                     Options::Need need) {
  const auto set = [&target, name](const std::vector<std::string>& names) { target = data_files(name, names); };
  options.files(name, set, help + "; - is standard input; several, or a pattern in quotes", need);
}

void add_data_options(Options& options, DataOptions& target, Options::Need need) {
  constexpr std::int64_t kMany = std::int64_t{1} << 40;
  add_data_option(
      options, "--data", target.data,
      ".txt, .md, .jsonl, .json (text, messages, prompt and completion, instruction and output) or .safetensors "
      "(input_ids); for models that answer a source text (T5, BART) rows with input and target, or input_ids and "
      "labels",
      need);
  options.integer("--samples", target.samples, 1, kMany, "Chunks to use",
                  target.samples < 0    ? "all"
                  : target.samples == 0 ? "512, of large models fewer"
                                        : "");
  options.integer("--seq-len", target.seq_len, 2, 1 << 20,
                  "Tokens per chunk; of an input and of a target, whose tokens beyond it are cut",
                  target.seq_len == 0 ? target.seq_len_text : "");
  options.integer("--skip", target.skip, 0, kMany, "Chunks to pass over first");
  options.integer("--batch", target.batch, 1, 65536, "Chunks per forward",
                  target.batch == 0 ? "8, of long chunks fewer" : "");
}

void take_built_in_text(DataOptions& target, const Context& context) {
  target.data = {text::kBuiltInText};
  context.warn(
      "no --data: taking the built-in text (160 kB of the King James Bible); texts like those that the model "
      "will see are better");
}

std::filesystem::path one_file(const text::DataFiles& files) {
  if (files.size() != 1)
    io::fail<UsageError>("--data: found {} files, allowed: one, .safetensors or .wav", files.size());
  return files[0];
}

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kMostFiles = 100'000;

bool is_pattern(const std::string& name) { return name.find_first_of("*?[") != std::string::npos; }

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error))
    names.push_back(it->path().filename());
  std::ranges::sort(names, {}, [](const fs::path& name) -> const std::string& { return name.native(); });
  return names;
}

/// Adds what fits the parts from `part` on below `folder`.
void find_files(const fs::path& folder, const std::vector<std::string>& parts, std::size_t part,
                std::vector<fs::path>& found) {
  std::error_code error;
  if (found.size() > kMostFiles) return;
  if (part == parts.size()) {
    if (!fs::is_directory(folder, error)) found.push_back(folder);
    return;
  }
  if (parts[part] == "**") {
    find_files(folder, parts, part + 1, found);
    for (const auto& name : entries_of(folder)) {
      const fs::path inner = folder / name;
      if (name.native()[0] != '.' && fs::is_directory(inner, error) && !fs::is_symlink(inner, error))
        find_files(inner, parts, part, found);
    }
  } else if (!is_pattern(parts[part])) {
    if (fs::exists(folder / parts[part], error)) find_files(folder / parts[part], parts, part + 1, found);
  } else {
    for (const auto& name : entries_of(folder))
      if (::fnmatch(parts[part].c_str(), name.c_str(), FNM_PERIOD) == 0)
        find_files(folder / name, parts, part + 1, found);
  }
}

}  // namespace

text::DataFiles data_files(const std::string& option, const std::vector<std::string>& names) {
  text::DataFiles files;
  std::error_code error;
  for (const auto& name : names) {
    if (!is_pattern(name) || fs::exists(name, error)) {
      files.emplace_back(name);
      continue;
    }
    const fs::path pattern(name);
    std::vector<std::string> parts;
    for (const auto& part : pattern.relative_path()) parts.push_back(part.string());
    std::vector<fs::path> found;
    find_files(pattern.root_path(), parts, 0, found);
    if (found.empty()) io::fail<UsageError>("{}: found '{}', which no file fits", option, name);
    if (found.size() > kMostFiles) io::fail<UsageError>("{}: '{}' fits more than {} files", option, name, kMostFiles);
    files.insert(files.end(), found.begin(), found.end());
  }
  if (std::ranges::count(files, fs::path(text::kStandardInput)) > 1)
    io::fail<UsageError>("{}: found - (standard input) twice, allowed: once", option);
  return files;
}

bool is_script(const std::filesystem::path& model) {
  std::error_code error;
  const std::string extension = model.extension().string();
  if (std::filesystem::is_directory(model, error)) return false;
  const auto is_one_of = [&](std::initializer_list<const char*> names) {
    return std::ranges::find(names, extension) != names.end();
  };
  // Files of a checkpoint are refused with the way to take them, and so are names of a hub, which may have a dot.
  if (is_one_of({".safetensors", ".bin", ".gguf", ".json"})) return false;
  return std::filesystem::is_regular_file(model, error) ? model.has_extension()
                                                        : is_one_of({".pt", ".pth", ".jit", ".ts", ".torchscript"});
}

void add_attention_option(Options& options, models::AttentionKind& target) {
  options.choice<models::AttentionKind>(
      "--attention", target,
      "One fused operation (default), or products and softmax that are measured and quantized each by itself",
      {{models::AttentionKind::fused, "fused"}, {models::AttentionKind::eager, "eager"}});
}

void add_nonfinite_option(Options& options, bool& target) {
  options.flag(
      "--allow-nonfinite", target,
      "Take weights with NaN or Inf as they are, instead of refusing them (quantize and convert have the same option)");
}

void add_kv_cache_options(Options& options, KvCacheOptions& target) {
  const auto set = [&target](std::size_t i, const std::vector<std::string>& details) {
    target.mode = enum_names<KvCacheOptions::Mode>[i].value;
    if (details.empty()) return true;
    const auto scales = parse_enum<quant::KvGranularity>(details[0]);
    target.scales = scales;
    return target.mode == KvCacheOptions::Mode::fp8 && details.size() == 1 && scales.has_value();
  };
  options.detailed_choice(
      "--kv-cache", {"auto", "fp8", "off"}, set, "fp8:head, fp8:tensor",
      "Keys and values in fp8 (default auto: if the checkpoint has scales for them, as serving engines do); fp8:head "
      "with --measurements: a scale for each head, not one for keys and one for values of a layer");
  options.text("--measurements", target.measurements,
               "--kv-cache fp8: make the scales of a measurement (its folder or prefix) instead of the checkpoint's");
  options.choice<quant::KvGranularity>("--kv-cache-scales", target.scales, "");
  options.replaced("--kv-cache-scales", "--kv-cache fp8:head");
}

void check_kv_cache_options(const KvCacheOptions& o, const Context& context) {
  using Mode = KvCacheOptions::Mode;
  if (o.mode == Mode::fp8 && context.device != "hpu")
    io::fail<UsageError>("--kv-cache fp8: found --device {}, allowed: hpu", context.device);
  if (o.mode != Mode::fp8 && !o.measurements.empty())
    io::fail<UsageError>("--measurements: the scales of --kv-cache fp8 are made of them, found --kv-cache {}",
                         name_of(o.mode));
  if (o.scales.has_value() && o.measurements.empty())
    io::fail<UsageError>("--kv-cache fp8:{}: the scales are made of --measurements, which is not given",
                         name_of(*o.scales));
}

void add_profile_options(Options& options, ProfileOptions& target, const std::string& step) {
  options.path(
      "--profile", target.folder,
      "Folder for a trace of some steps, <stage>.<time>.pt.trace.json: fp8 inspect, chrome://tracing, Perfetto "
      "and TensorBoard show it");
  options.text(
      "--profile-schedule", target.schedule_text,
      "With --profile: steps to wait, to warm up, to record, and how often (0: until the end), each step one " + step +
          "; default 1,1,3,1, or all of fewer than five");
}

runtime::ProfileSchedule ProfileOptions::schedule() const {
  constexpr const char* kAllowed =
      ", allowed: WAIT,WARMUP,ACTIVE or WAIT,WARMUP,ACTIVE,REPEAT, ACTIVE 1 or more, the others 0 or more (1,1,3)";
  const auto& fields = runtime::kScheduleFields;
  runtime::ProfileSchedule schedule{.repeat = 1};
  std::size_t count = 0;
  for (std::string_view rest = schedule_text; count <= fields.size();) {
    const auto comma = rest.find(',');
    const auto value = parse_integer(rest.substr(0, comma));
    if (!value || count == fields.size() || !fields[count].fits(*value)) break;
    schedule.*fields[count++].value = *value;
    if (comma == std::string_view::npos) {
      if (count < 3) break;
      return schedule;
    }
    rest.remove_prefix(comma + 1);
  }
  io::fail<UsageError>("--profile-schedule: found '{}'{}", schedule_text, kAllowed);
}

void check_profile_options(const ProfileOptions& o) {
  if (o.schedule_text.empty()) return;
  if (o.folder.empty()) io::fail<UsageError>("--profile-schedule: found '{}', but no --profile", o.schedule_text);
  (void)o.schedule();
}

}  // namespace fp8::commands
