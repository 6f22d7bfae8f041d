// SPDX-License-Identifier: Apache-2.0

#include "fp8/quant/checkpoint/modules.h"
#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/kernels/cast.h"

namespace fp8::quant {
namespace {

std::string granularity(const Scheme& s) { return name_of(s.weights) + (s.has_blocks() ? " " + s.block.text() : ""); }

bool same_grid(const Scheme& a, const Scheme& b) {
  return a.weights == b.weights && (!a.has_blocks() || a.block == b.block);
}

/// The scales that all modules have, or that all can have exactly: a scale per tensor fits any grid. Throws if there
/// are two others.
Scheme common_scheme(const ConvertSource& source) {
  const auto& weights = source.stored.weights;
  const StoredWeight* finest = &weights.front();
  bool all_power_of_two = true;
  for (const auto& w : weights) {
    const Scheme &s = w.spec.scheme, &f = finest->spec.scheme;
    if (s.format != f.format || s.dialect != f.dialect || s.activations != f.activations)
      io::fail<io::Error>("{}: {} has {}, {} {}; one form holds one of them", source.checkpoint.folder().string(),
                          w.spec.module, s.describe(), finest->spec.module, f.describe());
    if (s.weights != WeightGranularity::tensor && f.weights == WeightGranularity::tensor) finest = &w;
    all_power_of_two = all_power_of_two && s.power_of_two;
  }
  Scheme common = finest->spec.scheme;
  common.power_of_two = all_power_of_two;
  return common;
}

void check_one_grid(const ConvertSource& source, const Scheme& common) {
  for (const auto& w : source.stored.weights) {
    if (w.spec.scheme.weights == WeightGranularity::tensor || same_grid(w.spec.scheme, common)) continue;
    io::fail<io::Error>("{}: {} has scales per {}, others per {}; {} tensor, channel or block makes them alike",
                        source.checkpoint.folder().string(), w.spec.module, granularity(w.spec.scheme),
                        granularity(common), io::option("weights"));
  }
}

std::vector<ActivationScaling> activation_choices(const Scheme& from, WeightGranularity weights) {
  const auto dynamic =
      weights == WeightGranularity::block ? ActivationScaling::dynamic_group : ActivationScaling::dynamic_token;
  if (from.is_static() || from.activations == ActivationScaling::none) return {from.activations, dynamic};
  return {dynamic, from.activations, ActivationScaling::dynamic_token, ActivationScaling::dynamic_tensor};
}

/// Schemes that a form may hold, the nearest first.
std::vector<Scheme> scheme_choices(const Scheme& common, const ConvertOptions& o) {
  std::vector<WeightGranularity> grids = {common.weights};
  if (o.weights.has_value()) {
    grids = {*o.weights};
  } else if (o.block.has_value() || o.power_of_two == true) {
    grids = {WeightGranularity::block};
  } else if (common.weights == WeightGranularity::tensor) {
    grids = {WeightGranularity::tensor, WeightGranularity::channel, WeightGranularity::block};
  }
  std::vector<Scheme> choices;
  for (const auto grid : grids) {
    Scheme s = common;
    s.weights = grid;
    if (grid == WeightGranularity::block) s.block = o.block.value_or(common.has_blocks() ? common.block : Block{});
    std::vector<bool> powers = {false};
    if (grid == WeightGranularity::block)
      powers = o.power_of_two.has_value() ? std::vector<bool>{*o.power_of_two}
               : common.power_of_two      ? std::vector<bool>{true, false}
                                          : powers;
    for (const bool power : powers) {
      for (const auto activations : activation_choices(common, grid)) {
        s.power_of_two = power;
        s.activations = activations;
        choices.push_back(s);
      }
    }
  }
  return choices;
}

[[noreturn]] void refuse_schemes(const ConvertSource& source, const ConvertOptions& o, const CheckpointForm& form,
                                 const std::vector<Scheme>& choices) {
  const std::string where = source.checkpoint.folder().string() + ": ";
  if (choices.front().format == recipes::Format::E5M2) {
    const std::string forms = io::joined(form_names(&CheckpointForm::holds_e5m2));
    io::fail<io::Error>("{}{} is E5M2, {} holds E4M3; allowed: {} bf16, f16, f32", where,
                        source.stored.weights.front().spec.module, form.name(),
                        io::option("form", "'form' " + forms + ", or 'type'", forms));
  }
  for (Scheme s : choices) {
    if (s.is_static()) continue;
    const std::string has = name_of(choices.front().activations);
    s.activations = ActivationScaling::static_tensor;
    if (!source.stored.weights.front().spec.scheme.is_static() && form.scheme_problem(s).empty())
      io::fail<io::Error>(
          "{}{} needs static input scales with {} weights, the source has none (activations {}); {} makes them from "
          "the high precision model",
          where, form.name(), granularity(s), has,
          io::option("measurements", "quantize_checkpoint() with 'measurements'"));
  }
  throw io::Error(where + form.scheme_problem(choices.front()) +
                  (o.weights.has_value()
                       ? ""
                       : "; " + io::option("weights") + " tensor, channel or block requantizes (not exact)"));
}

Scheme target_scheme(const ConvertSource& source, const ConvertOptions& o, const CheckpointForm& form, Scheme common) {
  if (!o.weights.has_value()) check_one_grid(source, common);
  common.dialect = o.dialect.value_or(common.dialect);
  const auto choices = scheme_choices(common, o);
  for (const auto& s : choices)
    if (form.scheme_problem(s).empty()) return s;
  refuse_schemes(source, o, form, choices);
}

bool all_powers_of_two(const ConvertSource& source, const StoredWeight& w) {
  const auto scales = read_scale_inv(source.checkpoint, w);
  return std::ranges::all_of(scales, is_power_of_two);
}

/// Change and promise of one weight.
void decide(const ConvertSource& source, const Rescaling& rescaling, PlannedWeight& w) {
  const Scheme& from = w.from.spec.scheme;
  const bool power_fits = !w.to.scheme.power_of_two || from.power_of_two || all_powers_of_two(source, w.from);
  if (!refines(from, w.to.scheme, w.to.rows, w.to.cols) || !power_fits) {
    w.change = Change::requantized;
    w.exact = false;
    w.to.scheme.convention = Convention::own;
    if (w.to.scheme.weights == WeightGranularity::tensor) w.fuse_group = fuse_group_of(w.to.module);
  } else if (!rescaling.identity()) {
    w.change = Change::rescaled;
    w.exact = false;
    if (rescaling.over != 1)
      w.to.scheme.convention = Convention::own;  // INC's scales would be stored in hp_dtype, which these don't fit
  } else {
    w.change = same_grid(from, w.to.scheme) ? Change::unchanged : Change::spread;
  }
}

/// INC's form stores scales of its convention in hp_dtype: only if every one of them fits.
bool fits_hp(const ConvertSource& source, const PlannedWeight& w) {
  const auto scales = read_scale_inv(source.checkpoint, w.from);
  const auto hp = w.to.scheme.hp;
  return std::ranges::all_of(scales, [&](float s) { return recipes::round_to(s, hp) == s; }) &&
         recipes::round_to(w.to.scheme.input_scale_inv, hp) == w.to.scheme.input_scale_inv;
}

/// All modules of one checkpoint follow one convention.
void settle_convention(const ConvertSource& source, FolderPlan& plan) {
  const bool in_hp = plan.form->rounds_inc_scales(plan.config.scheme);
  const auto kv_fits = [&](const std::vector<float>& scales) {
    return std::ranges::all_of(scales, [&](float s) { return recipes::round_to(s, plan.config.scheme.hp) == s; });
  };
  const bool kv =
      !in_hp || std::ranges::all_of(plan.config.kv, [&](const KvScales& s) { return kv_fits(s.k) && kv_fits(s.v); });
  const bool inc = kv && std::ranges::all_of(plan.weights, [&](const PlannedWeight& w) {
                     if (w.change == Change::decoded) return true;
                     if (w.to.scheme.convention != Convention::inc) return false;
                     return !in_hp || fits_hp(source, w);
                   });
  if (inc) return;
  plan.config.scheme.convention = Convention::own;
  for (auto& w : plan.weights) w.to.scheme.convention = Convention::own;
}

void set_activations(PlannedWeight& w, const Rescaling& rescaling) {
  Scheme& s = w.to.scheme;
  if (!s.is_static()) {
    s.input_scale_inv = s.input_scale = 1.0f;
    return;
  }
  s.input_scale_inv = rescaling.scale_inv(w.from.spec.scheme.input_scale_inv, w.to.module + ": input scale");
}

/// Weights that the form's readers would misread stay in high precision, and so do those that engines run as one
/// product with one that does.
void keep_problems(const CheckpointForm& form, const CheckpointModules& modules, FolderPlan& plan) {
  std::vector<WeightSpec> weights;
  for (const auto& w : plan.weights) weights.push_back(w.to);
  const auto problems = weight_problems(form, weights);
  const auto keep = [](PlannedWeight& w, std::string reason) {
    w.reason = std::move(reason);
    w.change = Change::decoded;
    w.exact = true;
  };
  std::set<std::string> quantized;
  for (auto& w : plan.weights) {
    const auto found = problems.find(w.to.module);
    if (found == problems.end()) {
      quantized.insert(w.to.module);
      continue;
    }
    const auto& [reason, through] = found->second;
    keep(w, through.empty() ? reason : "as " + through + ": " + reason);
  }
  std::vector<std::string> kept;
  for (const auto& m : modules.all())
    if (CheckpointModules::may_be_linear(m) && !quantized.contains(m.name)) kept.push_back(m.name);
  const auto halved = halved_groups(modules.names(), {quantized.begin(), quantized.end()}, kept);
  for (auto& w : plan.weights)
    if (const auto found = halved.find(w.to.module); found != halved.end())
      keep(w, "readers run it as one product with " + found->second + ", which is in high precision");
}

void name_modules(const CheckpointModules& modules, FolderPlan& plan) {
  std::set<std::string> done;
  for (const auto& w : plan.weights) {
    (w.change == Change::decoded ? plan.config.kept_linears : plan.config.quantized).push_back(w.to.module);
    done.insert(w.from.weight);
  }
  for (const auto& m : modules.all())
    if (CheckpointModules::may_be_linear(m) && (m.tied || !done.contains(m.name + ".weight")))
      plan.config.kept_linears.push_back(m.name);
  plan.config.names = modules.names();
}

/// Key-value cache scales: as they are, or one per tensor where the form has no place for one per head.
void carry_kv(const ConvertSource& source, const CheckpointForm& form, FolderPlan& plan) {
  const auto collapsed = [](std::vector<float> v) { return std::vector<float>{*std::ranges::max_element(v)}; };
  bool collapsed_some = false;
  for (KvScales kv : source.stored.kv) {
    for (auto* list : {&kv.k, &kv.v})
      for (auto& s : *list) s = plan.rescaling.scale_inv(s, kv.attention + ": key-value cache scale");
    std::string problem = form.kv_problem(kv);
    if (!problem.empty() && !kv.k.empty() && !kv.v.empty() && kv.k.size() + kv.v.size() > 2) {
      kv.k = collapsed(kv.k);
      kv.v = collapsed(kv.v);
      problem = form.kv_problem(kv);
      collapsed_some = true;
    }
    if (!problem.empty()) {  // a part of them would leave engines with 1.0 for the rest
      plan.notes.push_back(
          io::message("key-value cache scales of {} attention modules dropped: {}", source.stored.kv.size(), problem));
      plan.config.kv.clear();
      return;
    }
    plan.config.kv.push_back(std::move(kv));
  }
  if (collapsed_some)
    plan.notes.push_back("key-value cache scales per head became one per tensor, the largest of the heads");
}

std::string scale_method_of(const ConvertSource& source, bool granularity_kept) {
  if (!granularity_kept) return "amax";
  for (const io::Json* from : {&source.sidecar, &source.quantization}) {
    if (!from->is_object()) continue;
    const auto it = from->find("scale_method");
    if (it == from->end() || !it->is_string()) continue;
    const auto method = it->get<std::string>();
    return method == "amax" ? method : io::upper(method);
  }
  return "amax";
}

void plan_form(const ConvertSource& source, const ConvertOptions& o, FolderPlan& plan) {
  const CheckpointForm& form = *(plan.form = &form_named(o.form));
  if (form.needs_mxfp4()) throw std::invalid_argument(kNeedsMxfp4);
  const Scheme common = common_scheme(source);
  const Scheme to = target_scheme(source, o, form, common);
  std::optional<Rescale> how = o.rescale;
  if (!how.has_value() && to.power_of_two &&
      kernels::fp8_max(to.format, to.dialect) < kernels::fp8_max(common.format, common.dialect)) {
    how = Rescale::two;  // 448/240 is no power of two
  }
  if (how == Rescale::range && to.power_of_two && common.dialect != to.dialect)
    throw io::OptionError<std::invalid_argument>(io::option("rescale", "Rescale::range", "448/240") +
                                                 ": its scales are no powers of two, expected " +
                                                 io::option("scale_format", "no 'power_of_two'"));
  plan.rescaling = rescaling(to.format, common.dialect, to.dialect, how);
  plan.config.scheme = to;
  for (auto& w : plan.weights) {
    Scheme scheme = to;
    scheme.convention = w.from.spec.scheme.convention;
    scheme.hp = w.from.spec.scheme.hp;
    w.to.scheme = scheme;
    decide(source, plan.rescaling, w);
    set_activations(w, plan.rescaling);
  }
  const CheckpointModules modules(source.checkpoint, source.config);
  keep_problems(form, modules, plan);
  carry_kv(source, form, plan);
  settle_convention(source, plan);
  for (auto& w : plan.weights)
    w.to.scheme.input_scale = to.activations == ActivationScaling::static_tensor
                                  ? scale_for(w.to.scheme, w.to.scheme.input_scale_inv, w.to.module)
                                  : 1.0f;
  name_modules(modules, plan);
  plan.config.kept_experts = StackedExperts(source.checkpoint, source.config, ExpertForm::keep, {}).kept();
  if (plan.config.quantized.empty())
    io::fail<io::Error>("{}: {} can hold none of its weights: {}", source.checkpoint.folder().string(), form.name(),
                        plan.weights.front().reason);
  plan.config.scale_method = scale_method_of(source, same_grid(common, to));
  plan.config.qdq = plan.weights.front().from.scale.ends_with(".dequant_weights.scale");
  if (common.activations != to.activations)
    plan.notes.push_back(std::string("activations: ") + name_of(common.activations) + " -> " + name_of(to.activations));
}

/// To high precision: every weight is decoded, what only fp8 needs is dropped.
void plan_type(const ConvertSource& source, FolderPlan& plan) {
  const auto& queries = source.stored.attention_scales;
  if (!queries.empty())
    plan.notes.push_back(io::message("{} scales of attention dropped, the target is in high precision: {}",
                                     queries.size(), io::joined_first(queries, 1)));
  if (!source.stored.kv.empty())
    plan.notes.push_back("key-value cache scales of " + std::to_string(source.stored.kv.size()) +
                         " attention modules dropped: the target is in high precision");
  const auto inputs =
      std::ranges::count_if(plan.weights, [](const PlannedWeight& w) { return w.from.spec.scheme.is_static(); });
  if (inputs != 0)
    plan.notes.push_back("input scales of " + std::to_string(inputs) +
                         " modules dropped: the target is in high precision");
}

/// In the order of the source, so that it is read from front to back. What belongs to a weight in codes, and what the
/// target has no place for, is left out.
std::vector<PlannedPiece> pieces_of(const ConvertSource& source, const FolderPlan& plan) {
  const auto& stored = source.stored;
  std::set<std::string> dropped(stored.kv_tensors.begin(), stored.kv_tensors.end());
  dropped.insert(stored.strays.begin(), stored.strays.end());
  if (plan.form == nullptr) dropped.insert(stored.attention_scales.begin(), stored.attention_scales.end());
  std::map<std::string, std::size_t> by_codes;
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    by_codes[plan.weights[i].from.weight] = i;
    dropped.insert(plan.weights[i].from.tensors.begin(), plan.weights[i].from.tensors.end());
  }
  std::vector<PlannedPiece> pieces;
  for (const auto& tensor : source.checkpoint.names()) {
    if (const auto found = by_codes.find(tensor); found != by_codes.end()) {
      pieces.push_back({{found->second}, tensor, tensor});
    } else if (!dropped.contains(tensor)) {
      pieces.push_back({{}, tensor, tensor});
    }
  }
  return pieces;
}

}  // namespace

FolderPlan plan_conversion(const ConvertSource& source, const ConvertOptions& o) {
  FolderPlan plan;
  const auto& stored = source.stored;
  const std::string folder = source.checkpoint.folder().string();
  if (!stored.packed.empty())
    io::fail<io::Error>(
        "{}: {}: experts in MXFP4, which no other form holds and which are not decoded here; {} the original "
        "checkpoint anew",
        folder, stored.packed.front(), io::option("quantize", "quantize_checkpoint()"));
  if (source.high_precision() && !o.type.has_value())
    io::fail<io::Error>("{}: is in high precision, expected an fp8 checkpoint; {} makes one of it", folder,
                        io::option("quantize", "quantize_checkpoint()"));
  plan.type = o.type.value_or(source.type);
  plan.cast = o.type.has_value() && (o.cast_all || source.high_precision());
  std::set<std::string> codes;
  for (const auto& w : stored.weights) {
    if (!codes.insert(w.weight).second)
      io::fail<io::Error>("{}: {}: several modules in one tensor, which is not built", folder, w.weight);
    PlannedWeight& planned = plan.weights.emplace_back();
    planned.from = w;
    planned.to = w.spec;
  }
  if (!o.assume.empty() && !stored.weights.empty())
    plan.notes.push_back(io::message("taken for {}, as {} says: {}", o.assume,
                                     io::spelled(io::option("assume"), o.stream.spelling),
                                     stored.weights.front().spec.scheme.describe()));
  plan.notes.insert(plan.notes.end(), stored.warnings.begin(), stored.warnings.end());
  if (!stored.strays.empty())
    plan.notes.push_back(io::message("{} tensors that belong to no weight in codes dropped: {}", stored.strays.size(),
                                     io::joined_first(stored.strays, 1)));
  o.type.has_value() ? plan_type(source, plan) : plan_form(source, o, plan);
  plan.pieces = pieces_of(source, plan);
  return plan;
}

}  // namespace fp8::quant
