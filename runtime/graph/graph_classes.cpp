// SPDX-License-Identifier: Apache-2.0
// Graphs for Python: torch.classes.fp8_graphs.HPUGraph, and GraphCache, whose caller runs the function. They have a
// namespace of their own, which TorchScript of strangers may not use.
//
//   cache = torch.classes.fp8_graphs.GraphCache(10)
//   match cache.decide(inputs, more, version):
//     case 0: results = cache.replay(inputs)
//     case 1: results = cache.end(inputs, f(*cache.begin(inputs)), reason)     "": none against it; or cache.abandon()
//     case 2: results = f(*inputs)
#include <torch/custom_class.h>

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/graph/hpu_graph.h"
#include "fp8/runtime/graph/metrics.h"
#include "fp8/runtime/graph/module_cacher.h"
#include "fp8/runtime/lazy/lazy_mode.h"

namespace fp8::runtime {
namespace {

struct PythonGraph final : torch::CustomClassHolder {
  HPUGraph graph;
};

struct PythonCache final : torch::CustomClassHolder {
  explicit PythonCache(std::int64_t max_graphs) : cache({.max_graphs = max_graphs}) {}
  GraphedCall& pending() const {
    TORCH_CHECK(decision.call != nullptr, "[graph] expected decide() first");
    return *decision.call;
  }
  GraphCache cache;
  GraphCache::Decision decision;
};

/// The metrics of the process, or what they are from its making on; until stop().
struct PythonMetrics final : torch::CustomClassHolder {
  explicit PythonMetrics(bool from_now) : since(process_counts()) {
    if (!from_now) since = {};
  }
  CompiledGraphs since;
  std::optional<CompiledGraphs> until;
};

using Graph = c10::intrusive_ptr<PythonGraph>;
using Metrics = c10::intrusive_ptr<PythonMetrics>;
using Cache = c10::intrusive_ptr<PythonCache>;
using Tensors = std::vector<at::Tensor>;

/// A module of Python whose forward runs on this thread.
struct RunningModule {
  explicit RunningModule(const std::string& path) : path(path), scope(this->path) {}
  std::string path;
  ModuleScope scope;
};
thread_local std::vector<std::unique_ptr<RunningModule>> t_running;

void enter_module(const std::string& path) { t_running.push_back(std::make_unique<RunningModule>(path)); }

void leave_module() {
  TORCH_CHECK(!t_running.empty(), "[graph] leave_module: expected enter_module() before it");
  t_running.pop_back();
}

void register_graph() {
  torch::class_<PythonGraph>("fp8_graphs", "HPUGraph")
      .def(torch::init<>())
      .def("capture_begin", [](const Graph& self, bool dry_run) { self->graph.capture_begin(dry_run); })
      .def("capture_end", [](const Graph& self) { self->graph.capture_end(); })
      .def("replay", [](const Graph& self, bool asynchronous) { self->graph.replay(asynchronous); })
      .def("replay_with", [](const Graph& self, const Tensors& inputs,
                             bool asynchronous) { self->graph.replay(inputs, asynchronous); })
      .def("mark_user_inputs", [](const Graph& self, const Tensors& inputs) { self->graph.mark_user_inputs(inputs); })
      .def("mark_user_outputs",
           [](const Graph& self, const Tensors& outputs) { self->graph.mark_user_outputs(outputs); })
      .def("clear_inputs", [](const Graph& self) { self->graph.clear_inputs(); })
      .def("reset", [](const Graph& self) { self->graph.reset(); })
      .def_static("is_capturing", &is_recording)
      .def("nodes", [](const Graph& self) { return static_cast<std::int64_t>(self->graph.nodes()); });
}

void register_cache() {
  torch::class_<PythonCache>("fp8_graphs", "GraphCache")
      .def(torch::init<std::int64_t>())
      .def("decide",
           [](const Cache& self, const Tensors& inputs, const std::string& more, std::int64_t version) {
             if (is_recording())
               return static_cast<std::int64_t>(GraphCache::Way::as_it_is);  // within its own capture, too
             self->decision = self->cache.decide(inputs, more, version);
             return static_cast<std::int64_t>(self->decision.way);
           })
      .def("begin", [](const Cache& self, const Tensors& inputs) { return self->pending().begin(inputs); })
      .def("end",
           [](const Cache& self, const Tensors& inputs, const Tensors& results, const std::string& refusal) {
             if (!refusal.empty()) self->pending().refuse(refusal);
             return std::exchange(self->decision, {}).call->end(inputs, results);
           })
      // Of the graph that decide() found, as long as the cache has it.
      .def("number", [](const Cache& self) { return reinterpret_cast<std::int64_t>(self->decision.call.get()); })
      .def("replay", [](const Cache& self,
                        const Tensors& inputs) { return std::exchange(self->decision, {}).call->again(inputs); })
      .def("abandon", [](const Cache& self) { self->cache.abandon(std::exchange(self->decision, {}).call); })
      .def("clear", [](const Cache& self) { self->cache.clear(); })
      .def("counts",
           [](const Cache& self) {
             const auto& counts = self->cache.counts();
             return std::vector<std::int64_t>{counts.captured, counts.replayed, counts.eager};
           })
      .def("refusals", [](const Cache& self) { return self->cache.refusals(); });
}

void register_metrics() {
  torch::class_<PythonMetrics>("fp8_graphs", "Metrics")
      .def(torch::init<bool>())
      .def("json",
           [](const Metrics& self, const std::string& metric) {
             return metric_json(metric, self->until.has_value() ? *self->until : process_counts(), self->since);
           })
      .def("stop", [](const Metrics& self) { self->until = process_counts(); })
      .def("new_graphs",
           [](const Metrics& self) {
             const CompiledGraphs counts = self->until.has_value() ? *self->until : process_counts();
             std::vector<std::string> lines;
             for (auto i = self->since.fresh.size(); i < counts.fresh.size(); ++i)
               lines.push_back(counts.fresh[i].line());
             return lines;
           })
      .def("host_reads",
           [](const Metrics& self) {
             const CompiledGraphs counts = self->until.has_value() ? *self->until : process_counts();
             return counts.host_read_lines();
           })
      .def_static("mark_step",
                  [](bool sync) {
                    mark_step(true);
                    if (sync) finish_work();
                  })
      .def_static("enter_module", &enter_module)
      .def_static("leave_module", &leave_module)
      .def_static("is_lazy", [] { return is_lazy_mode(); })
      .def_static("dump", [](const std::string& path, const std::string& format) { dump_metrics(path, format); });
}

bool register_classes() {
  register_graph();
  register_cache();
  register_metrics();
  return true;
}

[[maybe_unused]] const bool registered =
    may_register(reinterpret_cast<const void*>(&register_classes)) && register_classes();

}  // namespace
}  // namespace fp8::runtime
