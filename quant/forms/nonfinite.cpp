// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/nonfinite.h"

#include <cstring>

#include "fp8/runtime/kernels/thread_pool.h"

namespace fp8::quant {
namespace {

using io::DType;

/// Of values whose exponent bits are all set, those without mantissa bits are infinite.
template <class Word>
NonFinite count_bits(const std::uint8_t* bytes, std::uint64_t size, Word exponent, Word mantissa) {
  NonFinite found;
  constexpr std::uint64_t kBlock = 1 << 14;  // without one, as nearly all are, a loop that is vectorised
  for (std::uint64_t at = 0; at < size; at += kBlock) {
    const std::uint64_t end = std::min(size, at + kBlock);
    unsigned some = 0;
    for (std::uint64_t i = at; i < end; i += sizeof(Word)) {
      Word word;
      std::memcpy(&word, bytes + i, sizeof word);
      some |= static_cast<unsigned>((word & exponent) == exponent);
    }
    if (some == 0) continue;
    for (std::uint64_t i = at; i < end; i += sizeof(Word)) {
      Word word;
      std::memcpy(&word, bytes + i, sizeof word);
      if ((word & exponent) != exponent) continue;
      ((word & mantissa) != 0 ? found.nan : found.inf) += 1;
    }
  }
  return found;
}

/// E4M3 of ocp and gaudi3 has no infinity, and one NaN; gaudi2's has both, as E5M2.
NonFinite count_chunk(const std::uint8_t* bytes, std::uint64_t size, DType dtype, recipes::Dialect dialect) {
  switch (dtype) {
    case DType::F64: return count_bits<std::uint64_t>(bytes, size, 0x7FF0000000000000u, 0x000FFFFFFFFFFFFFu);
    case DType::F32: return count_bits<std::uint32_t>(bytes, size, 0x7F800000u, 0x007FFFFFu);
    case DType::BF16: return count_bits<std::uint16_t>(bytes, size, 0x7F80, 0x007F);
    case DType::F16: return count_bits<std::uint16_t>(bytes, size, 0x7C00, 0x03FF);
    case DType::F8_E5M2: return count_bits<std::uint8_t>(bytes, size, 0x7C, 0x03);
    case DType::F8_E4M3:
      return dialect == recipes::Dialect::gaudi2 ? count_bits<std::uint8_t>(bytes, size, 0x78, 0x07)
                                                 : count_bits<std::uint8_t>(bytes, size, 0x7F, 0x7F);
    default: return {};
  }
}

NonFinite count_tensor(const io::Checkpoint& checkpoint, const io::TensorInfo& info, recipes::Dialect dialect,
                       bool bytes_are_codes, const std::function<bool()>& stop) {
  NonFinite found;
  const DType dtype =
      bytes_are_codes && io::size_of(info.dtype) == 1 && !may_be_nonfinite(info.dtype) ? DType::F8_E4M3 : info.dtype;
  if (!may_be_nonfinite(dtype)) return found;
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(std::min(io::kChunkBytes, info.bytes())));
  for (std::uint64_t at = 0; at < info.bytes(); at += io::kChunkBytes) {
    if (stop && stop()) throw io::Error("interrupted");
    const std::uint64_t size = std::min(io::kChunkBytes, info.bytes() - at);
    checkpoint.read(info.name, bytes.data(), at, size);
    const NonFinite part = count_chunk(bytes.data(), size, dtype, dialect);
    found.nan += part.nan;
    found.inf += part.inf;
  }
  return found;
}

}  // namespace

std::string NonFinite::text(std::uint64_t values) const {
  std::string out = nan > 0 ? "NaN in " + std::to_string(nan) : "";
  if (inf > 0) out += (out.empty() ? "Inf in " : " and Inf in ") + std::to_string(inf);
  return out + " of " + std::to_string(values) + " values";
}

bool may_be_nonfinite(DType dtype) {
  constexpr std::array kSuch = {DType::F64, DType::F32, DType::BF16, DType::F16, DType::F8_E4M3, DType::F8_E5M2};
  return std::ranges::find(kSuch, dtype) != kSuch.end();
}

NonFinite count_nonfinite(const io::Checkpoint& checkpoint, const std::string& tensor, recipes::Dialect dialect,
                          bool bytes_are_codes) {
  return count_tensor(checkpoint, checkpoint.info(tensor), dialect, bytes_are_codes, {});
}

std::map<std::string, NonFinite> find_nonfinite(const io::Checkpoint& checkpoint, recipes::Dialect dialect,
                                                const std::set<std::string>& codes, const std::function<bool()>& stop) {
  std::vector<NonFinite> found(checkpoint.names().size());
  kernels::parallel_for(static_cast<std::int64_t>(found.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i) {
      const auto& info = checkpoint.info(i);
      found[i] = count_tensor(checkpoint, info, dialect, codes.contains(info.name), stop);
    }
  });
  std::map<std::string, NonFinite> by_name;
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i].any()) by_name.emplace(checkpoint.info(i).name, found[i]);
  return by_name;
}

NonFinite count_nonfinite(const void* values, DType dtype, std::int64_t n) {
  const auto size = static_cast<std::uint64_t>(n) * static_cast<std::uint64_t>(io::size_of(dtype));
  return count_chunk(static_cast<const std::uint8_t*>(values), size, dtype, recipes::Dialect::ocp);
}

bool has_nonfinite(const void* values, DType dtype, std::int64_t n) { return count_nonfinite(values, dtype, n).any(); }

void refuse_nonfinite(const io::Checkpoint& checkpoint, const std::string& tensor, recipes::Dialect dialect) {
  refuse_nonfinite(checkpoint, tensor, count_nonfinite(checkpoint, tensor, dialect),
                   static_cast<std::uint64_t>(checkpoint.info(tensor).numel()));
}

void refuse_nonfinite(const io::Checkpoint& checkpoint, const std::string& place, const NonFinite& found,
                      std::uint64_t values) {
  io::fail<io::Error>("{}: {}: expected finite weights, found {} ({} copies them as they are)",
                      checkpoint.folder().string(), io::printable(place), found.text(values),
                      io::option("allow_nonfinite", "allow_nonfinite"));
}

io::Json nonfinite_json(const std::map<std::string, NonFinite>& found) {
  io::Json out = io::Json::object();
  for (const auto& [tensor, n] : found) out[tensor] = {{"nan", n.nan}, {"inf", n.inf}};
  return out;
}

}  // namespace fp8::quant
