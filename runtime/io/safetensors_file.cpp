// SPDX-License-Identifier: Apache-2.0
// DType and SafetensorsFile of safetensors.h.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "fp8/runtime/io/json.h"
#include "fp8/runtime/io/safetensors.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;
constexpr std::size_t kMaxRank = 64;

struct DTypeRow {
  DType dtype;
  const char* name;
  int bytes;
};
constexpr std::array<DTypeRow, 19> kDTypes{{
    {DType::BOOL, "BOOL", 1},
    {DType::U8, "U8", 1},
    {DType::I8, "I8", 1},
    {DType::U16, "U16", 2},
    {DType::I16, "I16", 2},
    {DType::U32, "U32", 4},
    {DType::I32, "I32", 4},
    {DType::U64, "U64", 8},
    {DType::I64, "I64", 8},
    {DType::F16, "F16", 2},
    {DType::BF16, "BF16", 2},
    {DType::F32, "F32", 4},
    {DType::F64, "F64", 8},
    {DType::F8_E4M3, "F8_E4M3", 1},
    {DType::F8_E5M2, "F8_E5M2", 1},
    {DType::F8_E8M0, "F8_E8M0", 1},
    {DType::F8_E4M3FNUZ, "F8_E4M3FNUZ", 1},
    {DType::F8_E5M2FNUZ, "F8_E5M2FNUZ", 1},
    {DType::C64, "C64", 8},
}};

const DTypeRow& row_of(DType dtype) {
  for (const auto& row : kDTypes)
    if (row.dtype == dtype) return row;
  throw Error("unknown dtype number " + std::to_string(static_cast<int>(dtype)));
}

// One tensor's entry of the header; `fail` adds file and tensor to what is wrong.
template <class Fail>
TensorInfo read_entry(const std::string& name, const Json& entry, const Fail& fail) {
  TensorInfo info;
  info.name = name;
  if (!entry.is_object()) fail(std::string("is a ") + entry.type_name() + ", expected an object");
  const auto member = [&](const char* key) -> const Json& {
    const auto found = entry.find(key);
    if (found == entry.end()) fail(std::string("lacks the key '") + key + "'");
    return *found;
  };

  const Json& dtype = member("dtype");
  if (!dtype.is_string()) fail("dtype is not a string");
  try {
    info.dtype = dtype_from_name(dtype.get_ref<const std::string&>());
  } catch (const Error& error) {
    fail(error.what());
  }

  const Json& shape = member("shape");
  if (!shape.is_array()) fail("shape is not an array");
  if (shape.size() > kMaxRank) fail("has " + std::to_string(shape.size()) + " dimensions, allowed at most 64");
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  std::int64_t nonzero_product = 1;  // strides need it even where another dimension is 0
  bool empty = false;
  for (const Json& size : shape) {
    // Non-negative integers are what the parser calls unsigned.
    if (!size.is_number_unsigned() || size.get<std::uint64_t>() > static_cast<std::uint64_t>(kMax))
      fail("shape holds " + printable(size.dump()) + ", expected integers from 0 to 2^63 - 1");
    info.shape.push_back(size.get<std::int64_t>());
    empty = empty || info.shape.back() == 0;
    if (info.shape.back() != 0 && __builtin_mul_overflow(nonzero_product, info.shape.back(), &nonzero_product))
      fail("shape " + printable(shape.dump()) + " overflows 64 bits");
  }

  const Json& offsets = member("data_offsets");
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned())
    fail("data_offsets is " + printable(offsets.dump()) + ", expected [begin, end]");
  info.begin = offsets[0].get<std::uint64_t>();
  info.end = offsets[1].get<std::uint64_t>();
  std::uint64_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<std::uint64_t>(empty ? 0 : nonzero_product),
                             static_cast<std::uint64_t>(size_of(info.dtype)), &bytes))
    fail("shape " + printable(shape.dump()) + " overflows 64 bits");
  if (info.end < info.begin || info.end - info.begin != bytes)
    fail("data_offsets " + printable(offsets.dump()) + " don't hold the " + std::to_string(bytes) + " bytes of " +
         name_of(info.dtype) + " " + printable(shape.dump()));
  return info;
}

// `tensors`, sorted by begin, must cover [0, size) without hole, overlap or rest.
void check_cover(const std::filesystem::path& path, const std::vector<TensorInfo>& tensors, std::uint64_t size) {
  std::uint64_t next = 0;
  for (const TensorInfo& tensor : tensors) {
    const std::string where = "tensor " + in_quotes(tensor.name) + " starts at byte " + std::to_string(tensor.begin) +
                              " of the data, expected " + std::to_string(next);
    if (tensor.begin > next) fail(path, where + " (a hole before it)");
    if (tensor.begin < next) fail(path, where + " (it overlaps the one before)");
    next = tensor.end;
    if (next > size)
      fail(path, "tensor " + in_quotes(tensor.name) + " ends at byte " + std::to_string(next) +
                     ", but the file holds " + std::to_string(size) + " bytes of data (cut short?)");
  }
  if (next < size) fail(path, std::to_string(size - next) + " bytes after the last tensor, expected none");
}

}  // namespace

const char* name_of(DType dtype) { return row_of(dtype).name; }
int size_of(DType dtype) { return row_of(dtype).bytes; }

DType dtype_from_name(const std::string& name) {
  std::string allowed;
  for (const auto& row : kDTypes) {
    if (name == row.name) return row.dtype;
    allowed += (allowed.empty() ? "" : ", ") + std::string(row.name);
  }
  throw Error("unknown dtype " + in_quotes(name) + ", expected one of " + allowed);
}

std::int64_t TensorInfo::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t size : shape) product *= size;
  return product;
}

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  std::uint64_t file_size = 0;
  file_ = open_regular(path_, &file_size);
  if (file_size < 8) fail(path_, std::to_string(file_size) + " bytes, too short for a safetensors file");
  std::array<std::uint8_t, 8> prefix;
  read_at(file_.get(), path_, 0, prefix.data(), prefix.size());
  std::uint64_t header_size = 0;
  for (int i = 7; i >= 0; --i) header_size = header_size << 8 | prefix[i];
  if (header_size > kMaxHeaderBytes)
    fail(path_, "header of " + std::to_string(header_size) + " bytes, allowed at most " +
                    std::to_string(kMaxHeaderBytes) + " (not a safetensors file?)");
  if (header_size > file_size - 8)
    fail(path_, "header of " + std::to_string(header_size) + " bytes in a file of " + std::to_string(file_size) +
                    " (cut short?)");
  std::string text(header_size, '\0');
  read_at(file_.get(), path_, 8, text.data(), text.size());
  if (text.empty() || text[0] != '{') fail(path_, "header is not a JSON object (not a safetensors file?)");
  const Json header = parse_json(text, path_.string() + " (header)");
  data_start_ = 8 + header_size;

  for (const auto& [name, entry] : header.get_ref<const Json::object_t&>()) {
    const auto bad = [&, &name = name](const std::string& what) {
      fail(path_, "tensor " + in_quotes(name) + ": " + what);
    };
    if (name != "__metadata__") {
      tensors_.push_back(read_entry(name, entry, bad));
      continue;
    }
    if (!entry.is_object()) fail(path_, "__metadata__ is not an object");
    for (const auto& [key, text_value] : entry.get_ref<const Json::object_t&>()) {
      if (!text_value.is_string()) fail(path_, "__metadata__ key " + in_quotes(key) + " is not a string");
      metadata_.emplace(key, text_value.get_ref<const std::string&>());
    }
  }
  // By end too: an empty tensor stands before the one that starts where it does.
  std::stable_sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  check_cover(path_, tensors_, file_size - data_start_);
  for (std::size_t i = 0; i < tensors_.size(); ++i) by_name_.emplace(tensors_[i].name, i);
}

SafetensorsFile::~SafetensorsFile() = default;

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = by_name_.find(name);
  return found == by_name_.end() ? nullptr : &tensors_[found->second];
}

void SafetensorsFile::read(const TensorInfo& tensor, void* destination, std::uint64_t offset,
                           std::uint64_t size) const {
  if (offset > tensor.bytes() || size > tensor.bytes() - offset)
    fail(path_, "tensor " + in_quotes(tensor.name) + " has " + std::to_string(tensor.bytes()) + " bytes, asked for " +
                    std::to_string(size) + " at " + std::to_string(offset));
  read_at(file_.get(), path_, data_start_ + tensor.begin + offset, destination, size);
}

}  // namespace fp8::io
