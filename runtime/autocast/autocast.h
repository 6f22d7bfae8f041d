// SPDX-License-Identifier: Apache-2.0
// Mixed precision on hpu: inside a region listed ops cast their arguments (lists.h says which, rules.h how).
// The state is LibTorch's own (at::autocast for kHPU), so upstream's calls and these guards mix; it is per thread and
// autograd carries it to the backward thread.
//
//   { const AutocastGuard region;                         bf16 on
//     loss = mse_loss(model(x), y);                       addmm, matmul, ... in bf16, mse_loss in f32
//     { const AutocastGuard off(at::kBFloat16, false); exact(x); } }
//   loss.backward();                                      f32 leaves get f32 gradients
#pragma once
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <optional>
#include <utility>

namespace fp8::runtime::autocast {

/// True if ops on hpu are cast on this thread now.
bool is_autocast_hpu_enabled();
/// The dtype that lower-precision ops get inside a region (bfloat16 unless set); also readable outside of one.
at::ScalarType autocast_hpu_dtype();
void set_autocast_hpu_enabled(bool enabled);
/// Throws c10::Error for a dtype other than BFloat16 and Half.
void set_autocast_hpu_dtype(at::ScalarType dtype);

/// A region; the state before it comes back at its end, also after an exception. Regions nest: the innermost counts,
/// and enabled = false is a hole in the outer one, whatever the dtype. Throws c10::Error for an enabled region of a
/// dtype other than BFloat16 and Half.
class AutocastGuard {
 public:
  explicit AutocastGuard(at::ScalarType dtype = at::kBFloat16, bool enabled = true);
  ~AutocastGuard();
  AutocastGuard& operator=(AutocastGuard&&) = delete;

 private:
  bool enabled_;
  at::ScalarType dtype_;
  std::optional<at::ScalarType> around_;  ///< the answer of region_dtype() inside an op of an outer region
};

/// f, each call of it in a region: auto step = autocast_fn([&](at::Tensor x) { return model(x); });
template <typename F>
auto autocast_fn(F f, at::ScalarType dtype = at::kBFloat16, bool enabled = true) {
  return [f = std::move(f), dtype, enabled](auto&&... arguments) mutable -> decltype(auto) {
    const AutocastGuard region(dtype, enabled);
    return std::invoke(f, std::forward<decltype(arguments)>(arguments)...);
  };
}

/// For op handlers: the dtype that the region around the present call asks for, nullopt without a region. Also right
/// inside ops that a region has cast already and that run with autocast off (is_autocast_hpu_enabled() is false there).
/// An op of the f32 list asks for Float.
std::optional<at::ScalarType> region_dtype();

/// Autocast off as inside an op that was cast, where region_dtype() says `dtype`: what op handlers run in (they choose
/// their dtypes themselves).
class InsideOp {
 public:
  explicit InsideOp(std::optional<at::ScalarType> dtype = region_dtype());
  ~InsideOp();
  InsideOp& operator=(InsideOp&&) = delete;
  /// True if autocast was on around it.
  bool was_enabled() const { return enabled_; }

 private:
  bool enabled_;
  std::optional<at::ScalarType> around_;
};

/// Autocast on again where InsideOp turned it off (was_enabled: its answer), for a call that a handler leaves to the
/// op.
class OutsideOp {
 public:
  explicit OutsideOp(bool was_enabled);
  ~OutsideOp();
  OutsideOp& operator=(OutsideOp&&) = delete;

 private:
  bool enabled_;
};

/// The keys with which a kernel at AutocastHPU hands its call on.
inline c10::DispatchKeySet below_autocast(c10::DispatchKeySet keys) {
  return keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::AutocastHPU);
}

}  // namespace fp8::runtime::autocast
