// SPDX-License-Identifier: Apache-2.0
// The zip of an .npz: members stored or deflated; no encryption, no zip64, one volume. Internal to runtime/io; no torch
// here.
//
//   "PK\3\4" local header, name, extra | data        for each member
//   "PK\1\2" central header, name, extra, comment    for each member, with sizes, CRC-32 and the local header's offset
//   "PK\5\6" end: where the central headers start    (and a comment of at most 65535 bytes)
// Sizes are taken from the central header: numpy fills the local one's with 0xffffffff and a zip64 field.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace fp8::io {

/// The bytes of `member`. Throws io::Error: no such member (the message lists what there is), sizes or offsets outside
/// the file, more than `limit` bytes, a wrong CRC-32.
std::string unzip_member(std::string_view zip, const std::string& member, std::uint64_t limit, const std::string& name);

/// A zip with one stored member, dated 1980-01-01. data: less than 4 GiB - 1 KiB.
std::string zip_of(const std::string& member, std::string_view data);

}  // namespace fp8::io
