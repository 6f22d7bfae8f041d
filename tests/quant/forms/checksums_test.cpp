// SPDX-License-Identifier: Apache-2.0
// The checksums in fp8.json: those of the bytes on disk, whoever wrote them how, and what verify_checksums() says of a
// folder that is not as it was written.
#include "fp8/quant/forms/checksums.h"

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/kernels/thread_pool.h"
#include "quant/checkpoint/stream/stream_work.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;
using test::pattern;
using test::Work;

/// A unit whose tensor has three pieces, cut elsewhere by its parts, of which one writes from back to front.
void add_large(Work& w) {
  constexpr std::uint64_t kCuts[] = {0, 700'001, 1'900'000, 2'621'443};
  Unit unit{"large", {{"large.weight", io::DType::U8, {kCuts[3]}}}, kCuts[3], {}, {}};
  for (std::size_t part = 0; part < 3; ++part)
    unit.parts.push_back([=](UnitContext& c) {
      const std::string bytes = pattern(kCuts[3], 7);
      constexpr std::uint64_t kRun = 10'007;
      for (std::uint64_t done = 0, size = kCuts[part + 1] - kCuts[part]; done < size; done += kRun) {
        const std::uint64_t n = std::min(kRun, size - done), at = kCuts[part] + (part == 1 ? size - done - n : done);
        c.write("large.weight", bytes.data() + at, at, n);
      }
      c.advance(kCuts[part + 1] - kCuts[part]);
    });
  w.units.push_back(std::move(unit));
}

StreamResult make(Work& w, bool join) {
  return make_checkpoint(w.dir / "out", w.units, w.options, join, [&](OutputFolder& f) {
    f.write_json("config.json", {{"a", 1}});
    f.write_text("deep/empty.txt", "");
    f.write_sidecar({{"tool", "test"}});
  });
}

/// "SUM SUM ..." of bytes, by the specification's function (text_test compares it with the reference library).
std::string expected_sums(const std::string& bytes) {
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 1 << 20)
    text += (text.empty() ? "" : " ") + io::checksum_text(io::checksum(bytes.substr(at, 1 << 20)));
  return text;
}

TEST(Checksums, AreThoseOfTheBytesOnDisk) {
  Work w;
  add_large(w);
  make(w, false);
  const io::Json files = io::read_json(w.dir / "out/fp8.json")["checksums"]["files"];
  EXPECT_EQ(files["deep/empty.txt"], (io::Json{{"bytes", 0}, {"sums", ""}}));
  EXPECT_EQ(files["config.json"]["sums"], expected_sums(test::read_file(w.dir / "out/config.json")));
  const std::string bytes = test::read_file(w.dir / "out/model.safetensors");
  const io::SafetensorsFile weights(w.dir / "out/model.safetensors");
  const std::size_t head = bytes.size() - weights.tensors().back().end;
  EXPECT_EQ(files["model.safetensors"]["bytes"], bytes.size());
  EXPECT_EQ(files["model.safetensors"]["head"], expected_sums(bytes.substr(0, head)));
  std::string tensors;
  for (const auto& t : weights.tensors())
    if (t.bytes() > 0) tensors += " " + expected_sums(bytes.substr(head + t.begin, t.bytes()));
  EXPECT_EQ(files["model.safetensors"]["tensors"], tensors.substr(1));
  EXPECT_EQ(files.size(), 3u);
}

TEST(Checksums, DoNotDependOnHowTheFolderWasMade) {
  const auto made = [](const std::function<void(Work&)>& how) {
    Work w;
    add_large(w);
    w.options.shard_bytes = 9000;  // several files
    how(w);
    return test::read_file(w.dir / "out/fp8.json");
  };
  const std::string expected = made([](Work& w) { make(w, false); });
  const int threads = kernels::num_threads();
  kernels::set_num_threads(threads == 1 ? 3 : 1);
  EXPECT_EQ(made([](Work& w) { make(w, false); }), expected);
  kernels::set_num_threads(threads);
  for (const int fails : {0, 3, 7}) {
    EXPECT_EQ(made([&](Work& w) {
                w.options.resume = true;
                w.fail_at = fails;
                EXPECT_THROW(make(w, false), io::Error);
                w.fail_at = -1;
                make(w, false);
              }),
              expected);
  }
  EXPECT_EQ(made([](Work& w) {
              w.options.shares = io::SharesOptions{.count = 4, .wait = 0};
              make(w, true);
            }),
            expected);
  EXPECT_EQ(made([](Work& w) {
              w.options.world_size = 2;
              for (int rank : {0, 1}) {
                w.options.rank = rank;
                make(w, false);
              }
              make(w, true);
            }),
            expected);
}

/// The lines of verify_checksums().
std::vector<std::string> damage_of(const fs::path& folder) {
  std::vector<std::string> lines;
  for (const auto& d : verify_checksums(folder, nullptr).damage) lines.push_back(d.text());
  return lines;
}

class Verify : public ::testing::Test {
 protected:
  Verify() {
    add_large(w);
    make(w, false);
  }
  /// Runs `look` while byte `at` of a file is another.
  void with_flip(const std::string& file, std::size_t at, const std::function<void()>& look) {
    const std::string good = test::read_file(out / file);
    std::string bad = good;
    bad.at(at) = static_cast<char>(bad.at(at) ^ 4);
    std::ofstream(out / file, std::ios::binary) << bad;
    look();
    std::ofstream(out / file, std::ios::binary) << good;
  }
  Work w;
  const fs::path out = w.dir / "out";
};

TEST_F(Verify, AnyByteOfAnyFile) {
  EXPECT_THAT(damage_of(out), IsEmpty());
  const io::SafetensorsFile weights(out / "model.safetensors");
  for (const char* file : {"config.json", "fp8.json", "model.safetensors"}) {
    const std::size_t size = fs::file_size(out / file), head = size - weights.tensors().back().end;
    for (std::size_t at = 0; at < size; at += size < 5000 ? 5 : at < head ? 17 : 131'071)
      with_flip(file, at, [&] {
        std::vector<std::string> lines;
        try {
          lines = damage_of(out);
        } catch (const io::Error& error) {  // fp8.json is no JSON any more, or has lost the word
          lines = {error.what()};
        }
        ASSERT_EQ(lines.size(), 1u) << file << " " << at;
        EXPECT_THAT(lines[0], HasSubstr(file)) << at;
        if (std::string(file) != "model.safetensors" || at < head) return;
        for (const auto& t : weights.tensors())
          if (head + t.begin <= at && at < head + t.end) {
            const std::size_t piece = (at - head - t.begin) >> 20 << 20;
            EXPECT_EQ(lines[0], io::message("model.safetensors: tensor '{}': bytes {} to {} are not those that were "
                                            "written",
                                            t.name, piece, std::min<std::size_t>(piece + (1 << 20), t.bytes())));
          }
      });
  }
  EXPECT_THAT(damage_of(out), IsEmpty());
}

TEST_F(Verify, MissingExtraAndShortenedFiles) {
  std::ofstream(out / ".hidden") << "not looked at";
  std::ofstream(out / "deep/more.py") << "x";
  fs::remove(out / "config.json");
  const auto size = fs::file_size(out / "model.safetensors");
  fs::resize_file(out / "model.safetensors", 5000);
  EXPECT_THAT(damage_of(out), ElementsAre("config.json: is missing",
                                          io::message("model.safetensors: 5000 bytes, {} were written", size),
                                          "deep/more.py: was not written with the others"));
}

TEST_F(Verify, NeighbouringPiecesAreOne) {
  std::string bytes = test::read_file(out / "model.safetensors");
  const io::SafetensorsFile weights(out / "model.safetensors");
  const auto begin = bytes.size() - weights.tensors().back().end + weights.find("large.weight")->begin;
  for (const std::size_t at : {0u, 1u << 20, 2'621'442u}) bytes[begin + at] = static_cast<char>(bytes[begin + at] ^ 1);
  std::ofstream(out / "model.safetensors", std::ios::binary) << bytes;
  EXPECT_THAT(damage_of(out), ElementsAre("model.safetensors: tensor 'large.weight': bytes 0 to 2621443 are not those "
                                          "that were written"));
}

TEST_F(Verify, AFolderWithoutThemIsRefused) {
  io::Json sidecar = io::read_json(out / "fp8.json");
  sidecar.erase("checksums");
  io::write_json(out / "fp8.json", sidecar);
  EXPECT_THAT(w.error([&] { damage_of(out); }), HasSubstr("fp8.json: has no checksums to verify it by"));
  fs::remove(out / "fp8.json");
  EXPECT_THAT(w.error([&] { damage_of(out); }), HasSubstr("fp8.json"));
}

}  // namespace
}  // namespace fp8::quant
