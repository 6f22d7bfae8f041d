// SPDX-License-Identifier: Apache-2.0
// Files of torch.save written by hand, from the formats' descriptions alone: a zip of stored members, and the pickle of
// a dict of tensors in protocol 2.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fp8::io::torch_bytes {

inline std::string number(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

using Members = std::vector<std::pair<std::string, std::string>>;

/// wide: sizes and offsets in zip64 fields. method: what the headers say.
inline std::string zip(const Members& members, bool wide = false, int method = 0) {
  std::string out, directory;
  for (const auto& [name, data] : members) {
    const std::uint64_t crc = ::crc32_z(0, reinterpret_cast<const Bytef*>(data.data()), data.size()), at = out.size();
    const std::uint64_t size = data.size(), shown = wide ? 0xffffffff : size;
    const std::string common =
        number(0, 2) + number(static_cast<std::uint64_t>(method), 2) + number(0, 4) + number(crc, 4);
    out += "PK\3\4" + number(45, 2) + common + number(size, 4) + number(size, 4) + number(name.size(), 2) +
           number(5, 2) + name + "FB" + number(1, 2) + "x" + data;
    const std::string extra =
        wide ? number(1, 2) + number(24, 2) + number(size, 8) + number(size, 8) + number(at, 8) : "";
    directory += "PK\1\2" + number(45, 2) + number(45, 2) + common + number(shown, 4) + number(shown, 4) +
                 number(name.size(), 2) + number(extra.size(), 2) + number(0, 8) + number(0, 2) +
                 number(wide ? 0xffffffff : at, 4) + name + extra;
  }
  const std::uint64_t at = out.size(), end = at + directory.size(), count = members.size();
  out += directory;
  if (wide)
    out += "PK\6\6" + number(44, 8) + number(45, 2) + number(45, 2) + number(0, 8) + number(count, 8) +
           number(count, 8) + number(directory.size(), 8) + number(at, 8) + "PK\6\7" + number(0, 4) + number(end, 8) +
           number(1, 4);
  return out + "PK\5\6" + number(0, 4) + number(wide ? 0xffff : count, 2) + number(wide ? 0xffff : count, 2) +
         number(directory.size(), 4) + number(wide ? 0xffffffff : at, 4) + number(0, 2);
}

inline std::string text(const std::string& value) { return "X" + number(value.size(), 4) + value; }
inline std::string integer(std::int64_t value) { return "\x8a\x08" + number(static_cast<std::uint64_t>(value), 8); }
inline std::string tuple(const std::vector<std::int64_t>& values) {
  std::string out = "(";
  for (const auto value : values) out += integer(value);
  return out + "t";
}
inline std::string ordered_dict() { return "ccollections\nOrderedDict\n)R"; }

struct Tensor {
  std::string storage = "0", type = "FloatStorage";
  std::int64_t elements = 0, offset = 0;
  std::vector<std::int64_t> sizes, strides;
};

inline std::string pickled(const Tensor& t) {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\n" + t.type + "\n" + text(t.storage) +
         text("cpu") + integer(t.elements) + "tQ" + integer(t.offset) + tuple(t.sizes) + tuple(t.strides) + "\x89" +
         ordered_dict() + "tR";
}

/// items: pickled keys and values.
inline std::string dict(const std::string& items) { return "}(" + items + "u"; }
inline std::string pickle(const std::string& value) { return "\x80\x02" + value + "."; }

/// One tensor 'w' of a file whose storage 0 is `data`.
inline std::string file_of(const Tensor& t, const std::string& data) {
  return zip({{"a/data.pkl", pickle(dict(text("w") + pickled(t)))}, {"a/byteorder", "little"}, {"a/data/0", data}});
}

}  // namespace fp8::io::torch_bytes
