// SPDX-License-Identifier: Apache-2.0
#include "fp8/quant/checkpoint/model_card.h"

#include "fp8/quant/forms/form_table.h"
#include "fp8/version.h"

namespace fp8::quant {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kBegin = "<!-- fp8: this checkpoint -->\n", kEnd = "<!-- fp8: end -->\n", kFence = "---",
                           kResultsLeftOut =
                               "\nResults in the source's card are left out: they are not of this checkpoint.\n";

/// The next line, without its end; text: what follows it.
std::string_view take_line(std::string_view& text) {
  auto line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

/// A key of the front matter with all of its lines; what stands before the first key has none.
struct FrontMatterEntry {
  std::string key, lines;
};

/// The key that a line begins: "license" of "license: mit".
std::string_view key_of(std::string_view line) {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) return "";
  if (colon + 1 < line.size() && line[colon + 1] != ' ') return "";
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";
  const auto key = line.substr(0, colon);
  return key.find_first_not_of(kLetters) == std::string_view::npos ? key : "";
}

/// A card taken apart.
struct Card {
  std::vector<FrontMatterEntry> entries;
  std::string section, text;  ///< ours, and all else

  FrontMatterEntry* find(std::string_view key) {
    const auto found = std::ranges::find(entries, key, &FrontMatterEntry::key);
    return found == entries.end() ? nullptr : &*found;
  }
  void erase(std::string_view key) {
    std::erase_if(entries, [&](const FrontMatterEntry& e) { return e.key == key; });
  }
  void set(const std::string& key, const std::string& lines) {
    if (FrontMatterEntry* found = find(key))
      found->lines = lines;
    else
      entries.push_back({key, lines});
  }
};

std::vector<FrontMatterEntry> entries_of(std::string_view front) {
  std::vector<FrontMatterEntry> entries;
  while (!front.empty()) {
    const auto line = take_line(front);
    const auto key = key_of(line);
    if (!key.empty() || entries.empty()) entries.push_back({std::string(key), ""});
    entries.back().lines += std::string(line) + "\n";
  }
  return entries;
}

Card parsed(std::string_view text) {
  Card card;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  std::string_view rest = text;
  if (take_line(rest) == kFence) {
    const char* begin = rest.data();
    while (!rest.empty()) {
      const char* here = rest.data();
      if (take_line(rest) != kFence) continue;
      card.entries = entries_of({begin, static_cast<std::size_t>(here - begin)});
      text = rest;
      break;
    }
  }
  const auto begin = text.find(kBegin), end = text.find(kEnd, begin == std::string_view::npos ? 0 : begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) {
    card.text = text;
  } else {
    card.section = text.substr(begin, end + kEnd.size() - begin);
    card.text = std::string(text.substr(0, begin)) + std::string(text.substr(end + kEnd.size()));
  }
  card.text.erase(0, std::min(card.text.find_first_not_of("\r\n"), card.text.size()));
  return card;
}

/// A name as a YAML scalar: what could be read as anything else than a text is quoted.
std::string scalar(const std::string& name) {
  const auto letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const bool plain = !name.empty() && letter(name[0]) && std::ranges::all_of(name, [&](char c) {
    return letter(c) || (c >= '0' && c <= '9') || std::string_view("._/-").find(c) != std::string_view::npos;
  });
  constexpr std::string_view kWords[] = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"};
  std::string low = name;
  std::ranges::transform(low, low.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (plain && std::ranges::find(kWords, low) == std::end(kWords)) return name;
  return io::Json(io::printable(name, 4096)).dump();
}

std::string trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\r\n") + 1 - first));
}

/// The values of a list: "[a, b]", "- a" on lines of their own, or one word.
std::vector<std::string> list_of(const FrontMatterEntry& entry) {
  std::vector<std::string> values;
  const auto add = [&](std::string_view text) {
    if (const auto value = trimmed(text); !value.empty()) values.push_back(value);
  };
  std::string value = trimmed(std::string_view(entry.lines).substr(entry.key.size() + 1));
  if (value.starts_with("[") && value.ends_with("]")) {
    std::string_view rest = std::string_view(value).substr(1, value.size() - 2);
    for (auto comma = rest.find(','); comma != std::string_view::npos; comma = rest.find(',')) {
      add(rest.substr(0, comma));
      rest.remove_prefix(comma + 1);
    }
    add(rest);
  } else if (value.starts_with("-")) {
    for (std::string_view rest = value; !rest.empty();) {
      const auto line = trimmed(take_line(rest));
      if (line.starts_with("-")) add(std::string_view(line).substr(1));
    }
  } else {
    add(value);
  }
  return values;
}

void set_front(Card& card, const CardFacts& facts) {
  const bool ours = !card.section.empty();
  if (!ours || card.find("base_model") == nullptr) card.set("base_model", "base_model: " + scalar(facts.source) + "\n");
  card.erase("model-index");
  card.erase("base_model_relation");
  card.erase("quantized_by");
  if (!facts.form.empty()) {
    card.set("base_model_relation", "base_model_relation: quantized\n");
    card.set("quantized_by", "quantized_by: fp8 " FP8_VERSION "\n");
  }
  if (card.find("library_name") == nullptr) card.set("library_name", "library_name: transformers\n");
  std::vector<std::string> tags;
  if (const FrontMatterEntry* found = card.find("tags")) tags = list_of(*found);
  if (ours) {
    const auto forms = form_names();
    std::erase_if(tags, [&](const auto& tag) { return tag == "fp8" || std::ranges::count(forms, tag) > 0; });
  }
  if (!facts.form.empty())
    for (const auto& tag : {std::string("fp8"), facts.form})
      if (std::ranges::count(tags, tag) == 0) tags.push_back(tag);
  if (tags.empty()) return card.erase("tags");
  std::string lines = "tags:\n";
  for (const auto& tag : tags) lines += "- " + tag + "\n";
  card.set("tags", lines);
}

/// A text within Markdown: what would end its row or its code is taken out.
std::string shown(const std::string& text) {
  std::string out = io::printable(text, 4096);
  std::ranges::replace(out, '|', '/');
  std::ranges::replace(out, '`', '\'');
  return out;
}

/// "1,234,567"
std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (auto at = std::ssize(text) - 3; at > 0; at -= 3) text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

std::string percent(std::uint64_t part, std::uint64_t of) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f",
                100.0 * static_cast<double>(part) / static_cast<double>(std::max<std::uint64_t>(of, 1)));
  return text;
}

/// Modules with one reason stand together: "lm_head; 28 more like model.layers.0.mlp.gate".
std::vector<std::pair<std::string, std::string>> kept_rows(const std::vector<SkippedModule>& kept) {
  std::vector<std::pair<std::string, std::vector<std::string>>> by_reason;
  for (const auto& s : kept) {
    const auto found = std::ranges::find(by_reason, s.reason, [](const auto& row) { return row.first; });
    auto& row = found != by_reason.end() ? *found : by_reason.emplace_back(s.reason, std::vector<std::string>());
    row.second.push_back(s.name);
  }
  std::vector<std::pair<std::string, std::string>> rows;
  for (const auto& [reason, names] : by_reason) {
    std::string text = "`" + shown(names.front()) + "`";
    if (names.size() > 1) text += " and " + std::to_string(names.size() - 1) + " more";
    rows.emplace_back("in high precision: " + text, reason.substr(0, reason.find(" (--")));  // no options here
  }
  return rows;
}

std::string section_of(const CardFacts& facts, bool text_below, bool results_left_out) {
  std::string out(kBegin);
  out += "# " + shown(facts.source) + (facts.form.empty() ? " in high precision\n\n" : " in fp8\n\n");
  out += "`" + shown(facts.source) + "`, " + facts.how + " by fp8 " FP8_VERSION ".\n\n| | |\n|---|---|\n";
  const auto row = [&](const std::string& name, const std::string& text) {
    out += "| " + name + " | " + shown(text) + " |\n";
  };
  if (!facts.form.empty()) row("form", facts.form);
  row(facts.form.empty() ? "dtype" : "scheme", facts.scheme);
  row(facts.form.empty() ? "modules that were in fp8" : "modules in fp8", std::to_string(facts.modules));
  for (const auto& [name, reason] : kept_rows(facts.kept)) row(name, reason);
  row("size", grouped(facts.weights_bytes) + " bytes, " + percent(facts.weights_bytes, facts.source_bytes) +
                  " % of the source");
  for (const auto& [name, text] : facts.more) row(name, text);
  out += "\n## What it costs\n\n";
  for (const auto& cost : facts.costs) out += io::printable(cost, 4096) + "\n";
  if (facts.costs.empty())
    out +=
        "Not evaluated. `fp8 evaluate CHECKPOINT --reference SOURCE --data TEXT` measures perplexity and KL "
        "divergence.\n";
  if (results_left_out) out += kResultsLeftOut;
  if (text_below) out += "\nThe source's card:\n";
  return out + std::string(kEnd);
}

}  // namespace

std::string model_card(std::string_view source_card, const CardFacts& facts) {
  Card card = parsed(source_card);
  const bool results = card.find("model-index") != nullptr || card.section.find(kResultsLeftOut) != std::string::npos;
  set_front(card, facts);
  std::string out = std::string(kFence) + "\n";
  for (const auto& entry : card.entries) out += entry.lines;
  out += std::string(kFence) + "\n\n" + section_of(facts, !card.text.empty(), results);
  return card.text.empty() ? out : out + "\n" + card.text;
}

void write_card(OutputFolder& folder, const CardFacts& facts, std::vector<std::string>& warnings) {
  constexpr std::uint64_t kMost = 1 << 20;
  const fs::path path = folder.path().file(kCardName);
  std::error_code error;
  if (const auto size = fs::file_size(path, error); !error && size > kMost)
    return warnings.push_back(io::message("{}: {} bytes, no card: nothing is said in it", kCardName, size));
  folder.write_text(kCardName, model_card(error ? "" : io::read_file(path, kMost), facts));
}

}  // namespace fp8::quant
