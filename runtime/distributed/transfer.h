// SPDX-License-Identifier: Apache-2.0
// From one rank to another, while the rest of the group does something else: tensors, which travel while both ranks go
// on with their work, and texts.
//
//   rank 0: auto sent = send(h, 1, group);  ...  sent.wait();
//   rank 1: auto next = receive(h, 0, group);  ...  next.wait();
#pragma once
#include <ATen/core/Tensor.h>

#include <memory>
#include <string>

#include "fp8/runtime/distributed/process_group.h"

namespace fp8::runtime::distributed {

/// A tensor on its way. Whoever destroys it before wait() does not care any more whether it comes.
class Transfer {
 public:
  ~Transfer();
  Transfer(Transfer&&) noexcept;
  Transfer& operator=(Transfer&&) noexcept;

  /// Returns when all bytes have left, or are there; at once the second time. Throws c10::Error naming call, both ranks
  /// and who is gone, as far as that is known; the group is of no use after that.
  void wait();

 private:
  struct State;
  explicit Transfer(std::unique_ptr<State> state);
  friend Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group);
  friend Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group);

  std::unique_ptr<State> state_;  ///< null: it is over
};

/// tensor: dense, contiguous, of any dtype, on hpu or cpu. It is kept until it has left; nobody may write there before.
/// What one rank sends to another arrives in that order. Both sides have as many bytes: nothing checks that. The group
/// is one of make_gloo_group() and outlives the transfer. Throws c10::Error for a rank that is no other of the group's,
/// and for a weight that was converted to fp8: its scales would stay behind.
Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group);
/// Into the tensor's memory, which nobody may read or write before.
Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group);

/// A text of any length, between transfers of tensors too. Both wait.
void send_text(const std::string& text, int to, ProcessGroup& group);
std::string receive_text(int from, ProcessGroup& group);

}  // namespace fp8::runtime::distributed
