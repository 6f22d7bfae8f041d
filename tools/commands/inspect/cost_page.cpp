// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/inspect/cost_page.h"

#include <fmt/format.h>

#include "fp8/quant/forms/model_source.h"
#include "fp8/quant/forms/parts.h"
#include "fp8/tools/commands/cli/output.h"
#include "fp8/tools/commands/inspect/inspect.h"
#include "fp8/version.h"

namespace fp8::commands {

std::string QualityNumber::text(const io::Json& numbers) const {
  return fmt::format(fmt::runtime(format), times * numbers[key].get<double>());
}

std::string QualityNumber::interval(const io::Json& numbers) const {
  const auto found = numbers["intervals"].find(key);
  if (found == numbers["intervals"].end() || !found->is_array()) return "";
  const auto bound = [&](std::size_t i) {
    return fmt::format(fmt::runtime(in_interval), times * (*found)[i].get<double>());
  };
  const std::string low = bound(0);
  return low.substr(0, low.find(' ')) + " to " + bound(1);  // the unit is said once
}

const QualityNumber& quality_number(const std::string& key) {
  return *std::ranges::find(kQualityNumbers, key, &QualityNumber::key);
}

std::string data_text(const io::Json& numbers) {
  const auto& names = numbers["data"];
  return one_line(names[0].get<std::string>()) +
         (names.size() > 1 ? fmt::format(" and {} more", names.size() - 1) : "");
}

std::string chunks_text(const io::Json& numbers) {
  const auto count = [&](const char* key) { return grouped(numbers[key].get<std::int64_t>()); };
  if (numbers.contains("source_tokens")) return count("chunks");
  const auto text = fmt::format("{} of {} tokens", count("chunks"), count("seq_len"));
  return numbers.contains("stride") ? text + fmt::format(", {} apart", count("stride")) : text;
}

namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWorst = 5;
constexpr char kWeight[] = ".weight";

/// The modules of a checkpoint by how their weights are stored; what else it holds last.
std::vector<PrecisionShare> shares_of(const io::Checkpoint& checkpoint, const quant::StoredCheckpoint& stored) {
  std::map<std::string, PrecisionShare> shares;
  std::set<std::string> seen;
  const auto add = [&](const std::string& precision, std::size_t modules, std::uint64_t bytes) {
    auto& share = shares.try_emplace(precision, PrecisionShare{precision}).first->second;
    share.modules += modules;
    share.bytes += bytes;
  };
  for (const auto& w : stored.weights) {
    std::uint64_t bytes = 0;
    for (const auto& tensor : w.tensors)  // experts of a stack have one in common
      if (seen.insert(tensor).second) bytes += checkpoint.info(tensor).bytes();
    add(w.spec.scheme.describe(), 1, bytes);
  }
  PrecisionShare rest{"norms, biases and other tensors"};
  for (std::size_t i = 0; i < checkpoint.names().size(); ++i) {
    const auto& info = checkpoint.info(i);
    if (seen.contains(info.name)) continue;
    if (info.shape.size() >= 2 && info.name.ends_with(kWeight))
      add(io::name_of(info.dtype), 1, info.bytes());
    else
      rest.bytes += info.bytes();
  }
  std::vector<PrecisionShare> all;
  for (auto& [precision, share] : shares) all.push_back(std::move(share));
  std::ranges::stable_sort(all, std::ranges::greater(), &PrecisionShare::bytes);
  if (rest.bytes > 0) all.push_back(std::move(rest));
  return all;
}

std::string bytes_text(std::uint64_t bytes) { return human_bytes(static_cast<std::int64_t>(bytes)); }

std::string percent_text(std::uint64_t part, std::uint64_t of) {
  return fmt::format("{:.1f} %", of == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(of));
}

/// Why a module is among the worst.
std::string reason_of(const quant::ModuleDamage& m) {
  std::vector<std::string> reasons;
  const auto look = [&](const quant::CastDamage& d, const char* part, const char* values) {
    if (d.signal > 0 && std::isfinite(d.sqnr_db()) && d.sqnr_db() < kFairDb)
      reasons.push_back(fmt::format("{} SQNR {:.1f} dB, below {:.0f} dB", part, d.sqnr_db(), kFairDb));
    if (d.saturation_share() > 0)
      reasons.push_back(fmt::format("{:.3g} % of the {} are beyond what the scale leaves room for",
                                    100 * d.saturation_share(), values));
    if (d.underflow_share() > 0.001)
      reasons.push_back(fmt::format("{:.3g} % of the {} are too small beside the largest, {:.3g}, and become zero",
                                    100 * d.underflow_share(), values, d.amax));
  };
  look(m.weight, "weight", "weights");
  if (m.input.has_value()) look(*m.input, "input", "inputs");
  if (!reasons.empty()) return io::joined(reasons, "; ");
  return m.weight.signal > 0 ? "nothing unusual: what rounding to the format costs" : "nothing saturates";
}

// HTML: every text from a file goes through xml_text().

std::string cell(const std::string& text, bool is_text) {
  return (is_text ? "<td class=\"text\">" : "<td>") + xml_text(text) + "</td>";
}

/// texts: the columns that are no numbers, from the left.
class HtmlTable {
 public:
  HtmlTable(std::vector<std::string> headers, std::set<std::size_t> texts) : texts_(std::move(texts)) {
    for (std::size_t i = 0; i < headers.size(); ++i)
      head_ += fmt::format("<th{}>{}</th>", texts_.contains(i) ? " class=\"text\"" : "", xml_text(headers[i]));
  }
  void row(const std::vector<std::string>& cells) {
    rows_ += "<tr>";
    for (std::size_t i = 0; i < cells.size(); ++i) rows_ += cell(cells[i], texts_.contains(i));
    rows_ += "</tr>\n";
  }
  std::string html(const std::string& title) const {
    return "<section>\n<h2>" + xml_text(title) + "</h2>\n<div class=\"scroll\"><table class=\"facts\"><thead><tr>" +
           head_ + "</tr></thead><tbody>\n" + rows_ + "</tbody></table></div>\n";
  }

 private:
  std::set<std::size_t> texts_;
  std::string head_, rows_;
};

std::string paragraph(const std::string& text) { return "<p class=\"dim\">" + xml_text(text) + "</p>\n"; }

std::string tile(const std::string& label, const std::string& value, const std::string& below) {
  return "<div><p>" + xml_text(label) + "</p><p class=\"value\">" + xml_text(value) + "</p><p class=\"dim\">" +
         xml_text(below) + "</p></div>\n";
}

std::string interval_words(const QualityNumber& q, const io::Json& numbers) {
  const auto interval = q.interval(numbers);
  return interval.empty() ? "one chunk: no interval" : "95 %: " + interval;
}

std::string quality_tile(const Cost& c) {
  for (const char* key : {"perplexity_change", "cosine", "perplexity"})
    if (c.numbers.is_object() && c.numbers.contains(key))
      return tile(quality_number(key).label, quality_number(key).text(c.numbers),
                  interval_words(quality_number(key), c.numbers));
  return tile("quality", "not evaluated", "fp8 evaluate --html measures it");
}

std::string tiles(const Cost& c) {
  std::string out = "<div class=\"tiles\">\n" + quality_tile(c);
  if (c.numbers.is_object() && c.numbers.contains("kl"))
    out += tile("KL divergence, nats a token", quality_number("kl").text(c.numbers),
                interval_words(quality_number("kl"), c.numbers));
  out += c.of_bytes == 0 ? tile("size", bytes_text(c.bytes), "of tensors")
                         : tile("size", percent_text(c.bytes, c.of_bytes),
                                bytes_text(c.of_bytes) + " before, " + bytes_text(c.bytes) + " after");
  std::size_t modules = 0;
  for (const auto& share : c.precisions) modules += share.modules;
  if (!c.form.empty())
    out += tile("modules in fp8", std::to_string(c.damage.modules.size()),
                "of " + std::to_string(modules) + " with a matrix");
  return out + "</div>\n";
}

/// "95 % intervals over 32 of 512 tokens of text.txt: ..."
std::string how_measured(const io::Json& numbers) {
  const std::string of = numbers.contains("source_tokens") ? " answers"
                         : numbers.contains("stride")      ? " windows"
                                                           : " chunks";
  return fmt::format(
      "Measured on {}: {}{}, computed in {}. Intervals: mean \u00b1 t \u00b7 s, of 95 % by Student's t; "
      "s = \u221a(C/(C\u22121) \u03a3(x\u1d62 \u2212 mean\u00b7n\u1d62)\u00b2) / \u03a3n\u1d62 is the standard error "
      "over C{}, x\u1d62 the sum over the n\u1d62 tokens "
      "of one; of the perplexity's logarithm, and of its difference on the same tokens. Other texts differ more.",
      one_line(data_text(numbers)), chunks_text(numbers), numbers.contains("source_tokens") ? of : "",
      numbers["dtype"].get<std::string>(), of);
}

std::string quality_table(const CostPage& page) {
  const auto& first = page.costs.front().numbers;
  if (!first.is_object()) return "";
  if (page.costs.size() == 1) {
    HtmlTable table({"", "", "95 % interval"}, {0, 2});
    for (const auto& q : kQualityNumbers)
      if (first.contains(q.key)) table.row({q.label, q.text(first), q.interval(first)});
    return table.html("Quality") + paragraph(how_measured(first)) + "</section>\n";
  }
  std::vector<std::string> headers = {"model", "size", "of the reference"};
  std::vector<const QualityNumber*> columns;
  for (const auto& q : kQualityNumbers) {
    if (!first.contains(q.key) || std::string_view(q.key) == "reference_perplexity") continue;
    columns.push_back(&q);
    headers.insert(headers.end(), {q.column, "95 % interval"});
  }
  HtmlTable table(headers, {0});
  if (first.contains("reference_perplexity")) {
    const auto& q = quality_number("reference_perplexity");
    table.row({page.reference + " (reference)", bytes_text(page.costs.front().of_bytes), "", q.text(first),
               q.interval(first)});
  }
  for (const auto& c : page.costs) {
    std::vector<std::string> cells = {c.name, bytes_text(c.bytes),
                                      c.of_bytes == 0 ? "" : percent_text(c.bytes, c.of_bytes)};
    for (const auto* q : columns) cells.insert(cells.end(), {q->text(c.numbers), q->interval(c.numbers)});
    table.row(cells);
  }
  return table.html("Quality and size") + paragraph(how_measured(first)) + "</section>\n";
}

std::string precision_table(const Cost& c, bool named) {
  HtmlTable table({"precision", "modules", "size", "share"}, {0});
  for (const auto& share : c.precisions)
    table.row({share.precision, share.modules == 0 ? "" : std::to_string(share.modules), bytes_text(share.bytes),
               percent_text(share.bytes, c.bytes)});
  return table.html(named ? c.name + ": modules by precision" : "Modules by precision") + "</section>\n";
}

std::string worst_table(const Cost& c, bool named) {
  const auto& modules = c.damage.modules;
  if (modules.empty()) return "";
  HtmlTable table({"module", "SQNR dB", "why"}, {0, 2});
  const std::size_t count = std::min(kWorst, modules.size());
  for (std::size_t i = 0; i < count; ++i) {
    const auto& m = modules[i];
    const bool known = m.weight.signal > 0 && std::isfinite(m.sqnr_db());
    table.row({one_line(m.name), known ? fmt::format("{:.1f}", m.sqnr_db()) : "", reason_of(m)});
  }
  const std::string title =
      count == 1 ? "The module in fp8" : fmt::format("The worst {} of {} modules", count, modules.size());
  std::string note = c.no_sqnr.empty()
                         ? "By the weight's SQNR, a cast to E4M3 gives some 31 dB; KL divergence has another order."
                         : "By saturation. No SQNR: " + c.no_sqnr + ".";
  return table.html(named ? c.name + ": the worst " + std::to_string(count) : title) + paragraph(note) + "</section>\n";
}

std::string facts_table(const CostPage& page, const std::string& date) {
  HtmlTable table({"", ""}, {0, 1});
  for (const auto& c : page.costs) {
    const std::string of = page.costs.size() > 1 ? c.name + ": " : "";
    if (page.costs.size() == 1) table.row({"model", c.name});
    table.row({of + "form", c.form.empty() ? "high precision" : c.form});
    if (!c.damage.modules.empty()) table.row({of + "scheme", c.damage.modules.front().scheme});
    for (const auto& [name, text] : c.more) table.row({of + name, text});
  }
  if (!page.reference.empty())
    table.row({page.costs.front().numbers.is_object() ? "reference" : "made of", page.reference});
  const auto& numbers = page.costs.front().numbers;
  if (numbers.is_object()) table.row({"data", data_text(numbers)});
  table.row({"command", page.command});
  table.row({"made by", "fp8 " FP8_VERSION});
  table.row({"date", date});
  return table.html("How it was made") + "</section>\n";
}

}  // namespace

Cost cost_of(const fs::path& model, const fs::path& reference) {
  Cost cost;
  cost.name = quant::model_name(model);
  const io::Checkpoint checkpoint(model);
  const io::Json quantization = quant::read_quantization_config(model);
  if (!quantization.is_null()) cost.form = quant::form_of_config(quantization, model.string()).name();
  cost.bytes = checkpoint.total_bytes();
  cost.precisions =
      shares_of(checkpoint, cost.form.empty() ? quant::StoredCheckpoint() : quant::read_stored(checkpoint));
  if (!reference.empty()) cost.of_bytes = io::Checkpoint(reference).total_bytes();
  if (cost.form.empty()) return cost;
  const auto stop = [] { return interrupted(); };
  try {
    if (!reference.empty()) cost.damage = quant::compare_checkpoints(model, reference, stop);
  } catch (const io::Error& error) {
    check_interrupted();
    cost.no_sqnr = "the weights of " + quant::model_name(reference) + " do not stand beside these";
  }
  if (reference.empty()) cost.no_sqnr = "it needs --reference, the model that this one was made of";
  if (!cost.no_sqnr.empty()) cost.damage = quant::damage_of_fp8_checkpoint(model, stop);
  quant::sort_by_damage(cost.damage.modules);
  auto kept = inspect_checkpoint(model, {.as_json = true, .values = false}).kept;
  cost.damage.skipped.insert(cost.damage.skipped.end(), kept.begin(), kept.end());
  return cost;
}

std::string cost_page(const CostPage& page, const std::string& date) {
  const bool several = page.costs.size() > 1;
  io::Json report = {{"kind", "damage"},
                     {"title", ""},
                     {"summary", ""},
                     {"modules", io::Json::array()},
                     {"skipped", io::Json::array()}};
  std::string figures;
  std::vector<std::string> names;
  for (const auto& c : page.costs) names.push_back(one_line(c.name));
  report["title"] = io::joined(names) + (page.reference.empty() ? "" : " against " + one_line(page.reference));
  if (!several) {
    const auto& c = page.costs.front();
    figures += tiles(c);
    if (!c.damage.modules.empty()) report["summary"] = damage_sentence(c.damage.modules);
    report["modules"] = damage_json(c.damage.modules);
    for (const auto& s : c.damage.skipped) report["skipped"].push_back({{"name", s.name}, {"reason", s.reason}});
  }
  figures += quality_table(page);
  for (const auto& c : page.costs) figures += precision_table(c, several) + worst_table(c, several);
  return report_page(report, figures + facts_table(page, date));
}

void write_cost_page(const fs::path& file, const CostPage& page) {
  const std::time_t now = std::time(nullptr);
  std::tm day = {};
  ::gmtime_r(&now, &day);
  char date[16];
  std::strftime(date, sizeof date, "%Y-%m-%d", &day);
  write_output_file(file, cost_page(page, date));
}

}  // namespace fp8::commands
