// SPDX-License-Identifier: Apache-2.0
// The fp8 state of a model that trains: all that must be saved with it so that training continues bit for bit. JSON and
// plain tensors, no pickle.
//
//   DIR/fp8_state.json           {"version": 1,
//                                 "states": {"model.layers.0.mlp.up_proj":
//                                              {"recipe": "delayed habana HYBRID", "step": 300, ...}},
//                                 "weights": {"model.layers.0.mlp.up_proj.weight":
//                                               {"scale_inv": 0.001, "assigned": 300}}}
//   DIR/fp8_state.safetensors    NAME.forward.scale [n], NAME.forward.amax_history [H, n],
//                                the same of hybrid and backward   (F32)
//
// weights: parameters that quantized_model_init holds in fp8. Their codes are the model's own; WEIGHT.master is the
// high-precision copy, if any.
#pragma once

#include "fp8/transformer_engine/products/fp8_weight.h"

namespace fp8::te {

struct NamedState {
  std::string name;  ///< of the module, with a number where it has several products: "encoder.mlp.1"
  std::shared_ptr<Fp8State> state;
};

/// Every fp8 state of a model: te modules and converted ones, in the order of registration. Also gives the states these
/// names.
std::vector<NamedState> fp8_states(const torch::nn::Module& model);

struct ExtraState {
  io::Json json;
  std::map<std::string, at::Tensor> tensors;  ///< f32, on the CPU
};

ExtraState get_extra_state(const torch::nn::Module& model);
ExtraState get_extra_state(const std::vector<NamedState>& states);

/// The states that could not be taken over; empty: all were.
struct ExtraStateReport {
  std::vector<std::string>
      missing;  ///< products of the model without state: they keep the one they have (a new model: none)
  std::vector<std::string>
      unexpected;  ///< states of products that the model does not have, or weights it does not hold in fp8
};

/// Another history length is fine: it is resized at the next step. Throws c10::Error naming the product for sizes that
/// do not fit, values that are no scales, another version, or a weight held in fp8 whose scale is not there.
ExtraStateReport set_extra_state(const torch::nn::Module& model, const ExtraState& state);
ExtraStateReport set_extra_state(const std::vector<NamedState>& states, const ExtraState& state);

/// The two files, each written atomically; the folder is made if it is not there. Throws io::Error.
void save_extra_state(const torch::nn::Module& model, const std::filesystem::path& folder);
void save_extra_state(const std::vector<NamedState>& states, const std::filesystem::path& folder);
/// Throws io::Error naming the file, or what set_extra_state() throws.
ExtraStateReport load_extra_state(const torch::nn::Module& model, const std::filesystem::path& folder);
ExtraStateReport load_extra_state(const std::vector<NamedState>& states, const std::filesystem::path& folder);

/// One state as JSON and tensors, and back; what modules put into their archives.
io::Json state_json(const Fp8StateValues& values);
std::map<std::string, at::Tensor> state_tensors(const Fp8StateValues& values);
Fp8StateValues state_from(const std::string& name, const io::Json& json,
                          const std::map<std::string, at::Tensor>& tensors);

/// One state as a text, whatever its name: {"version": 1, "state": state_json(), "tensors": base64 of safetensors}.
/// And back; spaces at its end, and "state": null (then nothing is taken over), are fine. Throws c10::Error or
/// io::Error for any other text, and what set_extra_state() throws; the state is then what it was.
std::string state_text(const Fp8State& state);
void set_state_text(Fp8State& state, std::string_view text);

/// The state that a weight's codes need, as JSON, and back.
io::Json weight_json(const Fp8Weight& weight);
void set_weight(const std::string& name, Fp8Weight& weight, const io::Json& json, const at::Tensor& master);

/// Throws c10::Error unless `bytes` is empty: other libraries store their extra state as a pickle in a tensor of bytes,
/// an empty one where there is nothing to store.
void refuse_pickle(const std::string& name, const at::Tensor& bytes);

}  // namespace fp8::te
