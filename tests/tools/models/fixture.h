// SPDX-License-Identifier: Apache-2.0
// Tiny checkpoints of many families, and what transformers makes of them: fixtures/NAME.json, written by
// make_fixtures.py. Weights are in no file: element i of tensor n is
//
//   mean + amplitude * (u / 2^23 - 1),   u = the upper 24 bits of splitmix64(FNV-1a(n) + i)
//
// on both sides. "bytes" are the upper 8 bits, "exponents" 118 + the upper 8 bits modulo 6.
#pragma once
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/tensor.h>

#include <cctype>
#include <map>
#include <set>

#include "fp8/tools/models/load.h"
#include "fp8/tools/models/registry.h"
#include "support/temp_dir.h"

namespace fp8::models::testing {

inline std::filesystem::path fixture_folder() { return std::filesystem::path(__FILE__).parent_path() / "fixtures"; }

/// Names of all fixtures, sorted.
inline std::vector<std::string> fixture_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(fixture_folder()))
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  std::sort(names.begin(), names.end());
  return names;
}

/// One run: ids [B, L], and the logits [B, positions, V] that transformers gave.
struct FixtureRun {
  at::Tensor ids, logits;
  std::vector<std::int64_t> positions;  ///< empty: of a class of each row, [B, classes]
  std::vector<std::int64_t> lengths;    ///< of the rows: what follows is padding
  at::Tensor answers = {};              ///< ids that the decoder of a model with an encoder sees, [B, T]
};

inline at::Tensor tensor_of(const io::Json& list) {
  std::vector<std::int64_t> sizes;
  const io::Json* at = &list;
  for (; at->is_array(); at = &at->front()) sizes.push_back(static_cast<std::int64_t>(at->size()));
  std::vector<double> values;
  const auto collect = [&](const auto& self, const io::Json& item) -> void {
    if (!item.is_array()) return values.push_back(item.get<double>());
    for (const auto& part : item) self(self, part);
  };
  collect(collect, list);
  return at::tensor(values, at::kDouble).view(sizes);
}

class Fixture {
 public:
  explicit Fixture(const std::string& name)
      : json_(io::read_json(fixture_folder() / (name + ".json"))), config(json_["config"]) {
    for (const auto& run : json_["runs"]) {
      runs.push_back({tensor_of(run["ids"]).to(at::kLong), tensor_of(run["logits"]).to(at::kFloat), {}, {}});
      auto& last = runs.back();
      for (std::int64_t row = 0; row < last.ids.size(0); ++row) last.lengths.push_back(last.ids.size(1));
      if (run.contains("attention_mask"))
        for (std::size_t row = 0; row < last.lengths.size(); ++row)
          last.lengths[row] = tensor_of(run["attention_mask"][row]).sum().item<std::int64_t>();
      if (run.contains("decoder_ids")) last.answers = tensor_of(run["decoder_ids"]).to(at::kLong);
      for (const auto& position : run["positions"]) runs.back().positions.push_back(position.get<std::int64_t>());
    }
  }

  /// Multiplies the values of the tensors that `is_meant`(name) picks; one_less: they are stored minus one.
  void scale(double factor, const std::function<bool(const std::string&)>& is_meant, bool one_less = false) {
    for (auto& [name, tensor] : json_["tensors"].items()) {
      if (!is_meant(name)) continue;
      const double one = one_less ? 1 : 0;
      tensor["mean"] = factor * (tensor["mean"].get<double>() + one) - one;
      tensor["amplitude"] = factor * tensor["amplitude"].get<double>();
    }
  }

  /// A tensor more, or another one: {"shape", "mean", "amplitude"}.
  void put(const std::string& name, const io::Json& tensor) { json_["tensors"][name] = tensor; }
  void leave_out(const std::string& name) { json_["tensors"].erase(name); }

  /// Writes config.json and model.safetensors; names may be changed by rename(name).
  template <class Rename>
  void write(const std::filesystem::path& folder, const Rename& rename) const {
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << config.dump(1) << "\n";
    std::vector<io::SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : json_["tensors"].items())
      entries.push_back({rename(name), tensor.contains("kind") ? io::DType::U8 : io::DType::F32, shape_of(tensor)});
    io::SafetensorsWriter writer(folder / "model.safetensors", entries);
    for (const auto& [name, tensor] : json_["tensors"].items()) write_values(writer, name, rename(name), tensor);
    writer.commit();
  }
  void write(const std::filesystem::path& folder) const {
    write(folder, [](const std::string& name) { return name; });
  }

 private:
  static std::vector<std::int64_t> shape_of(const io::Json& tensor) { return tensor["shape"]; }

  static std::uint64_t seed_of(const std::string& name) {
    std::uint64_t seed = 0xCBF29CE484222325u;
    for (const char c : name) seed = (seed ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
    return seed;
  }
  static std::uint64_t bits(std::uint64_t seed, std::uint64_t i) {
    std::uint64_t z = seed + i + 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  static void write_values(io::SafetensorsWriter& writer, const std::string& name, const std::string& written,
                           const io::Json& tensor) {
    std::uint64_t n = 1;
    for (const auto& size : tensor["shape"]) n *= size.get<std::uint64_t>();
    const std::uint64_t seed = seed_of(name);
    if (tensor.contains("kind")) {
      std::vector<std::uint8_t> values(n);
      const bool exponents = tensor["kind"] == "exponents";
      for (std::uint64_t i = 0; i < n; ++i) {
        const auto byte = bits(seed, i) >> 56;
        values[i] = static_cast<std::uint8_t>(exponents ? 118 + byte % 6 : byte);
      }
      return writer.write(written, values.data());
    }
    std::vector<float> values(n);
    const auto mean = tensor["mean"].get<double>(), amplitude = tensor["amplitude"].get<double>();
    for (std::uint64_t i = 0; i < n; ++i)
      values[i] = static_cast<float>(mean + amplitude * (static_cast<double>(bits(seed, i) >> 40) * 0x1p-23 - 1));
    writer.write(written, values.data());
  }

  io::Json json_;

 public:
  io::Json config;
  std::vector<FixtureRun> runs;
};

/// A test of one checkpoint, in f32.
struct FixtureTest : ::testing::TestWithParam<std::string> {
  void SetUp() override { fixture.write(folder.path()); }
  LoadedModel load(AttentionKind attention = AttentionKind::fused, at::Device device = at::kCPU) const {
    return load_model(folder.path(), {.dtype = at::kFloat, .device = device, .attention = attention});
  }

  const at::NoGradGuard no_grad;
  const Fixture fixture{GetParam()};
  const test::TempDir folder;
};

/// The task of each that runs.
inline const std::map<std::string, Task>& tasks_of_fixtures() {
  static const std::map<std::string, Task> tasks = [] {
    std::set<std::string> types;
    for (const auto& family : model_families()) types.insert(family.model_type);
    std::map<std::string, Task> found;
    for (const auto& name : fixture_names()) {
      const auto config = io::read_json(fixture_folder() / (name + ".json"))["config"];
      if (types.contains(config["model_type"])) found[name] = parse_config(config, name).values->shape.task;
    }
    return found;
  }();
  return tasks;
}

/// Those that run and whose task is_meant, sorted.
inline std::vector<std::string> fixtures_of(const std::function<bool(Task)>& is_meant) {
  std::vector<std::string> names;
  for (const auto& [name, task] : tasks_of_fixtures())
    if (is_meant(task)) names.push_back(name);
  return names;
}
inline std::vector<std::string> decoder_fixtures() {
  return fixtures_of([](Task task) { return task == Task::causal; });
}
inline std::vector<std::string> encoder_fixtures() {
  return fixtures_of([](Task task) { return task != Task::causal && task != Task::answer; });
}
inline std::vector<std::string> seq2seq_fixtures() {
  return fixtures_of([](Task task) { return task == Task::answer; });
}
inline std::vector<std::string> runnable_fixtures() {
  auto names = decoder_fixtures();
  for (auto& name : encoder_fixtures()) names.push_back(std::move(name));
  return names;
}

/// The mean entropy of the distributions that logits [.., V] stand for, as a part of log V.
inline double entropy_of(const at::Tensor& logits) {
  const auto log_p = at::log_softmax(logits, -1);
  return -(log_p.exp() * log_p).sum(-1).mean().item<double>() / std::log(logits.size(-1));
}

/// A file of `input_ids`, as commands take them.
inline void write_ids(const std::filesystem::path& file, const at::Tensor& ids) {
  io::SafetensorsWriter writer(file, {{"input_ids", io::DType::I64, ids.sizes().vec()}});
  writer.write("input_ids", ids.contiguous().const_data_ptr());
  writer.commit();
}

/// Makes logits say something: as large as it takes for an entropy of nearly half of log V. entropy_after(factor)
/// multiplies them and gives back their entropy.
inline void sharpen(const std::function<double(double)>& entropy_after) {
  double low = 1.0 / 16, high = 16, now = 1;
  for (int i = 0; i < 12; ++i) {
    const double next = std::sqrt(low * high), e = entropy_after(next / now);
    now = next;
    (e > 0.49 ? low : high) = now;
    if (e > 0.45 && e <= 0.49) return;
  }
}

/// A property of a test: "1.2e-05".
inline std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", value);
  return text;
}

/// Of a test with a fixture's name as its parameter.
inline std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& c : name)
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  return name;
}

}  // namespace fp8::models::testing

namespace fp8::models {
using testing::Fixture;
using testing::FixtureRun;
}  // namespace fp8::models
