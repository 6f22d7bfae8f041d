// SPDX-License-Identifier: Apache-2.0
// TorchScript models for measure and run: loading them, and turning a WAV or safetensors file into arguments of
// forward.
//
//   safetensors   tensors named as forward's arguments; dimension 0 counts samples, in order. A bool, int or float
//   argument takes a
//                 tensor of one element. Arguments that the file lacks take their defaults.
//   wav           chunks of --chunk frames (the remainder is dropped): the first Tensor argument is [samples, chunk],
//   an int argument
//                 called sr, sample_rate or sampling_rate is the file's rate, the others take their defaults.
#pragma once
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "fp8/tools/commands/cli/context.h"
#include "fp8/tools/commands/inputs/data_options.h"

namespace torch::jit {
struct Module;
}

namespace fp8::commands {

/// The model in eval mode on the context's device and, floating point, in its dtype; its state as reset_states() (if it
/// has one) leaves it. Tracing writes the device of its day into the code, torch.device("cpu") or "cuda:0", and tensors
/// there: these constants become the context's device, and go to it. Throws io::Error for a missing or foreign file.
torch::jit::Module load_script(const std::filesystem::path& path, const Context& context);

/// model.forward(arguments). Throws io::Error naming `path`, with the last line of what TorchScript says, if that
/// fails.
c10::IValue call_forward(torch::jit::Module& model, std::vector<c10::IValue> arguments,
                         const std::filesystem::path& path);

/// True if a method of the model sets an attribute: what it computes depends on the calls before.
bool keeps_state(const torch::jit::Module& model);

/// The samples that `options` leave of a file.
class ScriptInputs {
 public:
  /// Throws io::Error naming file and argument: nothing for an argument, different numbers of samples, none left.
  ScriptInputs(const std::filesystem::path& data, const torch::jit::Module& model, const ScriptDataOptions& options);

  std::int64_t samples() const { return samples_; }
  std::int64_t batch() const { return batch_; }
  /// Arguments of forward for samples [first, first + count); floating point tensors in `dtype` if given.
  std::vector<c10::IValue> arguments(std::int64_t first, std::int64_t count, at::Device device,
                                     std::optional<at::ScalarType> dtype) const;

 private:
  struct Argument {
    std::string name;
    at::Tensor tensor;  ///< [samples, ...]; undefined: `value` for every call
    c10::IValue value;
  };
  void read_tensors(const std::filesystem::path& data, const torch::jit::Module& model);
  void read_sound(const std::filesystem::path& data, const torch::jit::Module& model, std::int64_t chunk);

  std::vector<Argument> arguments_;
  std::int64_t first_ = 0, samples_ = 0, batch_ = 1;
};

/// Every tensor in what forward returned, named "output", "output.0", "output.key", ... Throws io::Error for other
/// things than tensors, tuples, lists and dicts of strings; None is passed over.
std::vector<std::pair<std::string, at::Tensor>> output_tensors(const c10::IValue& value);

}  // namespace fp8::commands
