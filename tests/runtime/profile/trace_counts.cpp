// SPDX-License-Identifier: Apache-2.0
// Apart from the tests, for it is optimized: at -O0 a trace of a million events takes half a minute.
#include "runtime/profile/trace_counts.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace fp8::runtime {
namespace {

class TraceCounter : public nlohmann::json_sax<nlohmann::json>, public TraceCounts {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 1) numbers[key_] = value;
    return true;
  }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t& value) override {
    key_ = value;
    return true;
  }
  bool string(string_t& value) override {
    if (depth_ == 3 && key_ == "cat") category_ = value;
    if (depth_ == 3 && key_ == "ph") kind_ = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (++depth_ == 3) category_ = kind_ = "";
    return true;
  }
  bool end_object() override {
    if (depth_-- == 3) ++events[category_ + " " + kind_];
    return true;
  }
  bool start_array(std::size_t) override { return ++depth_ > 0; }
  bool end_array() override { return depth_-- > 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    ADD_FAILURE() << error.what();
    return false;
  }

 private:
  int depth_ = 0;
  std::string key_, category_, kind_;
};

}  // namespace

TraceCounts counted(const std::string& path) {
  TraceCounter counter;
  std::ifstream file(path, std::ios::binary);
  nlohmann::json::sax_parse(file, &counter);
  return counter;
}

}  // namespace fp8::runtime
