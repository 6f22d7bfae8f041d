// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/node.h"

#include "fp8/runtime/device/registration.h"
#include "fp8/runtime/modules/op_modules.h"

namespace fp8::runtime {

template <class Module>
Module& Node::as(const char* what) const {
  auto* module = dynamic_cast<Module*>(module_.get());
  TORCH_CHECK(module != nullptr, "[fp8::Node] ", what, ": found a node of type ", type_);
  return *module;
}

namespace {

std::shared_ptr<OpModule> module_of(const std::string& type) {
  if (type == "Matmul") return std::make_shared<MatmulImpl>();
  if (type == "B2BMatmul") return std::make_shared<B2BMatmulImpl>();
  if (type == "Softmax") return std::make_shared<SoftmaxImpl>();
  if (type == "ModuleFusedSDPA") return std::make_shared<ModuleFusedSDPAImpl>();
  if (type == "KVCache") return std::make_shared<KVCacheImpl>();
  if (type == "VLLMKVCache") return std::make_shared<VLLMKVCacheImpl>();
  if (type == "VllmMixtureOfExpertsOp") return std::make_shared<ExpertsImpl>();
  TORCH_CHECK(false, "[fp8::Node] type: found '", type,
              "', allowed: Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache, VLLMKVCache, VllmMixtureOfExpertsOp");
}

[[maybe_unused]] const bool g_node_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(&module_of))) return false;
  torch::class_<Node>("fp8", "Node")
      .def(torch::init<std::string>())
      .def("type", [](const c10::intrusive_ptr<Node>& self) { return self->type(); })
      .def("matmul", &Node::matmul)
      .def("softmax", &Node::softmax)
      .def("attention", &Node::attention)
      .def("attend",
           [](const c10::intrusive_ptr<Node>& self, const c10::intrusive_ptr<Node>& softmax,
              const c10::intrusive_ptr<Node>& matmul_av, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale) {
             return attend(self->as<MatmulImpl>("attend"), softmax->as<SoftmaxImpl>("attend"),
                           matmul_av->as<MatmulImpl>("attend"), q, k, v, {mask, dropout_p, is_causal, scale});
           })
      .def("store", &Node::store)
      .def("fetch", &Node::fetch)
      .def("room", [](const c10::intrusive_ptr<Node>& self, const std::vector<std::int64_t>& shape,
                      const at::Tensor& like) { return self->as<KVCacheImpl>("room").room(shape, like); })
      .def("update",
           [](const c10::intrusive_ptr<Node>& self, const std::optional<at::Tensor>& cache, const at::Tensor& current,
              std::int64_t dim, std::int64_t position) {
             return self->as<KVCacheImpl>("update").update(cache.value_or(at::Tensor()), current, dim, position,
                                                           current.scalar_type());
           })
      .def("write",
           [](const c10::intrusive_ptr<Node>& self, const at::Tensor& input, const at::Tensor& cache,
              const at::Tensor& slots) { return self->as<VLLMKVCacheImpl>("write").forward(input, cache, slots); })
      .def("read",
           [](const c10::intrusive_ptr<Node>& self, const at::Tensor& cache, const at::Tensor& blocks,
              const at::ScalarType dtype) {
             return self->as<VLLMKVCacheImpl>("read").fetch_from_cache(cache, blocks, dtype);
           })
      .def(
          "mix",
          [](const c10::intrusive_ptr<Node>& self, const at::Tensor& hidden, const at::Tensor& table,
             const at::Tensor& router, const std::vector<at::Tensor>& w12, const std::vector<at::Tensor>& w3,
             bool permuted_weights, const std::string& activation, std::int64_t experts_min, std::int64_t experts_max) {
            return self->as<ExpertsImpl>("mix").mix(hidden, table, router, w12, w3, permuted_weights, activation,
                                                    experts_min, experts_max);
          })
      .def("describe", &Node::describe)
      .def("copy", &Node::copy)
      // A file has no scales: what is loaded from it is a node that nothing handles.
      .def_pickle([](const c10::intrusive_ptr<Node>& self) { return self->type(); },
                  [](std::string type) { return c10::make_intrusive<Node>(std::move(type)); });
  return true;
}();

}  // namespace

Node::Node(std::string type) : type_(std::move(type)), module_(module_of(type_)) {}

const std::shared_ptr<ModuleSlot>& Node::slot() const { return module_->slot(); }

void Node::check_cache(const char* what) const {
  if (dynamic_cast<VLLMKVCacheImpl*>(module_.get()) == nullptr) as<KVCacheImpl>(what);
}

at::Tensor Node::matmul(const at::Tensor& a, const at::Tensor& b) const {
  return as<MatmulImpl>("matmul").forward(a, b);
}

at::Tensor Node::softmax(const at::Tensor& x, std::int64_t dim) const {
  return as<SoftmaxImpl>("softmax").forward(x, dim);
}

at::Tensor Node::attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                           std::optional<double> scale, bool enable_gqa) const {
  return as<ModuleFusedSDPAImpl>("attention").forward(q, k, v, {mask, dropout_p, is_causal, scale, enable_gqa});
}

at::Tensor Node::store(const at::Tensor& current) const {
  check_cache("store");
  return module_->as_node("fp8::store", current,
                          [](ModuleHandler* by, at::TensorList t) { return by != nullptr ? by->store(t[0]) : t[0]; });
}

at::Tensor Node::fetch(const at::Tensor& stored, const at::Tensor& like) const {
  check_cache("fetch");
  return module_->as_node("fp8::fetch", stored, [dtype = like.scalar_type()](ModuleHandler* by, at::TensorList t) {
    return by != nullptr ? by->fetch(t[0], dtype) : t[0];
  });
}

std::string Node::describe() const { return module_->handler() != nullptr ? module_->handler()->describe() : ""; }

c10::intrusive_ptr<Node> Node::copy() const {
  auto made = c10::make_intrusive<Node>(type_);
  made->slot()->handler = slot()->handler;
  return made;
}

}  // namespace fp8::runtime
