// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/message.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <atomic>

#include "fp8/runtime/io/base/text.h"

namespace fp8::commands {
namespace {

/// Bytes of a "[name] " that `text` begins with; 0 where it begins otherwise. A name with "::" is an operator's or a
/// class', which the message is about.
std::size_t origin_at(std::string_view text) {
  constexpr std::size_t kLongest = 48;
  if (!text.starts_with('[')) return 0;
  const auto end = text.find("] ");
  if (end == std::string_view::npos || end < 2 || end > kLongest) return 0;
  const auto is_of_a_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ' ';
  };
  return std::ranges::all_of(text.substr(1, end - 1), is_of_a_name) ? end + 2 : 0;
}

std::string_view without_dashes(std::string_view word) {
  word.remove_prefix(std::min(word.find_first_not_of('-'), word.size()));
  return word;
}

/// Letters that may be wrong in a word so long: "keep" is no misspelt "help", "quantise" is one of quantize.
std::size_t tolerance(std::size_t letters) { return letters < 3 ? 0 : letters < 5 ? 1 : letters < 9 ? 2 : 3; }

std::atomic<ColorMode> g_mode = ColorMode::automatic;  // errors are printed where no context is left

/// TERM has no row in the table of variables: it is set everywhere, and says nothing about fp8.
bool is_dumb() {
  const auto found = io::environment_entries("TERM");
  return std::ranges::find(found, "TERM=dumb") != found.end();
}

bool is_set(const io::GetVariable& get, const char* name) {
  const char* value = get(name);
  return value != nullptr && *value != '\0';
}

bool is_on(const io::GetVariable& get, const char* name) {
  return is_set(get, name) && std::string_view(get(name)) != "0";
}

}  // namespace

std::string without_origin(std::string_view message) {
  std::string out;
  message.remove_prefix(origin_at(message));
  for (;;) {
    const auto colon = message.find(": [");
    if (colon == std::string_view::npos) return out.append(message);
    out.append(message.substr(0, colon + 2));
    message.remove_prefix(colon + 2);
    message.remove_prefix(origin_at(message));
  }
}

std::string meant(std::string_view found, const std::vector<std::string>& allowed) {
  const std::string_view word = without_dashes(found.substr(0, 64));
  std::string best;
  std::size_t best_distance = tolerance(word.size()) + 1, beginnings = 0;
  const std::string* begun = nullptr;
  for (const std::string& candidate : allowed) {
    const std::string_view name = without_dashes(candidate);
    if (word.size() > 2 && name.starts_with(word)) ++beginnings, begun = &candidate;
    const std::size_t distance = io::edit_distance(word, name);
    if (distance < best_distance) best = candidate, best_distance = distance;
  }
  return best_distance > 1 && beginnings == 1 ? *begun : best;
}

std::string did_you_mean(std::string_view found, const std::vector<std::string>& allowed) {
  const std::string word = meant(found, allowed);
  return word.empty() ? "" : ", did you mean '" + word + "'?";
}

std::size_t terminal_width(int descriptor) {
  winsize size = {};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::count_if(text, [](char c) { return (c & 0xC0) != 0x80; }));
}

void set_color_mode(ColorMode mode) { g_mode = mode; }

bool takes_color(ColorMode mode, bool terminal, const io::GetVariable& get) {
  if (mode != ColorMode::automatic) return mode == ColorMode::always;
  if (is_set(get, "NO_COLOR")) return false;
  if (is_on(get, "CLICOLOR_FORCE") || is_on(get, "FORCE_COLOR")) return true;
  const bool refused = is_set(get, "CLICOLOR") && !is_on(get, "CLICOLOR");
  return terminal && !refused;
}

bool stderr_takes_color() { return takes_color(g_mode, stderr_is_terminal(), io::environment_value); }

bool stderr_is_terminal() { return isatty(STDERR_FILENO) != 0 && !is_dumb(); }

std::string painted(std::string_view text, Color color) {
  const char* code = color == Color::red ? "1;31" : color == Color::yellow ? "1;33" : "32";
  return "\x1b[" + std::string(code) + "m" + std::string(text) + "\x1b[0m";
}

}  // namespace fp8::commands
