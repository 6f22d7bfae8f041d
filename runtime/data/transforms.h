// SPDX-License-Identifier: Apache-2.0
// What is done to an image before a model sees it. Names, arguments and formulas are torchvision's, over images as
// Pillow has them: bilinear, smoothed where it gets smaller, rounded to 8 bits.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fp8/runtime/data/dataset.h"
#include "fp8/runtime/io/images/image.h"

namespace fp8::data {

/// A part of random area (a share in `scale` of the image's) and aspect (width by height, in `ratio`, logarithmically),
/// ten times tried, else the largest in the middle; then height x width.
struct RandomResizedCrop {
  std::int64_t height = 224, width = 224;
  std::pair<double, double> scale = {0.08, 1.0}, ratio = {3.0 / 4.0, 4.0 / 3.0};
};
/// Left and right exchanged with probability p.
struct RandomHorizontalFlip {
  double p = 0.5;
};
/// height x width; width 0: the shorter side becomes `height`, the other keeps the aspect, rounded down.
struct Resize {
  std::int64_t height = 256, width = 0;
};
/// The middle; black around an image that is smaller.
struct CenterCrop {
  std::int64_t height = 224, width = 224;
};
/// [H, W, 3] of 0 to 255 to [3, H, W] f32, x / 255.
struct ToTensor {};
/// (x - mean) / std per channel, in f32. One value: for all channels.
struct Normalize {
  std::vector<double> mean = {0.485, 0.456, 0.406}, std = {0.229, 0.224, 0.225};  ///< ImageNet's
};

using Transform = std::variant<RandomResizedCrop, RandomHorizontalFlip, Resize, CenterCrop, ToTensor, Normalize>;

/// "CenterCrop".
const char* name_of(const Transform& transform);

/// Throws std::invalid_argument naming `option`, what is wrong and what is allowed: images are changed before ToTensor,
/// which comes once, and Normalize after it.
void check_transforms(const std::string& option, const std::vector<Transform>& transforms);

/// Of a list that was checked. [3, H, W] f32.
at::Tensor apply(const std::vector<Transform>& transforms, io::Image image, SampleRandom& random);

/// In place; x: [C, ...] f32, contiguous.
void normalize(const Normalize& transform, at::Tensor& x);

}  // namespace fp8::data
