// SPDX-License-Identifier: Apache-2.0
// Messages between ranks beside tensors: rows of numbers, texts, and checks that all are about to do the same.
#pragma once
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "fp8/runtime/distributed/process_group.h"
#include "fp8/runtime/io/json/json.h"

namespace fp8::runtime::distributed {

/// Bit patterns that one rank has and the others hold as 0 become the same on all ranks: -0.0, NaN and all.
void merge(std::span<double> values, ProcessGroup& group);

/// Every rank's row, one after the other in the order of the ranks; rows are of one length.
std::vector<double> all_gather(std::span<const double> row, ProcessGroup& group);

/// root's text on every rank.
std::string broadcast_text(std::string text, ProcessGroup& group, int root = 0);

/// f() runs on rank 0 alone, the others wait for it. Returns what it returned on every rank; what it throws is thrown
/// there, and is an io::Error "rank 0: ..." on the others, so that all of them end.
std::string from_first(const std::function<std::string()>& f, ProcessGroup& group);

/// f() on rank 0 alone, as from_first(). group null or of one rank: f().
void on_first(const std::function<void()>& f, ProcessGroup* group);

/// Dtype and sizes of a tensor, for a rank that makes one like it on the CPU to receive it.
io::Json form_of(const at::Tensor& tensor);
at::Tensor empty_of_form(const io::Json& form);

/// Throws c10::Error on every rank, "[where] rank 1 differs from rank 0: lr: found 0.1, rank 0 has 0.01", unless all
/// have the same object.
void check_same(const io::Json& values, ProcessGroup& group, const char* where);

// One value of all ranks, as strategies of training loops ask for it: by the operation's name, as a new tensor.

/// tensor: f32, bf16, f16 or int64 on hpu or cpu; it stays as it is. op: "sum", "min", "max", "mean" or "avg" (the sum
/// divided by the number of ranks). Returns its sizes and dtype, but for the mean of int64, which is made f32 before it
/// is summed. Throws c10::TypeError for any other op, in the vendor's words; c10::Error as the group does.
at::Tensor reduce(const at::Tensor& tensor, std::string_view op, ProcessGroup& group);

// From one rank to another, while the rest of the group does something else: tensors, which travel while both ranks go
// on with their work, and texts.
//
//   rank 0: auto sent = send(h, 1, group);  ...  sent.wait();
//   rank 1: auto next = receive(h, 0, group);  ...  next.wait();

/// A tensor in transit. Destroying it before wait() gives up on its arrival.
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

/// tensor: dense, contiguous, of any dtype, on hpu or cpu. It is kept until it has left; until then its memory must not
/// be written. Tensors from one rank to another arrive in the order of the calls. Both sides have as many bytes:
/// nothing checks that. The group is one of make_gloo_group() and outlives the transfer. Throws c10::Error for a rank
/// that is no other of the group's, and for a weight that was converted to fp8: its scales would stay behind.
Transfer send(const at::Tensor& tensor, int to, ProcessGroup& group);
/// Into the tensor's memory, which must not be read or written before.
Transfer receive(const at::Tensor& tensor, int from, ProcessGroup& group);

/// A text of any length, between transfers of tensors too. Both wait.
void send_text(const std::string& text, int to, ProcessGroup& group);
std::string receive_text(int from, ProcessGroup& group);

}  // namespace fp8::runtime::distributed
