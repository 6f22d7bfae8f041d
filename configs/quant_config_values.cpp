// SPDX-License-Identifier: Apache-2.0
// What readers of values share, and "scale_params" (see quant_config_keys.h).
#include "fp8/configs/quant_config_keys.h"
#include "fp8/runtime/io/base/file.h"

namespace fp8::configs::detail {
namespace {

// Intel Neural Compressor adds these two to what it saves; they are hp_dtype and fp8_config once more.
bool is_injected(const std::string& name) { return name == "hp_dtype" || name == "lp_dtype"; }

}  // namespace

io::Json number_in(const io::Json& json) {
  constexpr std::size_t kLongest = 40;
  if (!json.is_string() || json.get_ref<const std::string&>().size() > kLongest) return json;
  io::Json number = io::Json::parse(json.get_ref<const std::string&>(), nullptr, /*allow_exceptions=*/false);
  return number.is_number() ? number : json;
}

float backoff(const KeyValue& value) {
  const io::Json found = number_in(value.json);
  const double number = found.is_number() ? found.get<double>() : 0.0;
  if (!(number >= 0x1p-20 && number <= 1.0)) reject(value, "a number from 2^-20 to 1");
  return static_cast<float>(number);
}

void read_scale_params(const KeyValue& value, QuantConfig& config) {
  if (!value.json.is_object())
    reject(value, "an object with input_backoff, weight_backoff, parameters of the observer");
  const std::string prefix = value.where.substr(0, value.where.size() - 1);  // without the closing quote
  for (const auto& [name, json] : value.json.items()) {
    const KeyValue item{json, prefix + "." + io::printable(name) + "'"};
    if (name == "input_backoff") {
      config.scale_params.input_backoff = backoff(item);
    } else if (name == "weight_backoff") {
      config.scale_params.weight_backoff = backoff(item);
    } else if (!is_injected(name)) {
      const io::Json number = number_in(json);
      if (!number.is_number()) reject(item, "a number");
      config.scale_params.observer.emplace_back(name, number.get<double>());
    }
  }
}

std::string show_scale_params(const QuantConfig& config) {
  io::Json json = io::Json::object();
  if (config.scale_params.input_backoff) json["input_backoff"] = *config.scale_params.input_backoff;
  if (config.scale_params.weight_backoff) json["weight_backoff"] = *config.scale_params.weight_backoff;
  for (const auto& [name, value] : config.scale_params.observer) json[name] = value;
  return json.dump(-1, ' ', false, io::Json::error_handler_t::replace);
}

std::string found_text(const io::Json& json) {
  if (json.is_object()) return json.empty() ? "{}" : "an object";
  if (json.is_array()) return json.empty() ? "[]" : "an array";
  return io::printable(json.dump(-1, ' ', false, io::Json::error_handler_t::replace), 80);
}

void reject(const KeyValue& value, const std::string& allowed) {
  throw io::Error(value.where + ": found " + found_text(value.json) + ", allowed: " + allowed);
}

}  // namespace fp8::configs::detail
