// SPDX-License-Identifier: Apache-2.0
// Units made here for the tests of the engine, and what stands in a folder after a run.
#pragma once

#include "fp8/quant/checkpoint/stream/stream.h"
#include "support/throws_with.h"
#include "tools/commands/run_fp8.h"

namespace fp8::test {

inline std::string pattern(std::size_t size, std::size_t seed) {
  std::string bytes(size, '\0');
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>((i + seed) * (i + 3 * seed) % 241);
  return bytes;
}

/// Eight units of two tensors each, their options and a folder to write them in; counts the runs of units.
struct Work {
  TempDir dir;
  quant::StreamOptions options;
  std::atomic<int> runs{0};
  int fail_at = -1;  ///< the run of this number fails
  std::vector<quant::Unit> units;

  Work() {
    options.identity = {{"command", "test"}, {"option", {{"scheme", "channel"}}}};
    for (int i = 0; i < 8; ++i) {
      quant::Unit unit;
      const std::string name = "m" + std::to_string(i);
      const std::size_t size = 1000 * static_cast<std::size_t>(i + 1);
      unit.name = name;
      unit.entries = {{name + ".weight", io::DType::U8, {static_cast<std::int64_t>(size)}},
                      {name + ".scale", io::DType::F32, {i}}};
      unit.source_bytes = 2 * size;
      unit.run = [this, name, size, i](quant::UnitContext& c) {
        if (runs++ == fail_at) throw io::Error("made to fail");
        const std::string bytes = pattern(size, static_cast<std::size_t>(i));
        // The fifth is written like transposed codes: in very many pieces, out of order.
        if (i == 5) {
          for (std::size_t at = 1; at < size; at += 2) c.write(name + ".weight", bytes.data() + at, at, 1);
          for (std::size_t at = 0; at < size; at += 2) c.write(name + ".weight", bytes.data() + at, at, 1);
        } else {
          c.write(name + ".weight", bytes.data() + size / 3, size / 3, size - size / 3);
          c.write(name + ".weight", bytes.data(), 0, size / 3);
        }
        const std::vector<float> scales(static_cast<std::size_t>(i), 0.5f);
        c.write(name + ".scale", scales.data(), 0, scales.size() * 4);
        c.advance(2 * size);
      };
      units.push_back(std::move(unit));
    }
  }
  /// Three parts and what comes after them.
  void add_parts() {
    quant::Unit unit{.name = "parts",
                     .entries = {{"parts.weight", io::DType::U8, {3000}}, {"parts.scale", io::DType::F32, {1}}},
                     .source_bytes = 3000};
    auto sum = std::make_shared<std::atomic<int>>(0);
    for (std::uint64_t i = 0; i < 3; ++i) {
      unit.parts.push_back([i, sum](quant::UnitContext& c) {
        c.write("parts.weight", pattern(1000, i).data(), 1000 * i, 1000);
        *sum += static_cast<int>(i) + 1;
        c.advance(1000);
      });
    }
    unit.run = [sum](quant::UnitContext& c) {
      const float value = static_cast<float>(sum->load());
      c.write("parts.scale", &value, 0, 4);
    };
    units.push_back(std::move(unit));
  }
  quant::StreamResult write(const std::string& name = "out") {
    return quant::write_checkpoint(dir / name, units, options,
                                   [](quant::OutputFolder& f) { f.write_json("config.json", {{"a", 1}}); });
  }
  void join(const std::string& name = "out") {
    quant::join_checkpoint(dir / name, units, options,
                           [](quant::OutputFolder& f) { f.write_json("config.json", {{"a", 1}}); });
  }
  /// Both shares of two ranks. Returns the second's folder and the name of a file in it.
  std::pair<std::filesystem::path, std::string> write_two_shares() {
    options.world_size = 2;
    for (int rank : {0, 1}) {
      options.rank = rank;
      write();
    }
    const std::filesystem::path share = dir / "out.rank-1-of-2";
    std::string file;
    for (const auto& name : names_in(share)) file = name != io::kShareFile ? name : file;
    return {share, file};
  }
  std::string error(const std::function<void()>& work) { return one_line_error<io::Error>(work); }
  std::filesystem::path partial() const { return dir / ".out.partial"; }
};

}  // namespace fp8::test
