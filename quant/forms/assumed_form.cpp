// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/forms/assumed_form.h"

#include "fp8/quant/forms/form_table.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/quant/names/model_stacks.h"

namespace fp8::quant {
namespace {

using io::DType, io::Json;

bool is_fp8(DType dtype) {
  return dtype == DType::F8_E4M3 || dtype == DType::F8_E5M2 || dtype == DType::F8_E4M3FNUZ ||
         dtype == DType::F8_E5M2FNUZ;
}

std::string in_message(const io::TensorInfo& info) {
  return io::printable(info.name) + " " + io::name_of(info.dtype) + " " + io::shape_text(info.shape);
}

std::int64_t blocks(std::int64_t n, std::int64_t side) { return (n + side - 1) / side; }

/// The side of blocks that cuts every n into its number of blocks: a power of two, or the same quotient everywhere. 0:
/// none.
std::int64_t side_of(const std::vector<std::pair<std::int64_t, std::int64_t>>& cuts) {
  const auto fits = [&](std::int64_t side) {
    return std::ranges::all_of(cuts, [&](const auto& c) { return blocks(c.first, side) == c.second; });
  };
  for (std::int64_t side = 1; side <= form_parts::kMaxBlock; side *= 2) {
    if (fits(side)) return side;  // the only one, unless all are uncut; then they mean the same
  }
  for (const auto& [n, count] : cuts)
    if (count > 1) return n % count == 0 && fits(n / count) ? n / count : 0;
  return 0;
}

Orientation orientation_of(const io::Checkpoint& checkpoint) {
  const auto config = checkpoint.folder() / io::kConfigFile;
  return codes_orientation(checkpoint, io::is_there(config)
                                           ? io::read_python_json(io::source_file(checkpoint.folder(), io::kConfigFile))
                                           : Json::object());
}

/// "; --assume FORM reads such scales": by their name and shape. Empty if they are of no form that is known.
std::string likely_form(const io::Checkpoint& checkpoint, const io::TensorInfo& weight) {
  const auto scales = form_parts::scales_beside(checkpoint, weight.name);
  if (scales.empty() || weight.shape.size() != 2) return "";
  const auto& scale = checkpoint.info(scales.front());
  const std::string& name = scale.name;
  const auto ends = [&](std::string_view end) { return name.ends_with(end); };
  const Orientation stands =
      ends(".scale_weight") || ends(".dequant_weights.scale") ? orientation_of(checkpoint) : Orientation::upright;
  const char* form = nullptr;
  if (stands == Orientation::transposed)
    form = "inc";
  else if (stands != Orientation::upright)
    return "; they are of form inc where weights stand as [in, out], of form fp8 where as [out, in]";
  else if (scale.shape == std::vector<std::int64_t>{weight.shape[0], 1})
    form = "compressed-tensors";
  else if (scale.shape.size() == 4 || (scale.numel() > 1 && scale.shape.size() == 1))
    form = "modelopt";
  else if (ends(".weight_scale") || ends(".weight_scale_inv") || ends(".scale_weight") || ends(".scale"))
    form = "fp8";
  return form == nullptr ? "" : "; " + form_parts::assume_option(form) + " reads such scales";
}

/// Throws unless weights that no config explains stand as the form has them: a transposed weight has the right size
/// and another meaning.
void require_orientation(const io::Checkpoint& checkpoint, const CheckpointForm& form, const StoredCheckpoint& stored) {
  const Orientation found = orientation_of(checkpoint);
  const bool both = std::ranges::any_of(stored.weights, [](const StoredWeight& w) {
    return w.scale.ends_with(".scale_weight") || w.scale.ends_with(".dequant_weights.scale");
  });
  const Orientation wanted = form.stores_transposed() ? Orientation::transposed : Orientation::upright;
  if (found == wanted || (found == Orientation::unknown && !both)) return;
  const std::string where = checkpoint.folder().string(), option = form_parts::assume_option(form.name());
  if (found == Orientation::unknown)
    io::fail_at(where,
                "{}: neither config.json's sizes nor a bias prove whether weights stand as [out, in], or as [in, out] "
                "in INC's form; expected a config.json of a known family with its sizes",
                option);
  if (found == Orientation::mixed)
    io::fail_at(where, "{}: some weights stand as [out, in], others as [in, out], as config.json and biases say",
                option);
  const bool upright = found == Orientation::upright;
  io::fail_at(where, "{}: weights stand as {}, {}'s as {}; {} reads them", option, upright ? "[out, in]" : "[in, out]",
              form.name(), upright ? "[in, out]" : "[out, in]", form_parts::assume_option(upright ? "fp8" : "inc"));
}

AssumedWeights find_weights(const io::Checkpoint& checkpoint, const CheckpointForm& form) {
  AssumedWeights found{checkpoint, {}};
  const Json bytes = {{form_parts::kBytesAreCodes, true}};
  for (const auto& module : form_parts::fp8_modules(checkpoint, form.name(), bytes, form.holds_e5m2())) {
    const auto& weight = checkpoint.info(module + ".weight");
    const io::TensorInfo* scale = nullptr;
    for (const char* end : form.scale_endings())
      if (scale == nullptr && checkpoint.contains(module + end)) scale = &checkpoint.info(module + end);
    if (const std::string other = form_parts::upright_scale(checkpoint, module);
        scale == nullptr && !form.stores_transposed() && !other.empty())
      scale = &checkpoint.info(other);
    if (scale == nullptr) {
      const auto others = form_parts::scales_beside(checkpoint, weight.name);
      io::fail_at(form_parts::place(checkpoint, weight.name), "{} expects its scales in {}{}, found {}",
                  form_parts::assume_option(form.name()), module, form.scale_endings()[0],
                  others.empty() ? "none" : in_message(checkpoint.info(others[0])) + likely_form(checkpoint, weight));
    }
    found.weights.push_back(
        {module, weight.shape[0], weight.shape[1], scale->shape, scale->numel() == 1, io::size_of(scale->dtype) == 1});
  }
  return found;
}

Json assumed_config(const io::Checkpoint& checkpoint, const CheckpointForm& form) {
  const std::string folder = checkpoint.folder().string(), option = form_parts::assume_option(form.name());
  if (describe_codes(checkpoint).empty()) io::fail_at(folder, "{}: expected weights in codes, found none", option);
  if (!form.can_be_assumed())
    io::fail_at(folder, "{}: allowed: {}; {}", option, io::joined(form_names(&CheckpointForm::can_be_assumed)),
                form.assume_problem());
  return form.assumed_config(find_weights(checkpoint, form));
}

}  // namespace

bool AssumedWeights::has_input_scales() const {
  return any([&](const AssumedWeight& w) {
    return checkpoint.contains(w.module + ".quant_input.scale") ||
           std::ranges::any_of(form_parts::kInputScales,
                               [&](const char* end) { return checkpoint.contains(w.module + end); });
  });
}

Block AssumedWeights::block() const {
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
    io::fail_at(form_parts::place(checkpoint, *first + ".weight"),
                "no size of blocks fits the shapes of all scales; a quantization_config has to tell it");
  return block;
}

std::string describe_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known) {
  std::size_t count = 0;
  const io::TensorInfo* first = nullptr;
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (form_parts::is_fp8_mark(info)) continue;
    if (!is_fp8(info.dtype) && !form_parts::is_byte_weight(checkpoint, info) &&
        !form_parts::is_packed_weight(checkpoint, info))
      continue;
    if (std::ranges::find(known, info.name) != known.end()) continue;
    if (count++ == 0) first = &info;
  }
  if (count == 0) return "";
  const auto scales = form_parts::scales_beside(checkpoint, first->name);
  return io::message("{} weights in codes, the first is {}{}", count, in_message(*first),
                     scales.empty()
                         ? " without scales"
                         : " with scales " + in_message(checkpoint.info(scales[0])) + likely_form(checkpoint, *first));
}

void require_no_codes(const io::Checkpoint& checkpoint, const std::vector<std::string>& known) {
  const std::string found = describe_codes(checkpoint, known);
  if (found.empty()) return;
  io::fail<io::Error>(
      "{}: config.json has no quantization_config that says what its codes are: found {}; {} reads them as that form "
      "({})",
      checkpoint.folder().string(), found, io::option("convert_assume", "convert_checkpoint() with assume", "FORM"),
      io::joined(form_names(&CheckpointForm::can_be_assumed)));
}

AssumedCheckpoint read_assumed(const io::Checkpoint& checkpoint, const CheckpointForm& form) {
  AssumedCheckpoint out;
  out.config = read_quantization_config(checkpoint);
  const bool said = !out.config.is_null();
  Json sidecar = form_parts::read_sidecar_file(checkpoint);
  if (said) {
    const std::string where = form_parts::config_place(checkpoint);
    const CheckpointForm& other = form_of_config(out.config, where);
    if (!form.recognizes(out.config))
      io::fail_at(where, "says {}, found {}", other.name(), form_parts::assume_option(form.name()));
  } else {
    out.config = assumed_config(checkpoint, form);
  }
  if (sidecar.is_null()) sidecar = Json::object();
  sidecar[form_parts::kBytesAreCodes] = true;
  out.stored = form.read(checkpoint, out.config, sidecar);
  if (!said) require_orientation(checkpoint, form, out.stored);
  return out;
}

}  // namespace fp8::quant
