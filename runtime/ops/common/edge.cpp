// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/ops/common/edge.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <c10/util/accumulate.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

namespace fp8::runtime::ops {
namespace {

thread_local int g_codes_with_scale = 0;

/// Multipliers are read on the host, as numbers: the library's own lie there.
bool read_on_host(const c10::Argument& argument) { return argument.name().find("scale") != std::string::npos; }

}  // namespace

CodesWithScale::CodesWithScale() { ++g_codes_with_scale; }
CodesWithScale::~CodesWithScale() { --g_codes_with_scale; }

void EdgeCheck::check_codes(const at::Tensor& t) const {
  const Block* block = block_of(t);
  if (block != nullptr && block->tag && g_codes_with_scale == 0) block->tag->check_access(op_, t);
}

std::uint64_t EdgeCheck::settle(const c10::FunctionSchema& schema) const {
  std::uint64_t move = 0;
  bool written = false;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const c10::Argument& argument = schema.arguments()[i];
    if ((host_ >> i & 1) == 0 || read_on_host(argument)) continue;
    move |= std::uint64_t{1} << i;
    written = written || (argument.alias_info() != nullptr && argument.alias_info()->isWrite());
  }
  if (move != 0) devices_.settle(written ? OperandDevices::Host::is_written : OperandDevices::Host::is_read);
  return move;
}

c10::OperatorHandle operator_of(const std::string& op) {
  const std::size_t dot = op.find('.');
  const std::string overload = dot == std::string::npos ? "" : op.substr(dot + 1);
  return c10::Dispatcher::singleton().findSchemaOrThrow(op.substr(0, dot).c_str(), overload.c_str());
}

namespace {

std::vector<std::int64_t> shape_or(at::OptionalIntArrayRef shape, std::vector<std::int64_t> own, std::size_t elements) {
  if (!shape.has_value()) return own;
  const auto wanted = static_cast<std::size_t>(c10::multiply_integers(*shape));
  TORCH_CHECK(elements == wanted, "Number of scale elements (", elements,
              ") is not equal to number of scale_shape elements (", wanted, ").");
  return shape->vec();
}

}  // namespace

kernels::Dialect reading() { return kernels::dialect_of(device_kind()); }

Scale scale_of(const std::optional<at::Tensor>& scale, at::OptionalIntArrayRef shape) {
  Scale s;
  if (!scale.has_value() || !scale->defined()) return s;
  check_high_precision("fp8", "a scale of dtype", scale->scalar_type());
  const at::Tensor host = cpu_alias(scale->detach()).contiguous();
  const auto n = static_cast<std::size_t>(host.numel());
  s.values.resize(n);
  const void* data = host.const_data_ptr();
  for (std::size_t i = 0; i < n; ++i) {
    if (host.scalar_type() == at::kFloat) s.values[i] = static_cast<const float*>(data)[i];
    if (host.scalar_type() == at::kBFloat16) s.values[i] = static_cast<const c10::BFloat16*>(data)[i];
    if (host.scalar_type() == at::kHalf) s.values[i] = static_cast<const c10::Half*>(data)[i];
  }
  s.shape = shape_or(shape, host.sizes().vec(), n);
  return s;
}

Scale scale_of(double scale, at::OptionalIntArrayRef) { return Scale{{static_cast<float>(scale)}, {}}; }

Scale scale_of(at::ArrayRef<double> scale, at::OptionalIntArrayRef shape) {
  Scale s;
  for (double v : scale) s.values.push_back(static_cast<float>(v));
  s.shape = shape_or(shape, {static_cast<std::int64_t>(scale.size())}, scale.size());
  return s;
}

void round_to(Scale& scale, at::ScalarType type) {
  for (float& v : scale.values) {
    if (type == at::kBFloat16) v = c10::BFloat16(v);
    if (type == at::kHalf) v = c10::Half(v);
  }
}

std::optional<kernels::ScaleLayout> broadcast_of(const Scale& scale, at::IntArrayRef sizes) {
  if (scale.none() || scale.per_tensor()) return kernels::ScaleLayout::per_tensor();
  const std::size_t dims = sizes.size();
  if (scale.shape.size() > dims) return std::nullopt;
  const std::size_t lead = dims - scale.shape.size();
  bool rows = true, columns = true;  // every dimension but the last is the tensor's / every one but the last is 1
  for (std::size_t i = 0; i < dims; ++i) {
    const std::int64_t have = i < lead ? 1 : scale.shape[i - lead];
    if (have != 1 && have != sizes[i]) return std::nullopt;
    if (i + 1 < dims) {
      rows = rows && have == sizes[i];
      columns = columns && have == 1;
    } else {
      rows = rows && have == 1;
      columns = columns && have == sizes[i];
    }
  }
  if (columns) return kernels::ScaleLayout::per_column();
  if (rows) return kernels::ScaleLayout::per_row();
  return std::nullopt;
}

namespace {

/// In the graph of a gradient, where the derivatives of that gradient would be.
struct NoSecondDerivative final : torch::autograd::Node {
  std::string message;
  std::string name() const override { return "fp8::NoSecondDerivative"; }
  torch::autograd::variable_list apply(torch::autograd::variable_list&&) override { TORCH_CHECK(false, message); }
};

}  // namespace

at::Tensor once_differentiable(const at::Tensor& gradient, std::string_view what, std::string_view module,
                               at::TensorList incoming) {
  if (!gradient.defined() || !at::GradMode::is_enabled()) return gradient;
  auto error = c10::make_intrusive<NoSecondDerivative>();
  if (!module.empty()) error->message = c10::str("'", module, "': ");
  error->message += c10::str(what, " has no second derivative");
  // autograd::grad() runs only nodes that lead to the tensors asked for: this one must lead to all that the gradient
  // depends on.
  torch::autograd::edge_list edges;
  if (const auto function = torch::autograd::get_current_node()) edges = function->next_edges();
  for (const auto& t : incoming) {
    if (t.defined() && t.requires_grad()) edges.push_back(torch::autograd::impl::gradient_edge(t));
  }
  error->set_next_edges(std::move(edges));
  at::Tensor result = gradient.detach();
  torch::autograd::set_history(result, error);
  return result;
}

void refuse_tangents(std::initializer_list<at::Tensor> inputs, std::string_view what, std::string_view module) {
  for (const at::Tensor& t : inputs) {
    if (!t.defined()) continue;
    const std::string whose = module.empty() ? std::string() : c10::str("'", module, "': ");
    TORCH_CHECK_NOT_IMPLEMENTED(!t.key_set().has(c10::DispatchKey::FuncTorchGradWrapper), whose, what,
                                " has no derivative for torch.func (grad, vjp, jvp): take a backward pass, or run it "
                                "outside of fp8");
    if (!t._fw_grad(/*level=*/0).defined()) continue;
    TORCH_CHECK_NOT_IMPLEMENTED(false, whose, what, " has no forward-mode derivative: found an input of sizes ",
                                t.sizes(), " with a tangent; take a backward pass, or run it outside of fp8");
  }
}

}  // namespace fp8::runtime::ops
