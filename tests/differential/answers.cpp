// SPDX-License-Identifier: Apache-2.0
// What our readers make of many inputs, for comparisons with other people's (compare.py), which one process answers:
//
//   differential_answers READER <CASES >ANSWERS     each case and answer: u32 length, bytes
//
// An answer is "E" and the message, or "V" and the value in a form that both sides write: n t f for null and the truth
// values, i12, d and the 16 hexadecimal digits of a double's bits, s3:abc, [..], {..} with keys before values, and
// a2,3: with the digits of f32 bits for an array.
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>

#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/io/tensors/npz.h"
#include "fp8/runtime/io/tensors/safetensors.h"
#include "fp8/runtime/io/tensors/torch_file.h"
#include "fp8/runtime/io/yaml/yaml.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/runtime/kernels/float_bits.h"
#include "fp8/tools/text/jinja/machine.h"
#include "support/memory_file.h"

namespace {

using namespace fp8;
using test::MemoryFile;

void add_text(std::string& out, const std::string& text) { out += "s" + std::to_string(text.size()) + ":" + text; }

void add_hexadecimal(std::string& out, std::uint64_t bits, int digits) {
  char text[17];
  std::snprintf(text, sizeof text, "%0*llx", digits, static_cast<unsigned long long>(bits));
  out += text;
}

void add_double(std::string& out, double value) {
  out += "d";
  add_hexadecimal(out, std::bit_cast<std::uint64_t>(std::isnan(value) ? std::nan("") : value), 16);
}

void add(std::string& out, const io::Json& value) {
  if (value.is_null()) {
    out += "n";
  } else if (value.is_boolean()) {
    out += value.get<bool>() ? "t" : "f";
  } else if (value.is_number_unsigned()) {
    out += "i" + std::to_string(value.get<std::uint64_t>()) + " ";
  } else if (value.is_number_integer()) {
    out += "i" + std::to_string(value.get<std::int64_t>()) + " ";
  } else if (value.is_number_float()) {
    add_double(out, value.get<double>());
  } else if (value.is_string()) {
    add_text(out, value.get_ref<const std::string&>());
  } else {
    out += value.is_array() ? "[" : "{";
    for (const auto& [key, item] : value.items()) {
      if (value.is_object()) add_text(out, key);
      add(out, item);
    }
    out += value.is_array() ? "]" : "}";
  }
}

void add(std::string& out, const io::PyValue& value) {
  const auto list = [&](const auto& items, char begin, char end) {
    out += begin;
    for (const auto& item : items) add(out, item);
    out += end;
  };
  if (const auto* dict = value.get_if<io::PyDict>()) {
    out += "{";
    for (const auto& [key, item] : dict->items()) {
      if (const auto* text = std::get_if<std::string>(&key)) {
        add_text(out, *text);
      } else {
        out += "i" + std::to_string(std::get<std::int64_t>(key)) + " ";
      }
      add(out, item);
    }
    out += "}";
  } else if (const auto* items = value.get_if<io::PyList>()) {
    list(items->items, '[', ']');
  } else if (const auto* tuple = value.get_if<io::PyTuple>()) {
    list(tuple->items, '(', ')');
  } else if (const auto* array = value.get_if<io::NdArray>()) {
    out += "a";
    for (const auto size : array->shape) out += std::to_string(size) + ",";
    out += ":";
    for (const float x : array->data)
      add_hexadecimal(out, std::isnan(x) ? 0x7fc00000u : std::bit_cast<std::uint32_t>(x), 8);
  } else if (const auto* text = value.get_if<std::string>()) {
    add_text(out, *text);
  } else if (const auto* integer = value.get_if<std::int64_t>()) {
    out += "i" + std::to_string(*integer) + " ";
  } else if (const auto* real = value.get_if<double>()) {
    add_double(out, *real);
  } else if (const auto* flag = value.get_if<bool>()) {
    out += *flag ? "t" : "f";
  } else {
    out += "n";
  }
}

/// Names, dtypes, shapes and bytes, by name.
std::string tensors_of(const io::TensorFile& file) {
  std::map<std::string, std::string> sorted;
  for (const auto& tensor : file.tensors()) {
    std::string bytes(tensor.bytes(), '\0'), one = name_of(tensor.dtype) + std::string("(");
    file.read(tensor, bytes.data());
    for (const auto size : tensor.shape) one += std::to_string(size) + ",";
    one += ")";
    add_text(one, bytes);
    sorted[tensor.name] = one;
  }
  std::string out;
  for (const auto& [name, one] : sorted) {
    add_text(out, name);
    out += one;
  }
  return out;
}

/// A number as a JSON has it, in f64, f32 and bf16.
std::string floats_of(const std::string& text) {
  const double value = io::parse_python_json(text, "case").get<double>();
  const auto single = static_cast<float>(value);
  std::string out;
  add_double(out, value);
  add_hexadecimal(out, std::bit_cast<std::uint32_t>(single), 8);
  add_hexadecimal(out, kernels::f32_to_bf16(single), 4);
  return out;
}

/// The E4M3 and E5M2 codes of f32 values, without scales.
std::string codes_of(const std::string& bytes) {
  std::vector<float> x(bytes.size() / sizeof(float));
  std::memcpy(x.data(), bytes.data(), x.size() * sizeof(float));
  std::string out;
  for (const auto format : {kernels::Format::E4M3, kernels::Format::E5M2}) {
    std::string codes(x.size(), '\0');
    kernels::CastArgs args;
    args.x = x.data();
    args.type = kernels::FloatType::F32;
    args.rows = 1;
    args.cols = args.row_stride = static_cast<std::int64_t>(x.size());
    args.codes = reinterpret_cast<std::uint8_t*>(codes.data());
    args.format = format;
    args.max = kernels::fp8_max(format, kernels::Dialect::ocp);
    kernels::cast_to_fp8(args);
    out += codes;
  }
  return out;
}

/// {"template", "variables"}.
std::string chat_of(const std::string& bytes) {
  const io::Json given = io::parse_json(bytes, "case");
  const text::jinja::Template chat(given.at("template").get<std::string>(), "template");
  return chat.render(given.at("variables"));
}

std::string answer(const std::string& reader, const std::string& bytes) {
  std::string out;
  if (reader == "json") {
    add(out, io::parse_python_json(bytes, "case"));
  } else if (reader == "strict json") {
    add(out, io::parse_json(bytes, "case"));
  } else if (reader == "yaml") {
    add(out, io::parse_yaml(bytes, "case").value);
  } else if (reader == "npz") {
    add(out, io::parse_npz(bytes, "case"));
  } else if (reader == "pickle") {
    add(out, io::read_pickle(bytes, "case"));
  } else if (reader == "zip") {
    add_text(out, io::unzip_member(bytes, "arr_0.npy", 1 << 20, "case"));
  } else if (reader == "zip64") {
    const MemoryFile file(bytes);
    const io::ZipFile zip(file.path());
    for (const auto& member : zip.members()) {
      add_text(out, member.name);
      add_text(out, zip.read(member, 1 << 20));
    }
  } else if (reader == "safetensors") {
    const MemoryFile file(bytes);
    out = tensors_of(io::SafetensorsFile(file.path()));
  } else if (reader == "torch") {
    const MemoryFile file(bytes);
    out = tensors_of(io::TorchFile(file.path()));
  } else if (reader == "floats") {
    out = floats_of(bytes);
  } else if (reader == "casts") {
    out = codes_of(bytes);
  } else if (reader == "chat") {
    out = chat_of(bytes);
  } else {
    throw std::invalid_argument("no reader '" + reader + "'");
  }
  return out;
}

bool read_case(std::string& bytes) {
  std::uint32_t size = 0;
  if (std::fread(&size, sizeof size, 1, stdin) != 1) return false;
  bytes.resize(size);
  return std::fread(bytes.data(), 1, size, stdin) == size;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::invalid_argument("usage: differential_answers READER <CASES >ANSWERS");
  for (std::string bytes; read_case(bytes);) {
    std::string text;
    try {
      text = "V" + answer(argv[1], bytes);
    } catch (const io::Error& error) {
      text = std::string("E") + error.what();
    }
    const auto size = static_cast<std::uint32_t>(text.size());
    std::fwrite(&size, sizeof size, 1, stdout);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "differential_answers: %s\n", error.what());
  return 1;
}
