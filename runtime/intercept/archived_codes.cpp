// SPDX-License-Identifier: Apache-2.0
// Pickles (torch::save, Python's torch.save) hold a tensor's bytes and a table {str: bool} of what else it is. Codes of
// a converted weight put a line into it that names their scales, so that what is loaded is known as codes, and taken in
// by a module of the same
// scales alone:    "fp8_codes {json}": true
#include <torch/csrc/jit/serialization/pickler_helper.h>

#include <string>
#include <unordered_map>

#include "fp8/runtime/intercept/host_codes.h"
#include "fp8/runtime/intercept/unknown_scales.h"
#include "fp8/runtime/intercept/weight_tag.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime {
namespace {

constexpr std::string_view kPrefix = "fp8_codes ";

using Lines = std::unordered_map<std::string, bool>;

void write_line(const at::Tensor& t, Lines& lines) {
  if (!c10::isFloat8Type(t.scalar_type())) return;
  const auto tag = tag_in_memory(t);
  if (!tag || !tag->has_codes_of(t)) return;
  const bool one = tag->handler->one_scale();
  const io::Json line = {{"modules", tag->modules},
                         {"what", tag->handler->describe()},
                         {"one_scale", one},
                         {"scales", tag->is(t) || one ? tag->handler->scales() : ""}};
  lines[std::string(kPrefix) + line.dump()] = true;
}

void read_line(const at::Tensor& t, Lines& lines) {
  for (const auto& [key, value] : lines) {
    if (!key.starts_with(kPrefix) || !c10::isFloat8Type(t.scalar_type()) || t.numel() == 0) continue;
    const io::Json line = io::Json::parse(key.substr(kPrefix.size()), nullptr, /*allow_exceptions=*/false);
    TORCH_CHECK(line.is_object() && line.contains("modules") && line["modules"].is_array() &&
                    line.value("what", io::Json()).is_string() && line.value("scales", io::Json()).is_string() &&
                    line.value("one_scale", io::Json()).is_boolean(),
                "[load] expected a description of fp8 codes, found '", key.substr(0, 200), "'");
    auto tag = c10::make_intrusive<WeightTag>();
    for (const auto& module : line["modules"])
      tag->modules.push_back(module.is_string() ? module.get<std::string>() : "?");
    tag->lie_at(t);
    tag->handler = std::make_shared<UnknownScales>(line["what"].get<std::string>(), line["scales"].get<std::string>(),
                                                   line["one_scale"].get<bool>());
    put_tag(t, std::move(tag));
    if (t.is_cpu()) guard_host_codes(t);
  }
}

struct Registration {
  Registration() {
    for (const auto device : {c10::DeviceType::HPU, c10::DeviceType::CPU}) {
      if (torch::jit::GetBackendMetaSerialization()[static_cast<std::size_t>(device)].has_value())
        continue;  // a vendor's
      torch::jit::GetBackendMetaAllowlist().insert(device);
      torch::jit::TensorBackendMetaRegistry(device, &write_line, &read_line);
    }
  }
};
const Registration g_registration;

}  // namespace
}  // namespace fp8::runtime
