// SPDX-License-Identifier: Apache-2.0
#include "fp8/runtime/data/transforms.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "fp8/runtime/io/base/fail.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::data {
namespace {

/// Python's round(): halves to even.
std::int64_t rounded(double x) { return static_cast<std::int64_t>(std::nearbyint(x)); }

io::Box random_box(const RandomResizedCrop& t, const io::Image& image, SampleRandom& random) {
  const auto width = static_cast<double>(image.width), height = static_cast<double>(image.height);
  for (int attempt = 0; attempt < 10; ++attempt) {
    const double area = width * height * random.uniform(t.scale.first, t.scale.second);
    const double aspect = std::exp(random.uniform(std::log(t.ratio.first), std::log(t.ratio.second)));
    const std::int64_t w = rounded(std::sqrt(area * aspect)), h = rounded(std::sqrt(area / aspect));
    if (w < 1 || w > image.width || h < 1 || h > image.height) continue;
    const auto top = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(image.height - h + 1)));
    const auto left = static_cast<std::int64_t>(random.below(static_cast<std::uint64_t>(image.width - w + 1)));
    return {left, top, w, h};
  }
  std::int64_t w = image.width, h = image.height;
  if (width / height < t.ratio.first) h = rounded(width / t.ratio.first);
  if (width / height > t.ratio.second) w = rounded(height * t.ratio.second);
  w = std::clamp<std::int64_t>(w, 1, image.width);
  h = std::clamp<std::int64_t>(h, 1, image.height);
  return {(image.width - w) / 2, (image.height - h) / 2, w, h};
}

/// Where the middle begins: before the image (below 0) where it is smaller.
std::int64_t middle(std::int64_t size, std::int64_t wanted) {
  return wanted > size ? -((wanted - size) / 2) : rounded(static_cast<double>(size - wanted) / 2.0);
}

struct OfImage {
  io::Image image;
  SampleRandom& random;

  void operator()(const RandomResizedCrop& t) {
    image = io::resized(io::cropped(image, random_box(t, image, random)), t.width, t.height);
  }
  void operator()(const RandomHorizontalFlip& t) {
    if (random.uniform() < t.p) image = io::mirrored(image);
  }
  void operator()(const Resize& t) {
    std::int64_t width = t.width, height = t.height;
    if (width == 0) {
      const auto longer = static_cast<double>(std::max(image.width, image.height)),
                 shorter = static_cast<double>(std::min(image.width, image.height));
      const auto other = static_cast<std::int64_t>(static_cast<double>(t.height) * longer / shorter);
      width = image.width <= image.height ? t.height : other;
      height = image.width <= image.height ? other : t.height;
    }
    image = io::resized(image, width, height);
  }
  void operator()(const CenterCrop& t) {
    image = io::cropped(image, {middle(image.width, t.width), middle(image.height, t.height), t.width, t.height});
  }
  void operator()(const ToTensor&) {}
  void operator()(const Normalize&) {}
};

at::Tensor to_tensor(const io::Image& image) {
  at::Tensor x = at::empty({3, image.height, image.width}, at::kFloat);
  auto* to = x.mutable_data_ptr<float>();
  const std::size_t pixels = static_cast<std::size_t>(image.height * image.width);
  for (std::size_t i = 0; i < pixels; ++i)
    for (std::size_t channel = 0; channel < 3; ++channel)
      to[channel * pixels + i] = static_cast<float>(image.pixels[3 * i + channel]) / 255.0f;
  return x;
}

/// What is wrong with one of them; nothing: "".
struct Fault {
  static std::string of_size(std::int64_t height, std::int64_t width, std::int64_t least_width) {
    constexpr std::int64_t kMost = 16384;
    if (height >= 1 && width >= least_width && height <= kMost && width <= kMost) return "";
    return io::message("sizes {} x {}, allowed: 1 to 16384", height, width);
  }
  std::string operator()(const RandomResizedCrop& t) const {
    if (!(t.scale.first > 0 && t.scale.first <= t.scale.second && t.scale.second <= 1))
      return "a scale outside of (0, 1]";
    if (!(t.ratio.first > 0 && t.ratio.first <= t.ratio.second && std::isfinite(t.ratio.second)))
      return "a ratio that is no range above 0";
    return of_size(t.height, t.width, 1);
  }
  std::string operator()(const RandomHorizontalFlip& t) const {
    return t.p >= 0 && t.p <= 1 ? "" : io::message("p {}, allowed: 0 to 1", t.p);
  }
  std::string operator()(const Resize& t) const { return of_size(t.height, t.width, 0); }
  std::string operator()(const CenterCrop& t) const { return of_size(t.height, t.width, 1); }
  std::string operator()(const ToTensor&) const { return ""; }
  std::string operator()(const Normalize& t) const {
    for (const auto* values : {&t.mean, &t.std})
      if (values->size() != 1 && values->size() != 3)
        return std::to_string(values->size()) + " values, allowed: 1 or 3";
    for (const double s : t.std)
      if (!(s > 0) || std::isinf(s)) return io::message("std {}, allowed: a number above 0", s);
    return "";
  }
};

}  // namespace

const char* name_of(const Transform& transform) {
  constexpr const char* kNames[] = {"RandomResizedCrop", "RandomHorizontalFlip", "Resize", "CenterCrop", "ToTensor",
                                    "Normalize"};
  static_assert(std::variant_size_v<Transform> == std::size(kNames));
  return kNames[transform.index()];
}

void check_transforms(const std::string& option, const std::vector<Transform>& transforms) {
  bool tensor = false;
  for (const auto& transform : transforms) {
    std::string fault = std::visit(Fault{}, transform);
    const bool of_tensor = std::holds_alternative<Normalize>(transform);
    if (fault.empty() && of_tensor != tensor) fault = tensor ? "after ToTensor" : "before ToTensor";
    if (!fault.empty()) io::fail<std::invalid_argument>("[data] {}: {}: found {}", option, name_of(transform), fault);
    tensor = tensor || std::holds_alternative<ToTensor>(transform);
  }
  if (!tensor) io::fail<std::invalid_argument>("[data] {}: found no ToTensor, allowed: one, before Normalize", option);
}

void normalize(const Normalize& transform, at::Tensor& x) {
  const std::size_t channels = static_cast<std::size_t>(x.size(0));
  const std::size_t each = channels == 0 ? 0 : static_cast<std::size_t>(x.numel()) / channels;
  auto* to = x.mutable_data_ptr<float>();
  for (std::size_t channel = 0; channel < channels; ++channel) {
    const auto mean = static_cast<float>(transform.mean[std::min(channel, transform.mean.size() - 1)]);
    const auto std = static_cast<float>(transform.std[std::min(channel, transform.std.size() - 1)]);
    for (std::size_t i = 0; i < each; ++i, ++to) *to = (*to - mean) / std;
  }
}

at::Tensor apply(const std::vector<Transform>& transforms, io::Image image, SampleRandom& random) {
  OfImage work{std::move(image), random};
  at::Tensor x;
  for (const auto& transform : transforms) {
    if (std::holds_alternative<ToTensor>(transform))
      x = to_tensor(work.image);
    else if (const auto* of_tensor = std::get_if<Normalize>(&transform))
      normalize(*of_tensor, x);
    else
      std::visit(work, transform);
  }
  return x;
}

}  // namespace fp8::data
