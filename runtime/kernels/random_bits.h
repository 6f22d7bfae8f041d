// SPDX-License-Identifier: Apache-2.0
// Random bits that are a function of a seed and a number, so that they are the same in any order and on any thread:
// splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
//
//   splitmix64(seed, i) = mix(seed + (i + 1) * 0x9e3779b97f4a7c15)     the generator's output number i, from 0
#pragma once
#include <cstdint>

namespace fp8::kernels {

/// Each bit of z changes about half of the bits; no two z give the same.
constexpr std::uint64_t mix(std::uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

constexpr std::uint64_t splitmix64(std::uint64_t seed, std::uint64_t i) {
  return mix(seed + (i + 1) * 0x9e3779b97f4a7c15u);
}

}  // namespace fp8::kernels
