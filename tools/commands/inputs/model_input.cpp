// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inputs/model_input.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/handlers/attention_handler.h"
#include "fp8/quant/model/convert_inference.h"
#include "fp8/quant/plan/rules.h"
#include "fp8/runtime/io/base/checksum.h"
#include "fp8/runtime/ops/common/edge.h"
#include "fp8/runtime/profile/hpu_profiler.h"

namespace fp8::commands {

models::LoadedModel load_language_model(const std::filesystem::path& folder, const Context& context,
                                        models::AttentionKind attention, bool allow_nonfinite) {
  quant::require_model_folder(folder);
  auto loaded = models::load_model(folder, {.dtype = compute_dtype(context),
                                            .device = resolve_device(context),
                                            .attention = attention,
                                            .dialect = context.dialect,
                                            .allow_nonfinite = allow_nonfinite});
  warn_of(loaded, folder, context);
  return loaded;
}

void warn_of(const models::LoadedModel& loaded, const std::filesystem::path& folder, const Context& context) {
  for (const auto& warning : loaded.warnings) context.warn(folder.string() + ": " + warning);
  if (!loaded.unused.empty())
    context.warn(fmt::format("{}: {} tensors are not used, the first is '{}'", folder.string(), loaded.unused.size(),
                             loaded.unused[0]));
}

namespace {

/// The chunks, whose ids are within the vocabulary.
text::Chunks load_text(const DataOptions& options, const std::filesystem::path& model,
                       const models::ModelShape& shape) {
  std::optional<text::Tokenizer> tokenizer;
  if (text::data_kind(options.data) != text::DataKind::tensors) tokenizer.emplace(model);
  auto chunks =
      text::load_chunks(options.data, tokenizer ? &*tokenizer : nullptr,
                        {options.seq_len, options.samples, options.skip, options.shorter, check_interrupted}, model);
  for (const auto id : chunks.ids)
    if (id < 0 || id >= shape.vocab)
      io::fail<io::Error>("{}: found token id {}, allowed: 0 to {} (vocab_size)", text::data_name(options.data), id,
                          shape.vocab - 1);
  return chunks;
}

std::int64_t length_of(const std::vector<std::int64_t>& ids) { return static_cast<std::int64_t>(ids.size()); }

/// Of one part of a pair: "input", "target".
void check_part(const std::vector<std::int64_t>& ids, const char* part, std::size_t pair, const std::string& file,
                const models::ModelShape& shape) {
  if (length_of(ids) > shape.context)
    io::fail<io::Error>("{}: pair {}: {} of {} tokens, allowed: up to max_position_embeddings {}", file, pair + 1, part,
                        ids.size(), shape.context);
  for (const auto id : ids)
    if (id < 0 || id >= shape.vocab)
      io::fail<io::Error>("{}: pair {}: found token id {} in its {}, allowed: 0 to {} (vocab_size)", file, pair + 1, id,
                          part, shape.vocab - 1);
}

Samples load_answers(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape) {
  std::optional<text::Tokenizer> tokenizer;
  if (text::data_kind(options.data) != text::DataKind::tensors) tokenizer.emplace(folder);
  auto pairs = text::load_pairs(
      options.data, tokenizer ? &*tokenizer : nullptr,
      {.seq_len = options.seq_len, .samples = options.samples, .skip = options.skip, .ask = check_interrupted});
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    check_part(pairs[i].source, "input", i, text::data_name(options.data), shape);
    check_part(pairs[i].answer, "target", i, text::data_name(options.data), shape);
  }
  return {std::move(pairs), start_of_answers(folder, shape)};
}

}  // namespace

text::Chunks load_chunks_for(const DataOptions& options, const std::filesystem::path& model,
                             const models::ModelShape& shape) {
  const auto name = text::data_name(options.data);
  auto chunks = load_text(options, model, shape);
  if (chunks.length < 2) io::fail<io::Error>("{}: found chunks of {} token, allowed: 2 or more", name, chunks.length);
  if (chunks.length > shape.context)
    io::fail<io::Error>("{}: chunks of {} tokens (--seq-len), allowed: up to max_position_embeddings {}", name,
                        chunks.length, shape.context);
  return chunks;
}

std::string weights_checksum(const torch::nn::Module& network) {
  io::Checksum sum;
  for (const auto& tensors : {network.parameters(), network.buffers()}) {
    for (const auto& tensor : tensors) {
      if (!tensor.defined()) continue;
      const at::Tensor here = runtime::cpu_alias(tensor.detach()).contiguous();
      sum.update(here.const_data_ptr(), here.nbytes());
    }
  }
  return io::checksum_text(sum.value());
}

std::int64_t start_of_answers(const std::filesystem::path& folder, const models::ModelShape& shape) {
  if (!shape.start)
    io::fail<io::Error>(
        "{}: key 'decoder_start_token_id': missing, allowed: the id that answers begin with (also in "
        "generation_config.json, or bos_token_id)",
        (folder / io::kConfigFile).string());
  return *shape.start;
}

Samples::Samples(text::Chunks chunks) : chunks_(std::move(chunks)) {
  for (std::int64_t i = 0; i < chunks_.count; ++i) columns_.push_back(columns_.back() + chunks_.length);
  rows_ = columns_.back();
  predicted_ = chunks_.count * (chunks_.length - 1);
}

Samples::Samples(std::vector<text::Pair> pairs, std::int64_t start) : pairs_(std::move(pairs)), start_(start) {
  for (const auto& pair : pairs_) {
    columns_.push_back(columns_.back() + length_of(pair.source) + length_of(pair.answer));
    rows_ += length_of(pair.answer);
  }
  predicted_ = rows_;
}

Samples::Samples(text::Chunks text, std::int64_t length, std::int64_t stride)
    : chunks_(std::move(text)), stride_(stride), seen_(std::max<std::int64_t>(length - stride, 1)) {
  const std::int64_t tokens = length_of(chunks_.ids);
  chunks_.length = length;
  chunks_.count = 1 + std::max<std::int64_t>(tokens - seen_ - 1, 0) / stride;  // each has a token to predict
  for (std::int64_t i = 0; i < chunks_.count; ++i) {
    columns_.push_back(columns_.back() + std::min(length, tokens - i * stride));
    rows_ += rows(i);
  }
  predicted_ = rows_;
}

std::int64_t Samples::rows(std::int64_t sample) const {
  if (!pairs_.empty()) return length_of(pairs_[static_cast<std::size_t>(sample)].answer);
  const std::int64_t columns = column(sample + 1) - column(sample);
  if (stride_ == 0) return columns;
  return sample == 0 ? columns - 1 : columns - seen_;
}

std::int64_t Samples::predicted(std::int64_t sample) const {
  return rows(sample) - (pairs_.empty() && stride_ == 0 ? 1 : 0);
}

std::int64_t Samples::count() const { return length_of(columns_) - 1; }

std::int64_t Samples::longest() const {
  std::int64_t most = 0;
  for (std::int64_t i = 0; i < count(); ++i) most = std::max(most, column(i + 1) - column(i));
  return most;
}

io::Json Samples::fingerprint() const {
  io::Checksum ids;
  for (std::int64_t i = 0; i < count(); ++i) {
    const auto sample = batch(i, 1);
    for (const at::Tensor& part : {sample.ids, sample.tokens}) ids.update(part.const_data_ptr(), part.nbytes());
    ids.update(&sample.source, sizeof sample.source);
  }
  return {count(), io::checksum_text(ids.value())};
}

std::int64_t Samples::together(std::int64_t first, std::int64_t most) const {
  const auto end = std::min(first + most, count());
  if (stride_ > 0) {  // the first window is judged whole, the last may be shorter
    std::int64_t next = first + 1;
    while (first > 0 && next < end && column(next + 1) - column(next) == chunks_.length) ++next;
    return next - first;
  }
  if (pairs_.empty()) return end - first;
  const auto& one = pairs_[static_cast<std::size_t>(first)];
  std::int64_t next = first + 1;
  const auto fits = [&](const text::Pair& other) {
    return other.source.size() == one.source.size() && other.answer.size() == one.answer.size();
  };
  while (next < end && fits(pairs_[static_cast<std::size_t>(next)])) ++next;
  return next - first;
}

Samples Samples::part(std::int64_t first, std::int64_t count) const {
  if (!pairs_.empty()) return {std::vector<text::Pair>(pairs_.begin() + first, pairs_.begin() + first + count), start_};
  const auto begin = chunks_.ids.begin() + first * chunks_.length, end = begin + count * chunks_.length;
  return Samples(text::Chunks{{begin, end}, count, chunks_.length});
}

SampleBatch Samples::batch(std::int64_t first, std::int64_t count) const {
  if (stride_ > 0) {
    const std::int64_t columns = column(first + 1) - column(first), judged = rows(first), seen = columns - judged - 1;
    std::vector<std::int64_t> part;
    for (auto i = first; i < first + count; ++i) {
      const auto begin = chunks_.ids.begin() + i * stride_;
      part.insert(part.end(), begin, begin + columns);
    }
    const auto ids = at::tensor(part, at::kLong).view({count, columns});
    return {ids, 0, ids.narrow(1, seen, judged + 1), seen};
  }
  if (pairs_.empty()) {
    const auto begin = chunks_.ids.begin() + first * chunks_.length;
    const std::vector<std::int64_t> part(begin, begin + count * chunks_.length);
    const auto ids = at::tensor(part, at::kLong).view({count, chunks_.length});
    return {ids, 0, ids};
  }
  std::vector<std::int64_t> ids, tokens;
  for (auto i = first; i < first + count; ++i) {
    const auto& [source, answer] = pairs_[static_cast<std::size_t>(i)];
    ids.insert(ids.end(), source.begin(), source.end());
    ids.push_back(start_);
    ids.insert(ids.end(), answer.begin(), answer.end() - 1);
    tokens.push_back(start_);
    tokens.insert(tokens.end(), answer.begin(), answer.end());
  }
  return {at::tensor(ids, at::kLong).view({count, -1}), length_of(pairs_[static_cast<std::size_t>(first)].source),
          at::tensor(tokens, at::kLong).view({count, -1})};
}

namespace {

/// A text whose windows overlap.
Samples load_windows(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape) {
  const auto name = text::data_name(options.data);
  if (shape.task != models::Task::causal)
    io::fail<io::Error>("{}: --stride goes with models that predict the next token of a text", folder.string());
  if (text::data_kind(options.data) == text::DataKind::tensors)
    io::fail<io::Error>("{}: --stride slides over a text, found rows of token ids", name);
  if (options.stride > options.seq_len)
    io::fail<io::Error>("--stride: found {}, allowed: 1 to the window's length {} (--seq-len)", options.stride,
                        options.seq_len);
  if (options.seq_len > shape.context)
    io::fail<io::Error>("{}: windows of {} tokens (--seq-len), allowed: up to max_position_embeddings {}", name,
                        options.seq_len, shape.context);
  DataOptions one = options;  // chunks of one token are the text
  one.seq_len = 1, one.shorter = false;
  one.skip = options.skip * options.stride;
  if (options.samples > 0) one.samples = (options.samples - 1) * options.stride + options.seq_len;
  auto text = load_text(one, folder, shape);
  if (text.count < 2) io::fail<io::Error>("{}: found {} token, allowed: 2 or more", name, text.count);
  return {std::move(text), options.seq_len, options.stride};
}

using Mode = KvCacheOptions::Mode;

/// The measurement is of this model, as far as its weights in high precision can tell.
void check_model(const measure::MeasurementFile& measured, const models::LoadedModel& model, const std::string& where) {
  if (!measured.model.has_value()) return;
  measure::ModelFingerprint own;
  for (const auto& m : measure::weight_modules(*model.model)) {
    const auto type = m.weight.scalar_type();
    if (measured.model->find(m.name) == nullptr || !runtime::ops::is_high_precision(type)) continue;
    own.weights.push_back(measure::fingerprint_of(m.name, runtime::cpu_alias(m.weight.detach()).const_data_ptr(),
                                                  runtime::ops::float_type_of(type), m.weight.sizes().vec()));
  }
  measure::require_same_model(*measured.model, own, where);
}

void use_measurements(const models::LoadedModel& model, const std::vector<measure::OpNode>& nodes,
                      const KvCacheOptions& o, const Context& context) {
  quant::PlanOptions plan;
  plan.dialect = context.dialect.value_or(kernels::Dialect::ocp);
  plan.kv_scales = o.scales.value_or(recipes::Granularity::tensor);
  plan.measurements = measure::read_measurements(o.measurements);
  check_model(*plan.measurements, model, o.measurements);
  std::vector<std::string> warnings;
  const auto kv = quant::plan_kv_cache(quant::cached_attention(nodes), plan, warnings);
  for (const auto& warning : warnings) context.warn(warning);
  quant::detach_kv_cache(nodes);
  quant::attach_kv_cache(nodes, kv, quant::kv_numbers(plan), o.measurements);
}

}  // namespace

Samples load_samples(const DataOptions& options, const std::filesystem::path& folder, const models::ModelShape& shape) {
  if (options.stride > 0) return load_windows(options, folder, shape);
  if (shape.task == models::Task::answer) return load_answers(options, folder, shape);
  return Samples(load_chunks_for(options, folder, shape));
}

at::Tensor logits_of(models::CausalLM& model, const SampleBatch& batch, at::Device device) {
  return model.forward(batch.ids.to(device), nullptr, models::CausalLM::Logits::all, batch.source);
}

EnvironmentConfig::EnvironmentConfig(models::LoadedModel& model, const Context& context) : context_(context) {
  const auto path = configs::quant_config_from_environment();
  if (!path.has_value()) return;
  const auto config = configs::read_quant_config(*path, measure::parse_options());
  if (config.mode == configs::QuantMode::NONE) return;
  if (config.mode == configs::QuantMode::AUTO)
    io::fail<io::Error>(
        "{}: key 'mode': found AUTO in QUANT_CONFIG, which leaves the choice open, allowed: NONE, MEASURE, QUANTIZE",
        config.source);
  if (context.device != "hpu")
    io::fail<UsageError>("--device: found '{}', but QUANT_CONFIG asks for {}, allowed: hpu", context.device,
                         configs::name_of(config.mode));
  if (model.config_json.contains("quantization_config"))
    io::fail<io::Error>("{}: the checkpoint is fp8 already; QUANT_CONFIG asks for {} of a high precision one",
                        model.folder.string(), configs::name_of(config.mode));
  const bool quantize = config.mode == configs::QuantMode::QUANTIZE || config.mode == configs::QuantMode::LOAD;
  // A checkpoint with a quantized head has an embedding of its own too, in high precision; so has the model quantized
  // on load.
  const auto head_is_selected = [&] {
    return configs::module_filter(config).selects("Linear", model.model->name_of(*model.model->parts().head));
  };
  if (quantize && head_is_selected()) model.model->untie_head();
  runtime::device_dialect("QUANT_CONFIG");  // a device that has no fp8 is refused, whatever --dialect says
  const auto report = quant::convert_for_inference(*model.model, {.quant = quantize});
  for (const auto& warning : report.warnings) context.warn(warning);
  if (report.converted.empty()) context.warn(config.source + ": no module of the model is selected");
  source_ = "QUANT_CONFIG " + config.source;
  if (quantize) {
    note_conversion(source_, report, context);
    return;
  }
  session_ = measure::CalibrationSession::of(*model.model);
  if (session_ != nullptr) measure::check_writable(config.dump_stats_path.string());
}

EnvironmentConfig::~EnvironmentConfig() {
  if (session_ == nullptr) return;
  try {
    if (session_->samples() > 0) keeps_.emplace();
    if (interrupted() && session_->samples() > 0) write();
  } catch (const std::exception& error) {
    write_stderr("fp8: warning: measurements were not written: " + one_line(error.what()) + "\n");
  }
  session_->discard();
}

void EnvironmentConfig::plan_samples(std::int64_t count) {
  if (session_) session_->plan_samples(count);
}

void EnvironmentConfig::begin_samples(std::int64_t first, std::int64_t count) {
  if (!session_) return;
  if (session_->samples() > 0) keeps_.emplace();
  session_->begin_samples(first, count);
}

void EnvironmentConfig::finish() {
  if (!session_) return;
  keeps_.emplace();
  warn_non_finite(*session_, context_);
  write();  // if this throws, the destructor discards
  session_.reset();
  keeps_.reset();
}

void EnvironmentConfig::write() {
  const auto measured = session_->result();
  const auto files = session_->finalize();
  const auto with_weight = std::ranges::count_if(measured.modules, [](const auto& m) { return m.weight.has_value(); });
  const auto nodes = static_cast<std::int64_t>(measured.modules.size()) - with_weight;
  const std::string shortage = measured.shortage();
  context_.note(fmt::format("{}: measured {} modules and {} nodes on {}", source_, with_weight, nodes,
                            shortage.empty() ? fmt::format("{} samples", session_->samples()) : shortage));
  if (!files.empty())
    context_.note(fmt::format("{}: wrote {} and {} files beside it", source_, files[0].string(), files.size() - 1));
  note_backup(session_->backup(), context_);
}

void note_conversion(const std::string& source, const quant::ConversionReport& report, const Context& context) {
  const auto modules = std::ranges::count_if(
      report.converted, [](const auto& m) { return configs::type_is(m.type, &configs::KindInfo::weight); });
  context.note(fmt::format("{}: {} modules and {} nodes run in fp8, {} stay in high precision", source, modules,
                           static_cast<std::int64_t>(report.converted.size()) - modules, report.skipped.size()));
  context.note(fmt::format("{}: {}", source,
                           report.scales_of.empty() ? "no measurement is read: the scales need none"
                                                    : "static scales of " + report.scales_of.string()));
}

void note_backup(const std::filesystem::path& backup, const Context& context) {
  if (!backup.empty()) context.note("the measurement that stood there before is in " + backup.string());
}

void warn_non_finite(const measure::CalibrationSession& session, const Context& context, std::int64_t first_sample) {
  constexpr std::size_t kShown = 5;
  const auto found = session.non_finite();
  for (std::size_t i = 0; i < found.size() && i < kShown; ++i) {
    const auto& f = found[i];
    const std::string where = f.sample < 0 ? "" : fmt::format(" of sample {}", first_sample + f.sample);
    context.warn(fmt::format("{}: {} in its {}{}; not stored", f.module, f.nan ? "NaN" : "Inf", f.tensor, where));
  }
  if (found.size() > kShown) context.warn(fmt::format("{} more tensors with NaN or Inf", found.size() - kShown));
}

void set_kv_cache(models::LoadedModel& model, const KvCacheOptions& o, const Context& context) {
  const auto nodes = measure::op_nodes(*model.model);
  if (o.mode == Mode::off) return quant::detach_kv_cache(nodes);
  if (!o.measurements.empty()) use_measurements(model, nodes, o, context);
  const auto* scheme = quant::kv_cache_scheme(nodes);
  if (scheme == nullptr && o.mode == Mode::fp8)
    io::fail<io::Error>(
        "{}: found no scales for --kv-cache fp8; make them of a measurement (--measurements DIR of fp8 measure), or "
        "put them into the checkpoint (fp8 quantize --kv-cache fp8)",
        model.folder.string());
  const auto heads = static_cast<std::size_t>(model.model->shape().kv_heads);
  if (scheme != nullptr && scheme->input_scale_inv.size() > 1 && scheme->input_scale_inv.size() != heads)
    io::fail<io::Error>("{}: found key-value scales of {} heads, config.json says num_key_value_heads {}",
                        model.folder.string(), scheme->input_scale_inv.size(), heads);
}

KvCacheInForce kv_cache_of(const models::LoadedModel& model) {
  const auto* scheme = quant::kv_cache_scheme(measure::op_nodes(*model.model));
  if (scheme == nullptr) return {models::name_of_dtype(model.dtype), ""};
  return {"fp8", scheme->input_scale_inv.size() > 1 ? "head" : "tensor"};
}

std::shared_ptr<runtime::Profiler> profiler_of(const ProfileOptions& o, const Context& context) {
  if (o.folder.empty()) return nullptr;
  runtime::HPUProfilerOptions options;
  options.dirpath = o.folder.string();
  if (!o.schedule_text.empty()) options.schedule = o.schedule();
  if (!resolve_device(context).is_hpu()) options.activities = {runtime::ProfilerActivity::CPU};
  options.record_shapes = options.record_module_names = options.profile_memory = true;
  options.warn = [&context](const std::string& text) { context.warn(text); };
  return std::make_shared<runtime::HPUProfiler>(std::move(options));
}

}  // namespace fp8::commands
