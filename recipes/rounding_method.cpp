// SPDX-License-Identifier: Apache-2.0
#include "fp8/recipes/rounding_method.h"

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/text.h"

namespace fp8::recipes {
namespace {

using RoundingMethods = io::Registry<RoundingMethod>;

RoundingMethods& rounding_methods() {
  const auto row = [](const char* name, decltype(RoundingMethod::round) round) {
    return RoundingMethods::Named{name, std::make_shared<const RoundingMethod>(RoundingMethod{name, std::move(round)})};
  };
  static auto& table =
      *new RoundingMethods(std::vector{row(kNearest, nullptr), row("gptq", kernels::round_compensated)});
  return table;
}

RoundingMethods::Entry entry_of(RoundingMethod method) {
  const std::string name = method.name, quoted = io::in_quotes(name);
  if (!io::is_name(name, "-"))
    io::fail<std::invalid_argument>("rounding: found the name {}, allowed: lower case letters, digits and '-'", quoted);
  if (!method.round) io::fail<std::invalid_argument>("rounding {}: found no function", quoted);
  return {rounding_methods(), name, std::make_shared<const RoundingMethod>(std::move(method)),
          io::message("rounding {}: the name is taken", quoted)};
}

}  // namespace

std::shared_ptr<const RoundingMethod> rounding_method(std::string_view name) {
  if (auto found = rounding_methods().find(std::string(name))) return found;
  io::fail<std::invalid_argument>("rounding: found {}, allowed: {}", io::in_quotes(std::string(name)),
                                  io::joined(rounding_method_names()));
}

std::vector<std::string> rounding_method_names() { return rounding_methods().names(); }

RoundingRegistration::RoundingRegistration(RoundingMethod method) : entry_(entry_of(std::move(method))) {}

}  // namespace fp8::recipes
