// SPDX-License-Identifier: Apache-2.0
// Helpers of the end-to-end tests: the program in a clean environment, a copy of the demo model that may be changed,
// and the contract of a failure: exit code, one line on stderr, nothing on stdout, nothing left on disk.
#pragma once
#include <sys/resource.h>

#include <cstring>

#include "support/launchers.h"
#include "tools/commands/run_fp8.h"

namespace fp8::e2e {

using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;
using test::calibration_text;
using test::demo_model;
using test::heldout_text;
using test::wait_for;

/// `environment` over one that the tests of this machine can't disturb.
inline Environment clean(Environment environment) {
  const Environment defaults = {{"OMP_WAIT_POLICY", "passive"}, {"QUANT_CONFIG", ""}, {"FP8_HPU_DEVICE", "gaudi3"}};
  environment.insert(defaults.begin(), defaults.end());
  environment.merge(test::no_launcher());
  return environment;
}

inline test::Run fp8(const Arguments& arguments, const Environment& environment = {}) {
  return run_fp8(arguments, {.environment = clean(environment)});
}
/// The same beside the test.
inline test::Fp8Process start_fp8(const Arguments& arguments, const Environment& environment = {}) {
  return test::Fp8Process(arguments, {.environment = clean(environment)});
}
template <std::size_t N, class... T>
test::Run fp8(const char (&text)[N], const T&... values) {
  return fp8(args(text, values...));
}

/// Runs fp8 under a resource limit (RLIMIT_AS, RLIMIT_FSIZE).
inline test::Run fp8_limited(int resource, rlim_t bytes, const Arguments& arguments) {
  rlimit before = {};
  getrlimit(static_cast<__rlimit_resource>(resource), &before);
  rlimit limited = before;
  limited.rlim_cur = bytes;
  setrlimit(static_cast<__rlimit_resource>(resource), &limited);
  const auto run = start_fp8(arguments).wait();
  setrlimit(static_cast<__rlimit_resource>(resource), &before);
  return run;
}

inline void expect_success(const test::Run& run) {
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.without(), "");
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.good()) << path;
}

/// Writes a QUANT_CONFIG of these keys ("mode": "MEASURE", ...) whose measurements begin with `stats`; its path.
inline std::string write_config(const std::filesystem::path& file, const std::string& keys,
                                const std::filesystem::path& stats) {
  write_file(file, "{" + keys + ", \"dump_stats_path\": \"" + stats.string() + "\"}");
  return file.string();
}

/// Every file of a folder with its bytes.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& name : names_in(folder)) files[name] = read_file(folder / name);
  return files;
}

/// contents() without the mark of a run, by which --resume knows its output, and the checksums: equal results of other
/// commands or sources are equal.
inline std::map<std::string, std::string> results(const std::filesystem::path& folder) {
  auto files = contents(folder);
  for (auto& [name, text] : files) {
    if (name != "fp8.json" && name.find(".fingerprint") == std::string::npos) continue;
    io::Json json = io::parse_json(text, name);
    json.erase("run");
    json.erase("checksums");
    text = json.dump();
  }
  return files;
}

/// A writable copy of a checkpoint folder.
class Model {
 public:
  explicit Model(const std::filesystem::path& source = demo_model()) {
    std::filesystem::create_directory(path());
    for (const auto& name : names_in(source)) write_file(path() / name, read_file(source / name));
  }
  std::filesystem::path path() const { return folder_ / "model"; }
  std::string name() const { return path().string(); }
  void write(const std::string& file, const std::string& text) const { write_file(path() / file, text); }
  /// Edits one of its JSON files.
  void edit(const std::string& file, const std::function<void(io::Json&)>& change) const {
    io::Json json = io::read_json(path() / file);
    change(json);
    write(file, json.dump());
  }

 private:
  test::TempDir folder_;
};

/// A safetensors file taken apart: u64 length, JSON header, data.
struct Tensors {
  io::Json header = io::Json::object();
  std::string data = {};

  static Tensors read(const std::filesystem::path& path) {
    const std::string bytes = read_file(path);
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    return {io::parse_json(bytes.substr(8, length), path.string()), bytes.substr(8 + length)};
  }
  static std::string file(std::string header, const std::string& data) {
    header.resize((header.size() + 7) / 8 * 8, ' ');
    return with_length(header.size(), header + data);
  }
  static std::string with_length(std::uint64_t length, const std::string& rest) {
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + rest;
  }
  std::string bytes() const { return file(header.dump(), data); }

  std::size_t begin(const std::string& tensor) const {
    return header.at(tensor).at("data_offsets").at(0).get<std::size_t>();
  }
  std::size_t end(const std::string& tensor) const {
    return header.at(tensor).at("data_offsets").at(1).get<std::size_t>();
  }
  std::string bytes_of(const std::string& tensor) const {
    return data.substr(begin(tensor), end(tensor) - begin(tensor));
  }
  /// Overwrites a tensor's first bytes.
  void poke(const std::string& tensor, const std::string& with) { data.replace(begin(tensor), with.size(), with); }
  void poke(const std::string& tensor, float value) {
    poke(tensor, std::string(reinterpret_cast<const char*>(&value), sizeof value));
  }
};

/// Gives `model` 2 * `layers` weights of `rows` x 1024 f32, two of each in a group that shares its scale.
inline void write_blocks(const Model& model, int layers, int rows) {
  const auto bytes = static_cast<std::size_t>(rows) * 4096;
  std::string weight(bytes, '\0');
  for (std::size_t i = 0; i + 3 < bytes; i += 4) {
    const float value = static_cast<float>(i * 2654435761u % 1000) / 1000.0f - 0.5f;
    std::memcpy(&weight[i], &value, sizeof value);
  }
  Tensors file;
  for (int i = 0; i < layers; ++i)
    for (const char* name : {"gate_proj", "up_proj"}) {
      file.header["model.layers." + std::to_string(i) + ".mlp." + name + ".weight"] = {
          {"dtype", "F32"}, {"shape", {rows, 1024}}, {"data_offsets", {file.data.size(), file.data.size() + bytes}}};
      file.data += weight;
    }
  model.write("model.safetensors", file.bytes());
  model.edit("config.json", [&](io::Json& config) {
    config["model_type"] = "blocks_alone";  // of a known family words and a norm would be missing
    config["num_hidden_layers"] = layers;
    config["hidden_size"] = 1024, config["intermediate_size"] = rows;
  });
}

/// `fp8 quantize` of a model that must be refused: nothing may stand in or beside the output folder.
inline void expect_quantize_refused(const std::string& model, const Arguments& more,
                                    const std::vector<std::string>& words = {}, int code = 1,
                                    const Environment& environment = {}) {
  const test::TempDir folder;
  Arguments arguments = args("quantize --json --model {} --out {} {}", model, folder / "out", more);
  expect_refused(fp8(arguments, environment), words, code);
  EXPECT_THAT(names_in(folder.path()), IsEmpty());
}

inline void expect_evaluate_refused(const std::string& model, const std::vector<std::string>& words = {},
                                    const Environment& environment = {}) {
  expect_refused(fp8(args("evaluate --json --model {} --data $HELDOUT --samples 1", model), environment), words);
}

/// `fp8 measure` of the demo model on its first samples.
inline void measure(const std::string& model, const std::string& text, const std::filesystem::path& out,
                    const std::string& samples = "4") {
  expect_success(fp8("measure --model {} --data {} --samples {} --seq-len 256 --out {}", model, text, samples, out));
}

inline void quantize(const std::string& model, const std::filesystem::path& out, const Arguments& more,
                     const Environment& environment = {}) {
  Arguments arguments = args("quantize --model {} --out {} {}", model, out, more);
  expect_success(fp8(arguments, environment));
}

/// The demo model in fp8, made once: codes of dialect ocp.
inline const std::string& quantized() {
  static const test::TempDir folder;
  static const std::string path = [] {
    quantize(demo_model(), folder / "fp8", {"--dynamic"});
    return (folder / "fp8").string();
  }();
  return path;
}

/// The bytes of the logits that `fp8 evaluate` dumps; empty after a failure.
inline std::string logits(const std::string& model, const std::string& text, const std::string& samples,
                          const Arguments& more = {}, const Environment& environment = {}) {
  const test::TempDir folder;
  Arguments arguments = args("evaluate --model {} --data {} --samples {} --seq-len 256 --dump-logits {} {}", model,
                             text, samples, folder / "logits", more);
  expect_success(fp8(arguments, environment));
  return read_file(folder / "logits");
}

}  // namespace fp8::e2e
