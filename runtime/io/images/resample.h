// SPDX-License-Identifier: Apache-2.0
// Parts of images, mirrored and of other sizes. No torch here.
#pragma once
#include <cstdint>

#include "fp8/runtime/io/images/image.h"

namespace fp8::io {

struct Box {
  std::int64_t left = 0, top = 0, width = 0, height = 0;
};

/// What lies in the box. Pixels outside of the image are black.
Image cropped(const Image& image, const Box& box);

/// Left and right exchanged.
Image mirrored(const Image& image);

/// By a triangle over as many pixels as one of the result covers (and one on each side at least), across and then down,
/// each rounded to 8 bits: the bits of Pillow's resize((width, height), BILINEAR), where that goes across first, as
/// earlier versions always do. Sizes: 1 or more.
///
///   result[i] = sum_j w(j - center) image[j] / sum_j w,   center = (i + 0.5) s - 0.5, s = size / new size
///   w(d) = max(0, 1 - |d| / max(s, 1))
Image resized(const Image& image, std::int64_t width, std::int64_t height);

}  // namespace fp8::io
