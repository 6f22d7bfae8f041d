// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/reform.h"

#include "fp8/quant/checkpoint/pipeline.h"
#include "fp8/quant/forms/model_source.h"
#include "fp8/runtime/kernels/cast.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

using Reasons = std::map<std::string, std::string>;  // by module

std::string granularity(const Scheme& s) { return name_of(s.weights) + (s.has_blocks() ? " " + s.block.text() : ""); }

bool same_grid(const Scheme& a, const Scheme& b) {
  return a.weights == b.weights && (!a.has_blocks() || a.block == b.block);
}

/// The scales that all modules have, or that all can have exactly: a scale per tensor fits any grid. Throws if there
/// are two others.
Scheme common_scheme(const SourceFolder& source) {
  const auto& weights = source.stored.weights;
  const StoredWeight* finest = &weights.front();
  bool all_power_of_two = true;
  for (const auto& w : weights) {
    const Scheme &s = w.spec.scheme, &f = finest->spec.scheme;
    if (s.format != f.format || s.dialect != f.dialect || s.activations != f.activations)
      io::fail_at(source.folder(), "{} has {}, {} {}; one form holds one of them", w.spec.module, s.describe(),
                  finest->spec.module, f.describe());
    if (s.weights != Granularity::tensor && f.weights == Granularity::tensor) finest = &w;
    all_power_of_two = all_power_of_two && s.power_of_two;
  }
  Scheme common = finest->spec.scheme;
  common.power_of_two = all_power_of_two;
  return common;
}

std::vector<ActivationScaling> activation_choices(const Scheme& from, Granularity weights) {
  const auto dynamic =
      weights == Granularity::block ? ActivationScaling::dynamic_group : ActivationScaling::dynamic_token;
  if (from.is_static() || from.activations == ActivationScaling::none) return {from.activations, dynamic};
  return {dynamic, from.activations, ActivationScaling::dynamic_token, ActivationScaling::dynamic_tensor};
}

/// Schemes that a form may hold, the nearest first.
std::vector<Scheme> scheme_choices(const Scheme& common, const ConvertOptions& o) {
  std::vector<Granularity> grids = {common.weights};
  if (o.weights.has_value()) {
    grids = {*o.weights};
  } else if (o.block.has_value() || o.power_of_two == true) {
    grids = {Granularity::block};
  } else if (common.weights == Granularity::tensor) {
    grids = {Granularity::tensor, Granularity::channel, Granularity::block};
  }
  std::vector<Scheme> choices;
  for (const auto grid : grids) {
    Scheme s = common;
    s.weights = grid;
    if (grid == Granularity::block) s.block = o.block.value_or(common.has_blocks() ? common.block : Block{});
    std::vector<bool> powers = {false};
    if (grid == Granularity::block)
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

[[noreturn]] void refuse_schemes(const SourceFolder& source, const ConvertOptions& o, const CheckpointForm& form,
                                 const std::vector<Scheme>& choices) {
  const WeightSpec& first = source.stored.weights.front().spec;
  if (choices.front().format == recipes::Format::E5M2) {
    const std::string forms = io::joined(form_names(&CheckpointForm::holds_e5m2));
    io::fail_at(source.folder(), "{} is E5M2, {} holds E4M3; allowed: {} bf16, f16, f32", first.module, form.name(),
                io::option("form", "'form' " + forms + ", or 'type'", forms));
  }
  for (Scheme s : choices) {
    if (s.is_static()) continue;
    s.activations = ActivationScaling::static_tensor;
    if (!first.scheme.is_static() && form.scheme_problem(s).empty())
      io::fail_at(source.folder(),
                  "{} needs static input scales with {} weights, the source has none (activations {}); {} makes them "
                  "from the high precision model",
                  form.name(), granularity(s), name_of(choices.front().activations),
                  io::option("measurements", "quantize_checkpoint() with 'measurements'"));
  }
  const std::string other = "; " + io::option("weights") + " tensor, channel or block requantizes (not exact)";
  io::fail_at(source.folder(), "{}{}", form.scheme_problem(choices.front()), o.weights.has_value() ? "" : other);
}

Scheme target_scheme(const SourceFolder& source, const ConvertOptions& o, const CheckpointForm& form, Scheme common) {
  for (const auto& w : source.stored.weights) {
    const Scheme& s = w.spec.scheme;
    if (o.weights.has_value() || s.weights == Granularity::tensor || same_grid(s, common)) continue;
    io::fail_at(source.folder(), "{} has scales per {}, others per {}; {} tensor, channel or block makes them alike",
                w.spec.module, granularity(s), granularity(common), io::option("weights"));
  }
  common.dialect = o.dialect.value_or(common.dialect);
  const auto choices = scheme_choices(common, o);
  for (const auto& s : choices)
    if (form.scheme_problem(s).empty()) return s;
  refuse_schemes(source, o, form, choices);
}

/// What the weights are to have, and what that asks of the codes.
struct Target {
  const CheckpointForm& form;
  Scheme common, scheme;  ///< of the source; of the output
  Rescaling rescaling;
};

Target target_of(const SourceFolder& source, const ConvertOptions& o) {
  const CheckpointForm& form = form_named(o.form);
  if (form.needs_mxfp4()) throw std::invalid_argument(kNeedsMxfp4);
  const Scheme common = common_scheme(source), to = target_scheme(source, o, form, common);
  std::optional<Rescale> how = o.rescale;
  if (!how.has_value() && to.power_of_two &&
      kernels::fp8_max(to.format, to.dialect) < kernels::fp8_max(common.format, common.dialect)) {
    how = Rescale::two;  // 448/240 is no power of two
  }
  if (how == Rescale::range && to.power_of_two && common.dialect != to.dialect)
    throw io::OptionError<std::invalid_argument>(io::option("rescale", "Rescale::range", "448/240") +
                                                 ": its scales are no powers of two, expected " +
                                                 io::option("scale_format", "no 'power_of_two'"));
  return {form, common, to, rescaling(to.format, common.dialect, to.dialect, how)};
}

/// A weight with its change and promise, as if the form's readers took all weights.
PlannedWeight changed_weight(const SourceFolder& source, const Target& target, const StoredWeight& stored) {
  PlannedWeight w;
  w.from = stored;
  w.to = stored.spec;
  const Scheme& from = w.from.spec.scheme;
  Scheme& to = w.to.scheme = target.scheme;
  to.convention = from.convention;
  to.hp = from.hp;
  const bool power_fits = !to.power_of_two || from.power_of_two || source.has_powers_of_two(w.from);
  if (!refines(from, to, w.to.rows, w.to.cols) || !power_fits) {
    w.change = Change::requantized;
    w.exact = false;
    to.convention = Convention::own;
    if (to.weights == Granularity::tensor) w.fuse_group = fuse_group_of(w.to.module);
  } else if (!target.rescaling.identity()) {
    w.change = Change::rescaled;
    w.exact = false;
    if (target.rescaling.over != 1)
      to.convention = Convention::own;  // INC's scales would be stored in hp_dtype, which these don't fit
  } else {
    w.change = same_grid(from, to) ? Change::unchanged : Change::spread;
  }
  to.input_scale_inv = to.input_scale = 1.0f;
  if (to.is_static())
    to.input_scale_inv = target.rescaling.scale_inv(from.input_scale_inv, w.to.module + ": input scale");
  return w;
}

/// Weights that the form's readers would misread stay in high precision, and so do those that engines run as one
/// product with one that does: by module, why.
Reasons reasons_to_keep(const SourceFolder& source, const CheckpointForm& form,
                        const std::vector<PlannedWeight>& weights) {
  std::vector<WeightSpec> specs;
  for (const auto& w : weights) specs.push_back(w.to);
  Reasons reasons;
  for (const auto& [module, problem] : weight_problems(form, specs))
    reasons[module] = problem.through.empty() ? problem.reason : "as " + problem.through + ": " + problem.reason;
  std::vector<std::string> quantized;
  for (const auto& w : weights)
    if (!reasons.contains(w.to.module)) quantized.push_back(w.to.module);
  for (const auto& [module, other] : source.modules.halved_by(quantized))
    reasons[module] = "readers run it as one product with " + other + ", which is in high precision";
  return reasons;
}

/// INC's form stores scales of its convention in hp_dtype: only if every one of them fits.
bool fits_hp(const SourceFolder& source, const PlannedWeight& w) {
  const auto scales = read_scale_inv(source.checkpoint, w.from);
  const auto hp = w.to.scheme.hp;
  return std::ranges::all_of(scales, [&](float s) { return recipes::round_to(s, hp) == s; }) &&
         recipes::round_to(w.to.scheme.input_scale_inv, hp) == w.to.scheme.input_scale_inv;
}

/// All modules of one checkpoint follow one convention: INC's, if all that get codes can.
bool all_keep_inc(const SourceFolder& source, const Target& target, const std::vector<PlannedWeight>& weights,
                  const Reasons& kept, const std::vector<KvScales>& caches) {
  const bool in_hp = target.form.rounds_inc_scales(target.scheme);
  const auto fits = [&](const std::vector<float>& scales) {
    return std::ranges::all_of(scales, [&](float s) { return recipes::round_to(s, target.scheme.hp) == s; });
  };
  if (in_hp && !std::ranges::all_of(caches, [&](const KvScales& kv) { return fits(kv.k) && fits(kv.v); })) return false;
  return std::ranges::all_of(weights, [&](const PlannedWeight& w) {
    if (kept.contains(w.to.module)) return true;
    return w.to.scheme.convention == Convention::inc && (!in_hp || fits_hp(source, w));
  });
}

/// Less those that are kept, which are decoded; the scales of activations in the convention of all.
PlannedWeight settled_weight(PlannedWeight w, const Reasons& kept, bool inc) {
  Scheme& s = w.to.scheme;
  if (!inc) s.convention = Convention::own;
  if (s.is_static()) s.input_scale = scale_for(s, s.input_scale_inv, w.to.module);
  const auto found = kept.find(w.to.module);
  if (found == kept.end()) return w;
  w.reason = found->second;
  w.change = Change::decoded;
  w.exact = true;
  return w;
}

/// Key-value cache scales: as they are, or one per tensor where the form has no place for one per head.
PlannedCaches carried_caches(const SourceFolder& source, const Target& target) {
  const auto collapsed = [](std::vector<float> v) { return std::vector<float>{*std::ranges::max_element(v)}; };
  PlannedCaches carried;
  for (KvScales kv : source.stored.kv) {
    for (auto* list : {&kv.k, &kv.v})
      for (auto& s : *list) s = target.rescaling.scale_inv(s, kv.attention + ": key-value cache scale");
    std::string problem = target.form.kv_problem(kv);
    if (!problem.empty() && !kv.k.empty() && !kv.v.empty() && kv.k.size() + kv.v.size() > 2) {
      kv.k = collapsed(kv.k);
      kv.v = collapsed(kv.v);
      problem = target.form.kv_problem(kv);
      carried.notes = {"key-value cache scales per head became one per tensor, the largest of the heads"};
    }
    if (!problem.empty())  // a part of them would leave engines with 1.0 for the rest
      return {{},
              {io::message("key-value cache scales of {} attention modules dropped: {}", source.stored.kv.size(),
                           problem)}};
    carried.scales.push_back(std::move(kv));
  }
  return carried;
}

std::string scale_method_of(const SourceFolder& source, bool granularity_kept) {
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

ConfigSpec converted_config(const SourceFolder& source, const Target& target, const std::vector<PlannedWeight>& weights,
                            bool inc, std::vector<KvScales> kv) {
  ConfigSpec config;
  config.scheme = target.scheme;
  if (!inc) config.scheme.convention = Convention::own;
  std::set<std::string> in_codes;
  for (const auto& w : weights) {
    (w.change == Change::decoded ? config.kept_linears : config.quantized).push_back(w.to.module);
    in_codes.insert(w.from.weight);
  }
  if (config.quantized.empty())
    io::fail_at(source.folder(), "{} can hold none of its weights: {}", target.form.name(), weights.front().reason);
  for (const auto& m : source.modules.all())
    if (CheckpointModules::may_be_linear(m) && (m.tied || !in_codes.contains(m.name + ".weight")))
      config.kept_linears.push_back(m.name);
  config.kept_experts = StackedExperts(source.checkpoint, source.config, ExpertForm::keep, {}).kept();
  config.names = source.modules.names();
  config.scale_method = scale_method_of(source, same_grid(target.common, target.scheme));
  config.qdq = weights.front().from.scale.ends_with(".dequant_weights.scale");
  config.kv = std::move(kv);
  return config;
}

/// On what was found and how it was read, what the target has no place for, and what --rounding gained, which is in
/// the codes: new ones are the nearest. form: to a form, those of its caches.
std::vector<std::string> notes_of(const SourceFolder& source, const ConvertOptions& o, const FolderPlan& plan,
                                  const std::vector<std::string>& form) {
  const auto& stored = source.stored;
  std::vector<std::string> notes;
  if (!o.assume.empty() && !stored.weights.empty())
    notes.push_back(io::message("taken for {}, as {} says: {}", o.assume,
                                io::spelled(io::option("assume"), o.stream.spelling),
                                stored.weights.front().spec.scheme.describe()));
  notes.insert(notes.end(), stored.warnings.begin(), stored.warnings.end());
  if (!stored.strays.empty())
    notes.push_back(io::message("{} tensors that belong to no weight in codes dropped: {}", stored.strays.size(),
                                io::joined_first(stored.strays, 1)));
  notes.insert(notes.end(), form.begin(), form.end());
  const bool to_type = plan.form == nullptr;
  if (to_type && !stored.attention_scales.empty())
    notes.push_back(io::message("{} scales of attention dropped, the target is in high precision: {}",
                                stored.attention_scales.size(), io::joined_first(stored.attention_scales, 1)));
  if (to_type && !stored.kv.empty())
    notes.push_back(
        io::message("key-value cache scales of {} attention modules dropped: the target is in high "
                    "precision",
                    stored.kv.size()));
  const auto inputs =
      std::ranges::count_if(stored.weights, [](const StoredWeight& w) { return w.spec.scheme.is_static(); });
  if (to_type && inputs != 0)
    notes.push_back(io::message("input scales of {} modules dropped: the target is in high precision", inputs));
  const auto anew = std::ranges::count_if(
      plan.weights, [](const PlannedWeight& w) { return w.change == Change::requantized || !w.exact; });
  if (anew > 0 && source.sidecar.is_object() && source.sidecar.contains(kRoundingKey))
    notes.push_back(
        io::message("{} of {} weights get new codes, the nearest: what the source's rounding against inputs gained is "
                    "lost for them",
                    anew, plan.weights.size()));
  return notes;
}

/// What belongs to a weight in codes, and what the target has no place for.
std::set<std::string> dropped_tensors(const SourceFolder& source, bool to_type) {
  const auto& stored = source.stored;
  std::set<std::string> dropped(stored.kv_tensors.begin(), stored.kv_tensors.end());
  dropped.insert(stored.strays.begin(), stored.strays.end());
  if (to_type) dropped.insert(stored.attention_scales.begin(), stored.attention_scales.end());
  for (const auto& w : stored.weights) dropped.insert(w.tensors.begin(), w.tensors.end());
  return dropped;
}

/// Tensors that hold NaN or Inf. Throws for weights whose change would make other values of them.
std::map<std::string, NonFinite> carried_nonfinite(const SourceFolder& source,
                                                   const std::vector<PlannedWeight>& weights,
                                                   const std::function<bool()>& stop) {
  std::set<std::string> codes;
  for (const auto& w : weights) codes.insert(w.from.weight);
  const auto dialect = weights.empty() ? recipes::Dialect::ocp : weights.front().from.spec.scheme.dialect;
  auto found = find_nonfinite(source.checkpoint, dialect, codes, stop);
  for (const auto& w : weights) {
    if (!found.contains(w.from.weight)) continue;
    const auto max = [](const Scheme& s) { return kernels::fp8_max(s.format, s.dialect); };
    const Scheme &from = w.from.spec.scheme, &to = w.to.scheme;
    std::string problem;
    if (w.change == Change::requantized)
      problem =
          ", of which no new scales can be made; without " + io::option("weights") + " its codes stay as they are";
    else if (w.change != Change::decoded && max(from) < max(to))
      problem = " of dialect gaudi2, whose codes are numbers in another; expected finite weights";
    else if (w.change == Change::decoded && max(from) == 240)
      problem = " of dialect gaudi2, which is not decoded; expected finite weights";
    if (!problem.empty()) io::fail_at(source.folder(), "{}: holds NaN or Inf{}", w.from.weight, problem);
  }
  return found;
}

const char* word_of(recipes::FloatType type) {
  return type == recipes::FloatType::F32 ? "float32" : type == recipes::FloatType::F16 ? "float16" : "bfloat16";
}

/// fp8.json: what the source's says of the model, and the scheme that is written now.
io::Json sidecar_from(const SourceFolder& source, const FolderPlan& plan, bool exact) {
  const io::Json old = source.sidecar.is_object() ? source.sidecar : io::Json::object(),
                 before = old.value("skipped", io::Json()), measurements = old.value("measurements", io::Json());
  std::vector<SkippedModule> skipped;
  if (before.is_object())
    for (const auto& [name, reason] : before.items())
      if (reason.is_string()) skipped.push_back({name, reason.get<std::string>()});
  io::Json more = {{"converted", {{"from", source.form_name()}, {"exact", exact}}}};
  const bool same = std::ranges::all_of(
      plan.weights, [](const auto& w) { return w.change == Change::unchanged || w.change == Change::spread; });
  if (same && old.contains(kRoundingKey)) more[kRoundingKey] = old[kRoundingKey];
  return sidecar_of(plan, measurements.is_string() ? measurements.get<std::string>() : "", std::move(skipped), more);
}

FolderTexts converted_texts(const SourceFolder& source, const FolderPlan& plan) {
  const auto exact = std::ranges::count_if(plan.weights, [](const auto& w) { return w.exact; });
  const bool all = exact == std::ssize(plan.weights);
  FolderTexts texts;
  texts.sidecar = sidecar_from(source, plan, all);
  texts.card = card_of(source, plan, "converted from " + source.form_name());
  texts.card->costs = {all ? "Nothing: every weight has the value that it has in the source."
                           : io::message("{} of {} weights have the values of the source, the others are rounded "
                                         "anew. Not evaluated.",
                                         exact, plan.weights.size())};
  if (plan.form != nullptr || plan.type == source.type) return texts;
  for (const char* key : {"dtype", "torch_dtype"})
    if (source.config.contains(key)) texts.edits[key] = word_of(plan.type);
  return texts;
}

/// All that decides the bytes.
io::Json conversion_identity(const FolderPlan& plan, const std::string& assume) {
  io::Json id = {{"command", "convert"},   {"version", FP8_VERSION},
                 {"to", plan.describe()},  {"cast_all", plan.cast},
                 {"qdq", plan.config.qdq}, {"rescale", {plan.rescaling.times, plan.rescaling.over}}};
  if (!assume.empty()) id["assume"] = assume;
  if (!plan.nonfinite.empty()) id["nonfinite"] = nonfinite_json(plan.nonfinite);
  return id;
}

/// What can't be converted at all.
void check_convertible(const SourceFolder& source, const ConvertOptions& o) {
  const std::string anew = io::option("quantize", "quantize_checkpoint()");
  if (!source.stored.packed.empty())
    io::fail_at(source.folder(),
                "{}: experts in MXFP4, which no other form holds and which are not decoded here; {} the original "
                "checkpoint anew",
                source.stored.packed.front(), anew);
  if (source.high_precision() && !o.type.has_value())
    io::fail_at(source.folder(), "is in high precision, expected an fp8 checkpoint; {} makes one of it", anew);
  std::set<std::string> codes;
  for (const auto& w : source.stored.weights)
    if (!codes.insert(w.weight).second)
      io::fail_at(source.folder(), "{}: several modules in one tensor, which is not built", w.weight);
}

}  // namespace

FolderPlan plan_conversion(const SourceFolder& source, const ConvertOptions& o) {
  check_convertible(source, o);
  FolderPlan plan;
  plan.type = o.type.value_or(source.type);
  plan.cast = o.type.has_value() && (o.cast_all || source.high_precision());
  std::vector<std::string> form_notes;
  if (o.type.has_value()) {
    for (const auto& w : source.stored.weights) plan.weights.push_back({.from = w, .to = w.spec});
  } else {
    const Target target = target_of(source, o);
    std::vector<PlannedWeight> weights;
    for (const auto& w : source.stored.weights) weights.push_back(changed_weight(source, target, w));
    const auto kept = reasons_to_keep(source, target.form, weights);
    const PlannedCaches caches = carried_caches(source, target);
    const bool inc = all_keep_inc(source, target, weights, kept, caches.scales);
    plan.form = &target.form;
    plan.rescaling = target.rescaling;
    for (auto& w : weights) plan.weights.push_back(settled_weight(std::move(w), kept, inc));
    plan.config = converted_config(source, target, plan.weights, inc, caches.scales);
    form_notes = caches.notes;
    const auto from = target.common.activations, to = target.scheme.activations;
    if (from != to) form_notes.push_back(std::string("activations: ") + name_of(from) + " -> " + name_of(to));
  }
  for (const auto& w : plan.weights)
    if (!w.reason.empty()) plan.skipped.push_back({w.to.module, w.reason});
  plan.pieces = pieces_of(source.checkpoint, plan.weights, dropped_tensors(source, o.type.has_value()), {});
  if (o.allow_nonfinite) plan.nonfinite = carried_nonfinite(source, plan.weights, o.stream.stop);
  plan.notes = notes_of(source, o, plan, form_notes);
  plan.texts = converted_texts(source, plan);
  plan.identity = conversion_identity(plan, o.assume);
  return plan;
}

ConvertReport convert_checkpoint(const std::filesystem::path& model, const std::filesystem::path& out,
                                 const ConvertOptions& options) {
  if (!options.dry_run) io::refuse_same_path(model, out);
  const Job noted(model, options.stream);
  const SourceFolder source(model, options.assume);
  const FolderPlan plan = plan_conversion(source, options);
  Pipeline pipeline(noted, source, plan);
  ConvertReport report;
  report.from = source.form_name();
  if (!source.high_precision()) report.from += ": " + source.stored.weights.front().spec.scheme.describe();
  report.to = plan.describe();
  report.notes = plan.notes;
  for (auto& note : nonfinite_notes(source, plan)) report.notes.push_back(std::move(note));
  for (auto& notice : notices_beside(source.checkpoint)) report.notes.push_back(std::move(notice));
  report.kv = plan.config.kv.size();
  pipeline.run(out, options.dry_run, options.join, report, report.notes);
  for (std::size_t i = 0; i < plan.weights.size(); ++i) {
    const PlannedWeight& w = plan.weights[i];
    report.modules.push_back({w.to.module, w.change, w.exact, w.reason, pipeline.max_error(i)});
  }
  return report;
}

}  // namespace fp8::quant
