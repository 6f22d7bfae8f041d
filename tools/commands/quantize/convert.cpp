// SPDX-License-Identifier: Apache-2.0
// fp8 convert: an fp8 checkpoint into another form, or back into high precision, tensor by tensor.
#include <fmt/format.h>

#include "fp8/quant/checkpoint/reform.h"
#include "fp8/quant/names/folded_names.h"
#include "fp8/tools/commands/cli/command.h"
#include "fp8/tools/commands/cli/report.h"
#include "fp8/tools/commands/quantize/scheme_option.h"
#include "fp8/tools/commands/work/process.h"

namespace fp8::commands {
namespace {

constexpr std::int64_t kMaxIncRanks = 65536;

struct ConvertCommand {
  std::filesystem::path model, out;
  quant::ConvertOptions options;
  std::string to;
  std::optional<quant::WeightWord> scheme;
  std::int64_t block = 0, worst = 5, ranks = 0;  ///< ranks: 0: not given
  ShareOptions share;
  bool verify = false, verify_only = false;
};

constexpr recipes::FloatType kTypes[] = {recipes::FloatType::BF16, recipes::FloatType::F16, recipes::FloatType::F32};

/// The types, then the forms.
std::vector<std::string> targets() {
  auto names = quant::form_names(std::not_fn(&quant::CheckpointForm::needs_mxfp4));
  names.insert(names.begin(), {"bf16", "f16", "f32"});
  return names;
}

void set_target(ConvertCommand& c, const std::vector<std::string>& names, std::size_t i) {
  c.to = names[i];
  c.options.type.reset();
  if (i < std::size(kTypes))
    c.options.type = kTypes[i];
  else
    c.options.form = c.to;
}

void check_usage(ConvertCommand& c, const Context& context) {
  auto& o = c.options;
  o.dialect = context.dialect;
  if (c.block != 0) o.block = quant::Block{c.block, c.block};
  if (o.type.has_value()) {
    const char* given = c.scheme.has_value()         ? "--scheme"
                        : o.block.has_value()        ? "--block"
                        : o.power_of_two.has_value() ? "--scale-format"
                        : o.rescale.has_value()      ? "--rescale"
                        : o.dialect.has_value()      ? "--dialect"
                                                     : nullptr;
    if (given != nullptr) io::fail<UsageError>("convert: {} is for fp8 forms, found --format {}", given, c.to);
  } else if (o.cast_all) {
    io::fail<UsageError>("convert: --cast-all is for --format bf16, f16, f32, found --format {}", c.to);
  }
  const bool block = c.scheme.value_or(quant::WeightWord::block) == quant::WeightWord::block;
  if (!block && (o.block.has_value() || o.power_of_two.has_value()))
    throw UsageError("convert: --block and --scale-format are --scheme block:N and block:e8m0");
  if (c.scheme.has_value()) quant::set_weights(o, *c.scheme);
  if (c.verify && o.dry_run) throw UsageError("convert: --verify reads what --dry-run does not write");
  if (c.verify_only && (o.dry_run || c.share.join))
    throw UsageError("convert: --verify-only writes nothing, --dry-run and --join don't go with it");
}

/// The process' share of the work. Only a whole folder can be verified.
Share take_share(ConvertCommand& c, const Context& context) {
  Share share = find_share(c.share, c.out);
  attach(share, context);
  auto& stream = c.options.stream;
  set_share(stream, share);
  stream.resume = c.share.resume;
  stream.shard_bytes = static_cast<std::uint64_t>(c.share.shard_bytes);
  c.options.join = c.share.join;
  if (c.verify && (share.shares.has_value() || share.world_size > 1) && !c.share.join)
    throw UsageError("convert: --verify needs the whole folder: with --join, or --verify-only afterwards");
  return share;
}

/// The modules as JSON; rows say what a reader wants to know of them.
void add_modules(const quant::ConvertReport& done, Report& report) {
  std::map<std::string, std::size_t> counts;
  std::size_t exact = 0;
  const quant::ConvertedWeight* worst = nullptr;
  io::Json modules = io::Json::array();
  for (const auto& m : done.modules) {
    io::Json one = {{"name", m.name}, {"change", name_of(m.change)}, {"exact", m.exact}};
    if (m.max_error.has_value()) one["max_relative_error"] = *m.max_error;
    if (!m.reason.empty()) one["reason"] = m.reason;
    modules.push_back(std::move(one));
    ++counts[name_of(m.change)];
    exact += m.exact ? 1 : 0;
    if (m.max_error.has_value() && (worst == nullptr || *m.max_error > *worst->max_error)) worst = &m;
  }
  const std::size_t all = done.modules.size();
  report.json["modules"] = std::move(modules);
  report.json["modules_converted"] = all;
  for (const auto& [change, count] : counts) report.row({"modules " + change, std::to_string(count)});
  report.add("exact", "exact", exact == all, exact == all ? "yes" : fmt::format("{} of {} modules", exact, all));
  if (worst != nullptr)
    report.row({"largest relative error", fmt::format("{:.3e} ({})", *worst->max_error, worst->name)});
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> kept;  // by reason
  for (const auto& m : done.modules) {
    names.push_back(m.name);
    if (!m.reason.empty()) kept[m.reason].push_back(m.name);
  }
  const quant::NameFolder folder(names);
  for (const auto& [reason, modules] : kept)
    for (const auto& folded : folder.fold(modules)) report.row({"in high precision: " + folded.name, reason});
}

void add_verification(const quant::Verification& v, std::int64_t worst, Report& report) {
  io::Json all = io::Json::array();
  std::size_t equal = 0;
  for (const auto& d : v.modules) {
    all.push_back({{"name", d.name},
                   {"exact_promised", d.exact},
                   {"bit_equal", d.equal},
                   {"max_relative_error", d.max_error},
                   {"rms_relative_error", d.rms_error}});
    equal += d.equal ? 1 : 0;
  }
  report.add("verify", "verified bit-equal",
             {{"modules", all}, {"modules_bit_equal", equal}, {"tensors_compared", v.tensors}, {"broken", v.changed}},
             fmt::format("{} of {} modules", equal, v.modules.size()));
  report.row({"verified tensors", std::to_string(v.tensors)});
  for (std::size_t i = 0; i < std::min(v.modules.size(), static_cast<std::size_t>(worst)); ++i) {
    const auto& d = v.modules[i];
    report.row({"error of " + d.name,
                fmt::format("max {:.3e}, rms {:.3e}{}", d.max_error, d.rms_error, d.equal ? ", as promised" : "")});
  }
}

/// Shows `progress` and stops where the user wants to.
void watch_stream(quant::StreamOptions& stream, Progress& progress) {
  stream.spelling = flag_of_option;
  stream.stop = [] { return interrupted(); };
  stream.progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); };
}

/// --ranks keeps form, codes and types, so that nothing that changes those goes with it.
void check_ranks_usage(const ConvertCommand& c, const Context& context) {
  const auto& o = c.options;
  const auto& s = c.share;
  const char* given = c.scheme.has_value()              ? "--scheme"
                      : c.block != 0                    ? "--block"
                      : o.power_of_two.has_value()      ? "--scale-format"
                      : o.rescale.has_value()           ? "--rescale"
                      : context.dialect.has_value()     ? "--dialect"
                      : !o.assume.empty()               ? "--assume"
                      : o.allow_nonfinite               ? "--allow-nonfinite"
                      : o.cast_all                      ? "--cast-all"
                      : c.verify || c.verify_only       ? "--verify"
                      : o.dry_run                       ? "--dry-run"
                      : s.resume                        ? "--resume"
                      : s.join || s.shares > 0          ? "--shares and --join"
                      : s.rank >= 0 || s.world_size > 0 ? "--rank"
                                                        : nullptr;
  if (c.to != "inc") io::fail<UsageError>("convert: --ranks is for --format inc, found --format {}", c.to);
  if (given != nullptr) io::fail<UsageError>("convert: {} doesn't go with --ranks", given);
}

void convert_ranks(const ConvertCommand& c, Context& context) {
  check_ranks_usage(c, context);
  const Stopwatch watch;
  Progress progress(context, "convert");
  progress.announce(peak_resident_bytes);
  quant::StreamOptions stream = c.options.stream;
  watch_stream(stream, progress);
  stream.shard_bytes = static_cast<std::uint64_t>(c.share.shard_bytes);
  const int from = quant::inc::ranks_of(c.model), to = static_cast<int>(c.ranks);
  if (from == to)
    io::fail<io::Error>("{}: is of {} ranks already, --ranks allowed: any other number", c.model.string(), to);
  (to > from ? quant::inc::split_checkpoint : quant::inc::unify_checkpoint)(c.model, c.out, to, stream,
                                                                            quant::inc::usual_split);
  const double seconds = watch.seconds();
  Report report("convert", c.model);
  report.json["from_ranks"] = from;
  report.add("ranks", "ranks", to, fmt::format("{} -> {}", from, to));
  report.add("seconds", "seconds", seconds, As::seconds);
  report.json.update({{"peak_rss_bytes", peak_resident_bytes()}, {"out", c.out.string()}});
  report.print(context);
}

void convert(ConvertCommand& c, Context& context) {
  if (c.ranks > 0) return convert_ranks(c, context);
  check_usage(c, context);
  const Share share = take_share(c, context);
  const Stopwatch watch;
  Progress progress(context, "convert");
  progress.announce(peak_resident_bytes);
  watch_stream(c.options.stream, progress);
  quant::ConvertOptions options = c.options;
  options.dry_run = options.dry_run || c.verify_only;
  if (c.verify_only) options.stream.resume = false;
  const auto done = quant::convert_checkpoint(c.model, c.out, options);
  const double seconds = watch.seconds();
  std::optional<quant::Verification> verification;
  const bool elsewhere = share.shares.has_value() && !done.shares.joined && !done.finished_before;
  if (c.verify_only || (c.verify && !options.dry_run && !elsewhere))
    verification = quant::verify_conversion(c.model, c.out, c.options);

  Report report(c.verify_only ? "convert (verify only)" : options.dry_run ? "convert (dry run)" : "convert", c.model);
  report.add("from", "from", done.from);
  report.add("to", "to", done.to);
  add_modules(done, report);
  report.json["kv_cache_scales"] = done.kv;
  if (done.kv != 0) report.row({"key-value cache scales", fmt::format("{} attention modules", done.kv)});
  report.json["notes"] = done.notes;
  for (const auto& note : done.notes) report.row({"note", note});
  if (done.finished_before)
    report.row({"finished already", c.out.string() + " is what a run with these options wrote; nothing was done"});
  report.order({"weights_bytes", "source_bytes", "seconds"});
  report.json.update({{"peak_rss_bytes", peak_resident_bytes()},
                      {"dry_run", c.options.dry_run},
                      {"finished_before", done.finished_before},
                      {"out", c.out.string()},
                      {"rank", share.rank},
                      {"world_size", share.world_size}});
  add_shares(report, share, done.shares, !done.finished_before && !options.dry_run, options.join);
  report.add("source_bytes", "source", done.source_bytes, As::bytes);
  report.add("weights_bytes", "weights", done.weights_bytes, As::bytes);
  report.add("seconds", "seconds", seconds, As::seconds);
  if (verification.has_value()) add_verification(*verification, c.worst, report);
  report.print(context);
  if (verification.has_value() && !verification->changed.empty())
    io::fail<io::Error>("{}: differs from {} in {} places that were promised exact, the first is {}", c.out.string(),
                        c.model.string(), verification->changed.size(), verification->changed.front());
}

}  // namespace

Action add_convert(Options& options) {
  auto c = std::make_shared<ConvertCommand>();
  options.model(c->model,
                "fp8 checkpoint folder of any form (for --format bf16, f16, f32 also a high precision one: its tensors "
                "are cast)");
  const auto names = targets();
  options.choice(
      "--format", names, [c, names](std::size_t i) { set_target(*c, names, i); },
      "Type or form to write. A type: code * scale, rounded once; config.json's dtype or torch_dtype is changed only "
      "if it says another type");
  options.require("--format");
  options.renamed("--to", "--format");
  options.path("--out", c->out, io::Reach::replaced, "Folder to write", Options::Need::required);
  add_scheme_option(
      options, {c->scheme, c->block, c->options.power_of_two},
      "Weight scales (default: the source's, or finer ones that keep every code). Coarser scales requantize, which is "
      "not exact. block:N: squares of N (default the source's, else 128), block:e8m0, block:f32: powers of two, any "
      "number");
  options.choice<quant::Rescale>(
      "--rescale", c->options.rescale,
      "With a --dialect of another range: scales times this, codes divided by it and rounded (default 448/240 to "
      "gaudi2; from gaudi2 codes and "
      "scales stay)");
  const auto assumed = quant::form_names(&quant::CheckpointForm::can_be_assumed);
  options.choice(
      "--assume", assumed, [c, assumed](std::size_t i) { c->options.assume = assumed[i]; },
      "Form of a MODEL whose config.json has no quantization_config, or whose codes are stored as U8 or I8 (E4M3 "
      "then); refused without");
  options.flag("--allow-nonfinite", c->options.allow_nonfinite,
               "Copy tensors with NaN or Inf, noted in fp8.json, instead of refusing them");
  options.flag("--cast-all", c->options.cast_all,
               "To a type: cast the tensors that are not in fp8 too, instead of copying them");
  options.flag(
      "--verify", c->verify,
      "Then compare both folders' weights, print the worst modules; exit 1 if one that is called exact is not");
  options.flag("--verify-only", c->verify_only, "Only compare --out, written before with the same options, with MODEL");
  options.integer("--worst", c->worst, 0, 1'000'000, "Modules that --verify prints (--json has all)");
  options.integer("--ranks", c->ranks, 1, kMaxIncRanks,
                  "With --format inc, of a MODEL in that form: share its fp8 weights out to this many ranks of tensor "
                  "parallelism, or put those of several ranks together for fewer; 1: an ordinary checkpoint",
                  "as the source");
  options.flag("--overwrite", c->options.stream.overwrite, "Replace a non-empty output folder");
  add_share_options(options, c->share);
  options.flag("--dry-run", c->options.dry_run, "Print the plan and the bytes, write nothing");
  options.uses_beside([c] { return divides_work(c->share); });
  return [c](Context& context) { convert(*c, context); };
}

}  // namespace fp8::commands
