// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/terminal/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "fp8/runtime/io/base/environment.h"

namespace fp8::commands {
namespace {

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
