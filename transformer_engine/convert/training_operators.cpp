// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/linear.h>

#include <cstring>
#include <thread>

#include "fp8/configs/training/gaudi_config.h"
#include "fp8/quant/model/operators.h"
#include "fp8/runtime/distributed/gloo_group.h"
#include "fp8/runtime/fp8_tensor/cast.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/transformer_engine/convert/convert_training.h"
#include "fp8/transformer_engine/modules/extra_state.h"
#include "fp8/transformer_engine/modules/linear.h"

namespace fp8::te {
namespace {

/// A region that an operator opened, and where. What fp8_autocast does in its constructor and destructor, at two calls.
struct OpenRegion {
  explicit OpenRegion(Fp8AutocastOptions options)
      : outer(current_region()), region(std::make_shared<Fp8Region>(std::move(options), outer)) {
    scope.emplace(region);
  }
  const std::shared_ptr<Fp8Region> outer, region;
  std::optional<RegionScope> scope;
  const std::thread::id thread = std::this_thread::get_id();
};

/// Not destroyed at the program's end: a region left open then has nothing to move.
runtime::ops::Handles<OpenRegion>& open_regions() {
  static auto& all = *new runtime::ops::Handles<OpenRegion>("region");
  return all;
}

configs::RecipeConfig recipe_of(const char* op, const std::string& text) {
  if (text.empty() || text.front() != '{') return configs::recipe_from_argument(text);
  const std::string where = std::string("[fp8::") + op + "] recipe";
  return configs::parse_recipe(io::parse_json(text, where), where);
}

TrainingHandler& handler_of(const char* op, const at::Tensor& weight) {
  auto* handler = training_handler(weight);
  if (handler != nullptr) return *handler;
  const auto* tag = runtime::find_tag(weight);
  TORCH_CHECK(false, "[fp8::", op, "] weight: expected one that fp8::attach_training was given, found sizes ",
              weight.sizes(), " and dtype ", weight.scalar_type(), " on ", weight.device(), ", ",
              tag == nullptr ? "untagged" : tag->handler->describe());
}

std::vector<NamedState> states_of(const char* op, at::TensorList weights) {
  std::vector<NamedState> states;
  std::set<const Fp8State*> seen;
  for (const at::Tensor& weight : weights) {
    const auto& state = handler_of(op, weight).state();
    if (seen.insert(state.get()).second) states.push_back({state->name(), state});
  }
  return states;
}

/// {"scale": [...], "amax_history": [[...], ...]}, rows from the first of the ring.
io::Json meta_json(const recipes::TensorMeta& meta) {
  io::Json history = io::Json::array();
  for (Eigen::Index row = 0; row < meta.amax_history.rows(); ++row) {
    history.push_back(io::Json::array());
    for (Eigen::Index i = 0; i < meta.amax_history.cols(); ++i) history.back().push_back(meta.amax_history(row, i));
  }
  return {{"scale", std::vector<float>(meta.scale.data(), meta.scale.data() + meta.scale.size())},
          {"amax_history", history}};
}

std::string state_of(const Fp8State& state) {
  const Fp8StateValues values = state.values();
  io::Json json = state_json(values);
  json["name"] = state.name();
  json["amax_seen"] = values.amax_seen;
  json["forward"] = meta_json(values.forward);
  json["hybrid"] = meta_json(values.hybrid);
  json["backward"] = meta_json(values.backward);
  return json.dump();
}

at::Tensor bytes_of(const Fp8State& state) {
  const std::string text = state_text(state);
  at::Tensor bytes = at::empty({static_cast<std::int64_t>(text.size())}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  return bytes;
}

void set_bytes(const char* op, Fp8State& state, const at::Tensor& bytes) {
  TORCH_CHECK(bytes.scalar_type() == at::kByte && bytes.dim() == 1 && bytes.layout() == at::kStrided, "[fp8::", op,
              "] bytes: expected Byte of one dimension, found ", bytes.scalar_type(), " of sizes ", bytes.sizes());
  const at::Tensor here = bytes.cpu().contiguous();
  set_state_text(state, {static_cast<const char*>(here.const_data_ptr()), static_cast<std::size_t>(here.numel())});
}

/// The product where it is not in fp8, in the dtype of autocast, which has no part in what an operator calls.
at::Tensor high_precision(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  const at::ScalarType dtype = runtime::autocast::region_dtype().value_or(x.scalar_type());
  return at::linear(x.to(dtype), weight_values(weight).to(dtype),
                    bias.has_value() ? std::optional(bias->to(dtype)) : std::nullopt);
}

[[maybe_unused]] const bool g_state_registered = register_state();

at::Tensor linear_meta(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       const c10::intrusive_ptr<State>&) {
  return high_precision(x, weight, bias);
}

/// torch's tracing (FakeTensor) asks for sizes and for what gradients there will be.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                  const c10::intrusive_ptr<State>& state) {
  const auto traced = [](const at::Tensor& t) { return t.key_set().has(c10::DispatchKey::Python); };
  if (traced(x) || traced(weight)) return high_precision(x, weight, bias);
  return state->linear(x, weight, bias);
}

}  // namespace

State::State(const std::string& name, std::string recipe, bool minimize_memory, bool attention)
    : recipe_(std::move(recipe)), minimize_memory_(minimize_memory) {
  const auto state = std::make_shared<Fp8State>(name, attention ? 4 : 2, attention ? 2 : 1);
  if (!recipe_.empty()) state->set_recipe(recipe_of("State", recipe_).recipe);
  handler_ = std::make_shared<TrainingHandler>(state, product_options(minimize_memory, std::nullopt, true));
  handler_->add_module(1);
}

State::State(std::shared_ptr<TrainingHandler> handler, std::string recipe, bool minimize_memory)
    : recipe_(std::move(recipe)), minimize_memory_(minimize_memory), handler_(std::move(handler)) {
  handler_->add_module(1);
}
State::~State() { handler_->add_module(-1); }

std::string State::values() const { return state_of(*handler_->state()); }
at::Tensor State::bytes() const { return bytes_of(*handler_->state()); }
void State::set_bytes(const at::Tensor& bytes) { te::set_bytes("State", *handler_->state(), bytes); }

const std::shared_ptr<Fp8State>& State::for_product(bool attention) const {
  TORCH_CHECK(attention == of_attention(), "[fp8::State] '", name(), "': expected one ",
              attention ? "of an attention (attention=True), found one of a linear product"
                        : "of a linear product, found one of an attention");
  if (current_region() != nullptr) note_own_product();
  return handler_->state();
}

at::Tensor State::linear(const at::Tensor& x, const at::Tensor& weight, const std::optional<at::Tensor>& bias) {
  (void)for_product(false);
  handler_->run_by_module();
  return handler_->product(x, weight, bias, [&] { return high_precision(x, weight, bias); });
}

/// How products of this region cast a weight of this amax.
runtime::CastSpec State::spec_of_parts(double amax, at::ScalarType dtype) {
  const auto& region = current_region();
  TORCH_CHECK(region != nullptr && region->enabled(), "[fp8::State] '", name(),
              "': cast_part: expected an enabled fp8_autocast region, found none");
  const recipes::Recipe recipe = handler_->state()->recipe_in(*region);
  const recipes::RecipeScaling scaling = recipes::scaling_of(recipe);
  const recipes::OperandScaling& how = scaling.of(Role::weight);
  const StepScales scales = handler_->state()->next_scales(*region);
  parts_.delayed = how.rule == recipes::ScalingRule::history;
  TORCH_CHECK(scales.hybrid_scale.empty() && how.one_scale(), "[fp8::State] '", name(), "': found the recipe ",
              recipes::describe(recipe),
              ", and a weight is gathered in fp8 with one scale: expected habana, nvidia or current");
  return one_scale_spec(how, scaling.format(Role::weight), runtime::device_dialect("fp8_autocast"), scales, 1,
                        static_cast<float>(amax), dtype);
}

at::Tensor State::cast_part(const at::Tensor& part, double amax, bool again) {
  if (!again || !cast_.has_value()) cast_ = spec_of_parts(amax, part.scalar_type());
  parts_.amax = static_cast<float>(amax);
  parts_.operand.scale_inv = cast_->scale_inv;
  const at::NoGradGuard no_grad;
  return runtime::quantize(part, *cast_).codes.view(at::kByte);
}

void State::set_gathered(const std::optional<at::Tensor>& codes) {
  std::optional<GatheredWeight> whole;
  if (codes.has_value()) {
    TORCH_CHECK(cast_.has_value() && codes->scalar_type() == at::kByte && codes->dim() == 2, "[fp8::State] '", name(),
                "': set_gathered: expected the bytes that cast_part() gave on all ranks, found ", codes->scalar_type(),
                " of sizes ", codes->sizes());
    whole = parts_;
    whole->operand.codes = codes->view(runtime::dtype_of(cast_->format));
  }
  handler_->state()->set_gathered(std::move(whole));
}

bool register_state() {
  static const bool registered = [] {
    if (!runtime::may_register(reinterpret_cast<const void*>(&attach_training))) return false;
    using Self = c10::intrusive_ptr<State>;
    using Saved = std::tuple<std::string, std::string, bool, at::Tensor, bool>;
    torch::class_<State>("fp8", "State")
        .def(torch::init<const std::string&, std::string, bool, bool>(), "",
             {torch::arg("name"), torch::arg("recipe") = "", torch::arg("minimize_memory") = false,
              torch::arg("attention") = false})
        .def("name", [](const Self& self) { return self->name(); })
        .def("values", [](const Self& self) { return self->values(); })
        .def("bytes", [](const Self& self) { return self->bytes(); })
        .def("set_bytes", [](const Self& self, const at::Tensor& bytes) { self->set_bytes(bytes); })
        .def("cast_part", [](const Self& self, const at::Tensor& part, double amax,
                             bool again) { return self->cast_part(part, amax, again); })
        .def("set_gathered",
             [](const Self& self, const std::optional<at::Tensor>& codes) { self->set_gathered(codes); })
        .def("set_training", [](const Self& self, bool training) { self->set_training(training); })
        .def_pickle(
            [](const Self& self) {
              return Saved(self->name(), self->recipe(), self->minimizes_memory(), self->bytes(), self->of_attention());
            },
            [](const Saved& saved) {
              auto made = c10::make_intrusive<State>(std::get<0>(saved), std::get<1>(saved), std::get<2>(saved),
                                                     std::get<4>(saved));
              made->set_bytes(std::get<3>(saved));
              return made;
            });
    return true;
  }();
  return registered;
}

std::string attach_training(at::TensorList weights, const std::vector<std::string>& modules,
                            const std::vector<std::string>& types, const std::string& recipe,
                            const std::string& warm_start, bool minimize_memory, bool whatever_region) {
  const auto model = measure::model_of("attach_training", weights, modules, types);
  const configs::RecipeConfig config = recipe_of("attach_training", recipe);
  TrainingOptions options;
  options.recipe = config.recipe;
  options.rules = config.rules;
  if (whatever_region) options.rules.push_back({"", config.recipe});
  options.minimize_memory = minimize_memory;
  if (!warm_start.empty()) options.warm_start = measure::read_measurements(warm_start);
  return quant::to_json(convert_for_training(model, options)).dump();
}

std::int64_t enter_autocast(const std::string& recipe, bool enabled, bool calibrating,
                            std::optional<bool> is_first_microbatch, std::int64_t seed, const std::string& group,
                            std::optional<bool> force_measurement) {
  TORCH_CHECK(seed >= 0, "[fp8::enter_autocast] seed: found ", seed, ", allowed: 0 to 2^63 - 1");
  Fp8AutocastOptions options;
  options.enabled = enabled;
  options.calibrating = calibrating;
  options.is_first_microbatch = is_first_microbatch;
  options.force_measurement = force_measurement;
  options.seed = static_cast<std::uint64_t>(seed);
  if (!recipe.empty()) options.recipe = recipe_of("enter_autocast", recipe).recipe;
  if (!group.empty()) options.group = runtime::distributed::registered_group(group);
  if (enabled) (void)runtime::device_dialect("fp8_autocast");  // throws where there is no fp8
  return open_regions().add(std::make_shared<OpenRegion>(std::move(options)));
}

void exit_autocast(std::int64_t region, bool failed) {
  const auto open = open_regions().get("exit_autocast", region);
  TORCH_CHECK(open->thread == std::this_thread::get_id(), "[fp8::exit_autocast] region: found ", region,
              ", which another thread entered; expected one of this thread");
  TORCH_CHECK(open->region == current_region(), "[fp8::exit_autocast] region: found ", region,
              ", which has another one open inside; expected the innermost");
  open_regions().take_out(region);
  open->scope.reset();
  if (!failed && open->outer == nullptr) open->region->finish_forward();
}

std::string training_state(const at::Tensor& weight) { return state_of(*handler_of("training_state", weight).state()); }

void set_training(at::TensorList weights, bool training) {
  for (const at::Tensor& weight : weights) handler_of("set_training", weight);
  for (const at::Tensor& weight : weights) handler_of("set_training", weight).set_training(training);
}

std::vector<std::string> export_amax_of(at::TensorList weights, const std::vector<std::string>& modules,
                                        const std::vector<std::string>& types, const std::string& prefix) {
  TORCH_CHECK(!prefix.empty(),
              "[fp8::export_amax] prefix: expected where to write, as in \"stats/inc_output\", found \"\"");
  const auto model = measure::model_of("export_amax", weights, modules, types);
  for (const auto& m : model) handler_of("export_amax", m.weight);
  std::vector<std::string> paths;
  for (const auto& path : measure::write_measurements(prefix, export_amax(model))) paths.push_back(path.string());
  return paths;
}

void save_training_state(at::TensorList weights, const std::string& folder) {
  TORCH_CHECK(!folder.empty(), "[fp8::save_training_state] folder: expected a path, found \"\"");
  save_extra_state(states_of("save_training_state", weights), folder);
}

std::string load_training_state(at::TensorList weights, const std::string& folder) {
  const ExtraStateReport report = load_extra_state(states_of("load_training_state", weights), folder);
  return io::Json{{"missing", report.missing}, {"unexpected", report.unexpected}}.dump();
}

at::Tensor training_state_bytes(const at::Tensor& weight) {
  return bytes_of(*handler_of("training_state_bytes", weight).state());
}

void set_training_state_bytes(const at::Tensor& weight, const at::Tensor& bytes) {
  const char* op = "set_training_state_bytes";
  set_bytes(op, *handler_of(op, weight).state(), bytes);
}

c10::intrusive_ptr<State> state_of_weight(const at::Tensor& weight, std::string recipe, bool minimize_memory) {
  handler_of("state_of", weight);
  auto handler = std::static_pointer_cast<TrainingHandler>(runtime::find_tag(weight)->handler);
  return c10::make_intrusive<State>(std::move(handler), std::move(recipe), minimize_memory);
}

namespace {

Fp8Weight& held_weight(const char* op, const at::Tensor& weight) {
  auto* held = fp8_weight(weight);
  TORCH_CHECK(held != nullptr, "[fp8::", op, "] weight: expected one that fp8::hold_in_fp8 was given, on hpu, found ",
              weight.scalar_type(), " on ", weight.device());
  return *held;
}

}  // namespace

void hold_in_fp8(const at::Tensor& parameter, const std::string& module, const std::string& recipe) {
  QuantizedInitOptions options;
  if (!recipe.empty()) options.recipe = recipe_of("hold_in_fp8", recipe).recipe;
  const quantized_model_init init(std::move(options));
  const at::ScalarType dtype = parameter.scalar_type();
  parameter.set_data(make_weight_parameter(parameter.detach(), module));
  parameter.set_grad_dtype(dtype);
}

std::tuple<double, std::int64_t> held_state(const at::Tensor& weight) {
  const auto [scale_inv, assigned] = held_weight("held_state", weight).state();
  return {scale_inv, static_cast<std::int64_t>(assigned)};
}

void set_held(const at::Tensor& weight, const at::Tensor& codes, double scale_inv, std::int64_t assigned) {
  Fp8Weight& held = held_weight("set_held", weight);
  TORCH_CHECK(codes.scalar_type() == weight.scalar_type() && codes.sizes() == weight.sizes() && assigned >= 0,
              "[fp8::set_held] codes: expected ", weight.scalar_type(), " of sizes ", weight.sizes(),
              ", assigned 0 or more times, found ", codes.scalar_type(), " of sizes ", codes.sizes(), ", ", assigned);
  const at::NoGradGuard no_grad;
  held.set_state(static_cast<float>(scale_inv), static_cast<std::uint64_t>(assigned));
  held.codes().view(at::kByte).copy_(codes.detach().contiguous().view(at::kByte));
}

void assign_held(const at::Tensor& weight, const at::Tensor& values) {
  held_weight("assign_held", weight).assign(values);
}

std::optional<at::Tensor> read_held(const at::Tensor& weight, const at::Tensor& given, at::ArrayRef<double> held,
                                    const std::string& key) {
  const bool has_codes = weight.itemsize() == 1;
  TORCH_CHECK(!held.empty() || (has_codes && given.itemsize() > 1), key, ": found ", given.scalar_type(),
              " without the scale of these codes, expected it beside them, or values");
  if (!has_codes) {  // a copy of the bytes alone: a converted weight's operators know its scale already
    const at::Tensor codes = given.cpu().contiguous().view(at::kByte).clone().view(given.scalar_type());
    return codes.to(at::kFloat) * held[0];
  }
  if (given.itemsize() > 1) {
    assign_held(weight, given.to(weight.device(), at::kFloat));
  } else {
    TORCH_CHECK(held.size() == 2, key, ": found ", held.size(),
                " numbers beside its codes, expected those of held_state");
    set_held(weight, given, held[0], static_cast<std::int64_t>(held[1]));
  }
  return std::nullopt;
}

FP8_LIBRARY_FRAGMENT(fp8, m) {
  // TorchScript neither moves nor leaves out what has an effect.
  const auto def = [&m](const char* schema, auto function) {
    m.def(torch::schema(schema, c10::AliasAnalysisKind::CONSERVATIVE), std::move(function));
  };
  def("attach_training(Tensor[] weights, str[] modules, str[] types, str recipe=\"habana\", str "
      "warm_start=\"\", bool minimize_memory=False, bool whatever_region=False) -> str",
      &attach_training);
  def("enter_autocast(str recipe=\"\", bool enabled=True, bool calibrating=False, bool? "
      "is_first_microbatch=None, int seed=0, str group=\"\", bool? force_measurement=None) -> int",
      &enter_autocast);
  def("exit_autocast(int region, bool failed=False) -> ()", &exit_autocast);
  m.def("gaudi_config_problems(str json, str source) -> str[]", [](const std::string& json, const std::string& source) {
    return configs::check_gaudi_config(io::parse_json(json, source), source).problems;
  });
  def("region_kind() -> int", []() -> std::int64_t {
    return current_region() == nullptr ? 0 : is_fp8_enabled() ? 2 : 1;
  });
  def("training_state(Tensor weight) -> str", &training_state);
  def("set_training(Tensor[] weights, bool training) -> ()", &set_training);
  def("export_amax(Tensor[] weights, str[] modules, str[] types, str prefix) -> str[]", &export_amax_of);
  def("save_training_state(Tensor[] weights, str folder) -> ()", &save_training_state);
  def("training_state_bytes(Tensor weight) -> Tensor", &training_state_bytes);
  def("set_training_state_bytes(Tensor weight, Tensor bytes) -> ()", &set_training_state_bytes);
  m.def(
      torch::schema("linear(Tensor x, Tensor weight, Tensor? bias, __torch__.torch.classes.fp8.State state) -> Tensor",
                    c10::AliasAnalysisKind::CONSERVATIVE));
  def("state_of(Tensor weight, str recipe=\"\", bool minimize_memory=False) -> __torch__.torch.classes.fp8.State",
      &state_of_weight);
  m.def("hold_in_fp8(Tensor(a!) parameter, str module, str recipe=\"\") -> ()", &hold_in_fp8);
  m.def("held_state(Tensor weight) -> (float, int)", &held_state);
  m.def("set_held(Tensor(a!) weight, Tensor codes, float scale_inv, int assigned) -> ()", &set_held);
  m.def("read_held(Tensor(a!) weight, Tensor given, float[] held, str key=\"weight\") -> Tensor?", &read_held);
  m.def("assign_held(Tensor(a!) weight, Tensor values) -> ()", &assign_held);
  def("load_training_state(Tensor[] weights, str folder) -> str", &load_training_state);
}

// It makes its own nodes for backward.
FP8_LIBRARY_IMPL(fp8, AutogradHPU, m) { m.impl("linear", &linear); }
FP8_LIBRARY_IMPL(fp8, HPU, m) { m.impl("linear", &linear); }
FP8_LIBRARY_IMPL(fp8, Meta, m) { m.impl("linear", &linear_meta); }

}  // namespace fp8::te
