// SPDX-License-Identifier: Apache-2.0
// TensorBoard's event files (tensorboard/compat/proto/event.proto, summary.proto; TensorFlow's record_writer):
// records one behind the other,
//
//   length  u64 little endian          data  length bytes, an Event
//   masked CRC-32C of length  u32      masked CRC-32C of data  u32          masked = rotate_right(crc, 15) + 0xa282ead8
//
//   Event    { double wall_time = 1; int64 step = 2; string file_version = 3; Summary summary = 5; }
//   Summary  { repeated Value value = 1; }      Value { string tag = 1; float simple_value = 2; }
//
// The first event of a file has file_version "brain.Event:2". No TensorFlow here.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fp8::trainer {

/// CRC-32C (Castagnoli, RFC 3720 appendix B.4) of `bytes`.
std::uint32_t crc32c(std::string_view bytes);

/// An Event as a record. wall_time: seconds since 1970.
std::string version_record(double wall_time);
std::string scalars_record(double wall_time, std::int64_t step,
                           const std::vector<std::pair<std::string, float>>& scalars);

}  // namespace fp8::trainer
