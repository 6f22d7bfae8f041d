// SPDX-License-Identifier: Apache-2.0
#include <yaml-cpp/emitter.h>

#include <charconv>
#include <cmath>

#include "fp8/runtime/io/yaml/yaml.h"

namespace fp8::io {
namespace {

/// Shortest digits that parse to the same double, as a float: 1 is "1.0".
std::string float_text(double value) {
  if (std::isnan(value)) return ".nan";
  if (std::isinf(value)) return value < 0 ? "-.inf" : ".inf";
  char buffer[32];
  std::string text(buffer, std::to_chars(buffer, buffer + sizeof buffer, value).ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class Writer {
 public:
  explicit Writer(const std::map<std::string, std::string>& comments) : comments_(comments) {}

  std::string text(const Json& value) && {
    write(value, "");
    return std::string(out_.c_str()) + "\n";
  }

 private:
  void scalar(const Json& value) {
    if (value.is_string()) {
      const auto& text = value.get_ref<const std::string&>();
      // yaml-cpp writes a carriage return as it is, and reads one before a line's end as part of that.
      const bool carriage_return = text.find('\r') != std::string::npos;
      if (!yaml_scalar(text).is_string() || text == "<<" || carriage_return) out_ << YAML::DoubleQuoted;
      out_ << text;
    } else if (value.is_null()) {
      out_ << YAML::Null;
    } else if (value.is_number_float()) {
      out_ << float_text(value.get<double>());
    } else if (value.is_boolean()) {
      out_ << value.get<bool>();
    } else {
      out_ << value.dump();
    }
  }
  void comment(const std::string& pointer) {
    const auto found = comments_.find(pointer);
    if (found != comments_.end()) out_ << YAML::Comment(found->second);
  }
  void write(const Json& value, const std::string& pointer) {
    if (!value.is_structured()) {
      scalar(value);
      return comment(pointer);
    }
    if (value.empty()) out_ << YAML::Flow;
    const bool map = value.is_object();
    if (map)
      out_ << YAML::BeginMap;
    else
      out_ << YAML::BeginSeq;
    std::size_t at = 0;
    for (const auto& [key, part] : value.items()) {
      const std::string name = map ? key : std::to_string(at++);
      const std::string inner = json_pointer(pointer, name);
      if (map) {
        out_ << YAML::Key;
        scalar(name);
        if (part.is_structured() && !part.empty()) comment(inner);
        out_ << YAML::Value;
      }
      write(part, inner);
    }
    if (map)
      out_ << YAML::EndMap;
    else
      out_ << YAML::EndSeq;
    if (value.empty()) comment(pointer);
  }

  YAML::Emitter out_;
  const std::map<std::string, std::string>& comments_;
};

}  // namespace

std::string yaml_text(const Json& value, const std::map<std::string, std::string>& comments) {
  return Writer(comments).text(value);
}

}  // namespace fp8::io
