// SPDX-License-Identifier: Apache-2.0
// A small Llama to train with the program, a run of it that is cut off at a step, and when two runs are the same.
#pragma once

#include <csignal>

#include "tools/commands/run_fp8.h"

namespace fp8::test {

inline std::string demo(const char* name) { return (demo_data() / name).string(); }

/// config.json of a Llama of 30,000 parameters over bytes, with its tokenizer.
inline std::filesystem::path small_config(const TempDir& folder) {
  const auto path = folder / "init";
  std::filesystem::create_directories(path);
  auto json = io::read_json(demo_data() / "kjv-byte-1.7M/config.json");
  json["hidden_size"] = 32;
  json["intermediate_size"] = 64;
  json["num_hidden_layers"] = 2;
  json["num_attention_heads"] = 4;
  json["num_key_value_heads"] = 2;
  json["head_dim"] = 8;
  io::write_json(path / "config.json", json);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(demo_data() / "kjv-byte-1.7M" / name, path / name);
  return path;
}

/// A fresh folder with a small model's config in `init`.
struct TrainingFolder : ::testing::Test {
  const TempDir folder;
  const std::filesystem::path init = small_config(folder);
};

/// The command line, in which `more` replaces what it names. Flags among `more` stand before options with values.
inline std::vector<std::string> arguments(const TempDir& folder, const std::string& out,
                                          const std::vector<std::string>& more = {}) {
  std::vector<std::string> list = args(
      "train --init {} --data $CALIB --out {} --batch 4 --seq-len 64 --lr 0.01 --steps 40 --warmup 4 --precision "
      "32-true --threads 1 --seed 5 --json",
      folder / "init", folder / out);
  for (std::size_t i = 0; i < more.size(); ++i) {
    const auto found = std::find(list.begin(), list.end(), more[i]);
    if (found == list.end() || i + 1 == more.size() || !more[i].starts_with("--"))
      list.push_back(more[i]);
    else
      *(found + 1) = more[++i];
  }
  return list;
}
template <std::size_t N, class... T>
std::vector<std::string> arguments(const TempDir& folder, const std::string& out, const char (&more)[N],
                                   const T&... values) {
  return arguments(folder, out, args(more, values...));
}

/// Runs that command line.
template <class... T>
Run run_train(const TempDir& folder, const std::string& out, const T&... more) {
  return run_fp8(arguments(folder, out, more...));
}

inline std::vector<io::Json> log_of(const std::filesystem::path& out) {
  std::ifstream file(out / "log.jsonl");
  std::vector<io::Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(io::parse_json(line, "log.jsonl"));
  return lines;
}

/// Without what a clock decides.
inline std::vector<io::Json> timeless(std::vector<io::Json> lines) {
  for (auto& line : lines)
    for (const char* key : {"seconds", "tokens_per_second", "memory"}) line.erase(key);
  return lines;
}

inline void expect_same_run(const std::filesystem::path& a, const std::filesystem::path& b) {
  EXPECT_EQ(timeless(log_of(a)), timeless(log_of(b)));
  EXPECT_EQ(read_file(a / "model.safetensors"), read_file(b / "model.safetensors"));
  const std::filesystem::path last = "checkpoints/step-00000040";
  EXPECT_EQ(read_file(a / last / "trainer_state.safetensors"), read_file(b / last / "trainer_state.safetensors"));
  EXPECT_EQ(read_file(a / last / "trainer_state.json"), read_file(b / last / "trainer_state.json"));
}

/// Lines of a log that may be growing.
inline std::size_t steps_logged(const std::filesystem::path& out) {
  const auto text = read_file(out / "log.jsonl");
  return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

/// Starts fp8, waits until `out` has logged `lines` steps, sends the signal. Returns the exit code, -N for signal N.
inline int run_and_signal(const std::vector<std::string>& list, const std::filesystem::path& out, std::size_t lines,
                          int number) {
  Fp8Process process(list);
  wait_for([&] { return process.ended() || steps_logged(out) >= lines; });
  process.send(number);
  return process.wait().code;
}

}  // namespace fp8::test

namespace fp8 {
using test::arguments;
using test::demo;
using test::expect_same_run;
using test::log_of;
using test::run_and_signal;
using test::run_train;
using test::timeless;
}  // namespace fp8
