// SPDX-License-Identifier: Apache-2.0
#include "fp8/transformer_engine/products/converted_weights.h"

#include <c10/core/GradMode.h>
#include <c10/util/Exception.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/activation.h>

#include <set>

#include "fp8/transformer_engine/region/recomputation.h"

namespace fp8::te {
namespace {

std::string part_of(const runtime::WeightView& view) {
  if (view.batch > 1) return std::to_string(view.batch) + " matrices";
  return io::message("rows {} to {}, columns {} to {}", view.first_row, view.first_row + view.rows, view.first_col,
                     view.first_col + view.cols);
}

using measure::WeightModule;

/// The state of a weight when a region ends.
struct Seen {
  std::int64_t products, with_copies, step, in_functions, plain, copies;  ///< TrainingHandler's, and Fp8State's
  std::uint32_t version;                                                  ///< of the parameter: in-place changes
};

struct Entry {
  c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl> parameter;
  std::shared_ptr<TrainingHandler> handler;
  std::vector<std::string> modules;
  bool owned;                              ///< its module is known:
  std::weak_ptr<torch::nn::Module> owner;  ///< the module that holds it,
  std::string name_there;                  ///< and its name in trained_weights() of that
  Seen seen = {};                          ///< when a region last ended
  int untrained = 0;                       ///< regions in which it was stepped and did not train
  bool was_in_graph = false;               ///< when the region began
  bool warned = false;                     ///< that it was idle
  int in_vain = 0;                         ///< regions with gradients on, in a row, that ran no product at all

  bool gone() const { return handler->retired() || (owned && owner.expired()); }
};

/// The weights that one call converted.
using Conversion = std::vector<Entry>;

struct Books {
  std::mutex mutex;
  std::vector<Conversion> conversions;
  std::atomic<std::int64_t> own_products{0};  ///< note_own_product()'s,
  std::int64_t seen_own = 0;                  ///< and when a region last ended
};

/// Leaked: a thread that outlives main() may still end a region.
Books& books() {
  static auto* const all = new Books;
  return *all;
}

Seen look_at(const Entry& e) {
  const TrainingHandler& h = *e.handler;
  const auto parameter = e.parameter.lock();
  const bool has_version = parameter.defined() && !parameter->is_inference();
  return {h.products(),
          h.products_with_copies(),
          h.state()->calls(),
          h.in_functions(),
          h.plain(),
          h.copies(),
          has_version ? parameter->version_counter().current_version() : 0};
}

Entry entry_of(const WeightModule& m) {
  const auto* tag = runtime::find_tag(m.weight);
  Entry e{c10::weak_intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>(m.weight.getIntrusivePtr()),
          std::static_pointer_cast<TrainingHandler>(tag->handler),
          tag->modules,
          false,
          {},
          {}};
  e.seen = look_at(e);
  return e;
}

void add(Conversion conversion) {
  if (conversion.empty()) return;
  Books& all = books();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::set<std::pair<const torch::nn::Module*, std::string>> places;
  std::set<const void*> parameters;
  for (const Entry& e : conversion) {
    parameters.insert(e.parameter._unsafe_get_target());
    if (const auto owner = e.owner.lock()) places.emplace(owner.get(), e.name_there);
  }
  for (Conversion& older : all.conversions) {
    std::erase_if(older, [&](const Entry& e) {  // converted once more, or the weight that a module had before
      const auto owner = e.owner.lock();
      return e.gone() || parameters.contains(e.parameter._unsafe_get_target()) ||
             (owner != nullptr && places.contains({owner.get(), e.name_there}));
    });
  }
  std::erase_if(all.conversions, [](const Conversion& c) { return c.empty(); });
  all.conversions.push_back(std::move(conversion));
  on_outermost_regions({put_back_converted, check_converted});
}

bool ran(const Entry& e) { return e.handler->products() != e.seen.products; }

/// It, or a copy: a model may have been copied to train in its place.
bool ran_or_its_copies(const Entry& e) { return e.handler->products_with_copies() != e.seen.with_copies; }

/// True if a graph that is alive has the parameter.
bool in_graph(const at::Tensor& parameter) {
  return parameter.requires_grad() && torch::autograd::impl::try_get_grad_accumulator(parameter) != nullptr;
}

/// True if it came into a graph in this region, and neither a product of it nor of a copy ran in fp8, nor was there a
/// warning. any_ran: others of its conversion did.
bool is_passed_by(const Entry& e, bool any_ran) {
  const auto impl = e.parameter.lock();
  if (!impl.defined() || ran(e) || e.was_in_graph || e.handler->retired() || e.handler->told() ||
      e.handler->copies() != e.seen.copies)
    return false;
  const at::Tensor parameter(impl);
  const bool moved = !parameter.is_hpu() || parameter.scalar_type() == at::kDouble;
  return (moved || any_ran) && in_graph(parameter);
}

/// True if it has been stepped for the second time without a pass of training in fp8, though it was multiplied with.
bool is_untrained(Entry& e, const Seen& now) {
  const auto parameter = e.parameter.lock();
  if (now.step != e.seen.step || now.plain != e.seen.plain) e.untrained = 0;
  if (now.step != e.seen.step || now.version == e.seen.version || !parameter.defined() || e.handler->retired())
    return false;
  const bool learns = at::Tensor(parameter).requires_grad(), multiplied = now.products != e.seen.products;
  const bool without_gradients =
      multiplied && (e.handler->state()->never_moved() || (learns && now.in_functions != e.seen.in_functions));
  const bool by_copies = !multiplied && learns && now.copies != e.seen.copies && now.plain == e.seen.plain;
  return (without_gradients || by_copies) && ++e.untrained > 1;
}

/// Its module holds another tensor now, which runs in high precision.
bool replaced(const Entry& e) {
  const auto owner = e.owner.lock();
  if (owner == nullptr || e.handler->retired()) return false;
  const auto all = trained_weights(*owner);
  return std::ranges::any_of(all, [&](const WeightModule& m) {
    return m.name == e.name_there && m.weight.defined() && m.weight.is_hpu() && runtime::find_tag(m.weight) == nullptr;
  });
}

/// Its module may hold another tensor now, which can't be known here: the program keeps the one that was converted.
bool idle(const Entry& e) {
  return !e.owned && e.handler->products() == 0 && !e.handler->retired() && !e.parameter.expired();
}

void append(std::string& names, const Entry& e) {
  for (const auto& module : e.modules) names += (names.empty() ? "'" : ", '") + module + "'";
}

/// The names of modules, by what is wrong with them.
struct Problems {
  std::string lost, dropped, passed_by, unused, untrained;
  bool in_vain = false;  ///< `unused` are errors
};

/// The text for the first kind there is, or none. Warns of those that are no errors.
std::string error_of(const Problems& found) {
  if (!found.unused.empty() && !found.in_vain)
    TORCH_WARN("[fp8_autocast] ", found.unused,
               ": converted for fp8 training, and this region ran no product in fp8: if their modules hold other "
               "weights by now (an engine that shards parameters), call fp8::attach_training after that");
  const auto say = [](const std::string& names, const char* what) {
    return "[fp8_autocast] " + names + ": converted for fp8 training, and " + what;
  };
  if (!found.dropped.empty())
    return say(found.dropped,
               "no product ran in fp8: expected the weights that were converted, found them gone (an engine that "
               "shards or flattens parameters, or a module that was replaced?); in Python convert before it takes the "
               "model, else call fp8::attach_training after that; modules that do not run stay out of the conversion");
  if (!found.lost.empty())
    return say(found.lost,
               "no product ran in fp8: expected the weights that were converted, found others in their place (an "
               "engine that shards or flattens parameters?); call convert_modules() after it has taken the model");
  if (!found.passed_by.empty())
    return say(found.passed_by,
               "the graph of this region has their weights, but no product of them ran in fp8: expected the weights "
               "themselves on hpu, in f32, bf16 or f16, found them on the host, in f64, or another weight that is "
               "computed from them (a parametrization); keep such modules out of the conversion, or of fp8_autocast");
  if (!found.untrained.empty())
    return say(found.untrained,
               "their weights change step by step, but no pass of training ran in fp8: their products run where "
               "gradients are off (inside of an autograd.Function, or in evaluation with scales that never moved), or "
               "with copies in another dtype. Expected products of the weight itself with gradients on; keep such "
               "modules out of the conversion, or of fp8_autocast");
  if (!found.unused.empty() && found.in_vain)
    return say(
        found.unused,
        "two regions with gradients on ran no product in fp8 at all: their modules hold other weights by now; have an "
        "engine that shards parameters leave them out, else call fp8::attach_training after it has taken the model");
  return {};
}

}  // namespace

at::Tensor TrainingHandler::linear(const runtime::LinearCall& call) {
  if (!call.view.whole || call.view.batch > 1) {
    tell(call.tag, "a product with a part of it (" + part_of(call.view) + ")");
    return call.original();
  }
  if (call.view.batch == 0) return product(call.x, call.weight, call.bias, call.original);
  bool plain = false;  // einsum and bmm: a weight of [1, N, K]
  const at::Tensor y = product(call.x, call.weight.squeeze(0), call.bias, [&] {
    plain = true;
    return call.original();
  });
  return !plain && call.x.dim() < 3 ? y.unsqueeze(0) : y;
}

at::Tensor TrainingHandler::product(const at::Tensor& x, const at::Tensor& weight,
                                    const std::optional<at::Tensor>& bias,
                                    const std::function<at::Tensor()>& original) {
  const ProductRun run(*state_);
  const auto& region = current_region();
  TORCH_CHECK((region != nullptr && region->enabled()) || !state_->gathered().has_value(), "[fp8_linear] '",
              state_->name(),
              "': its weight was gathered in fp8: expected the product inside of the region in which it was, found it "
              "outside of fp8_autocast, or where it is not enabled");
  if (region == nullptr) {
    ++plain_;
    return original();
  }
  ++products_, ++*with_copies_;
  if (in_function() && is_training()) ++in_functions_;
  if (region->enabled()) {
    Fp8LinearOptions options = options_;
    options.training = is_training();
    return fp8_linear(x, weight, bias, state_, options);
  }
  record_operands(x, weight, state_);
  return original();
}

at::Tensor TrainingHandler::dequantize(const runtime::WeightTag& tag, const runtime::WeightView&,
                                       const at::Tensor& weight) {
  refuse_backward_by_hand(*state_, state_->first_runs());
  tell(tag, "a product that is not x . w^T");
  return weight;
}

bool TrainingHandler::own_backward() const { return is_fp8_enabled(); }

std::shared_ptr<runtime::OpHandler> TrainingHandler::for_copy(const at::Tensor&) const {
  if (is_fp8_enabled()) ++copies_;
  if (retired()) return nullptr;
  auto state = std::make_shared<Fp8State>(state_->name(), state_->forward_tensors(), state_->backward_tensors());
  state->set_recipe(state_->own_recipe());
  state->follow(state_);
  auto copy = std::make_shared<TrainingHandler>(std::move(state), options_);
  copy->with_copies_ = with_copies_;
  return copy;
}

void TrainingHandler::tell(const runtime::WeightTag& tag, const std::string& what) {
  if (!is_fp8_enabled() || told_.exchange(true)) return;
  TORCH_WARN("[fp8_autocast] the weight of '", tag.module_names(), "', which was converted for training, met ", what,
             ": such products stay in high precision (fp8 products are x . w^T with all of w)");
}

std::string TrainingHandler::describe() const {
  const std::string recipe = state_->values().recipe;
  return "fp8 training" + (recipe.empty() ? std::string() : ", " + recipe);
}

void TrainingHandler::follow(const std::shared_ptr<const torch::nn::Module>& module) {
  const std::lock_guard<std::mutex> lock(mutex_);
  modules_.push_back(module);
}

void TrainingHandler::set_training(bool training) {
  const std::lock_guard<std::mutex> lock(mutex_);
  training_ = training;
}

bool TrainingHandler::is_training() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (training_.has_value()) return *training_;
  bool known = false;
  for (const auto& weak : modules_) {
    const auto module = weak.lock();
    if (module == nullptr) continue;
    if (module->is_training()) return true;
    known = true;
  }
  return !known;
}

void TrainingHandler::succeed(const TrainingHandler& before) {
  const std::scoped_lock lock(mutex_, before.mutex_);
  training_ = before.training_;
  modules_ = before.modules_;
}

TrainingHandler* training_handler(const at::Tensor& parameter) {
  const auto* tag = parameter.defined() && parameter.is_hpu() ? runtime::find_tag(parameter) : nullptr;
  return tag == nullptr ? nullptr : runtime::handler_as<TrainingHandler>(tag->handler.get());
}

std::vector<WeightModule> trained_weights(const torch::nn::Module& model) {
  std::vector<WeightModule> all = measure::weight_modules(model);
  for (const auto& item : model.named_modules("", /*include_self=*/true)) {
    const auto* attention = dynamic_cast<const torch::nn::MultiheadAttentionImpl*>(item.value().get());
    if (attention == nullptr) continue;
    const std::string prefix = item.key().empty() ? "" : item.key() + ".";
    const std::pair<const char*, const at::Tensor&> weights[] = {{kPackedProjections, attention->in_proj_weight},
                                                                 {"q_proj_weight", attention->q_proj_weight},
                                                                 {"k_proj_weight", attention->k_proj_weight},
                                                                 {"v_proj_weight", attention->v_proj_weight}};
    for (const auto& [name, weight] : weights)
      if (weight.defined()) all.push_back({prefix + name, kTorchAttention, weight, std::nullopt});
  }
  return all;
}

void remember_converted(const torch::nn::Module& model) {
  Conversion conversion;
  std::set<const void*> known;
  const auto modules = model.named_modules("", /*include_self=*/true);
  for (const auto& m : trained_weights(model)) {
    if (training_handler(m.weight) == nullptr || !known.insert(m.weight.unsafeGetTensorImpl()).second) continue;
    Entry e = entry_of(m);
    const auto dot = m.name.rfind('.');
    const bool attention = m.type == kTorchAttention;
    if (attention) e.name_there = m.name.substr(dot + 1);
    const auto* owner = modules.find(!attention ? m.name : dot == std::string::npos ? "" : m.name.substr(0, dot));
    e.owned = owner != nullptr;
    if (e.owned) e.owner = *owner;
    conversion.push_back(std::move(e));
  }
  add(std::move(conversion));
}

void remember_converted(const std::vector<WeightModule>& weights) {
  Conversion conversion;
  std::set<const void*> known;
  for (const auto& m : weights)
    if (known.insert(m.weight.unsafeGetTensorImpl()).second) conversion.push_back(entry_of(m));
  add(std::move(conversion));
}

void note_own_product() { ++books().own_products; }

void put_back_converted() {
  Books& all = books();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (Conversion& conversion : all.conversions) {
    for (Entry& e : conversion) {
      const auto impl =
          e.handler->retired() ? c10::intrusive_ptr<at::TensorImpl, at::UndefinedTensorImpl>() : e.parameter.lock();
      if (!impl.defined()) continue;
      const at::Tensor parameter(impl);
      e.was_in_graph = in_graph(parameter);
      const auto* found = training_handler(parameter);
      const bool copy = found != nullptr && found != e.handler.get() && found->state()->follows();  // set_data() of one
      const bool plain = parameter.is_hpu() && (copy || runtime::find_tag(parameter) == nullptr);
      if (!plain || !parameter.is_contiguous() || !at::isFloatingType(parameter.scalar_type()) ||
          parameter.scalar_type() == at::kDouble)
        continue;
      for (const auto& module : e.modules) runtime::tag_weight(parameter, module, e.handler);
    }
  }
}

std::string check_converted(bool trained) {
  Books& all = books();
  Problems found;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto any_ran = [](const Conversion& c) { return std::ranges::any_of(c, ran); };
    const std::int64_t own = all.own_products, before = std::exchange(all.seen_own, own);
    const bool none_ran = own == before && std::ranges::none_of(all.conversions, [](const Conversion& c) {
                            return std::ranges::any_of(c, ran_or_its_copies);
                          });
    for (Conversion& conversion : all.conversions) {
      const bool some_ran = any_ran(conversion), suspect = none_ran || some_ran;
      const bool in_use = std::ranges::any_of(conversion, [](const Entry& e) { return !e.parameter.expired(); });
      for (Entry& e : conversion) {
        if (suspect && !ran(e) && e.owned && replaced(e)) append(found.lost, e);
        const bool alive = in_use || none_ran || e.handler->has_module();
        if (suspect && alive && !e.handler->by_module() && !e.owned && !e.handler->retired() && e.parameter.expired())
          append(found.dropped, e);
        if (is_passed_by(e, some_ran)) append(found.passed_by, e);
        const bool unmet = none_ran && idle(e);
        if (!unmet || trained) e.in_vain = 0;
        if (unmet && !trained && at::GradMode::is_enabled()) ++e.in_vain;
        if (unmet && (!e.warned || e.in_vain == 2)) append(found.unused, e);
        found.in_vain = found.in_vain || e.in_vain == 2;
        e.warned = e.warned || unmet;
        const Seen now = look_at(e);
        if (is_untrained(e, now)) append(found.untrained, e);
        e.seen = now;
      }
      std::erase_if(conversion, [](const Entry& e) { return e.gone() || (!e.owned && e.parameter.expired()); });
    }
  }
  return error_of(found);
}

}  // namespace fp8::te
