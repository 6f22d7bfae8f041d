// SPDX-License-Identifier: Apache-2.0
// All that attaches or reads state, as operators: Python reaches them by
// torch.ops.load_library("libfp8_transformer_engine.so") and torch.ops.fp8.NAME, TorchScript by the same names, without
// binding code. This is their list; each is declared and registered in the folder that it belongs to (*operators.h).
//
//   Operations without a weight are nodes: torch.classes.fp8.Node(type), of runtime/modules/node.h.
//
//   A model is three lists of one length: weights, the parameters themselves on hpu; modules, their dotted names;
//   types, their classes' names as in allow- and blocklists ("Linear", "Conv2d", "Embedding"). What has several
//   fields is JSON; what is long is a file.
//
//   runtime/device/memory_report.cpp     device.h, allocator.h and memory_report.h; torch.accelerator's functions read
//                                        the same
//     device_name() -> str                                   "GAUDI", "GAUDI2" or "GAUDI3"
//     memory_stats(int device=0) -> Dict(str, int)           the ten statistics
//     memory_summary(int device=0) -> str
//     memory_snapshot(int device=0) -> str                   live blocks and who made them, JSON
//     memory_history(bool on) -> ()                          on: of all blocks from now on, not of large ones only
//     empty_cache() -> ()                                    large_blocks.h: the host gets what is kept
//     keep_large_blocks(int most) -> ()                      bytes
//     reset_peak_memory_stats(int device=0) -> ()
//     reset_accumulated_memory_stats(int device=0) -> ()
//
//   runtime/intercept/tag_operators.h       the mark on a weight
//     tag_of(Tensor weight) -> str                           {"modules", "dtype", "sizes", "handler", "holds_codes",
//                                                             "whole"}; "null": none
//     dequantize(Tensor weight) -> Tensor                    values of a tagged weight, or of a view of it
//     values(Tensor weight) -> Tensor                        of a converted weight or any part of it
//                                                            (weight_tag.h, as the next two)
//     values_dtype(Tensor weight) -> ScalarType              the dtype that activations want
//     describe(Tensor weight) -> str                         whose it is, format, scale; "": no converted weight.
//                                                            Python's print shows it
//     retag(Tensor source, Tensor(a!) to) -> ()              the mark of source, on a tensor that has the same bytes
//     untag(Tensor(a!) weight) -> ()                         takes a mark off that no codes depend on
//
//   runtime/intercept/autocast_rules.h
//     set_autocast_lists(str[]? lower=None, str[]? fp32=None) -> str[]
//                                                            of the process, in place of the environment's; names that
//                                                            no op has, a sentence each
//
//   measure/calibration/session.h
//     measure_begin(Tensor[] weights, str[] modules, str[] types, Tensor?[]? biases=None, str prefix="",
//                   str config="", Node[]? nodes=None, str[]? node_names=None) -> int session
//     measure_samples(int session, int first, int count) -> ()        which samples the next forward sees
//     measure_forward(int session, Tensor? input=None) -> ()          it sees the rows of this tensor
//     measure_forward_done(int session) -> ()                         files that are due are written
//     measure_result(int session) -> str                     {"samples",
//                                                             "modules": {name: {"inputs", "outputs", "weight"}},
//                                                             "non_finite"}
//     measure_end(int session, bool write=True) -> str[]     the files
//
//   quant/model/operators.h
//     convert(Tensor[] weights, str[] modules, str[] types, str options="{}", Node[]? nodes=None,
//             str[]? node_names=None) -> str
//                                                            codes in the weights' place, and the report
//     report_of(Tensor[] weights, str[] modules, str[] types) -> str   convert()'s, of a model that was loaded
//     tag(Tensor(a!) codes, str module, Tensor scale_inv, str scheme="{}") -> ()
//                                                            codes that come from elsewhere
//     scale_inv(Tensor weight) -> Tensor                     f32: one value, one per row, or a grid of blocks
//     scheme_of(Tensor weight) -> str                        what tag() takes
//     number_rows(Tensor[] weights) -> Tensor[]              of each value its row's number, among all rows
//     score_logits(Tensor logits, Tensor ids, Tensor? reference=None) -> float[]
//                                                            nll, the reference's, kl, agreement: sums of positions
//     packed(Tensor tensor) -> Tensor                        codes, scales, scheme and name as bytes; or values
//     unpacked(Tensor bytes) -> Tensor                       that weight again, or the values on the host
//     scales_beside(Tensor weight) -> Tensor[]               of the weight, and of static activations
//     with_scales(Tensor codes, Tensor like, Tensor? scale, Tensor? input_scale) -> Tensor
//                                                            codes with those, in the place of a weight
//     quantization_config(Tensor[] tensors, str[] names, str[] types, str format="compressed-tensors",
//                         str source="", Node[]? nodes=None, str[]? node_names=None) -> (str, str)
//                                                            save()'s part of config.json, and its fp8.json
//     module_types() -> str[]                                the classes' names that are known
//     weights_of_model(str modules, str allowlist="null") -> str
//                                                            those of a model that is described, and what is left
//     require_linears(str[] entries, str[] linears, str[] in_fp8, str[] stored) -> ()
//                                                            an ignore list is what transformers takes it for
//     forms() -> str[]                                       what save() takes
//     config_problems(str config, str name) -> str[]         of a QUANT_CONFIG, one sentence each
//     load(Tensor[] weights, str[] modules, str[] types, str folder, ScalarType? compute=None,
//          str? dialect=None) -> str[]                       an fp8 checkpoint's
//     cut_weights(ROWS) -> str[]                             of a model that its checkpoint cuts into rows: ROWS are
//                                                            Tensor[] state, str[] names, str[] transposed,
//                                                            Tensor[] given, Tensor[] numbers, str[] keys
//     written_by_rows(ROWS, str[] types, Tensor[] values) -> (Tensor[], str[])
//                                                            what save() takes
//     load_by_rows(ROWS, str folder) -> str[]                the way back
//     load_others(Tensor[] state, str[] names, str folder, str[] done) -> ()
//                                                            what is not in fp8
//     save(Tensor[] tensors, str[] names, str[] types, str folder, str format="compressed-tensors",
//          str source="", bool overwrite=False, Node[]? nodes=None, str[]? node_names=None) -> ()
//
//   transformer_engine/convert/convert_training.h
//     attach_training(Tensor[] weights, str[] modules, str[] types, str recipe="habana",
//                     str warm_start="", bool minimize_memory=False, bool whatever_region=False) -> str
//                                                            the report
//     enter_autocast(str recipe="", bool enabled=True, bool calibrating=False,
//                    bool? is_first_microbatch=None, int seed=0, str group="",
//                    bool? force_measurement=None) -> int region
//                                                            group: of torch.distributed, by its group_name; its ranks
//                                                            share their amaxes
//     exit_autocast(int region, bool failed=False) -> ()     on the thread that entered, innermost first
//     gaudi_config_problems(str json, str source) -> str[]   Optimum's file: what its keys may not be
//     region_kind() -> int                                   of this thread: 0 none, 1 in one, 2 in an enabled one
//     training_state(Tensor weight) -> str                   {"name", "recipe", "step",
//                                                             "forward": {"scale", "amax_history"}, ...}
//     set_training(Tensor[] weights, bool training) -> ()    evaluation records no amaxes
//     export_amax(Tensor[] weights, str[] modules, str[] types, str prefix) -> str[]
//                                                            training's amaxes as a measurement: the files
//     save_training_state(Tensor[] weights, str folder) -> ()
//     load_training_state(Tensor[] weights, str folder) -> str    {"missing", "unexpected"}
//     training_state_bytes(Tensor weight) -> Tensor          of one weight, whatever its name
//     set_training_state_bytes(Tensor weight, Tensor bytes) -> ()
//     state_of(Tensor weight, str recipe="", bool minimize_memory=False) -> State
//                                                            an attached weight's, which outlives it
//     linear(Tensor x, Tensor weight, Tensor? bias, State state) -> Tensor
//                                                            a product whose module has the fp8 state,
//                                                            torch.classes.fp8.State(name)
//     hold_in_fp8(Tensor(a!) parameter, str module, str recipe="") -> ()
//                                                            it keeps codes alone, and learns by them
//     held_state(Tensor weight) -> (float, int)              scale_inv, and how often values were assigned
//     set_held(Tensor(a!) weight, Tensor codes, float scale_inv, int assigned) -> ()
//     assign_held(Tensor(a!) weight, Tensor values) -> ()    an optimizer's step
//
//   transformer_engine/modules/fp8_module.h              activation checkpointing by others
//     checkpoint_begin() -> int run                          the first run begins
//     checkpoint_again(int run) -> ()                        the second one, in backward, with the first's region
//                                                            and scales
//     checkpoint_end(int run) -> ()                          ends either
//     checkpoint_free(int run) -> ()
//
//   transformer_engine/convert/module_operators.cpp      what modules compute beside their products
//     normalized(Tensor x, Tensor weight, Tensor? bias, float eps, bool zero_centered_gamma=False) -> Tensor
//     activated(Tensor x, str activation) -> Tensor
//     rotary_angles(int dim, int positions, float base, Device device) -> Tensor
//     rotated(Tensor x, Tensor angles, str qkv_format, Tensor? cu_seqlens_q=None,
//             Tensor? cu_seqlens_q_padded=None) -> Tensor
//     check_attention(int heads, int groups, int depth, str qkv_format, str attn_mask_type, float dropout=0,
//                     float? scale=None, int[2] window_size=-1, bool fp8_dpa=False) -> ()
//     dot_product_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, int heads, int groups, int depth,
//                           str qkv_format, str attn_mask_type, float dropout=0, float? scale=None,
//                           int[2] window_size=-1, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_kv=None,
//                           Tensor? cu_seqlens_q_padded=None, Tensor? cu_seqlens_kv_padded=None,
//                           int? max_seqlen_q=None, int? max_seqlen_kv=None, bool training=True,
//                           State? state=None) -> Tensor     with a state in fp8 inside of a region
//     fused_attention(Tensor q, Tensor k, Tensor v, Tensor? mask, bool is_causal, str softmax_mode,
//                     float dropout, float? scale, bool enable_recompute, bool training, State state) -> Tensor
//                                                            state: State(name, attention=True)
//
// Python's torch wants a module torch.hpu before it touches the device; what it has to have stands in
// tests/package/operators.py. Operators on the numbers themselves (fp8::weight_only_linear, fp8::block_linear, hpu::*)
// are in runtime/ops.
#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

namespace fp8::runtime {

/// JSON; "null" for a tensor without a mark. whole: false for a view of a part. Any device.
std::string tag_of(const at::Tensor& weight);

/// The weight's values in the dtype that it had, in its shape; of a host copy, on the host. Throws c10::Error for a
/// tensor that is no tagged weight and no view of one, and for parts other than rows and columns where the scale is not
/// one number.
at::Tensor dequantize(const at::Tensor& weight);

/// Throws c10::Error: source has no mark, is a view, or is a parameter that learns in fp8 (its handler answers for its
/// memory alone); `to` is not on hpu, not contiguous, or of other sizes or dtype. The bytes are not
/// compared.
void retag(const at::Tensor& source, const at::Tensor& to);

/// Throws c10::Error where the memory holds codes: they would be taken for values. Nothing happens to a tensor without
/// a mark.
void untag(const at::Tensor& weight);

/// For operators that take a model: c10::Error "[fp8::convert] modules: found 2, expected 3 (one for each of weights)".
void check_one_for_each(const char* op, const char* argument, std::size_t found, const char* of, std::size_t expected);
/// c10::Error "[fp8::save] tensors: NAME: expected a dense tensor with memory, found Sparse" (also nested, quantized,
/// meta).
void check_dense(const char* op, const char* argument, const std::string& name, const at::Tensor& tensor);

}  // namespace fp8::runtime
