// SPDX-License-Identifier: Apache-2.0
// Graphs of the device: work that is captured once and replayed without the code that made it, with the vendor's names.
//
//   HPUGraph graph;                         x and loss keep their addresses
//   {
//     const GraphCapture capture(graph);
//     loss = step(x);                       runs, and is kept
//   }
//   x.copy_(next);
//   graph.replay();                         loss has its new value; step was not called
//
// Numbers that the host gave stay what they were; random numbers are drawn anew. A capture that can't be repeated
// (tape/recorder.h) ends in an error with the operation and its module.
#pragma once

#include <thread>

#include "fp8/runtime/tape/recorder.h"

namespace fp8::runtime {

class HPUGraph {
 public:
  /// Work of this thread is captured from here on, and runs. dry_run is accepted; the work runs all the same. Throws
  /// c10::Error where a capture runs, or this graph has one already (reset() first).
  void capture_begin(bool dry_run = false);
  /// On the thread that began. Throws c10::Error without a begin, and with the reason why it can't be replayed (the
  /// graph is empty then).
  void capture_end();
  /// Does it again. What somebody held at capture_end() gets new values at its address. asynchronous is accepted; the
  /// call returns when the work is done. Throws c10::Error for an empty graph, and after clear_inputs().
  void replay(bool asynchronous = false);
  /// With other tensors in place of the marked inputs: as many, of the same sizes, strides and dtypes.
  void replay(at::TensorList inputs, bool asynchronous = false);

  /// Which tensors replay(inputs) stands for, after the capture. Throws c10::Error for a tensor that the graph does not
  /// read.
  void mark_user_inputs(at::TensorList inputs);
  /// Accepted: results keep their addresses whether they are marked or not.
  void mark_user_outputs(at::TensorList outputs);
  /// Lets go of the memory of the marked inputs.
  void clear_inputs();
  void reset();

  bool is_captured() const { return tape_.has_value(); }
  std::size_t nodes() const { return tape_.has_value() ? tape_->nodes.size() : 0; }

 private:
  std::unique_ptr<Recorder> recorder_;
  std::thread::id thread_;
  std::optional<Tape> tape_;
  std::vector<std::int32_t> inputs_;
  std::vector<at::Tensor> given_;
};

/// True while this thread's work is captured.
inline bool is_current_stream_capturing() { return is_recording(); }

/// capture_begin() to capture_end(). An exception that leaves the block ends the capture without a graph.
class GraphCapture {
 public:
  explicit GraphCapture(HPUGraph& graph, bool dry_run = false);
  ~GraphCapture() noexcept(false);
  GraphCapture& operator=(GraphCapture&&) = delete;

 private:
  HPUGraph& graph_;
  int exceptions_;
};

}  // namespace fp8::runtime
