// SPDX-License-Identifier: Apache-2.0
// What the end-to-end tests share: the program in a clean environment, a copy of the demo model that may be spoiled,
// and the contract of a failure: exit code, one line on stderr, nothing on stdout, nothing left on disk.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "fp8/runtime/io/json/json.h"
#include "support/launchers.h"
#include "support/names_in.h"
#include "support/temp_dir.h"
#include "support/test_data.h"
#include "tools/commands/run_fp8.h"

namespace fp8::e2e {

using Arguments = std::vector<std::string>;
using Environment = std::map<std::string, std::string>;
using test::names_in;

inline std::string demo_model() { return (test::demo_data() / "kjv-byte-1.7M").string(); }
inline std::string calibration_text() { return (test::demo_data() / "kjv_calib.txt").string(); }
inline std::string heldout_text() { return (test::demo_data() / "kjv_heldout_16k.txt").string(); }

/// `environment` over one that the tests of this machine can't disturb.
inline Environment clean(Environment environment) {
  const Environment defaults = {{"OMP_WAIT_POLICY", "passive"}, {"QUANT_CONFIG", ""}, {"FP8_HPU_DEVICE", "gaudi3"}};
  environment.insert(defaults.begin(), defaults.end());
  environment.merge(test::no_launcher());
  return environment;
}

inline test::Run fp8(const Arguments& arguments, const Environment& environment = {}) {
  test::RunOptions options;
  options.environment = clean(environment);
  return test::run_fp8(arguments, options);
}

/// The same under a resource limit (RLIMIT_AS, RLIMIT_FSIZE).
inline test::Run fp8_limited(int resource, rlim_t bytes, const Arguments& arguments) {
  rlimit before = {};
  getrlimit(static_cast<__rlimit_resource>(resource), &before);
  rlimit limited = before;
  limited.rlim_cur = bytes;
  setrlimit(static_cast<__rlimit_resource>(resource), &limited);
  const auto run = fp8(arguments);
  setrlimit(static_cast<__rlimit_resource>(resource), &before);
  return run;
}

/// stdout of a successful run with --json.
inline io::Json json_of(const test::Run& run) {
  EXPECT_EQ(run.code, 0) << run.err;
  if (run.code != 0) return io::Json::object();
  EXPECT_EQ(std::count(run.out.begin(), run.out.end(), '\n'), 1) << run.out;
  return io::parse_json(run.out, "stdout");
}

inline void expect_success(const test::Run& run) {
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
}

/// The contract of a failure; each of `words` stands in the message.
inline void expect_refused(const test::Run& run, const std::vector<std::string>& words = {}, int code = 1) {
  EXPECT_EQ(run.code, code) << run.err;
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(run.error_lines(), 1) << run.err;
  EXPECT_THAT(run.err, ::testing::StartsWith("fp8: error: "));
  for (const auto& word : words) EXPECT_THAT(run.err, ::testing::HasSubstr(word));
}

inline void write_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  ASSERT_TRUE(file.good()) << path;
}

/// Every file of a folder with its bytes.
inline std::map<std::string, std::string> contents(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& name : names_in(folder)) files[name] = test::read_file(folder / name);
  return files;
}

/// The same without what tells one run from another (--resume knows its output by it): equal for equal results of other
/// commands or sources.
inline std::map<std::string, std::string> results(const std::filesystem::path& folder) {
  auto files = contents(folder);
  for (auto& [name, text] : files) {
    if (name != "fp8.json" && name.find(".fingerprint") == std::string::npos) continue;
    io::Json json = io::parse_json(text, name);
    json.erase("run");
    text = json.dump();
  }
  return files;
}

/// A writable copy of a checkpoint folder.
class Model {
 public:
  explicit Model(const std::filesystem::path& source = demo_model()) {
    std::filesystem::create_directory(path());
    for (const auto& name : names_in(source)) {
      if (name != "reference.safetensors") write_file(path() / name, test::read_file(source / name));
    }
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
  io::Json header;
  std::string data;

  static Tensors read(const std::filesystem::path& path) {
    const std::string bytes = test::read_file(path);
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

/// `fp8 quantize` of a model that must be refused: nothing may stand in or beside the output folder.
inline void expect_quantize_refused(const std::string& model, const Arguments& more,
                                    const std::vector<std::string>& words = {}, int code = 1,
                                    const Environment& environment = {}) {
  const test::TempDir folder;
  Arguments arguments = {"quantize", "--json", "--model", model, "--out", (folder / "out").string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  expect_refused(fp8(arguments, environment), words, code);
  EXPECT_THAT(names_in(folder.path()), ::testing::IsEmpty());
}

inline void expect_evaluate_refused(const std::string& model, const std::vector<std::string>& words = {},
                                    const Environment& environment = {}) {
  expect_refused(fp8({"evaluate", "--json", "--model", model, "--data", heldout_text(), "--samples", "1"}, environment),
                 words);
}

/// `fp8 measure` of the demo model on its first samples.
inline void measure(const std::string& model, const std::string& text, const std::filesystem::path& out,
                    const std::string& samples = "4") {
  expect_success(fp8(
      {"measure", "--model", model, "--data", text, "--samples", samples, "--seq-len", "256", "--out", out.string()}));
}

inline void quantize(const std::string& model, const std::filesystem::path& out, const Arguments& more,
                     const Environment& environment = {}) {
  Arguments arguments = {"quantize", "--model", model, "--out", out.string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  expect_success(fp8(arguments, environment));
}

/// The bytes of the logits that `fp8 evaluate` dumps; empty after a failure.
inline std::string logits(const std::string& model, const std::string& text, const std::string& samples,
                          const Arguments& more = {}, const Environment& environment = {}) {
  const test::TempDir folder;
  Arguments arguments = {"evaluate",
                         "--model",
                         model,
                         "--data",
                         text,
                         "--samples",
                         samples,
                         "--dump-logits",
                         (folder / "logits").string()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  expect_success(fp8(arguments, environment));
  return test::read_file(folder / "logits");
}

}  // namespace fp8::e2e
