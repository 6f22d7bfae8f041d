// SPDX-License-Identifier: Apache-2.0
// Names, types and defaults are those of the vendor's PyTorch bridge (1.19; of what scripts still set, older ones), its
// documentation and vLLM's for it.
#include "fp8/runtime/io/base/vendor_variables.h"

#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "fp8/runtime/io/base/variable_rules.h"

namespace fp8::io {
namespace {

// Why nothing comes of a variable.
constexpr const char* kNoGraph = "operators run at once: no graph is built, cut, compiled or kept";
constexpr const char* kShapes = "an operator sees the sizes that it has: no shape is dynamic";
constexpr const char* kNoQueue =
    "operators run on the thread that calls them: there is no queue and no second stream to wait for";
constexpr const char* kHostMemory = "device memory is the host's: FP8_HPU_MEMORY bounds it, no pool, no copies by DMA";
constexpr const char* kLayout = "tensors keep the layout that they are given";
constexpr const char* kTypes = "every dtype is computed as it is, int64 and double too";
constexpr const char* kOneKernel = "an operator has one kernel, with LibTorch's results";
constexpr const char* kAttention =
    "attention cuts its work as its kernel needs it; dtypes are those of the arguments and the recipe";
constexpr const char* kAsItIs = "a model is run as it is: nothing is folded, shared or marked constant";
constexpr const char* kHost = "every operator runs on the host anyway";
constexpr const char* kCuda = "calls for cuda are not turned into calls for hpu";
constexpr const char* kFiles = "data comes from the files that commands name";
constexpr const char* kGloo = "collectives are Gloo's";
constexpr const char* kDevices = "FP8_HPU_DEVICES says how many devices there are";
constexpr const char* kRecords = "a profiler records what it is asked for, where it runs";
constexpr const char* kNoDump = "no statistics, metrics or tensors are written on the side";
constexpr const char* kVendor = "the vendor's libraries are not used";

constexpr Variable row(const char* name, const char* allowed, const char* fallback, const char* why, Rule rule) {
  return {name, why, allowed, fallback, "nobody", rule, false};
}
constexpr Variable flag(const char* name, const char* fallback, const char* why) {
  return row(name, "true, 1, yes, on, false, 0, no, off", fallback, why, kBoolean);
}
constexpr Variable count(const char* name, const char* fallback, const char* why) {
  return row(name, kFromZero, fallback, why, kCount);
}
constexpr Variable percent(const char* name, const char* fallback, const char* why) {
  return row(name, "an integer from 0 to 100", fallback, why, kInteger<0, 100>);
}
constexpr Variable words(const char* name, const char* allowed, const char* fallback, const char* why) {
  return row(name, allowed, fallback, why, kWord);
}
constexpr Variable path(const char* name, const char* fallback, const char* why) {
  return row(name, "a path", fallback, why, kPath);
}
constexpr Variable text(const char* name, const char* fallback, const char* why) {
  return row(name, kAnything, fallback, why, kText);
}

/// DELETE and NFS: true or false.
bool is_recipe_cache(const Variable& row, std::string_view value) {
  int part = 0;
  return all_parts(value, ",", [&](std::string_view text) {
    const int i = part++;
    if (i == 2) return count_in_64_bits(row, text);
    return i == 0 || (i <= 3 && (lower(std::string(text)) == "true" || lower(std::string(text)) == "false"));
  });
}

constexpr Variable kVendorVariables[] = {
    // Lazy mode, graphs, recipes, torch.compile.
    path("PT_HPU_GRAPH_DUMP_PREFIX", ".graph_dumps", kNoGraph),
    words("PT_HPU_GRAPH_DUMP_MODE", "compile, compile_fx, eager, all", "none", kNoGraph),
    words("PT_HPU_GRAPH_DUMP_FORMAT", "svg, graphml, pbtxt", "pbtxt", kNoGraph),
    row("PT_HPU_RECIPE_CACHE_CONFIG", "FOLDER[,DELETE[,MEGABYTES[,NFS]]]", ",false,1024", kNoGraph,
        {"list", is_recipe_cache}),
    path("PT_RECIPE_CACHE_PATH", "none", kNoGraph),
    words("PT_HPU_LAZY_MODE", "0, 1, 2, 0x0, 0x1, 0x2", "0", kNoGraph),
    count("PT_HPU_LAZY_ACC_PAR_MODE", "1", kNoGraph),
    count("PT_HPU_LAZY_ACC_VIEW_OPS_MODE", "0", kNoGraph),
    flag("PT_HPU_USE_SYN_TENSOR_IDS", "true", kNoGraph),
    flag("PT_HPU_INTERNAL_OLD_SYNAPI", "false", kNoGraph),
    flag("HABANA_USE_PERSISTENT_TENSOR", "false", kNoGraph),
    flag("PT_HPU_LAZY_EAGER_OPTIM_CACHE", "true", kNoGraph),
    flag("PT_HPU_EAGER_SHAPE_AGNOSTIC_GRAPH", "true", kNoGraph),
    flag("PT_HPU_LAZY_EAGER_VIEW_HANDLING", "false", kNoGraph),
    flag("PT_HPU_ENABLE_CACHE_METRICS", "false", kNoGraph),
    flag("PT_ENABLE_INTER_HOST_CACHING", "false", kNoGraph),
    count("PT_HPU_MAX_RECIPE_SUBMISSION_LIMIT", "0", kNoGraph),
    flag("PT_HPU_EAGER_VIEW_HANDLING", "true", kNoGraph),
    count("PT_HABANA_MAX_RECIPE_HIT_COUNT", "0", kNoGraph),
    flag("PT_HPU_ENABLE_SLICE_INSERT", "true", kNoGraph),
    flag("PT_HPU_DUMP_IR_DOT_GRAPH", "false", kNoGraph),
    flag("PT_HPU_AVOID_RE_EXECUTE_GRAPHS", "false", kNoGraph),
    flag("PT_USE_MARKSTEP", "true", kNoGraph),
    count("PT_HPU_GRAPH_DUMP", "0", kNoGraph),
    flag("PT_HPU_ENABLE_DEBUG_NAMES", "true", kNoGraph),
    count("PT_HPU_MAX_ACCUM_SIZE", "2^64 - 1", kNoGraph),
    count("PT_HPU_MAX_COMPOUND_OP_SIZE", "2^63 - 1", kNoGraph),
    flag("PT_HPU_MAX_COMPOUND_OP_SYNC", "false", kNoGraph),
    count("PT_HPU_MAX_COMPOUND_OP_SIZE_SS", "10", kNoGraph),
    flag("PT_HPU_ENABLE_STAGE_SUBMISSION", "true", kNoGraph),
    count("PT_HPU_STAGE_SUBMISSION_MODE", "2", kNoGraph),
    flag("PT_HPU_PGM_ENABLE_CACHE", "true", kNoGraph),
    count("PT_FORCED_TRACING_MASK", "0", kNoGraph),
    flag("PT_HPU_ENABLE_EAGER_COMPILER", "true", kNoGraph),
    flag("PT_HPU_ENABLE_EAGER_CACHE", "false", kNoGraph),
    flag("PT_HPU_CLEAR_SCALAR_MAP_ON_MARKSTEP", "false", kNoGraph),
    count("PT_HPU_SCALAR_MAP_MAXSIZE", "500", kNoGraph),
    flag("PT_HPU_ENABLE_SFG", "false", kNoGraph),
    count("PT_SBS", "0", kNoGraph),
    flag("PT_HPU_VISUALIZE_GRAPH_INDEX", "false", kNoGraph),
    flag("PT_HPU_ENABLE_JIT_GRAPH_NAME_HASH", "false", kNoGraph),
    flag("PT_HPU_ENABLE_UNIQUE_GRAPH", "false", kNoGraph),
    flag("PT_RECIPE_CACHE_IGNORE_VERSION", "false", kNoGraph),
    flag("PT_RECIPE_CACHE_DUMP_DEBUG", "false", kNoGraph),
    flag("PT_HPU_ENABLE_GRAPH_RUNNING_HASH", "false", kNoGraph),
    flag("PT_HPU_ENABLE_VALIDATE_GRAPH_RUNNING_HASH", "false", kNoGraph),
    count("PT_CACHE_FOLDER_SIZE_MB", "1024", kNoGraph),
    flag("PT_CACHE_FOLDER_DELETE", "false", kNoGraph),
    flag("PT_COMPILE_ONLY_MODE", "false", kNoGraph),
    flag("PT_HPU_WRAP_RANDOM_OPS_COMPILE", "true", kNoGraph),
    flag("PT_HPU_ENABLE_EAGER_JIT_CACHE", "true", kNoGraph),
    flag("PT_HPU_ENABLE_COMPILED_AUTOGRAD", "false", kNoGraph),
    count("PT_HPU_LOP_JIT_WARM_UP_STEPS", "5", kNoGraph),
    flag("PT_HPU_DISABLE_HPUGRAPH_REPLAY_HASHCHECK", "true", kNoGraph),
    flag("PT_HPU_USE_JIT_FORK", "false", kNoGraph),
    flag("PT_HPU_ENABLE_SYNAPSE_INPUT_REUSE", "true", kNoGraph),
    flag("PT_HPU_COMPILE_USE_RECIPES", "true", kNoGraph),
    words("PT_HPU_COMPILE_DECOMPOSITION_MODE", "habana, core_aten, none", "habana", kNoGraph),
    flag("PT_HPU_KEEP_INPUT_MUTATIONS", "true", kNoGraph),
    flag("PT_HPU_USE_EAGER_FALLBACK", "true", kNoGraph),
    flag("PT_HPU_COMPILE_GRAPH_FREEZE", "false", kNoGraph),
    flag("PT_HPU_COMPILE_DISCARD_FROZEN_PARAMS", "false", kNoGraph),
    flag("PT_HPU_COMPILE_REMOVE_UNNECESSARY_CLONES", "true", kNoGraph),
    flag("PT_HPU_USE_INPLACE_INDEX_COPY", "true", kNoGraph),
    flag("PT_HPU_USE_INFERENCE_COMPILER", "true", kNoGraph),
    flag("PT_HPU_USE_CPP_PARTITIONER", "true", kNoGraph),
    flag("PT_HPU_REINPLACE_ADD", "true", kNoGraph),
    flag("PT_HPU_REASSIGN_FULL_COPY", "true", kNoGraph),
    flag("PT_HPU_REASSIGN_COPY_", "true", kNoGraph),
    flag("PT_HPU_USE_BOXED_INPUT", "true", kNoGraph),
    flag("PT_HPUGRAPH_DISABLE_TENSOR_CACHE", "false", kNoGraph),
    flag("PT_HPUGRAPH_ENABLE_DRY_RUN", "false", kNoGraph),
    text("PT_HPU_LAZY_CACHE_DISABLE", "not set", kNoGraph),
    path("HABANA_TRANSFORM_GRAPH_FILE", "none", kNoGraph),
    count("HABANA_PGM_LRU_MAX", "30000", kNoGraph),
    flag("GRAPH_VISUALIZATION", "false", kNoGraph),
    text("PT_HPU_DISABLE_pass_*", "not set", kNoGraph),
    path("PT_HPU_RERUN_JSON_FILE", "none", kNoGraph),
    flag("PT_HPU_LAZY_LOWERING", "false", kNoGraph),
    flag("PT_HPU_LAZY_EAGER_SYN_API", "false", kNoGraph),
    flag("PT_HPU_EAGER_OPS", "false", kNoGraph),
    flag("PT_HPU_ZERO_STRIDE_SYNTENSOR", "true", kNoGraph),
    path("PT_HPU_ENABLED_JIT_IR_OPS_LIST_FILE", "none", kNoGraph),

    // Dynamic shapes.
    text("PT_HPU_DYNAMIC_MIN_POLICY_ORDER", "4,5,3,1", kShapes),
    text("PT_HPU_DYNAMIC_MAX_POLICY_ORDER", "2,4,5,3,1", kShapes),
    flag("PT_HPU_ENABLE_DYNAMIC_PASS_FALLBACK", "true", kShapes),
    flag("PT_HPU_ENABLE_MIN_MAX_AS_CURRENT", "false", kShapes),
    flag("PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES", "false", kShapes),
    flag("PT_HPU_OPTIM_DYNAMIC_OUTPUT_SIF", "true", kShapes),
    flag("PT_HPU_DEV_ENABLE_ARANGE_HOST_TENSOR", "true", kShapes),
    flag("PT_HPU_VALIDATE_COMPUTE_SHAPE", "false", kShapes),
    flag("PT_HPU_ENABLE_ZERO_MIN", "false", kShapes),
    flag("PT_HPU_ENABLE_DISK_CACHE_FOR_DSD", "false", kShapes),
    percent("PT_HPU_DS_TIME_IMPROVE_THRESHOLD_PERCENT", "10", kShapes),
    flag("PT_HPU_ENABLE_FAST_SHAPE_INFERENCE", "true", kShapes),
    flag("PT_HPU_RUN_HYBRID_SIF", "true", kShapes),
    flag("PT_HPU_ENABLE_BROADCAST_BUCKET_HANDLING", "true", kShapes),
    flag("PT_HPU_ENABLE_H2D_DYNAMIC_AS_STRIDED", "true", kShapes),
    flag("PT_HPU_ENABLE_H2D_DYNAMIC_SLICE", "true", kShapes),
    flag("PT_HPU_ENABLE_DYNAMIC_OUTPUT_PREALLOCATE", "true", kShapes),
    flag("PT_HPU_FORCE_STATIC_COMPILE", "false", kShapes),
    flag("PT_HPU_ENABLE_DYNAMIC_LAUNCH_FALLBACK", "false", kShapes),
    flag("PT_HPU_DEV_ENABLE_RANDPERM_HOST_TENSOR", "true", kShapes),
    flag("PT_HPU_DEV_ENABLE_PAD_HOST_TENSOR", "true", kShapes),

    // Threads, streams, pipelines.
    flag("PT_HPU_ENABLE_COMPILE_THREAD", "false", kNoQueue),
    flag("PT_HPU_ENABLE_EXECUTION_THREAD", "true", kNoQueue),
    flag("PT_HPU_ENABLE_HPUGRAPH_THREAD", "true", kNoQueue),
    flag("PT_HPU_ENABLE_D2H_ASYNC_THREAD", "true", kNoQueue),
    flag("PT_HPU_QUEUE_SYNLAUNCHES", "true", kNoQueue),
    flag("PT_HPU_ENABLE_LAZY_EAGER_EXECUTION_THREAD", "true", kNoQueue),
    flag("PT_HPU_EAGER_4_STAGE_PIPELINE_ENABLE", "true", kNoQueue),
    flag("PT_HPU_ENABLE_EXECUTION_THREAD_NO_WAIT", "false", kNoQueue),
    count("PT_HPU_THREAD_POOL_QUEUE_CAPACITY", "20000", kNoQueue),
    flag("PT_ENABLE_HABANA_STREAMASYNC", "true", kNoQueue),
    flag("PT_HPU_EAGER_PIPELINE_ENABLE", "true", kNoQueue),
    flag("PT_HPU_ENABLE_H2D_COPY_ASYNC_THREAD", "true", kNoQueue),
    flag("PT_HPU_FORCE_USE_DEFAULT_STREAM", "false", kNoQueue),
    flag("PT_HPU_SYNCHRONOUS_ACC_QUEUE_FLUSHING", "false", kNoQueue),
    flag("PT_WAIT_FOR_ALL_FUTURES_IN_CLEANUP", "true", kNoQueue),
    flag("PT_HPU_ENABLE_GENERIC_STREAM", "true", kNoQueue),
    flag("PT_HPU_ENABLE_RECORD_STREAM", "false", kNoQueue),
    flag("PT_HPU_ENABLE_RECORD_STREAM_NOHOLDER", "false", kNoQueue),
    flag("PT_HPU_USE_LAUNCH_RECORD_STREAM", "false", kNoQueue),
    count("PT_HPU_EAGER_TENSOR_POOL_SIZE", "1000", kNoQueue),
    flag("PT_HPU_ENABLE_EAGER_TENSOR_TIMESTAMP", "false", kNoQueue),
    count("PT_HPU_ACC_THREAD_VERSION", "0", kNoQueue),
    count("PT_HPU_EVENT_TABLE_SIZE", "10000000", kNoQueue),
    text("PT_HPU_SYNC_LAUNCH", "not set", kNoQueue),
    flag("PT_HPU_ENABLE_LAUNCHTHREAD_USE_THREADPOOL", "false", kNoQueue),
    flag("PT_HPU_ENABLE_LAZY_EAGER_LAUNCH_EXEC_THREAD", "true", kNoQueue),
    flag("PT_HPU_ENABLE_SYNC_OUTPUT_HOST", "true", kNoQueue),

    // Memory and copies.
    flag("PT_ENABLE_HABANA_CACHING", "true", kHostMemory),
    flag("PT_ENABLE_HOST_MEMORY_CACHE", "true", kHostMemory),
    count("PT_HABANA_MAX_DMA_COPY_RETRY_COUNT", "1000", kHostMemory),
    count("PT_HABANA_DMA_COPY_RETRY_DELAY", "10", kHostMemory),
    percent("PT_HPU_HOST_MEMORY_THRESHOLD_PERCENT", "0", kHostMemory),
    count("PT_HPU_H2D_COPY_MIN_TENSOR_SIZE", "1048576", kHostMemory),
    flag("PT_HPU_SCALAR_H2D_COPY_MULTIPLE", "true", kHostMemory),
    count("PT_HPU_INITIAL_WORKSPACE_SIZE", "0", kHostMemory),
    count("PT_HABANA_POOL_SIZE", "24", kHostMemory),
    count("PT_HPU_POOL_STRATEGY", "4", kHostMemory),
    flag("PT_ENABLE_WORKSPACE_MEMORY_SHRINK", "true", kHostMemory),
    flag("PT_ENABLE_MEMORY_DEFRAGMENTATION", "true", kHostMemory),
    flag("PT_HPU_POOL_MEM_ENABLE_TENSOR_INFO", "true", kHostMemory),
    percent("PT_HPU_POOL_MEM_ACQUIRE_PERC", "100", kHostMemory),
    count("PT_HPU_POOL_SIZE", "not set", kHostMemory),
    count("PT_HPU_POOL_MAX_MERGE_COUNT", "5", kHostMemory),
    flag("PT_HPU_POOL_ENABLE_LFU_MERGE", "true", kHostMemory),
    percent("PT_HPU_POOL_MEM_THRESHOLD_PERC", "95", kHostMemory),
    count("PT_HPU_MEMORY_DEFRAGMENTATION_RETRIES_LIMIT", "5", kHostMemory),

    // Layouts.
    flag("PT_HPU_ENABLE_PERMUTE_WITH_STRIDED_VIEW", "true", kLayout),
    flag("PT_HPU_ENABLE_SYNAPSE_OUTPUT_PERMUTE", "true", kLayout),
    flag("PT_HPU_ENABLE_WEIGHT_CPU_PERMUTE", "true", kLayout),
    flag("PT_HPU_ENABLE_WEIGHT_HPU_PERMUTE", "false", kLayout),
    count("PT_HPU_MAX_PERMUTE_THRESHOLD", "5", kLayout),
    flag("PT_HPU_CLEAR_PERM_INFO", "true", kLayout),
    flag("PT_HPU_DONT_USE_STRIDED_VIEW", "true", kLayout),
    flag("PT_HPU_USE_STRIDED_VIEW_FOR_SLICE", "false", kLayout),
    flag("PT_HPU_ENABLE_TRANSPOSE_WITH_STRIDED_VIEW", "true", kLayout),
    flag("PT_HPU_LOWER_AS_STRIDED", "true", kLayout),
    flag("PT_HPU_ENABLE_SYNAPSE_LAYOUT_HANDLING", "true", kLayout),
    flag("PT_HPU_FCD_STRIDE_OPT", "true", kLayout),

    // Dtypes.
    flag("PT_HPU_ENABLE_VALID_DATA_RANGE_CHECK", "true", kTypes),
    flag("PT_ENABLE_INT64_SUPPORT", "false", kTypes),
    flag("PT_DISABLE_DTYPE_PROMOTION", "false", kTypes),

    // Choices among kernels.
    flag("PT_HPU_DISABLE_INSTANCE_NORM", "false", kOneKernel),
    flag("PT_HPU_FORCE_TANH_FOR_GELU", "true", kOneKernel),
    flag("PT_HPU_FORCE_INDEX_PUT_FRONTEND_FALLBACK", "false", kOneKernel),
    flag("PT_HPU_EAGER_INDEX_PUT_BOOL_OPTIMIZED", "true", kOneKernel),
    flag("PT_HPU_ENABLE_NMS_USING_BNMS_CGUID", "true", kOneKernel),
    flag("PT_HPU_USE_BN_FWD_IN_GN_BWD", "true", kOneKernel),
    flag("PT_HPU_USE_UNSORTED_SCATTER_ADD", "true", kOneKernel),
    flag("PT_HPU_DEV_ENABLE_TOPK_USING_CGUID", "true", kOneKernel),
    flag("PT_HPU_MATMUL3D_2D_RESHAPE", "false", kOneKernel),
    flag("PT_HPU_SORT_INDEX_IN_SCATTER_ADD", "false", kOneKernel),
    flag("PT_HPU_ENABLE_DIV_PRECISE", "false", kOneKernel),
    flag("PT_HPU_ENABLE_NEGATIVE_INDEXING", "false", kOneKernel),
    flag("PT_HPU_OVERRIDE_LINEAR_MATMUL_EAGER", "false", kOneKernel),
    flag("PT_HPU_USE_PHILOX_NORMAL", "false", kOneKernel),
    path("PT_HPU_GRAPH_FUSION_OPS_FILE", "none", kOneKernel),
    path("HABANA_GRAPH_FUSION_OPS_FILE", "none", kOneKernel),
    flag("PT_HPU_REPLACE_ADAM_ADAMW", "false", kOneKernel),
    flag("PT_HPU_DETERMINISTIC_ENABLE", "true", kOneKernel),
    flag("PT_HPU_ENABLE_NONZERO_CGUID", "false", kOneKernel),
    flag("PT_HPU_REDUCTION_FLATTEN_INPUT", "true", kOneKernel),
    flag("PT_HPU_SDPA_SFMX_BWD_V2", "false", kAttention),
    flag("PT_HPU_SDPA_BATCH_NUMHEADS_SLICE", "false", kAttention),
    flag("PT_HPU_SDPA_QKV_SLICE_MODE_FWD", "false", kAttention),
    count("PT_HPU_SDPA_BR_FACTOR", "not set", kAttention),
    count("PT_HPU_SDPA_BC_FACTOR", "not set", kAttention),
    count("PT_HPU_SDPA_SOFTMAX_SLICE_SIZE", "not set", kAttention),
    count("PT_HPU_QKV_SLICE_SEQ_LEN_THLD", "not set", kAttention),
    flag("PT_HPU_ENABLE_FUSED_SDPA_SINK", "false", kAttention),
    path("PT_TE_OVERRIDE_SDPA_DOUT", "none", kAttention),
    words("PT_TE_OVERRIDE_SDPA_BWD_PRECISSION", "bf16", "none", kAttention),

    // Inference.
    flag("PT_HPU_INFERENCE_MODE", "false", kAsItIs),
    flag("PT_ENABLE_INFERENCE_MODE", "true", kAsItIs),
    flag("PT_HPU_INFERENCE_SYNAPSE_DATA_TYPE_SELECTION", "false", kAsItIs),
    flag("PT_HPU_INFERENCE_STORAGE_OVERRIDE", "true", kAsItIs),
    count("PT_HPU_CHECK_NUM_CONSTS", "0", kAsItIs),
    flag("EXPERIMENTAL_WEIGHT_SHARING", "true", kAsItIs),
    flag("PT_HPU_WEIGHT_SHARING", "true", kAsItIs),
    path("PT_INFERENCE_RANGE_FILE", "none", kAsItIs),
    text("PT_HPU_PLACE_ON_CPU", "none", kHost),
    flag("PT_HPU_GPU_MIGRATION", "false", kCuda),
    flag("PT_HPU_MEDIA_PIPE", "true", kFiles),
    flag("PT_HPU_ENABLE_MEDIA_PIPE_SSD_MULTI_CARD", "false", kFiles),

    // Several processes.
    flag("PT_ENABLE_HCL_SAME_ADDRESS_RESOLUTION", "false", kGloo),
    flag("PT_ENABLE_HCL_STREAM", "true", kGloo),
    flag("PT_HPU_EAGER_COLLECTIVE_PIPELINE_ENABLE", "true", kGloo),
    count("PT_HCCL_SLICE_SIZE_MB", "16", kGloo),
    flag("PT_HPU_USE_PT_STORE_SYNC", "false", kGloo),
    flag("PT_HPU_USE_NW_STREAM_SYNC", "false", kGloo),
    flag("PT_HPU_EMULATE_DISTRIBUTED", "false", kGloo),
    flag("PT_HPU_DISABLE_ASYNC_COLLECTIVE", "false", kGloo),
    flag("PT_HPU_ENABLE_LAZY_COLLECTIVES", "false", kGloo),
    count("PT_HCCL_MEMORY_ALLOWANCE_MB", "0", kGloo),
    flag("PT_HPU_ENABLE_GRADIENT_VIEW_LAYOUT_OPT", "false", kGloo),
    flag("PT_HPU_EAGER_ENABLE_GRADIENT_VIEW_LAYOUT_OPT", "false", kGloo),
    flag("PT_ENABLE_COMM_GROUP_CACHE", "true", kGloo),
    flag("PT_HPU_EAGER_COLLECTIVE_SYNC", "false", kGloo),
    flag("PT_HPU_ENABLE_GRADIENT_BUCKET_VIEW", "false", kGloo),
    flag("PT_HPU_ENABLE_COLLECTIVE_VIEW_FUSE", "true", kGloo),
    flag("PT_HPU_USE_INPLACE_COLLECTIVE", "true", kGloo),
    flag("PT_HPU_ENABLE_ALLREDUCE_GRAPH_SPLIT", "true", kGloo),
    count("PT_HPU_EMULATE_DISTRIBUTED_SINGLE_RANK", "not set", kGloo),
    flag("PT_HPU_EMULATE_SIGNALING_FROM_ENCAP_OP", "false", kGloo),
    text("HABANA_VISIBLE_MODULES", "all", kDevices),
    text("HABANA_VISIBLE_DEVICES", "all", kDevices),
    count("HLS_MODULE_ID", "none", kDevices),

    // What is seen of a run.
    path("PT_RECIPE_TRACE_PATH", "none", kRecords),
    flag("PT_ENABLE_SYNLAUNCH_TIME_CAPTURE", "false", kRecords),
    flag("PT_TB_ENABLE_FLOW_EVENTS", "false", kRecords),
    flag("PT_HPU_ENABLE_LOP_METRICS_COLLECTION", "false", kRecords),
    flag("PT_HPU_ENABLE_LOP_TRACES_COLLECTION", "false", kRecords),
    text("HABANA_PROFILE", "profile_api_light", kRecords),
    path("PT_HABANA_MEM_LOG_FILENAME", "habana_log.livealloc.log", kNoDump),
    path("PT_COMPILATION_STATS_PATH", "none", kNoDump),
    flag("PT_HPU_MEM_STATS_DUMP", "false", kNoDump),
    flag("PT_HPU_PRINT_STATS", "false", kNoDump),
    count("PT_HPU_PRINT_STATS_DUMP_FREQ", "0", kNoDump),
    flag("PT_HPU_PRINT_STATS_TABLE", "false", kNoDump),
    count("PT_HABANA_MEM_LOG_LEVEL", "0", kNoDump),
    flag("PT_HPU_POOL_LOG_FRAGMENTATION_INFO", "false", kNoDump),
    flag("PT_HPU_POOL_MEM_FRAGMENT_JSON", "false", kNoDump),
    flag("PT_ENABLE_REALTIME_MEMORY_LOGGING", "false", kNoDump),
    flag("PT_ENABLE_LIGHTWEIGHT_MEMORY_USAGE_LOGGING", "false", kNoDump),
    flag("PT_ENABLE_DEFRAGMENTATION_INFO", "false", kNoDump),
    path("PT_HPU_METRICS_FILE", "none", kNoDump),
    path("HABANA_PT_METRICS_FILE", "none", kNoDump),
    words("PT_HPU_METRICS_FILE_FORMAT", "json, text", "json", kNoDump),
    words("HABANA_PT_METRICS_FILE_FORMAT", "json, text", "json", kNoDump),
    text("PT_HPU_METRICS_DUMP_TRIGGERS", "process_exit", kNoDump),
    text("HABANA_PT_METRICS_DUMP_TRIGGERS", "process_exit", kNoDump),
    flag("PT_HPU_METRICS_GC_DETAILS", "false", kNoDump),
    flag("PT_HPU_DUMP_FUSED_SDPA_API_PARAMS", "false", kNoDump),
    flag("PT_TE_DUMP_TENSORS", "false", kNoDump),
    path("PT_TE_DUMP_TENSORS_PATH", "te_tensors", kNoDump),
    flag("PT_HPU_ERROR_HANDLER", "true", kNoLog),
    flag("PT_HPU_PRINT_BACKTRACE_ON_SIGNAL", "false", kNoLog),
    count("PT_LOG_FILE_AMOUNT", "5", kNoLog),
    count("PT_TOWL_LOG_FILE_AMOUNT", "100", kNoLog),
    flag("PT_TOWL_LOG_ENABLE", "false", kNoLog),
    flag("PT_TOWL_LOG_SEPARATED_FILE", "true", kNoLog),
    text("PT_TOWL_LOG_CONFIG", "rank=0", kNoLog),
    count("PT_HPU_LOG_MOD_MASK", "all modules", kNoLog),
    count("PT_HPU_LOG_TYPE_MASK", "1", kNoLog),
    count("PT_HPU_LOG_NODE_MASK", "0", kNoLog),
    count("PT_HABANA_LOG_MOD_MASK", "not set", kNoLog),
    count("PT_HABANA_LOG_TYPE_MASK", "not set", kNoLog),

    // Where the vendor's software lies.
    path("GC_KERNEL_PATH", "none", kVendor),
    flag("ENABLE_EXPERIMENTAL_FLAGS", "false", kVendor),
    flag("PT_HPU_AUTOLOAD", "true", kVendor),
    path("HABANA_PLUGINS_LIB_PATH", "none", kVendor),
    path("HABANA_SCAL_BIN_PATH", "none", kVendor),
    path("HABANA_SOFTWARE_STACK", "none", kVendor),
    path("HABANA_MANIFEST_PATH", "none", kVendor),
};

}  // namespace

std::span<const Variable> vendor_variables() { return kVendorVariables; }

bool is_member(const Variable& row, std::string_view name) {
  const std::string_view start = std::string_view(row.name).substr(0, std::string_view(row.name).size() - 1);
  return is_family(row) && name.size() > start.size() && name.starts_with(start);
}

std::string members_of_process(const Variable& row) {
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry, name = text.substr(0, text.find('='));
    if (is_member(row, name) && text.size() > name.size() + 1) found.emplace_back(text);
  }
  std::ranges::sort(found);
  return joined(found);
}

}  // namespace fp8::io
