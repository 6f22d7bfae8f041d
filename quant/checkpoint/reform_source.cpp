// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform_source.h"

#include <algorithm>

#include "fp8/quant/checkpoint/completeness.h"
#include "fp8/quant/checkpoint/requantize.h"
#include "fp8/quant/forms/assumed_form.h"
#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/sidecar.h"
#include "fp8/quant/names/model_stacks.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

recipes::FloatType type_of_config(const io::Json& config) {
  for (const char* key : {"dtype", "torch_dtype"}) {
    const auto it = config.find(key);
    if (it == config.end() || !it->is_string()) continue;
    if (*it == "float32") return recipes::FloatType::F32;
    if (*it == "float16") return recipes::FloatType::F16;
  }
  return recipes::FloatType::BF16;
}

const fs::path& existing_folder(const fs::path& model) {
  require_model_folder(model);
  return model;
}

}  // namespace

ConvertSource::ConvertSource(const fs::path& model, const std::string& assume) : checkpoint(existing_folder(model)) {
  config = io::read_python_json(io::source_file(model, io::kConfigFile));
  if (!config.is_object())
    throw io::Error((model / io::kConfigFile).string() + ": expected an object, found " + config.type_name());
  require_promised_shapes(checkpoint, config);
  if (fs::exists(model / kSidecarName)) sidecar = io::read_json(io::source_file(model, kSidecarName));
  if (!assume.empty()) {
    auto assumed = read_assumed(checkpoint, form_named(assume));
    quantization = std::move(assumed.config);
    stored = std::move(assumed.stored);
  } else {
    quantization = read_quantization_config(checkpoint);
    stored = read_stored(checkpoint);
  }
  require_complete(checkpoint, config, CheckpointModules(checkpoint, config));
  for (auto& w : stored.weights) {
    Scheme& scheme = w.spec.scheme;  // a config copied from elsewhere may say of its scales what they are not
    if (!scheme.power_of_two || io::size_of(checkpoint.info(w.scale).dtype) == 1) continue;
    const auto scales = read_scale_inv(checkpoint, w);
    scheme.power_of_two = std::all_of(scales.begin(), scales.end(), is_power_of_two);
  }
  type = type_of_config(config);
}

std::string ConvertSource::form_name() const {
  return high_precision() ? "high precision" : form_of_config(quantization, checkpoint.folder().string()).name();
}

}  // namespace fp8::quant
