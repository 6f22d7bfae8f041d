// SPDX-License-Identifier: Apache-2.0
#include "fp8/tools/commands/quantize/rounding.h"

#include <cerrno>
#include <cstdlib>
#include <system_error>

namespace fp8::commands {
namespace {

namespace fs = std::filesystem;

/// The leases' mark of what the work is (io/shares/leases.h); who finds it gone knows that the folder goes.
constexpr char kWork[] = "work";

fs::path folder_beside(const fs::path& out) {
  const fs::path plain = fs::absolute(out).lexically_normal(),
                 place = plain.has_filename() ? plain : plain.parent_path();
  return place.parent_path() / ("." + place.filename().string() + ".rounding");
}

fs::path scratch_beside(const fs::path& out) {
  std::string path = folder_beside(out).string() + "-XXXXXX";
  fs::create_directories(fs::path(path).parent_path());
  if (::mkdtemp(path.data()) == nullptr) io::fail_errno(path, "make", errno);
  return path;
}

/// Hidden states of a run that was killed.
void remove_hidden_states(const fs::path& folder) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(folder, ignored))
    if (entry.path().filename().string().starts_with("hidden-")) fs::remove_all(entry.path(), ignored);
}

}  // namespace

RoundingFolder::RoundingFolder(const fs::path& out, Use use, bool resume)
    : use_(use), path_(use == Use::scratch ? scratch_beside(out) : folder_beside(out)) {
  if (use != Use::alone) return;
  std::error_code ignored;
  if (!resume && fs::exists(path_ / kWork, ignored))
    io::fail(path_, "has layers that several processes round; expected none there (remove it if they are gone)");
  own_.emplace(path_, 0);
  if (resume)
    own_->save([] { return io::Json::object(); });  // it stays where the run does not come to its end
  else
    own_->begin(/*resume=*/false);
  own_->folder();
  remove_hidden_states(path_);
}

RoundingFolder::~RoundingFolder() {
  std::error_code ignored;
  if (use_ == Use::scratch) fs::remove_all(path_, ignored);
  if (use_ == Use::shared) fs::remove(path_, ignored);  // unless there is something in it
}

void RoundingFolder::finish(bool stands) {
  std::error_code ignored;
  if (own_.has_value()) own_->remove();
  if (use_ != Use::shared || !stands) return;
  fs::remove(path_ / kWork, ignored);
  fs::remove_all(path_, ignored);
}

decltype(round_weights) round_weights;

}  // namespace fp8::commands
