// SPDX-License-Identifier: Apache-2.0
// IDX, the form of MNIST's files: one array of numbers, plain or compressed (.gz). No torch here.
//
//   byte  0, 1   zero
//         2      type: 0x08 u8, 0x09 i8, 0x0b i16, 0x0c i32, 0x0d f32, 0x0e f64
//         3      number of dimensions D
//         4 ...  D sizes, then the elements, the last dimension fastest; all of them big-endian
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace fp8::io {

enum class IdxType : std::uint8_t { u8 = 0x08, i8 = 0x09, i16 = 0x0b, i32 = 0x0c, f32 = 0x0d, f64 = 0x0e };

/// Bytes of one element.
std::size_t size_of(IdxType type);

struct IdxArray {
  IdxType type = IdxType::u8;
  std::vector<std::int64_t> shape;  ///< each below 2^32; none: a single number
  std::string elements;             ///< in this machine's byte order

  std::int64_t numel() const;
};

/// Of a file that holds exactly one array. `bytes` may be gzip's; `name` stands in messages. Throws io::Error: another
/// form, sizes that are not those of the bytes, an array of more than 4 GiB.
IdxArray parse_idx(std::string_view bytes, const std::string& name);

/// Reads a file of at most 4 GiB.
IdxArray read_idx(const std::filesystem::path& path);

/// The bytes of a plain file. The elements must be as many as the shape says.
std::string idx_bytes(const IdxArray& array);

}  // namespace fp8::io
