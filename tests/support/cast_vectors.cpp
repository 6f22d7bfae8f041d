// SPDX-License-Identifier: Apache-2.0
// cast_vectors IN OUT: our codes for the test vectors of another program, to be compared outside.
//
//   IN   safetensors with in.bf16 BF16 [n], in.f32 F32 [n], in.scaled.f32 F32 [n], scale.<k> F32 []
//   OUT  codes.<dialect>.bf16 | .f32 | .scaled.<k> U8 [n] for gaudi2, gaudi3, ocp and e5m2, decode.<dialect> F32 [256]
#include <exception>

#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/kernels/cast.h"

namespace {

using namespace fp8;

struct Target {
  const char* name;
  kernels::Format format;
  kernels::Dialect dialect;
};
constexpr Target kTargets[] = {{"gaudi2", kernels::Format::E4M3, kernels::Dialect::gaudi2},
                               {"gaudi3", kernels::Format::E4M3, kernels::Dialect::gaudi3},
                               {"ocp", kernels::Format::E4M3, kernels::Dialect::ocp},
                               {"e5m2", kernels::Format::E5M2, kernels::Dialect::ocp}};

struct Result {
  std::string name;
  std::vector<std::uint8_t> codes;
};

std::vector<std::uint8_t> cast(const io::SafetensorsFile& in, const char* tensor, const Target& target,
                               const float* scale) {
  const auto& info = *in.find(tensor);
  std::vector<std::uint8_t> x(info.bytes()), codes(static_cast<std::size_t>(info.numel()));
  in.read(info, x.data());
  kernels::CastArgs args;
  args.x = x.data();
  args.type = info.dtype == io::DType::BF16 ? kernels::FloatType::BF16 : kernels::FloatType::F32;
  args.rows = 1;
  args.cols = args.row_stride = info.numel();
  args.codes = codes.data();
  args.format = target.format;
  args.max = kernels::fp8_max(target.format, target.dialect);
  args.scales = scale;
  kernels::cast_to_fp8(args);
  return codes;
}

void run(const char* from, const char* to) {
  const io::SafetensorsFile in(from);
  std::vector<Result> results;
  for (const auto& target : kTargets) {
    const std::string prefix = std::string("codes.") + target.name + ".";
    results.push_back({prefix + "bf16", cast(in, "in.bf16", target, nullptr)});
    results.push_back({prefix + "f32", cast(in, "in.f32", target, nullptr)});
    for (int k = 0; in.find("scale." + std::to_string(k)) != nullptr; ++k) {
      float scale = 0;
      in.read(*in.find("scale." + std::to_string(k)), &scale);
      results.push_back({prefix + "scaled." + std::to_string(k), cast(in, "in.scaled.f32", target, &scale)});
    }
  }
  std::vector<io::SafetensorsWriter::Entry> entries;
  for (const auto& r : results) entries.push_back({r.name, io::DType::U8, {static_cast<std::int64_t>(r.codes.size())}});
  for (const auto& target : kTargets) entries.push_back({std::string("decode.") + target.name, io::DType::F32, {256}});
  io::SafetensorsWriter out(to, entries);
  for (const auto& r : results) out.write(r.name, r.codes.data());
  for (const auto& target : kTargets)
    out.write(std::string("decode.") + target.name, kernels::decode_table(target.format));
  out.commit();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: cast_vectors IN.safetensors OUT.safetensors\n", stderr);
    return 2;
  }
  try {
    run(argv[1], argv[2]);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cast_vectors: %s\n", error.what());
    return 1;
  }
}
