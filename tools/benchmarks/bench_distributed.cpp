// SPDX-License-Identifier: Apache-2.0
// A collective on hpu beside the same on the CPU, with a backend that sends nothing: what our kernel of c10d's
// operators costs a call. (c10d's own FakeProcessGroup.hpp needs Python.) torch_ns: on the CPU; over_ns: what is more.
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "fp8/tools/benchmarks/bench.h"

namespace fp8::bench::distributed_cases {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Has always sent.
class Nothing final : public c10d::Backend {
 public:
  using Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return done(tensors);
  }
  c10::intrusive_ptr<c10d::Work> broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override {
    return done(tensors);
  }
  c10::intrusive_ptr<c10d::Work> allgather(std::vector<Tensors>& outputs, Tensors&,
                                           const c10d::AllgatherOptions&) override {
    return done(outputs.at(0));
  }

 private:
  static c10::intrusive_ptr<c10d::Work> done(const Tensors& results) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(results);
    return c10d::Work::create_from_future(future);
  }
};

c10::intrusive_ptr<c10d::ProcessGroup> group_of_two() {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(c10::make_intrusive<c10d::HashStore>(), 0, 2);
  const auto kind = c10d::ProcessGroup::BackendType::CUSTOM;
  const auto backend = c10::make_intrusive<Nothing>(0, 2);
  group->setDefaultBackend(kind);
  for (const auto device : {at::kCPU, at::kHPU}) group->setBackend(device, kind, backend);
  return group;
}

struct Call {
  const char* name;
  std::function<void(c10d::ProcessGroup&, Tensors&)> run;
};

void run(Runner& runner) {
  const Call calls[] = {
      {"allreduce", [](c10d::ProcessGroup& group, Tensors& t) { group.allreduce(t)->wait(); }},
      {"broadcast", [](c10d::ProcessGroup& group, Tensors& t) { group.broadcast(t)->wait(); }},
      {"allgather",
       [](c10d::ProcessGroup& group, Tensors& t) {
         std::vector<Tensors> out = {{t[0], t[0]}};
         group.allgather(out, t)->wait();
       }},
  };
  for (const auto& call : calls) {
    if (!runner.wants(call.name)) continue;
    const auto group = group_of_two();
    Tensors cpu = {at::ones({1024})}, hpu = {cpu[0].to(at::Device(at::kHPU, 0))};
    const auto times = runner.medians({[&] { call.run(*group, hpu); }, [&] { call.run(*group, cpu); }});
    runner.print(
        {.name = call.name, .ns = times[0], .torch_ns = times[1], .extra = {{"over_ns", times[0].ns - times[1].ns}}});
  }
}

const Registration g_distributed("distributed", run);

}  // namespace
}  // namespace fp8::bench::distributed_cases
