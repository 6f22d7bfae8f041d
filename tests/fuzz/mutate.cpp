// SPDX-License-Identifier: Apache-2.0
#include "fuzz/mutate.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "fp8/runtime/io/tensors/zip.h"
#include "runtime/io/tensors/torch_bytes.h"

namespace fp8::fuzz {
namespace {

using Json = nlohmann::ordered_json;

struct Random {
  std::mt19937& engine;
  std::size_t below(std::size_t n) { return n == 0 ? 0 : engine() % n; }
  bool one_of(std::size_t n) { return below(n) == 0; }
};

// JSON

/// False for one that is too deep to walk through.
bool collect(Json& value, std::vector<Json*>& all, int depth = 0) {
  if (depth > 100) return false;
  all.push_back(&value);
  if (value.is_structured())
    for (auto& item : value)
      if (!collect(item, all, depth + 1)) return false;
  return true;
}

Json telling_value(Random random) {
  static const std::vector<Json> all = {
      nullptr,       true,           false,  0,         1,    -1,         2,
      255,           65536,          1e300,  -0.0,      0.5,  1e-320,     std::int64_t{1} << 53,
      INT64_MIN,     UINT64_MAX,     "",     "a",       ".*", "\xC3\xA9", std::string(300, 'x'),
      Json::array(), Json::object(), {1, 2}, {{"a", 1}}};
  return all[random.below(all.size())];
}

/// One change of an object's or array's members.
void change_members(Json& value, const std::vector<Json*>& all, Random random) {
  if (value.empty()) {
    if (value.is_array())
      value.push_back(telling_value(random));
    else
      value["a"] = telling_value(random);
    return;
  }
  const auto at = std::next(value.begin(), static_cast<std::ptrdiff_t>(random.below(value.size())));
  switch (random.below(4)) {
    case 0: value.erase(at); return;
    case 1:  // as often as that, or under another name
      if (value.is_array()) {
        const Json item = *at;
        value.insert(at, 1 + random.below(3), item);
      } else {
        const Json item = *at;
        value[at.key() + "x"] = item;
      }
      return;
    case 2:
      if (value.is_object()) {  // one of the file's keys with another value of the file
        const Json item = *all[random.below(all.size())];
        value[at.key()] = item;
        return;
      }
      [[fallthrough]];
    default: *at = telling_value(random);
  }
}

std::string changed_json(std::string_view data, Random random, const ChangeBytes& change) {
  Json value = Json::parse(data, nullptr, /*allow_exceptions=*/false);
  std::vector<Json*> all;
  if (value.is_discarded() || !collect(value, all)) return change(std::string(data));
  Json& one = *all[random.below(all.size())];
  if (one.is_string() && !random.one_of(3)) {
    one = change(one.get<std::string>());
  } else if (one.is_number_integer() && random.one_of(2)) {
    one = static_cast<std::int64_t>(static_cast<std::uint64_t>(one.get<std::int64_t>()) * 2 + random.below(3) - 1);
  } else if (one.is_structured() && !random.one_of(4)) {
    change_members(one, all, random);
  } else {
    const Json other = random.one_of(2) ? telling_value(random) : *all[random.below(all.size())];
    one = other;
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// safetensors

std::string changed_safetensors(std::string_view data, Random random, const ChangeBytes& change) {
  std::uint64_t length = 0;
  if (data.size() < sizeof length) return change(std::string(data));
  std::memcpy(&length, data.data(), sizeof length);
  if (length > data.size() - sizeof length) return change(std::string(data));
  std::string header(data.substr(sizeof length, length)), rest(data.substr(sizeof length + length));
  if (random.one_of(6)) {
    rest = change(rest);
  } else {
    header = random.one_of(3) ? change(header) : changed_json(header, random, change);
  }
  length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + rest;
}

// Zip: one member changed, and all packed again, with the directory and the checksums that belong to it

/// The members that a directory at the end lists, stored ones alone.
io::torch_bytes::Members members_of(const std::string& zip) {
  const auto number = [&](std::size_t at, std::size_t bytes) {
    std::uint64_t value = 0;
    if (at + bytes <= zip.size()) std::memcpy(&value, zip.data() + at, bytes);
    return static_cast<std::size_t>(value);
  };
  io::torch_bytes::Members members;
  for (std::size_t at = zip.find("PK\1\2"); at != std::string::npos && members.size() < 64;
       at = zip.find("PK\1\2", at + 4)) {
    const std::size_t size = number(at + 20, 4), name = number(at + 28, 2), local = number(at + 42, 4);
    const std::size_t begin = local + 30 + number(local + 26, 2) + number(local + 28, 2);
    if (number(at + 10, 2) != 0 || at + 46 + name > zip.size() || begin > zip.size() || size > zip.size() - begin)
      return {};
    members.emplace_back(zip.substr(at + 46, name), zip.substr(begin, size));
  }
  return members;
}

std::string changed_zip(std::string_view data, Random random, const ChangeBytes& change) {
  auto members = members_of(std::string(data));
  if (members.empty()) return change(std::string(data));
  auto& [name, bytes] = members[random.below(members.size())];
  constexpr std::size_t kNumpyHeader = 128;
  if (random.one_of(8)) {
    name = change(name).substr(0, 1000);
  } else if (name.ends_with(".npy") && bytes.size() > kNumpyHeader && !random.one_of(4)) {
    bytes = bytes.substr(0, kNumpyHeader) + change(bytes.substr(kNumpyHeader));
  } else if (name.ends_with(".json") && !random.one_of(6)) {
    bytes = changed_json(bytes, random, change);
  } else if (name.ends_with(".safetensors") && !random.one_of(6)) {
    bytes = changed_safetensors(bytes, random, change);
  } else {
    bytes = change(bytes);
  }
  return io::torch_bytes::zip(members, /*wide=*/random.one_of(8));
}

// Protobuf (sentencepiece's models): fields of varints, 32 and 64 bits, and bytes with their length before them

struct Field {
  std::uint64_t key, value;  ///< value: of a varint
  std::string bytes;
};

bool take_varint(std::string_view& data, std::uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && !data.empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(data[0]);
    data.remove_prefix(1);
    value |= std::uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value >= 128; value >>= 7) out += static_cast<char>(value | 128);
  return out + static_cast<char>(value);
}

std::vector<Field> fields_of(std::string_view data) {
  std::vector<Field> fields;
  while (!data.empty()) {
    Field one{};
    if (!take_varint(data, one.key)) return {};
    const auto kind = one.key & 7;
    std::uint64_t size = kind == 5 ? 4 : kind == 1 ? 8 : 0;
    if (kind == 0 ? !take_varint(data, one.value) : kind == 2 && !take_varint(data, size)) return {};
    if (kind == 3 || kind == 4 || kind > 5 || size > data.size()) return {};
    one.bytes = data.substr(0, size);
    data.remove_prefix(size);
    fields.push_back(std::move(one));
  }
  return fields;
}

std::string changed_protobuf(std::string_view data, Random random, const ChangeBytes& change, int depth = 0) {
  auto fields = fields_of(data);
  if (fields.empty()) return change(std::string(data));
  const std::size_t at = random.below(fields.size());
  Field& one = fields[at];
  switch (random.below(6)) {
    case 0: fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1: fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(random.below(fields.size())), Field(one)); break;
    case 2: one.key = (one.key & 7) | (1 + random.below(16)) << 3; break;
    default:
      if ((one.key & 7) == 0) {
        one.value = random.one_of(2) ? one.value + random.below(3) - 1 : std::uint64_t{1} << random.below(64);
      } else if ((one.key & 7) == 2 && depth < 3 && !random.one_of(3)) {
        one.bytes = changed_protobuf(one.bytes, random, change, depth + 1);
      } else if ((one.key & 7) == 2) {
        one.bytes = change(one.bytes);
      } else {
        one.bytes[random.below(one.bytes.size())] = static_cast<char>(random.below(256));
      }
  }
  std::string out;
  for (const auto& field : fields) {
    out += varint(field.key);
    if ((field.key & 7) == 0) out += varint(field.value);
    if ((field.key & 7) == 2) out += varint(field.bytes.size());
    out += field.bytes;
  }
  return out;
}

using Change = std::string (*)(std::string_view, Random, const ChangeBytes&);

/// A zip where it begins as one, else JSON.
std::string changed_stats(std::string_view data, Random random, const ChangeBytes& change) {
  return (data.substr(0, 2) == "PK" ? changed_zip : changed_json)(data, random, change);
}

/// A sentencepiece model begins with a field of bytes, 1; lists of words are lines.
std::string changed_vocabulary(std::string_view data, Random random, const ChangeBytes& change) {
  return data.substr(0, 1) == "\n" ? changed_protobuf(data, random, change) : change(std::string(data));
}

}  // namespace

std::string changed(const std::string& target, std::string_view data, std::mt19937& random, const ChangeBytes& change) {
  static const std::map<std::string, Change> ways = {{"json", changed_json},
                                                     {"quant_config", changed_json},
                                                     {"recipe", changed_json},
                                                     {"training_config", changed_json},
                                                     {"model_config", changed_json},
                                                     {"tokenizer", changed_json},
                                                     {"tekken", changed_json},
                                                     {"trace", changed_json},
                                                     {"data_rows", changed_json},
                                                     {"measurement", changed_stats},
                                                     {"scales", changed_stats},
                                                     {"npz", changed_zip},
                                                     {"torch_file", changed_zip},
                                                     {"checkpoint", changed_zip},
                                                     {"calibrated", changed_zip},
                                                     {"safetensors", changed_safetensors},
                                                     {"vocabulary", changed_vocabulary}};
  const auto way = ways.find(target);
  if (way == ways.end() || random() % 4 == 0) return change(std::string(data));
  return way->second(data, Random{random}, change);
}

}  // namespace fp8::fuzz
