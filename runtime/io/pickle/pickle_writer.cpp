// SPDX-License-Identifier: Apache-2.0
// write_pickle of pickle.h: the opcodes and the order that numpy 1's savez writes with protocol 3, named numpy.core
// (which numpy 2 understands, while numpy 1 does not know numpy._core).
#include <bit>

#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/pickle/pickle.h"

namespace fp8::io {
namespace {

static_assert(std::endian::native == std::endian::little, "arrays are written as they lie in memory");

constexpr int kMaxDepth = 64;
constexpr std::uint64_t kMaxBytes = std::uint64_t{512} << 20;  // what read_npz accepts

class PickleWriter {
 public:
  explicit PickleWriter(const std::string& name) : name_(name) {}

  std::string write(const PyValue& value) {
    out_ = "\x80\x03";
    begin_array({}, 'O');
    out_ += ']';
    write(value, 0);
    out_ += "atb.";
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { io::fail<Error>("{}: {}", printable(name_, 4096), what); }

  void write(const PyValue& value, int depth) {
    const bool holds_others = value.get_if<PyList>() || value.get_if<PyTuple>() || value.get_if<PyDict>();
    if (holds_others && depth == kMaxDepth) fail("can't write values nested deeper than 64 levels");
    if (out_.size() > kMaxBytes) fail("can't write more than " + std::to_string(kMaxBytes) + " bytes");
    if (const auto* truth = value.get_if<bool>()) {
      out_ += *truth ? '\x88' : '\x89';
    } else if (const auto* integer = value.get_if<std::int64_t>()) {
      write_int(*integer);
    } else if (const auto* real = value.get_if<double>()) {
      const auto bits = std::bit_cast<std::uint64_t>(*real);
      out_ += 'G';
      for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);  // big-endian
    } else if (const auto* text = value.get_if<std::string>()) {
      write_str(*text);
    } else if (const auto* list = value.get_if<PyList>()) {
      out_ += "](";
      for (const auto& item : list->items) write(item, depth + 1);
      out_ += 'e';
    } else if (const auto* tuple = value.get_if<PyTuple>()) {
      out_ += '(';
      for (const auto& item : tuple->items) write(item, depth + 1);
      out_ += 't';
    } else if (const auto* dict = value.get_if<PyDict>()) {
      out_ += "}(";
      for (const auto& [key, member] : dict->items()) {
        if (const auto* key_text = std::get_if<std::string>(&key))
          write_str(*key_text);
        else
          write_int(std::get<std::int64_t>(key));
        write(member, depth + 1);
      }
      out_ += 'u';
    } else if (const auto* array = value.get_if<NdArray>()) {
      write_array(*array);
    } else {
      out_ += 'N';
    }
  }

  void write_u32(std::uint64_t value) {
    for (int shift = 0; shift < 32; shift += 8) out_ += static_cast<char>(value >> shift);
  }

  void write_int(std::int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      out_ += static_cast<char>(value);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      write_u32(static_cast<std::uint32_t>(value));
    } else {
      out_ += "\x8a\x08";  // LONG1 of 8 bytes, two's complement
      write_u32(static_cast<std::uint64_t>(value) & 0xffffffff);
      write_u32(static_cast<std::uint64_t>(value) >> 32);
    }
  }

  void write_str(const std::string& text) {
    if (!is_utf8(text)) fail("can't write " + in_quotes(text) + ", which is not UTF-8");
    if (text.size() > kMaxBytes) fail("can't write a string of " + std::to_string(text.size()) + " bytes");
    out_ += 'X';
    write_u32(text.size());
    out_ += text;
  }

  // Writes `full` the first time and a reference to it afterwards, as a pickler's memo does.
  void once(int& memo, const std::string& full) {
    if (memo >= 0) {
      out_ += 'h';
      out_ += static_cast<char>(memo);
      return;
    }
    memo = next_memo_++;
    out_ += full;
    out_ += 'q';
    out_ += static_cast<char>(memo);
  }

  // _reconstruct(ndarray, (0,), b'b') and the state tuple up to the data: type 'O' (objects) or 'f' (float32).
  void begin_array(const std::vector<std::int64_t>& shape, char type) {
    once(reconstruct_, "cnumpy.core.multiarray\n_reconstruct\n");
    once(ndarray_, "cnumpy\nndarray\n");
    out_ += std::string(
        "K\0\x85"
        "C\x01"
        "b\x87R",
        8);
    out_ += "(K\x01(";
    for (const std::int64_t size : shape) write_int(size);
    out_ += 't';
    if (type == 'O' || float_ < 0) {
      once(dtype_, "cnumpy\ndtype\n");
      out_ += std::string("X\x02\0\0\0", 5) + (type == 'O' ? "O8" : "f4") + "\x89\x88\x87R";
      if (type == 'f') float_ = remember();
      // State of a dtype: version 3, byte order, no fields, item size and alignment of its own, flags (63: holds
      // references).
      out_ += std::string("(K\x03X\x01\0\0\0", 8) + (type == 'O' ? "|" : "<") +
              "NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK" + (type == 'O' ? '\x3f' : '\0') + "tb";
    } else {
      once(float_, "");
    }
    out_ += '\x89';
  }

  int remember() {
    out_ += 'q';
    out_ += static_cast<char>(next_memo_);
    return next_memo_++;
  }

  void write_array(const NdArray& array) {
    std::uint64_t count = 1;
    for (const std::int64_t size : array.shape)
      if (size < 0 || __builtin_mul_overflow(count, static_cast<std::uint64_t>(size), &count))
        fail("array of an impossible shape");
    if (count != array.data.size())
      fail("array of " + std::to_string(array.data.size()) + " values, its shape asks for " + std::to_string(count));
    if (count > kMaxBytes / sizeof(float)) fail("can't write an array of " + std::to_string(count) + " values");
    begin_array(array.shape, 'f');
    out_ += 'B';
    write_u32(count * sizeof(float));
    out_.append(reinterpret_cast<const char*>(array.data.data()), count * sizeof(float));
    out_ += "tb";
  }

  const std::string& name_;
  std::string out_;
  int next_memo_ = 0;
  int reconstruct_ = -1, ndarray_ = -1, dtype_ = -1, float_ = -1;
};

}  // namespace

std::string write_pickle(const PyValue& value, const std::string& name) { return PickleWriter(name).write(value); }

}  // namespace fp8::io
