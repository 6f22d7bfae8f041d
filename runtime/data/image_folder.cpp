// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/image_folder.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <system_error>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/base/file.h"
#include "fp8/runtime/io/base/text.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::data {
namespace {

namespace fs = std::filesystem;

constexpr int kMostDepth = 32;  // fewer than the 40 links that Linux follows, behind which a circle looks like a file

/// An image to torchvision, and to us none.
bool is_other_image(const fs::path& path) {
  constexpr std::array<const char*, 7> kEndings = {".bmp", ".gif", ".pgm", ".ppm", ".tif", ".tiff", ".webp"};
  return std::find(kEndings.begin(), kEndings.end(), io::lower(path.extension().string())) != kEndings.end();
}

std::vector<fs::directory_entry> entries_of(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::directory_entry> found;
  for (fs::directory_iterator at(folder, code), end; !code && at != end; at.increment(code)) found.push_back(*at);
  if (code) io::fail_errno(folder, "list", code.value());
  std::sort(found.begin(), found.end());
  return found;
}

/// The folder and those below it, relative to `root`.
void folders_below(const fs::path& root, const std::string& folder, int depth, std::vector<std::string>& found) {
  if (depth > kMostDepth)
    io::fail(root / folder, "more than {} folders within each other (links in a circle?)", kMostDepth);
  found.push_back(folder);
  for (const auto& entry : entries_of(root / folder)) {
    std::error_code ignored;
    if (entry.is_directory(ignored))
      folders_below(root, folder + "/" + entry.path().filename().string(), depth + 1, found);
  }
}

/// Images of a class: the folders in the order of their whole names, the files of each in that of theirs.
std::vector<std::string> images_of(const fs::path& root, const std::string& name) {
  std::vector<std::string> folders, images;
  folders_below(root, name, 0, folders);
  std::sort(folders.begin(), folders.end());
  for (const auto& folder : folders)
    for (const auto& entry : entries_of(root / folder)) {
      std::error_code ignored;
      if (entry.is_directory(ignored)) continue;
      if (is_other_image(entry.path()))
        io::fail(entry.path(), "an image of this form is not read, allowed: .png, .jpg, .jpeg");
      if (io::has_image_name(entry.path())) images.push_back(folder + "/" + entry.path().filename().string());
    }
  return images;
}

}  // namespace

ImageFolder::ImageFolder(fs::path root, std::vector<Transform> transforms)
    : root_(std::move(root)), transforms_(std::move(transforms)) {
  check_transforms("transforms", transforms_);
  std::error_code ignored;
  if (!fs::is_directory(root_, ignored)) io::fail(root_, "expected a folder with a folder of each class");
  for (const auto& entry : entries_of(root_))
    if (entry.is_directory(ignored)) classes_.push_back(entry.path().filename().string());
  if (classes_.empty()) io::fail(root_, "found no folder of a class");
  for (std::size_t label = 0; label < classes_.size(); ++label) {
    auto images = images_of(root_, classes_[label]);
    if (images.empty()) io::fail(root_ / classes_[label], "found no image of this class (.png, .jpg, .jpeg)");
    for (auto& image : images) samples_.push_back({std::move(image), static_cast<std::int64_t>(label)});
  }
}

std::vector<at::Tensor> ImageFolder::get(std::int64_t index, SampleRandom& random) const {
  const Item& item = samples_.at(static_cast<std::size_t>(index));
  at::Tensor image = apply(transforms_, io::read_image(root_ / item.file), random);
  at::Tensor label = at::empty({}, at::kLong);
  *label.mutable_data_ptr<std::int64_t>() = item.label;
  return {std::move(image), std::move(label)};
}

std::string ImageFolder::name_of(std::int64_t index) const {
  return io::printable(samples_.at(static_cast<std::size_t>(index)).file, 4096);
}

}  // namespace fp8::data
