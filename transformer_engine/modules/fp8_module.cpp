// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/modules/fp8_module.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <torch/nn/module.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <cstring>

#include "fp8/transformer_engine/modules/extra_state.h"

namespace fp8::te {
namespace {

std::string key_of(std::size_t i) { return "fp8_extra_state_" + std::to_string(i); }
/// Of one of a state's tensors: archives take no dots.
std::string key_of(std::size_t i, const std::string& tensor) {
  std::string key = key_of(i) + "_" + tensor;
  std::ranges::replace(key, '.', '_');
  return key;
}
constexpr const char* kForeignKeys[] = {"_extra_state", "fp8_extra_state"};

at::Tensor bytes_of(const std::string& text) {
  at::Tensor t = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(t.mutable_data_ptr(), text.data(), text.size());
  return t;
}

/// Those of the module itself; none where it is no torch::nn::Module.
std::vector<std::pair<std::string, Fp8Weight*>> own_weights(const Fp8Module& self) {
  const auto* module = dynamic_cast<const torch::nn::Module*>(&self);
  return module == nullptr ? std::vector<std::pair<std::string, Fp8Weight*>>()
                           : fp8_weights(*module, /*recurse=*/false);
}

std::string weight_key(const std::string& parameter) { return "fp8_weight_" + parameter; }

io::Json json_of(const at::Tensor& bytes, const std::string& name) {
  const at::Tensor text = bytes.cpu().contiguous();
  return io::parse_json({static_cast<const char*>(text.const_data_ptr()), static_cast<std::size_t>(text.nbytes())},
                        name);
}

/// Throws for the first of the arguments that is true.
void refuse(const char* module, std::initializer_list<std::pair<const char*, bool>> arguments, const char* why) {
  for (const auto& [name, value] : arguments)
    TORCH_CHECK(!value, "[", module, "] ", name, ": found true, allowed: false (", why, ")");
}

}  // namespace

void Fp8Module::save_fp8(torch::serialize::OutputArchive& archive) const {
  const auto states = fp8_states();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const Fp8StateValues values = states[i]->values();
    archive.write(key_of(i), bytes_of(state_json(values).dump()), /*is_buffer=*/true);
    for (const auto& [key, tensor] : state_tensors(values)) archive.write(key_of(i, key), tensor, /*is_buffer=*/true);
  }
  for (const auto& [name, weight] : own_weights(*this)) {
    archive.write(weight_key(name), bytes_of(weight_json(*weight).dump()), /*is_buffer=*/true);
    if (weight->master().defined()) archive.write(weight_key(name) + "_master", weight->master(), /*is_buffer=*/true);
  }
}

void Fp8Module::load_fp8(torch::serialize::InputArchive& archive) {
  const auto states = fp8_states();
  for (const char* foreign : kForeignKeys) {
    at::Tensor blob;
    if (archive.try_read(foreign, blob, /*is_buffer=*/true) && blob.defined())
      refuse_pickle(states.empty() ? foreign : states[0]->name(), blob);
  }
  for (std::size_t i = 0; i < states.size(); ++i) {
    const std::string& name = states[i]->name();
    at::Tensor text;
    if (!archive.try_read(key_of(i), text, /*is_buffer=*/true)) {
      TORCH_WARN("[load] '", name, "': the archive holds no fp8 state: its scales stay as they are");
      continue;
    }
    const io::Json json = json_of(text, name);
    std::map<std::string, at::Tensor> tensors;
    for (const char* key : {"forward.scale", "forward.amax_history", "hybrid.scale", "hybrid.amax_history",
                            "backward.scale", "backward.amax_history", "amax_seen"}) {
      at::Tensor t;
      if (archive.try_read(key_of(i, key), t, /*is_buffer=*/true)) tensors[key] = t.cpu();
    }
    states[i]->set_values(state_from(name, json, tensors));
  }
  for (const auto& [name, weight] : own_weights(*this)) {
    at::Tensor text;
    TORCH_CHECK(archive.try_read(weight_key(name), text, /*is_buffer=*/true), "[load] parameter '", name,
                "' is held in fp8, and the archive holds no scale for it: expected ",
                "an archive of a module made in quantized_model_init");
    at::Tensor master;
    (void)archive.try_read(weight_key(name) + "_master", master, /*is_buffer=*/true);
    set_weight(name, *weight, json_of(text, name), master);
  }
}

void Fp8Module::clone_fp8(torch::nn::Module& copy) const {
  const auto from = fp8_states(), to = dynamic_cast<const Fp8Module&>(copy).fp8_states();
  for (std::size_t i = 0; i < from.size(); ++i) {
    to[i]->set_values(from[i]->values());
    to[i]->set_recipe(from[i]->own_recipe());
    to[i]->keep_high_precision(from[i]->keeps_high_precision());
  }
  auto parameters = copy.named_parameters(/*recurse=*/false);
  for (const auto& original : dynamic_cast<const torch::nn::Module&>(*this).named_parameters(/*recurse=*/false)) {
    if (!original.value().defined() || fp8_weight(original.value()) == nullptr) continue;
    at::Tensor& mine = parameters[original.key()];
    TORCH_CHECK(mine.is_hpu(), "[clone] parameter '", original.key(), "' is held in fp8: device: found ", mine.device(),
                ", allowed: hpu");
    own_fp8_weight(mine, original.value());
  }
}

void check_parallel(const char* module, const ParallelOptions& o) {
  TORCH_CHECK(o.tp_size == 1, "[", module, "] tp_size: found ", o.tp_size,
              ", allowed: 1 (tensor parallelism comes with distributed training)");
  refuse(module, {{"sequence_parallel", o.sequence_parallel}}, "it comes with distributed training");
  TORCH_CHECK(o.tp_group == nullptr || o.tp_group->size() == 1, "[", module, "] tp_group: found one of ",
              o.tp_group == nullptr ? 0 : o.tp_group->size(),
              " ranks, allowed: none, or of 1 (tensor parallelism comes with distributed training)");
  refuse(module,
         {{"ub_overlap_ag", o.ub_overlap_ag},
          {"ub_overlap_rs", o.ub_overlap_rs},
          {"ub_overlap_rs_dgrad", o.ub_overlap_rs_dgrad},
          {"ub_bulk_dgrad", o.ub_bulk_dgrad},
          {"ub_bulk_wgrad", o.ub_bulk_wgrad}},
         "one process has no communication to overlap");
  const std::string& mode = o.parallel_mode;
  TORCH_CHECK(mode.empty() || mode == "column" || mode == "row", "[", module, "] parallel_mode: found \"", mode,
              "\", allowed: \"\", \"column\", \"row\"");
}

void refuse_wgrad_options(const char* module, bool fuse_wgrad_accumulation, bool delay_wgrad_compute) {
  refuse(module, {{"fuse_wgrad_accumulation", fuse_wgrad_accumulation}},
         "weights have no main_grad here; gradients accumulate in grad()");
  refuse(module, {{"delay_wgrad_compute", delay_wgrad_compute}},
         "there is no backward_dw() here: backward() computes all gradients");
}

void refuse_fp8_results(const char* module, bool fp8_output, bool fp8_grad) {
  refuse(module, {{"fp8_output", fp8_output}}, "results are in the activation dtype");
  refuse(module, {{"fp8_grad", fp8_grad}}, "gradients of inputs are in the input's dtype");
}

void check_size(const char* module, const char* argument, std::int64_t size) {
  constexpr std::int64_t kLargest = std::int64_t{1} << 30;
  TORCH_CHECK(size >= 1 && size <= kLargest, "[", module, "] ", argument, ": found ", size, ", allowed: 1 to ",
              kLargest);
}

void check_input(const char* module, const std::string& name, const at::Tensor& x, std::int64_t features) {
  TORCH_CHECK(x.defined(), "[", module, "] '", name, "': input: found none, allowed: [..., ", features, "]");
  TORCH_CHECK(x.dim() >= 1 && x.size(-1) == features, "[", module, "] '", name, "': input: found sizes ", x.sizes(),
              ", allowed: [..., ", features, "]");
}

}  // namespace fp8::te
