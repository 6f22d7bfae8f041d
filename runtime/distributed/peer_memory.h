// SPDX-License-Identifier: Apache-2.0
// Collectives of ranks on one machine, which read each other's memory (process_vm_readv): one copy where Gloo's sockets
// make two and wake threads for each piece. Who has what where, and who is done, they tell through shared pages
// (peer_pages.h).
//
//   places   each rank's address and bytes
//   read     all-gather:      the others' inputs
//            reduce-scatter:  this rank's part of each input, added in the order of the ranks (AVG: then divided)
//            all-reduce:      this rank's part, likewise and in place; all meet; the others' parts
//   done     all meet: from here on the caller may write what it gave
//
// A rank that dies, fails or is late is an error on the others, as it is in Gloo's own collectives.
#pragma once
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "fp8/runtime/distributed/gloo_group.h"

namespace fp8::runtime::distributed {

/// Of the whole; below, the messages cost more than the copy.
constexpr std::size_t kPeerBytes = std::size_t{256} << 10;

/// Tensors of a call are CPU tensors of any strides, whose memory lives until the Work is through. timeout: as
/// c10d's options have it. All ranks make the same call. Null: it is Gloo's, on all ranks: of one rank, of other
/// machines or processes that may not be read, of less than kPeerBytes, and of sums of integers. The first call that
/// is not waits for all ranks, which try it.
c10::intrusive_ptr<c10d::Work> all_gather_of_peers(const at::Tensor& output, const at::Tensor& input,
                                                   const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                   std::chrono::milliseconds timeout);
c10::intrusive_ptr<c10d::Work> reduce_scatter_of_peers(const at::Tensor& output, const at::Tensor& input,
                                                       c10d::ReduceOp::RedOpType op,
                                                       const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                       std::chrono::milliseconds timeout);
c10::intrusive_ptr<c10d::Work> all_reduce_of_peers(const at::Tensor& tensor, c10d::ReduceOp::RedOpType op,
                                                   const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                                   std::chrono::milliseconds timeout);

/// out = a op b of two ranks' values, of which MIN and MAX keep NaN; AVG adds.
void combine(c10d::ReduceOp::RedOpType op, at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

}  // namespace fp8::runtime::distributed
