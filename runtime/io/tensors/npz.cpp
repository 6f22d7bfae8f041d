// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/tensors/npz.h"

#include "fp8/runtime/io/atomic/atomic_file.h"
#include "fp8/runtime/io/base/byte_reader.h"
#include "fp8/runtime/io/tensors/zip.h"

namespace fp8::io {
namespace {

constexpr std::uint64_t kMaxNpzBytes = std::uint64_t{512} << 20;
constexpr const char* kMember = "arr_0.npy";

// The bytes behind the header of an .npy with a 0-dim array of objects. Header length: 2 bytes in version 1, 4 in 2
// and 3.
std::string_view object_of(std::string_view npy, const std::string& name) {
  const auto fail = [&](const std::string& what) {
    io::fail<Error>("{}: {}: {}", printable(name, 4096), kMember, what);
  };
  const auto byte = [&](std::size_t at) { return static_cast<std::uint8_t>(npy[at]); };
  if (npy.size() < 12 || npy.substr(0, 6) != "\x93NUMPY") fail("is not a numpy array");
  const int version = byte(6);
  if (version < 1 || version > 3) fail("npy version " + std::to_string(version) + ", expected 1 to 3");
  const std::size_t length_bytes = version == 1 ? 2 : 4;
  const std::size_t length =
      version == 1 ? ByteReader(npy).little<std::uint16_t>(8) : ByteReader(npy).little<std::uint32_t>(8);
  if (length > npy.size() - 8 - length_bytes) fail("its header reaches past the end");
  const std::string_view header = npy.substr(8 + length_bytes, length);

  // numpy writes this dict in one way; white space pads it.
  std::string dense;
  for (const char c : header.substr(0, 4096))
    if (c != ' ' && c != '\n') dense += c;
  if (length > 4096 || dense != "{'descr':'|O','fortran_order':False,'shape':(),}")
    fail("holds " + printable(dense) +
         ", expected one Python object: {'descr': '|O', 'fortran_order': False, 'shape': (), }");
  return npy.substr(8 + length_bytes + length);
}

}  // namespace

std::string npz_bytes(const std::filesystem::path& path, const PyValue& value) {
  // The pickle starts at a multiple of 64, as numpy aligns it: 10 bytes, then 118 of header.
  std::string npy = "\x93NUMPY";
  npy += std::string("\x01\0v\0", 4);
  std::string header = "{'descr': '|O', 'fortran_order': False, 'shape': (), }";
  header.resize(117, ' ');
  npy += header + "\n" + write_pickle(value, path.string());
  if (npy.size() > kMaxNpzBytes)
    fail(path, std::to_string(npy.size()) + " bytes to write, allowed at most " + std::to_string(kMaxNpzBytes));
  return zip_of(kMember, npy);
}

void write_npz(const std::filesystem::path& path, const PyValue& value) {
  const std::string zip = npz_bytes(path, value);
  AtomicFile file(path, zip.size());
  file.append(zip);
  file.commit();
}

PyValue parse_npz(std::string_view bytes, const std::string& name) {
  const std::string npy = unzip_member(bytes, kMember, kMaxNpzBytes, name);
  return read_pickle(object_of(npy, name), name);
}

PyValue read_npz(const std::filesystem::path& path) { return parse_npz(read_file(path, kMaxNpzBytes), path.string()); }

}  // namespace fp8::io
