// SPDX-License-Identifier: Apache-2.0
// The fuzz targets without a fuzzer, for every compiler: small valid files, cut short at every byte, with every bit
// flipped, with bytes replaced by telling ones, and mixed by a fixed random sequence. Each must be read or refused.
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/zip.h"
#include "fuzz/mutate.h"
#include "fuzz/targets.h"
#include "runtime/io/io_test.h"
#include "runtime/io/tensors/safetensors_bytes.h"
#include "runtime/io/tensors/torch_bytes.h"

namespace fp8::fuzz {
namespace {

void run_exact(const std::string& target, const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees the first byte past it.
  const std::vector<char> exact(bytes.begin(), bytes.end());
  run(target, {exact.data(), exact.size()});
}

void cut_and_flip(const std::string& target, const std::string& seed) {
  run_exact(target, seed);
  for (std::size_t size = 0; size < seed.size(); ++size) run_exact(target, seed.substr(0, size));
  for (std::size_t at = 0; at < seed.size(); ++at) {
    std::string changed = seed;
    for (int bit = 0; bit < 8; ++bit) {
      changed[at] = static_cast<char>(seed[at] ^ (1 << bit));
      run_exact(target, changed);
    }
    for (const char c : {'\0', '\xff', '\x7f', '0', '"', '[', '{', '('}) {
      changed[at] = c;
      run_exact(target, changed);
    }
    run_exact(target, seed.substr(0, at) + seed.substr(at + 1));
    run_exact(target, seed.substr(0, at) + seed[at] + seed.substr(at));
  }
}

void shuffle(const std::string& target, const std::vector<std::string>& seeds, int rounds) {
  std::mt19937 random(8);  // fixed: a failure can be met again
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  for (int round = 0; round < rounds; ++round) {
    std::string bytes = seeds[below(seeds.size())];
    for (std::size_t change = 0; change <= below(6); ++change) {
      const std::string& other = seeds[below(seeds.size())];
      const std::size_t at = below(bytes.size() + 1), from = below(other.size()),
                        length = below(std::min<std::size_t>(40, other.size() - from));
      if (random() % 2)
        bytes.insert(at, other.substr(from, length));
      else
        bytes.replace(at, std::min(length, bytes.size() - at), other.substr(from, length));
    }
    run_exact(target, bytes);
    run_exact(target, changed(target, seeds[below(seeds.size())], random, [&](std::string part) {
                const std::string& other = seeds[below(seeds.size())];
                const std::size_t at = below(part.size() + 1), from = below(other.size());
                return part.replace(at, std::min(below(4), part.size() - at), other.substr(from, below(8)));
              }));
  }
}

void all(const std::string& target, const std::vector<std::string>& seeds) {
  for (const auto& seed : seeds) cut_and_flip(target, seed);
  shuffle(target, seeds, 20'000);
}

std::string fixture(const std::string& name) {
  return io::bytes_of(std::filesystem::path(FP8_SOURCE_DIR) / "tests/runtime/io/fixtures" / name);
}

// The pickle of a fixture: after zip and 128 bytes of npy header.
std::string pickle_of(const std::string& name) {
  return io::unzip_member(fixture(name), "arr_0.npy", 1 << 20, name).substr(128);
}

/// Half of what is changed within its form is read: more than the first check of a reader is met.
TEST(Replay, ChangesKeepTheForm) {
  std::mt19937 random(3);
  const auto longer = [](std::string bytes) { return bytes + "x"; };
  const std::string header = R"({"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}})";
  const std::string tensors = io::safetensors_bytes(header, "123");
  const std::string zip = io::torch_bytes::zip({{"a", "1"}, {"b", "22"}});
  int read = 0;
  for (int round = 0; round < 400; ++round) {
    const std::string found = changed("safetensors", tensors, random, longer);
    std::uint64_t length = 0;
    std::memcpy(&length, found.data(), sizeof length);
    read += length <= found.size() - sizeof length && found != tensors;
    const std::string packed = changed("torch_file", zip, random, longer);
    if (packed == zip + "x") continue;  // by bytes alone
    int members = 0;
    for (std::size_t at = packed.find("PK\1\2"); at != std::string::npos; at = packed.find("PK\1\2", at + 1)) ++members;
    EXPECT_EQ(members, 2);
    EXPECT_NE(packed, zip);
  }
  EXPECT_GT(read, 200);
}

TEST(Replay, Json) {
  all("json", {R"({"mode": "QUANTIZE", "a": [1, -2.5e-3, 1e300, true, false, null, "\u00e4\ud83d\ude00\n", {}], )"
               R"("b": {"c": [[], 0.1]}})",
               "[18446744073709551615, -9223372036854775808, 1e-320, -0, 0.0]",
               "{\n \"gr\xc3\xb6\xc3\x9f"
               "e\": \"\xf0\x9f\x98\x80\"\r\n}\t"});
}

TEST(Replay, Safetensors) {
  all("safetensors", {io::safetensors_bytes(
                          R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
                          R"("b":{"dtype":"F8_E4M3","shape":[],"data_offsets":[8,9]},)"
                          R"("e":{"dtype":"I64","shape":[0,3],"data_offsets":[9,9]}}  )",
                          "123456789"),
                      io::safetensors_bytes("{}"),
                      io::safetensors_bytes(R"({"a":{"dtype":"BOOL","shape":[1],"data_offsets":[0,1]}})", "x")});
}

TEST(Replay, TorchFile) {
  const io::torch_bytes::Tensor w{"0", "FloatStorage", 4, 0, {2, 2}, {1, 2}};
  all("torch_file", {io::torch_bytes::file_of(w, std::string(16, 'x')),
                     io::torch_bytes::zip({{"a/data.pkl", io::torch_bytes::pickle("}")}}, true)});
}

TEST(Replay, Npz) {
  all("npz", {fixture("numpy1_measurement.npz"), fixture("numpy2_compressed.npz"), fixture("refused_system.npz")});
}

TEST(Replay, Pickle) {
  all("pickle", {pickle_of("numpy1_measurement.npz"), pickle_of("numpy2_scalars.npz"), pickle_of("protocol2.npz"),
                 pickle_of("protocol5.npz"), pickle_of("refused_loop.npz")});
}

TEST(Replay, Seeds) {
  for (const auto& [name, target] : targets()) {
    std::vector<std::string> seeds;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::filesystem::path(FP8_SOURCE_DIR) / "tests/fuzz/seeds" / name))
      seeds.push_back(io::bytes_of(entry.path()));
    std::sort(seeds.begin(), seeds.end());  // a fixed order for a fixed random sequence
    ASSERT_FALSE(seeds.empty()) << name;
    for (const auto& seed : seeds) {
      run_exact(name, seed);
      if (seed.size() <= 2000) cut_and_flip(name, seed);
    }
    shuffle(name, seeds, 2'000);
  }
}

}  // namespace
}  // namespace fp8::fuzz
