// SPDX-License-Identifier: Apache-2.0
// The base of the modules of this folder: fp8 states that are saved and loaded with the module, and the arguments of
// tensor parallelism, which are taken when they ask for nothing.
#pragma once
#include <torch/nn/cloneable.h>

#include "fp8/runtime/intercept/weight_copy.h"
#include "fp8/transformer_engine/region/fp8_state.h"

namespace fp8::te {

/// Beside torch::nn::Module in a module's bases. save() and load() of the module call save_fp8() and load_fp8().
class Fp8Module {
 public:
  virtual ~Fp8Module() = default;
  /// Its own states (not those of submodules), always in the same order.
  virtual std::vector<std::shared_ptr<Fp8State>> fp8_states() const = 0;

 protected:
  void save_fp8(torch::serialize::OutputArchive& archive) const;
  /// An archive without fp8 state leaves the states as they are, with a warning. Throws c10::Error for state of other
  /// tensors and for pickles.
  void load_fp8(torch::serialize::InputArchive& archive);
  /// For a clone of this module. Throws c10::Error naming the parameter for a weight held in fp8 that is cloned to
  /// another device.
  void clone_fp8(torch::nn::Module& copy) const;
};

/// The results of a forward pass beside y, for modules that are asked to.
struct ModuleOutputs {
  at::Tensor y;
  at::Tensor bias;              ///< with return_bias: not added to y, else undefined
  at::Tensor layernorm_output;  ///< with return_layernorm_output, else undefined
};

/// Tensor parallelism: accepted where there is one process, so that code written for several runs.
struct ParallelOptions {
  int tp_size = 1;
  std::string parallel_mode = {};  ///< "", "column" or "row"
  bool sequence_parallel = false;
  std::shared_ptr<runtime::distributed::ProcessGroup> tp_group = nullptr;  ///< of size 1
  /// Tells ranks' random numbers apart. Not called: where there is one, weights are drawn from the default generator.
  std::function<void()> get_rng_state_tracker = nullptr;
  /// Communication beside products: there is none with one process, so all are false. ub_name names its buffers.
  bool ub_overlap_ag = false, ub_overlap_rs = false, ub_overlap_rs_dgrad = false, ub_bulk_dgrad = false,
       ub_bulk_wgrad = false;
  std::string ub_name = {};
};
/// Throws c10::Error "[te::Linear] tp_size: found 2, allowed: 1 (...)".
void check_parallel(const char* module, const ParallelOptions& options);

/// Arguments of the field that are known and not built. Throws c10::Error "[te::Linear] fuse_wgrad_accumulation: found
/// true, allowed: false (...)".
void refuse_wgrad_options(const char* module, bool fuse_wgrad_accumulation, bool delay_wgrad_compute);
void refuse_fp8_results(const char* module, bool fp8_output, bool fp8_grad);

/// Throws c10::Error "[te::Linear] in_features: found 0, allowed: 1 to 1073741824" unless it is. Sums of three products
/// of two such sizes fit 64 bits.
void check_size(const char* module, const char* argument, std::int64_t size);

/// Throws c10::Error "[te::Linear] 'name': input: found sizes ..., allowed: [..., 64]" unless x ends with `features`.
void check_input(const char* module, const std::string& name, const at::Tensor& x, std::int64_t features);

// The base of modules that hold fp8 states of their own: save(), load() and clone() take the states along, and a
// clone's weights held in fp8 have scales of their own.

template <class Derived>
class Fp8Cloneable : public torch::nn::Cloneable<Derived>, public Fp8Module {
 public:
  std::shared_ptr<torch::nn::Module> clone(const std::optional<at::Device>& device = std::nullopt) const override {
    auto copy = torch::nn::Cloneable<Derived>::clone(device);
    clone_fp8(*copy);
    return copy;
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    save_fp8(archive);
  }
  void load(torch::serialize::InputArchive& archive) override {
    {
      const runtime::ScalesComeLater codes_alone;
      torch::nn::Module::load(archive);
    }
    load_fp8(archive);
  }
};

// Activation checkpointing: a part of the model keeps its inputs only and runs again in backward. The second run finds
// the random numbers, the autocast and fp8 regions and the fp8 scales of the first, so its gradients are bit-equal to
// those without checkpointing; amaxes are recorded once.

struct CheckpointOptions {
  bool preserve_rng_state = true;  ///< false where the function draws no random numbers
};

using CheckpointedFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

/// function(inputs), recomputed in backward. Parameters that the function uses get their gradients in backward().
/// autograd::grad() and backward() with inputs, which would leave these out, throw where the function is on their way
/// (asked for such a parameter alone they don't meet the function). Undefined inputs are passed on; results that are
/// indices or masks have no gradient. The function must outlive backward and give the same result on the same inputs. A
/// second derivative throws by name.
std::vector<at::Tensor> checkpoint(const CheckpointedFunction& function, const std::vector<at::Tensor>& inputs,
                                   const CheckpointOptions& options = {});
/// One result.
at::Tensor checkpoint(const std::function<at::Tensor(const at::Tensor&)>& function, const at::Tensor& input,
                      const CheckpointOptions& options = {});

// Activation checkpointing as operators, for programs that run a part of a model twice: the steps of te::checkpoint()
// around its two runs.
//
//   forward    run = fp8::checkpoint_begin()   y = part(x)         fp8::checkpoint_end(run)
//   backward   fp8::checkpoint_again(run)      part(x) once more   fp8::checkpoint_end(run)   as often as backward runs
//              fp8::checkpoint_free(run)
//
// The second run finds the fp8 and autocast regions and the scales of the first, on whatever thread; amaxes are
// recorded once. The first may keep gradients on or off. As context_fn of torch.utils.checkpoint(use_reentrant=False):
// tests/package/operators.py.

/// Begins a first run on this thread. Runs nest. Random numbers are the caller's.
std::int64_t checkpoint_begin();
/// Begins a second run on this thread. Throws c10::Error for a number of no run, and one whose run is going on.
void checkpoint_again(std::int64_t run);
/// Ends the run that is going on. Throws c10::Error on another thread than its own, and while a run inside is going on.
void checkpoint_end(std::int64_t run);
/// Forgets it. Throws c10::Error while it is going on.
void checkpoint_free(std::int64_t run);

}  // namespace fp8::te
