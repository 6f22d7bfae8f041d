// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/assumed_form.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "fp8/configs/option_names.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/runtime/io/base/error.h"

namespace fp8::quant {
namespace {

using form_parts::fail;
using form_parts::shape_text;
using io::DType;
using io::Json;

bool is_fp8(DType dtype) {
  return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2 || dtype == DType::F8_E4M3FNUZ ||
         dtype == DType::F8_E5M2FNUZ;
}

std::string shown(const io::TensorInfo& info) {
  return io::printable(info.name) + " " + io::name_of(info.dtype) + " " + shape_text(info.shape);
}

/// One weight in codes and its scales, as the form spells them.
struct Found {
  std::string module;
  std::int64_t rows = 0, cols = 0;  ///< as stored
  std::vector<std::int64_t> scale;  ///< shape
  bool one = false;                 ///< a single scale
};

/// The endings of a form's scales, the ones it prefers first.
std::vector<const char*> scale_endings(CheckpointFormat form) {
  if (form == CheckpointFormat::fp8) return {".weight_scale_inv", ".weight_scale"};
  if (form == CheckpointFormat::inc) return {".scale_weight", ".dequant_weights.scale"};
  return {".weight_scale"};
}

std::vector<Found> find_weights(const io::Checkpoint& checkpoint, CheckpointFormat form) {
  std::vector<Found> found;
  const Json bytes = {{form_parts::kBytesAreCodes, true}};
  for (const auto& module : form_parts::fp8_modules(checkpoint, name_of(form), bytes, form == CheckpointFormat::inc)) {
    const auto& weight = checkpoint.info(module + ".weight");
    Found f{module, weight.shape[0], weight.shape[1], {}, false};
    const io::TensorInfo* scale = nullptr;
    for (const char* end : scale_endings(form)) {
      if (scale == nullptr && checkpoint.contains(module + end)) scale = &checkpoint.info(module + end);
    }
    if (scale == nullptr) {
      const auto others = form_parts::scales_beside(checkpoint, weight.name);
      fail(form_parts::place(checkpoint, weight.name),
           form_parts::assume_option(name_of(form)) + " expects its scales in " + module + scale_endings(form)[0] +
               ", found " + (others.empty() ? "none" : shown(checkpoint.info(others[0]))));
    }
    f.scale = scale->shape;
    f.one = scale->numel() == 1;
    found.push_back(std::move(f));
  }
  return found;
}

std::int64_t blocks(std::int64_t n, std::int64_t side) { return (n + side - 1) / side; }

/// The side of blocks that cuts every n into its number of blocks: a power of two, or the same quotient everywhere. 0:
/// none.
std::int64_t side_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& cuts) {
  const auto fits = [&](std::int64_t side) {
    return std::all_of(cuts.begin(), cuts.end(), [&](const auto& c) { return blocks(c.first, side) == c.second; });
  };
  for (std::int64_t side = 1; side <= form_parts::kMaxBlock; side *= 2) {
    if (fits(side)) return side;  // the only one, unless all are uncut; then they mean the same
  }
  for (const auto& [n, count] : cuts) {
    if (count > 1) return n % count == 0 && fits(n / count) ? n / count : 0;
  }
  return 0;
}

/// The blocks of weights with a grid of scales.
Block block_of(const io::Checkpoint& checkpoint, const std::vector<Found>& weights) {
  std::vector<std::pair<std::int64_t, std::int64_t>> rows, cols;
  const std::string* first = nullptr;
  for (const auto& w : weights) {
    if (w.scale.size() != 2) continue;
    if (first == nullptr) first = &w.module;
    rows.emplace_back(w.rows, w.scale[0]);
    cols.emplace_back(w.cols, w.scale[1]);
  }
  const Block block{side_of(rows), side_of(cols)};
  if (block.rows == 0 || block.cols == 0)
    fail(form_parts::place(checkpoint, *first + ".weight"),
         "no size of blocks fits the shapes of all scales; a quantization_config has to tell it");
  return block;
}

bool has_static(const io::Checkpoint& checkpoint, const std::vector<Found>& weights,
                std::initializer_list<const char*> endings) {
  return std::any_of(weights.begin(), weights.end(), [&](const Found& w) {
    return std::any_of(endings.begin(), endings.end(),
                       [&](const char* end) { return checkpoint.contains(w.module + end); });
  });
}

Json compressed_tensors_config(const io::Checkpoint& checkpoint, const std::vector<Found>& weights) {
  const bool is_static = has_static(checkpoint, weights, {".input_scale"});
  const bool one =
      std::all_of(weights.begin(), weights.end(), [](const Found& w) { return w.one && w.scale.size() <= 1; });
  const bool channel = std::all_of(weights.begin(), weights.end(),
                                   [](const Found& w) { return w.scale == std::vector<std::int64_t>{w.rows, 1}; });
  const auto arguments = [](const char* strategy, bool dynamic) {
    return Json{{"num_bits", 8}, {"type", "float"}, {"strategy", strategy}, {"symmetric", true}, {"dynamic", dynamic}};
  };
  Json weight = arguments(one       ? "tensor"
                          : channel ? "channel"
                                    : "block",
                          false),
       input = arguments(is_static ? "tensor" : "token", !is_static);
  if (!one && !channel) {
    const Block block = block_of(checkpoint, weights);
    weight["block_structure"] = {block.rows, block.cols};
    if (!is_static) {
      input = arguments("group", true);
      input["group_size"] = block.cols;
    }
  }
  Json group = {{"targets", {"Linear"}}, {"weights", weight}, {"input_activations", input}};
  return {
      {"quant_method", "compressed-tensors"}, {"format", "float-quantized"}, {"config_groups", {{"group_0", group}}}};
}

Json fp8_config(const io::Checkpoint& checkpoint, const std::vector<Found>& weights) {
  const bool one = std::all_of(weights.begin(), weights.end(), [](const Found& w) { return w.one; });
  Json config = {{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}, {"weight_block_size", nullptr}};
  if (one) {
    if (has_static(checkpoint, weights, {".input_scale", ".activation_scale"})) config["activation_scheme"] = "static";
    return config;
  }
  const Block block = block_of(checkpoint, weights);
  config["weight_block_size"] = {block.rows, block.cols};
  return config;
}

Json modelopt_config(const io::Checkpoint& checkpoint, const std::vector<Found>& weights) {
  const auto any = [&](std::size_t dimensions) {
    return std::any_of(weights.begin(), weights.end(), [&](const Found& w) { return w.scale.size() == dimensions; });
  };
  const bool channel = any(1) && !has_static(checkpoint, weights, {".input_scale"});
  return {{"quant_method", "modelopt"},
          {"quant_algo", any(4)    ? "fp8_pb_wo"
                         : channel ? "FP8_PER_CHANNEL_PER_TOKEN"
                                   : "FP8"}};
}

Json inc_config(const io::Checkpoint& checkpoint, const std::vector<Found>& weights) {
  const bool e5m2 = checkpoint.info(weights.front().module + ".weight").dtype == DType::F8_E5M2;
  return {{"mode", "LOAD"},
          {"fp8_config", e5m2 ? "E5M2" : "E4M3"},
          {"scale_method", "maxabs_hw"},
          {"dynamic_quantization", !has_static(checkpoint, weights, {".scale_input", ".quant_input.scale"})}};
}

Json assumed_config(const io::Checkpoint& checkpoint, CheckpointFormat form) {
  const auto weights = find_weights(checkpoint, form);
  switch (form) {
    case CheckpointFormat::fp8:
      return fp8_config(checkpoint, weights);
    case CheckpointFormat::modelopt:
      return modelopt_config(checkpoint, weights);
    case CheckpointFormat::inc:
      return inc_config(checkpoint, weights);
    case CheckpointFormat::quark:
      fail(checkpoint.folder().string(), form_parts::assume_option("quark") +
                                             ": allowed: fp8, compressed-tensors, modelopt, inc; quark's config says "
                                             "which of its codes have four bits");
    case CheckpointFormat::compressed_tensors:
    case CheckpointFormat::inc_vllm:
      break;
  }
  return compressed_tensors_config(checkpoint, weights);
}

/// Both of INC's and ours read alike.
CheckpointFormat plain(CheckpointFormat form) {
  return form == CheckpointFormat::inc_vllm ? CheckpointFormat::compressed_tensors : form;
}

}  // namespace

std::string describe_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known) {
  std::size_t count = 0;
  const io::TensorInfo* first = nullptr;
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (!is_fp8(info.dtype) && !form_parts::is_byte_weight(checkpoint, info) &&
        !form_parts::is_packed_weight(checkpoint, info))
      continue;
    if (std::find(known.begin(), known.end(), info.name) != known.end()) continue;
    if (count++ == 0) first = &info;
  }
  if (count == 0) return "";
  const auto scales = form_parts::scales_beside(checkpoint, first->name);
  return std::to_string(count) + " weights in codes, the first is " + shown(*first) +
         (scales.empty() ? " without scales" : " with scales " + shown(checkpoint.info(scales[0])));
}

void require_no_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known) {
  const std::string found = describe_codes(checkpoint, known);
  if (found.empty()) return;
  throw io::Error(checkpoint.folder().string() +
                  ": config.json has no quantization_config that says what its codes are: found " + found + "; " +
                  configs::option_name("convert_checkpoint() with assume", "fp8 convert --assume FORM") +
                  " reads them as that form (fp8, compressed-tensors, modelopt, inc)");
}

AssumedCheckpoint read_assumed(const io::Checkpoint& checkpoint, CheckpointFormat form) {
  AssumedCheckpoint out;
  out.config = read_quantization_config(checkpoint.folder());
  Json sidecar = form_parts::read_sidecar_file(checkpoint);
  const CheckpointForm& reader = form_of(plain(form));
  if (!out.config.is_null()) {
    const std::string where = form_parts::config_place(checkpoint);
    const CheckpointForm& said = form_of_config(out.config, where);
    if (said.format() != reader.format())
      fail(where,
           std::string("says ") + name_of(said.format()) + ", found " + form_parts::assume_option(name_of(form)));
  } else {
    if (describe_codes(checkpoint).empty())
      fail(checkpoint.folder().string(),
           form_parts::assume_option(name_of(form)) + ": expected weights in codes, found none");
    out.config = assumed_config(checkpoint, form);
  }
  if (sidecar.is_null()) sidecar = Json::object();
  sidecar[form_parts::kBytesAreCodes] = true;
  out.stored = reader.read(checkpoint, out.config, sidecar);
  return out;
}

}  // namespace fp8::quant
