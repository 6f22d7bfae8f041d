// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/cli/places.h"

#include <algorithm>
#include <system_error>

#include "fp8/configs/quant_config.h"
#include "fp8/tools/text/data/data_file.h"

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;
using io::Reach;
using Use = Place::Use;

/// The path, or the nearest folder above it that is there.
fs::path nearest(const fs::path& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (!fs::exists(at, error) && at.has_relative_path()) at = at.parent_path();
  return fs::canonical(at, error);
}

/// It is there, or a pattern that files below the nearest folder fit. Any other name (of a recipe) is no file's.
bool can_be_read(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || path.native().find_first_of("*?[") != std::string::npos;
}

/// Of processes that a launcher has started, of which another may make the output's folder, or remove it.
bool is_one_of_several() {
  try {
    const auto process = io::launched();
    return process.has_value() && process->size > 1;
  } catch (const io::Error&) {
    return true;  // variables that the command refuses
  }
}

/// What is written under this name, which may be a link to it.
fs::path target_of(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) ? fs::canonical(path, error) : fs::absolute(path, error);
}

/// The folder of a file, or of those whose names begin so; a folder itself.
fs::path folder_of(const fs::path& path) {
  std::error_code error;
  return nearest(fs::is_directory(path, error) ? path : fs::absolute(path, error).parent_path());
}

}  // namespace

NamedPlaces::NamedPlaces(const Options& options, const Sandbox& sandbox, Context& context)
    : beside_(sandbox.keep_to && (options.uses_beside() || is_one_of_several())) {
  context.sandbox = sandbox.in_force;
  if (!sandbox.keep_to) return;
  const auto reached = options.reached();
  const bool has_output = std::ranges::any_of(reached, [](const auto& other) { return other.first == Reach::folder; });
  for (const auto& [reach, path] : reached) {
    // What another output's folder holds is that one's to make, and has its rights.
    const bool held =
        reach == Reach::folder && std::ranges::any_of(reached, [&, inside = target_of(path)](const auto& other) {
          const auto& [use, outer] = other;
          return use == Reach::folder && inside != target_of(outer) &&
                 inside.string().starts_with((target_of(outer) / "").string());
        });
    // An output that is given takes the place of the one that a configuration names.
    if (reach == Reach::config)
      add_config(path, has_output);
    else if (!held)
      add(reach, path);
  }
  for (const io::Variable& row : io::variables())
    if (const char* path = row.rule.reach != Reach::none ? io::environment_value(row.name) : nullptr)
      add(row.rule.reach, path);
  for (const fs::path& folder : library_folders()) add_read(folder);
  if (any_because_.empty())
    context.sandbox += ", " + sandbox.keep_to(places_);
  else
    context.sandbox += ", but any file: " + any_because_ + " may need it";
}

void NamedPlaces::add(Reach reach, const fs::path& path) {
  switch (reach) {
    case Reach::none: return;
    case Reach::read:
      if (path == text::kStandardInput) return void(io::unnamed_file());  // where what is piped in is kept
      if (can_be_read(path)) add_read(nearest(path));
      return;
    case Reach::beside: add_read(nearest(path)); return add_read(folder_of(path));
    case Reach::change: return places_.push_back({folder_of(path), Use::write});
    case Reach::config: return add_config(path, /*has_output=*/false);
    case Reach::code: any_because_ = path.string(); return;
    case Reach::file: return places_.push_back({nearest(target_of(path).parent_path()), Use::put});
    case Reach::folder:
    case Reach::replaced:
      if (beside_) return places_.push_back({nearest(target_of(path).parent_path()), Use::write});
      return add_output(path,
                        reach == Reach::folder ? io::OutputPlace::Kind::in_place : io::OutputPlace::Kind::replaced);
  }
}

void NamedPlaces::add_read(const fs::path& path) {
  places_.push_back({path, Use::read});
  if (const fs::path blobs = io::blobs_of(path); !blobs.empty()) places_.push_back({blobs, Use::read});
}

/// What is wrong with it is the command's to say.
void NamedPlaces::add_config(const fs::path& path, bool has_output) {
  if (can_be_read(path)) add_read(nearest(path));
  try {
    const auto config = configs::read_quant_config(path);
    const bool measures = config.mode != configs::QuantMode::QUANTIZE && config.mode != configs::QuantMode::LOAD;
    if (config.dump_stats_path.empty() || !(measures || config.needs_measurements())) return;
    const fs::path folder = target_of(config.dump_stats_path).parent_path();
    if (!measures || !has_output) add_output(folder, io::OutputPlace::Kind::in_place);
  } catch (const io::Error&) {
    return;
  }
}

void NamedPlaces::add_output(const fs::path& path, io::OutputPlace::Kind kind) {
  const auto& output = *outputs_.emplace_back(std::make_unique<io::OutputPlace>(path, kind));
  for (const fs::path& written : output.written()) places_.push_back({written, Use::write});
  if (!output.read().empty()) places_.push_back({output.read(), Use::read});
  if (!output.named().empty()) places_.push_back({output.named(), Use::name});
}

}  // namespace fp8::commands
