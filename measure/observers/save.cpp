// SPDX-License-Identifier: Apache-2.0
// save: every tensor as a file that Python's torch.load reads, for a look at what a model computes. Those of an earlier
// run are moved to backup_tensorsR_{dd-mm_HH:MM:SS}.
//
//   FOLDER/tensorsR/{module}_{input0|weight|output0}_iter{n}.pt  n counts the tensor's calls; R = "" or _{rank}_{world}
#include <torch/csrc/jit/serialization/pickle.h>

#include <algorithm>

#include "fp8/measure/files/backup_path.h"
#include "fp8/measure/observers/built_in_observers.h"
#include "fp8/measure/observers/observer_parameters.h"
#include "fp8/measure/observers/states.h"
#include "fp8/runtime/io/atomic/atomic_file.h"

namespace fp8::measure {
namespace {

class Save final : public Observer {
 public:
  explicit Save(const ObserverContext& context)
      : folder_(context.folder / ("tensors" + configs::rank_suffix(context.rank))),
        limit_(static_cast<std::int64_t>(context.parameter(kSaveMib) * 1048576.0)),
        bytes_saved_(context.bytes_saved ? context.bytes_saved : std::make_shared<std::atomic<std::int64_t>>(0)) {
    std::string module = context.module.empty() ? "model" : context.module;
    std::replace(module.begin(), module.end(), '/', '_');
    stem_ = module + "_" + context.tensor + "_iter";
  }

  void observe(const Observed& x) override {
    amax_ = std::max(amax_, x.amax());
    const std::int64_t call = calls_++;
    const auto size = static_cast<std::int64_t>(x.tensor().nbytes());
    // Counted before it is written: what does not fit any more is left out, the smaller ones after it may still fit.
    const std::int64_t before = bytes_saved_->fetch_add(size);
    if (before + size > limit_) {
      bytes_saved_->fetch_sub(size);
      return;
    }
    if (before == 0) put_earlier_run_aside();
    const auto bytes = torch::jit::pickle_save(x.tensor().detach().clone(at::MemoryFormat::Contiguous));
    std::filesystem::create_directories(folder_);
    io::AtomicFile file(folder_ / (stem_ + std::to_string(call) + ".pt"), bytes.size());
    file.append(bytes.data(), bytes.size());
    file.commit();
  }
  Amax result() const override { return {amax_}; }
  void merge(const Observer& other) override { amax_ = std::max(amax_, other.result().at(0)); }
  io::Json state() const override { return {{"amax", amax_}, {"calls", calls_}}; }
  void restore(const io::Json& state, const std::string& where) override {
    const auto number = [&](const char* key) {
      const io::Json value = state.is_object() ? state.value(key, io::Json()) : io::Json();
      if (!value.is_number() || !(value.get<double>() >= 0) || value.get<double>() > 3.4028234663852886e38)
        bad_state(where + "." + key, "a number >= 0", value);
      return value;
    };
    amax_ = number("amax").get<float>();
    const io::Json calls = number("calls");
    if (!calls.is_number_integer()) bad_state(where + ".calls", "an integer", calls);
    calls_ = calls.get<std::int64_t>();
  }

 private:
  /// Files of an earlier, longer run would look like this run's last calls.
  void put_earlier_run_aside() const {
    if (!std::filesystem::exists(folder_) || std::filesystem::is_empty(folder_)) return;
    std::filesystem::rename(folder_, backup_path(folder_.parent_path(), folder_.filename().string()));
  }

  std::filesystem::path folder_;
  std::string stem_;
  std::int64_t limit_;
  std::shared_ptr<std::atomic<std::int64_t>> bytes_saved_;
  std::int64_t calls_ = 0;
  float amax_ = 0.0f;
};

}  // namespace

std::unique_ptr<Observer> make_save(const ObserverContext& context) { return std::make_unique<Save>(context); }

}  // namespace fp8::measure
