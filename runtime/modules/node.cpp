// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/modules/node.h"

#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "fp8/runtime/device/registration.h"

namespace fp8::runtime {
namespace {

constexpr std::array<std::string_view, 6> kTypes = {"Matmul",          "B2BMatmul", "Softmax",
                                                    "ModuleFusedSDPA", "KVCache",   "VLLMKVCache"};

[[maybe_unused]] const bool g_node_registered = [] {
  if (!may_register(reinterpret_cast<const void*>(kTypes.data()))) return false;
  torch::class_<Node>("fp8", "Node")
      .def(torch::init<std::string>())
      .def("type", [](const c10::intrusive_ptr<Node>& self) { return self->type(); })
      .def("matmul", [](const c10::intrusive_ptr<Node>& self, const at::Tensor& a,
                        const at::Tensor& b) { return self->matmul(a, b); })
      .def("softmax", [](const c10::intrusive_ptr<Node>& self, const at::Tensor& x,
                         std::int64_t dim) { return self->softmax(x, dim); })
      .def("attention",
           [](const c10::intrusive_ptr<Node>& self, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
              const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal, std::optional<double> scale,
              bool enable_gqa) { return self->attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa); })
      .def("store",
           [](const c10::intrusive_ptr<Node>& self, const at::Tensor& current) { return self->store(current); })
      .def("fetch", [](const c10::intrusive_ptr<Node>& self, const at::Tensor& stored,
                       const at::Tensor& like) { return self->fetch(stored, like); })
      .def("describe", [](const c10::intrusive_ptr<Node>& self) { return self->describe(); })
      .def("copy", [](const c10::intrusive_ptr<Node>& self) { return self->copy(); })
      // A file has no scales: what is loaded from it is a node that nothing handles.
      .def_pickle([](const c10::intrusive_ptr<Node>& self) { return self->type(); },
                  [](std::string type) { return c10::make_intrusive<Node>(std::move(type)); });
  return true;
}();

}  // namespace

Node::Node(std::string type) : type_(std::move(type)) {
  TORCH_CHECK(std::ranges::find(kTypes, type_) != kTypes.end(), "[fp8::Node] type: found '", type_,
              "', allowed: Matmul, B2BMatmul, Softmax, ModuleFusedSDPA, KVCache, VLLMKVCache");
}

void Node::require(const char* what, std::initializer_list<const char*> types) const {
  TORCH_CHECK(std::ranges::find(types, type_) != types.end(), "[fp8::Node] ", what, ": found a node of type ", type_);
}

at::Tensor Node::matmul(const at::Tensor& a, const at::Tensor& b) const {
  require("matmul", {"Matmul", "B2BMatmul"});
  return by_handler(
      slot_->handler.get(), [&] { return at::matmul(a, b); },
      [&](ModuleHandler& handler, const OriginalOp& original) { return handler.matmul({a, b, original}); });
}

at::Tensor Node::softmax(const at::Tensor& x, std::int64_t dim) const {
  require("softmax", {"Softmax"});
  return by_handler(
      slot_->handler.get(), [&] { return at::softmax(x, dim); },
      [&](ModuleHandler& handler, const OriginalOp& original) { return handler.softmax({x, dim, original}); });
}

at::Tensor Node::attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                           std::optional<double> scale, bool enable_gqa) const {
  require("attention", {"ModuleFusedSDPA"});
  return by_handler(
      slot_->handler.get(),
      [&] { return at::scaled_dot_product_attention(q, k, v, mask, dropout_p, is_causal, scale, enable_gqa); },
      [&](ModuleHandler& handler, const OriginalOp& original) {
        return handler.attention(
            {q, k, v, mask, dropout_p, is_causal, scale, enable_gqa, "None", std::nullopt, "left", original});
      });
}

at::Tensor Node::store(const at::Tensor& current) const {
  require("store", {"KVCache", "VLLMKVCache"});
  return slot_->handler ? slot_->handler->store(current) : current;
}

at::Tensor Node::fetch(const at::Tensor& stored, const at::Tensor& like) const {
  require("fetch", {"KVCache", "VLLMKVCache"});
  return slot_->handler ? slot_->handler->fetch(stored, like.scalar_type()) : stored;
}

std::string Node::describe() const { return slot_->handler ? slot_->handler->describe() : ""; }

c10::intrusive_ptr<Node> Node::copy() const {
  auto made = c10::make_intrusive<Node>(type_);
  made->slot_->handler = slot_->handler;
  return made;
}

}  // namespace fp8::runtime
