// SPDX-License-Identifier: Apache-2.0
#include <torch/library.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fp8/runtime/autocast/autocast.h"
#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/intercept/autocast_rules.h"

namespace fp8::runtime::autocast {
namespace {

/// The kernel of our own ops.
void run_inside(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const InsideOp inside;
  op.redispatchBoxed(below_autocast(keys), stack);
}

/// Our own ops that have no kernel yet. The dispatcher tells of each as it is defined, also of those before; it holds
/// its lock then, so that a kernel can't be added at once. Kept for the life of the process.
class OwnOps {
 public:
  OwnOps() { listening_ = c10::Dispatcher::singleton().addRegistrationListener(std::make_unique<Listener>(*this)); }

  void add_kernels() {
    std::vector<c10::OperatorName> fresh;
    {
      const std::lock_guard lock(mutex_);
      fresh.swap(fresh_);
    }
    for (const auto& op : fresh)
      add_kernel(op, c10::DispatchKey::AutocastHPU, c10::BoxedKernel::makeFromFunction<&run_inside>());
  }

 private:
  struct Listener : c10::OpRegistrationListener {
    explicit Listener(OwnOps& ops) : own(ops) {}
    void onOperatorRegistered(const c10::OperatorHandle& op) override { own.add(op.operator_name()); }
    void onOperatorDeregistered(const c10::OperatorHandle&) override {}
    OwnOps& own;
  };

  static bool is_own(const c10::OperatorName& op) {
    const std::string_view space = std::string_view(op.name).substr(0, op.name.find("::"));
    return space == "hpu" || space == "fp8" || space == "quantized_decomposed";
  }

  void add(const c10::OperatorName& op) {
    if (!is_own(op)) return;
    const std::lock_guard lock(mutex_);
    if (seen_.emplace(op.name, op.overload_name).second) fresh_.push_back(op);
  }

  std::mutex mutex_;
  std::set<std::pair<std::string, std::string>> seen_;  ///< an op that is defined again has its kernel still
  std::vector<c10::OperatorName> fresh_;
  c10::RegistrationHandleRAII listening_{[] {}};
};

}  // namespace

void keep_out_of_own_ops() {
  static OwnOps& own = *new OwnOps;
  own.add_kernels();
}

}  // namespace fp8::runtime::autocast
