// SPDX-License-Identifier: Apache-2.0
// The points of a step where a strategy works. All end with the mean gradients of all ranks, before these are looked
// at, clipped or applied, and with as many calls of the group on each rank.
//
//   each micro-batch but the last    backward() adds to this rank's own gradients      no message (no_sync)
//   the last                         before_last_forward(), forward, backward(last)    hpu_ddp: buckets
//   then                             reduce()                                          the others: one message
#pragma once

#include <variant>

#include "fp8/runtime/distributed/data_parallel.h"
#include "fp8/runtime/trainer/checkpoint_io.h"
#include "fp8/runtime/trainer/registry.h"

namespace fp8::trainer {

// Messages between the ranks of one fit(), beside gradients. Not for users.

/// One micro-batch on all ranks.
struct MicroBatch {
  struct Part {
    double loss = 0, weight = 0;  ///< weight: tokens, or samples; 0: the batch does not count
    std::int64_t samples = 0;
    bool stop = false;            ///< this rank was asked to stop
    bool end = false;             ///< this rank has done enough
    std::uint64_t learning = 0;   ///< which parameters learn (Run::learning())
    std::uint64_t gradients = 0;  ///< of the step before (Run::gradients)
  };
  std::vector<Part> parts;  ///< by rank

  bool finite() const;  ///< every loss is: where one is not, no rank runs backward
  bool stop() const;
  bool end() const;
  bool same_learning() const;
  bool same_gradients() const;
  double weight() const;  ///< of all ranks
  std::int64_t samples() const;
};

/// Every rank calls it after each forward. group: null for one rank.
MicroBatch exchange(const MicroBatch::Part& own, runtime::distributed::ProcessGroup* group);

/// Equal for equal values. parameters: held in fp8, too.
std::uint64_t values_checksum(const at::Tensor& tensor);

/// own: what this rank has beside the shared parameters and optimizers (buffers, random numbers, scales): json and
/// tensors of the same names and sizes on each rank. Where a rank has it otherwise than rank 0, rank 0's `state` gets
/// it: tensors "rank.1.NAME", json {"rank_states": {"1": ...}}.
void add_other_ranks(const TrainingState& own, TrainingState& state, runtime::distributed::ProcessGroup& group);

/// In a state that was saved by as many ranks: this rank's own part instead of rank 0's.
void take_own_part(TrainingState& state, int rank, int ranks);

/// The result of load() on rank 0, on every rank, with tensors on the CPU; its exceptions, too.
TrainingState load_on_all(const std::function<TrainingState()>& load, runtime::distributed::ProcessGroup& group);

struct StrategyOptions {
  StrategyKind kind = StrategyKind::automatic;
  runtime::distributed::DataParallelOptions ddp = {};  ///< of hpu_ddp
  at::ScalarType fusion_buffer_dtype = at::kBFloat16;  ///< of fast_ddp: f32, bf16 or f16
  /// Each batch of the source goes to one rank, in turn. False: every rank's source has that rank's own batches, as
  /// many as the others'.
  bool use_distributed_sampler = true;
};

/// hpu_single, and what the others do where they do nothing of their own.
class Strategy {
 public:
  virtual ~Strategy() = default;
  virtual void before_last_forward() {}
  virtual void backward(const at::Tensor& loss, bool last);
  virtual void reduce() {}
  /// False: the caller drops them. True: they stay where they are, and are zero now.
  virtual bool zero_gradients() { return false; }
};

/// `kind`, and for automatic the one that `ranks` means. Throws std::invalid_argument for hpu_single of several.
StrategyKind resolve_strategy(StrategyKind kind, int ranks);

/// Of one rank (group null or of size 1) always hpu_single. parameters: each once; they are what they will stay, so
/// modules are converted before. names: as many. Throws std::invalid_argument naming the option that is out of range.
std::unique_ptr<Strategy> make_strategy(const StrategyOptions& options, const std::vector<at::Tensor>& parameters,
                                        const std::vector<std::string>& names,
                                        const std::shared_ptr<runtime::distributed::ProcessGroup>& group);

// Lightning's HPUAccelerator: what programs ask of the device before they train on it.
//
//   if (!te::HPUAccelerator::is_available()) ...
//   const int devices = te::HPUAccelerator::parse_devices(words).value_or(te::HPUAccelerator::auto_device_count());
//   te::require_ranks(devices, num_nodes);                                     registry.h
//   te::HPUAccelerator::setup_device(te::HPUAccelerator::get_parallel_devices(devices)[0]);

/// "yes" and why not.
struct Availability {
  bool available = true;
  std::string reason;
};

/// `devices` of a Trainer: nothing, a number, a text ("2", "auto"), or a list of indices, as other accelerators take.
using Devices = std::variant<std::monostate, int, std::string, std::vector<int>>;

/// Functions of the class, as the vendor's are; all may be called from any thread.
class HPUAccelerator {
 public:
  /// Returns true if there is a device. False where the environment says nothing that can be meant (FP8_HPU_DEVICES=x).
  static bool is_available();
  /// FP8_HPU_DEVICES (default 1), never invented. Throws c10::Error naming the variable where it is not allowed.
  static int auto_device_count();
  /// Devices of each machine, each of them a process' own: 1 to 16. Nothing: none were asked for, which is "auto" to a
  /// Trainer; "auto": auto_device_count(). Throws std::invalid_argument, for a list with the vendor's text.
  static std::optional<int> parse_devices(const Devices& devices);
  /// `devices` times hpu: each process calls its own by that. Throws std::invalid_argument for less than 1 or more
  /// than 16.
  static std::vector<c10::Device> get_parallel_devices(int devices);
  /// GAUDI, GAUDI2 or GAUDI3 (FP8_HPU_DEVICE, or this thread's DeviceKindScope).
  static std::string get_device_name();
  /// True on a thread in lazy mode (PT_HPU_LAZY_MODE=1, set_lazy_mode()): operations run later than they are called.
  static bool is_lazy();
  /// The first generation has neither; the reasons are the vendor's.
  static Availability is_fp8_available();
  static Availability is_fp16_available();
  /// The ten numbers of memory_stats() by name: Limit, InUse, MaxInUse, NumAllocs, NumFrees, ActiveAllocs,
  /// MaxAllocSize, TotalSystemAllocs, TotalSystemFrees, TotalActiveAllocs. Throws as setup_device().
  static std::map<std::string, std::uint64_t> get_device_stats(c10::Device device = c10::Device(c10::kHPU));
  /// Makes it this thread's current device. Throws std::invalid_argument for a device that is no hpu, in the vendor's
  /// words, and c10::Error "Invalid device id" for an index that does not exist.
  static void setup_device(c10::Device device);
};

/// hpu or cpu. Throws std::invalid_argument for hpu where there is none.
AcceleratorKind resolve_accelerator(AcceleratorKind kind);
/// The device of an accelerator: kHPU or kCPU.
c10::Device device_of(AcceleratorKind kind);

}  // namespace fp8::trainer
