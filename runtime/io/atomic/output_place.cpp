// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/io/atomic/output_place.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace fp8::io {
namespace {

namespace fs = std::filesystem;

std::vector<OutputPlace*> g_places;  // those that there are now

}  // namespace

OutputPlace::OutputPlace(const fs::path& output, Kind kind) {
  g_places.push_back(this);
  try {
    const fs::path place = without_slash(output);
    make(kind == Kind::in_place ? place : place.parent_path());
    if (kind == Kind::in_place)
      written_.push_back(fs::canonical(place));
    else
      make_replaced(final_place(place));
    // To remove a folder takes the right to change names where it stands.
    if (!made_.empty()) named_ = fs::canonical(made_.back()).parent_path();
  } catch (const std::exception&) {
    return;
  }
}

void OutputPlace::make(const fs::path& folder) {
  std::vector<fs::path> missing;
  for (fs::path at = folder; !fs::exists(at); at = at.parent_path()) missing.push_back(at);
  for (auto at = missing.rbegin(); at != missing.rend() && ::mkdir(at->c_str(), 0777) == 0; ++at)
    made_.insert(made_.begin(), *at);
  for (const fs::path& at : made_) listed_made_.emplace_back(fs::absolute(at), TemporaryKind::empty_folder);
}

void OutputPlace::make_replaced(const fs::path& output) {
  named_ = output.parent_path();
  if (fs::exists(output)) read_ = output;
  const fs::path lock_path = beside(output, ".lock"), partial = beside(output, ".partial");
  std::ranges::copy_if(std::array{lock_path, partial}, std::back_inserter(written_),
                       [](const fs::path& path) { return fs::exists(path); });
  lock_ = locked(output, lock_path);
  listed_lock_.emplace(lock_path, TemporaryKind::file);
  output_ = output;
  written_.push_back(lock_path);
  spare_ = beside(output, ".partial-" + std::to_string(::getpid()));
  fs::remove_all(spare_);  // of a killed process that had our number
  if (::mkdir(spare_.c_str(), 0700) != 0) return spare_.clear();
  listed_spare_.emplace(spare_, TemporaryKind::folder);
  written_.push_back(spare_);
}

OutputPlace::~OutputPlace() {
  std::erase(g_places, this);
  std::error_code ignored;
  if (!spare_.empty()) fs::remove(spare_, ignored);
  if (lock_.get() >= 0) ::unlink(beside(output_, ".lock").c_str());
  for (const fs::path& folder : made_) fs::remove(folder, ignored);  // if nothing is in it
}

bool OutputPlace::make_folders(const fs::path& folder, std::error_code& error) {
  if (fs::create_directories(folder, error)) return true;
  return std::ranges::any_of(g_places, [&](const OutputPlace* place) {
    return !place->made_.empty() && place->made_[0] == without_slash(folder);
  });
}

OutputPlace* OutputPlace::of(const fs::path& output) {
  const auto found = std::ranges::find(g_places, output, &OutputPlace::output_);
  return found == g_places.end() ? nullptr : *found;
}

Descriptor OutputPlace::take_lock(const fs::path& output) {
  OutputPlace* place = of(output);
  if (place == nullptr) return {};
  place->listed_lock_.reset();
  return std::move(place->lock_);
}

/// Rights that were granted on the folder go with it.
bool OutputPlace::take_folder(const fs::path& output, const fs::path& temporary) {
  OutputPlace* place = of(output);
  if (place == nullptr || place->spare_.empty()) return false;
  const fs::path spare = std::exchange(place->spare_, {});
  place->listed_spare_.reset();
  if (spare == temporary || ::rename(spare.c_str(), temporary.c_str()) == 0) return true;
  ::rmdir(spare.c_str());  // what an earlier run left is continued
  return false;
}

bool OutputPlace::has_folder(const fs::path& folder) {
  return std::ranges::find(g_places, folder, &OutputPlace::spare_) != g_places.end();
}

}  // namespace fp8::io
