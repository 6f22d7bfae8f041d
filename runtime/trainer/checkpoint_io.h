// SPDX-License-Identifier: Apache-2.0
// A training state as a folder: trainer_state.json and trainer_state.safetensors, no pickle. The folder is there whole
// or not at all.
#pragma once
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <map>

#include "fp8/runtime/io/json/json.h"

namespace torch::nn {
class Module;
}

namespace torch::optim {
class Optimizer;
}

namespace fp8::trainer {

struct TrainingState {
  io::Json json = io::Json::object();
  std::map<std::string, at::Tensor> tensors = {};  ///< any device; read back on the CPU
};

class HPUCheckpointIO {
 public:
  static constexpr const char* kJson = "trainer_state.json";
  static constexpr const char* kTensors = "trainer_state.safetensors";

  /// Writes `folder` under a temporary name beside it, syncs, renames; a folder that was there before is replaced.
  /// fill: adds more files to the temporary folder. storage_options: there are none; std::invalid_argument if given.
  /// Throws io::Error.
  void save_checkpoint(const TrainingState& state, const std::filesystem::path& folder,
                       const std::function<void(const std::filesystem::path&)>& fill = {},
                       const std::optional<io::Json>& storage_options = std::nullopt) const;
  /// Throws io::Error naming the file and what is wrong with it.
  TrainingState load_checkpoint(const std::filesystem::path& folder) const;
  void remove_checkpoint(const std::filesystem::path& folder) const;
};

/// "step-00000120" below `root`.
std::filesystem::path checkpoint_folder(const std::filesystem::path& root, std::int64_t step);

/// Removes what was left behind when removing or writing a checkpoint was cut off: folders named like one, without its
/// state, and hidden temporary ones.
void remove_incomplete_checkpoints(const std::filesystem::path& root);

/// Steps of the complete checkpoints below `root`, ascending; none if the folder does not exist.
std::vector<std::int64_t> checkpoint_steps(const std::filesystem::path& root);

/// Those whose names begin with `prefix`, by what follows it.
std::map<std::string, at::Tensor> tensors_below(const std::map<std::string, at::Tensor>& tensors,
                                                const std::string& prefix);

/// The module's extra state when the state was saved (TrainingModule::extra_state).
TrainingState extra_of(const TrainingState& state);

/// Calls f("parameter.NAME" or "buffer.NAME", tensor) for each tensor of the network; a tied one comes up once.
void for_each_tensor(const torch::nn::Module& network,
                     const std::function<void(const std::string& name, const at::Tensor& tensor)>& f);

/// The network's tensors from the state's of these names. Throws io::Error for one that is missing, another, or
/// not the network's.
void load_network(const torch::nn::Module& network, const TrainingState& state);

/// Tensors of any dtype that a safetensors file can hold, written atomically.
void write_tensors(const std::filesystem::path& file, const std::map<std::string, at::Tensor>& tensors);
std::map<std::string, at::Tensor> read_tensors(const std::filesystem::path& file);

// The state of any torch::optim::Optimizer as JSON and named tensors. LibTorch's own form is a zip archive with a
// pickle in which parameters are addresses; here they are names, and the archive is only the way there and back.
//
//   {"archive": {"state": {"archive": {"@model.norm.weight": {"archive": {"step": {"int": 3}, "exp_avg": {"tensor":
//   "optimizer.0.1"}}}}}, ...}}

/// Adds the state's tensors to state.tensors below `name` ("optimizer.0") and the tree to state.json[name]. The
/// optimizer's parameters must be the network's. Throws c10::Error, io::Error.
void save_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    TrainingState& state);

/// The inverse, into an optimizer made with the same groups. Moments go to `device` where they were not on the CPU.
/// Throws io::Error or c10::Error naming what is missing or of another kind.
void load_optimizer(torch::optim::Optimizer& optimizer, const torch::nn::Module& network, const std::string& name,
                    const TrainingState& state, c10::Device device);

}  // namespace fp8::trainer
