// SPDX-License-Identifier: Apache-2.0
// Names that documents, scripts and containers for the vendor's devices, Intel Neural Compressor, vLLM and launchers
// give to variables: each has a row, or stands below with the reason why it has none.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "fp8/runtime/io/base/environment.h"
#include "fp8/runtime/io/base/runtime_flags.h"

namespace fp8::io {
namespace {

/// Of the table of runtime variables, of the guides to training, inference and fp8, of vLLM's and of older scripts.
constexpr const char* kNamed[] = {
    "CALC_ROUNDING_WITH_CGUID",
    "CALC_SCALE_WITH_CGUID",
    "ENABLE_CONSOLE",
    "ENABLE_EXPERIMENTAL_FLAGS",
    "EXPERIMENTAL_WEIGHT_SHARING",
    "FP32_LIST",
    "GC_KERNEL_PATH",
    "GLOO_SOCKET_IFNAME",
    "GRAPH_VISUALIZATION",
    "HABANA_LOGS",
    "HABANA_PROFILE",
    "HABANA_VISIBLE_DEVICES",
    "HABANA_VISIBLE_MODULES",
    "HLS_MODULE_ID",
    "INC_LOG_FILE_SIZE",
    "INC_TARGET_DEVICE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "LOG_LEVEL_ALL",
    "LOG_LEVEL_INC",
    "LOWER_LIST",
    "MASTER_ADDR",
    "MASTER_PORT",
    "MEASUREMENT_DUMP_METHOD",
    "NODE_RANK",
    "OMP_NUM_THREADS",
    "PT_ENABLE_HABANA_STREAMASYNC",
    "PT_ENABLE_INT64_SUPPORT",
    "PT_HPUGRAPH_DISABLE_TENSOR_CACHE",
    "PT_HPUGRAPH_ENABLE_DRY_RUN",
    "PT_HPU_AUTOCAST_FP32_OPS_LIST",
    "PT_HPU_AUTOCAST_LOWER_PRECISION_OPS_LIST",
    "PT_HPU_AUTOLOAD",
    "PT_HPU_DISABLE_ASYNC_COLLECTIVE",
    "PT_HPU_EAGER_4_STAGE_PIPELINE_ENABLE",
    "PT_HPU_EAGER_OPS",
    "PT_HPU_EAGER_PIPELINE_ENABLE",
    "PT_HPU_ENABLE_EAGER_CACHE",
    "PT_HPU_ENABLE_EXECUTION_THREAD_NO_WAIT",
    "PT_HPU_ENABLE_LAZY_COLLECTIVES",
    "PT_HPU_ENABLE_LAZY_EAGER_LAUNCH_EXEC_THREAD",
    "PT_HPU_ENABLE_REFINE_DYNAMIC_SHAPES",
    "PT_HPU_ENABLE_SYNAPSE_LAYOUT_HANDLING",
    "PT_HPU_FP8_MINIMIZE_MEMORY",
    "PT_HPU_GPU_MIGRATION",
    "PT_HPU_INFERENCE_MODE",
    "PT_HPU_LAZY_ACC_PAR_MODE",
    "PT_HPU_LAZY_MODE",
    "PT_HPU_MATMUL3D_2D_RESHAPE",
    "PT_HPU_MAX_COMPOUND_OP_SIZE",
    "PT_HPU_METRICS_GC_DETAILS",
    "PT_HPU_PLACE_ON_CPU",
    "PT_HPU_POOL_MEM_ACQUIRE_PERC",
    "PT_HPU_POOL_STRATEGY",
    "PT_HPU_RECIPE_CACHE_CONFIG",
    "PT_HPU_REPLACE_ADAM_ADAMW",
    "PT_HPU_STOCHASTIC_ROUNDING_MODE",
    "PT_HPU_USE_EAGER_FALLBACK",
    "PT_HPU_WEIGHT_SHARING",
    "PT_INFERENCE_RANGE_FILE",
    "PT_TE_DUMP_TENSORS",
    "PT_TE_DUMP_TENSORS_PATH",
    "PT_TE_FORCE_SR_BWD",
    "PT_TE_OVERRIDE_SDPA_BWD_PRECISSION",
    "PT_TE_OVERRIDE_SDPA_DOUT",
    "QUANT_CONFIG",
    "RANK",
    "RUNTIME_SCALE_PATCHING",
    "SCALE_METHOD_CONFIG_DUMP_PATH",
    "SLURM_JOB_NODELIST",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "VLLM_DYNAMIC_KV_QUANT",
    "WORLD_SIZE",
};

constexpr const char* kCMake = "an option of CMake for this project, not of the environment";
constexpr const char* kFormat = "a scheme or format in checkpoints of others";
constexpr const char* kOpenMp = "GNU's OpenMP reads it, and says itself what is wrong with it";
constexpr const char* kConstant = "a name in somebody's source: no variable of the environment";
constexpr const char* kNvidia = "read by NVIDIA's library alone: recipes say it in their JSON here";
constexpr const char* kSlurm = "a step has its own, SLURM_PROCID and SLURM_STEP_NUM_TASKS";
constexpr const char* kDeepSpeed = "read by DeepSpeed or Lightning alone, which this is not";
const std::pair<const char*, const char*> kWithoutRow[] = {
    {"FP8_WERROR", kCMake},
    {"FP8_UNITY", kCMake},
    {"FP8_SANITIZE", kCMake},
    {"FP8_STATIC", kFormat},
    {"FP8_DYNAMIC", kFormat},
    {"FP8_BLOCK", kFormat},
    {"FP8_PB_WO", kFormat},
    {"FP8_PER_CHANNEL_PER_TOKEN", kFormat},
    {"FP8_MAX", kConstant},
    {"SYNAPSE_FUNCTION_CALLS", kConstant},
    {"BRIDGE_FUNCTION_CALLS", kConstant},
    {"SCALE_METHOD_UPPER", kConstant},
    {"INC_PT_ONLY", "decides how Intel Neural Compressor is built"},
    {"USE_C10D_GLOO", "decides how LibTorch is built"},
    {"OMP_PROC_BIND", kOpenMp},
    {"OMP_PLACES", kOpenMp},
    {"GOMP_SPINCOUNT", kOpenMp},
    {"NVTE_BACKWARD_OVERRIDE", kNvidia},
    {"NVTE_UNFUSED_FP8_UPDATE", kNvidia},
    {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES", kNvidia},
    {"NVTE_FP8_CURRENT_SCALING_POWER_2_SCALES", kNvidia},
    {"NVTE_ALLOW_UNSAFE_PICKLE_EXTRA_STATE", kNvidia},
    {"SLURM_NTASKS", kSlurm},
    {"SLURM_LOCALID", kSlurm},
    {"SLURM_NODEID", kSlurm},
    {"DEEPSPEED_USE_HPU", kDeepSpeed},
    {"DS_ACCELERATOR", kDeepSpeed},
    {"PL_DEEPSPEED_CONFIG_PATH", kDeepSpeed},
    {"HPU_EMULATE_DEVICES", "FP8_HPU_DEVICES says it here"},
};

bool has_row(const std::string& name) {
  for (const Variable& row : variables())
    if (name == row.name) return true;
  return false;
}

TEST(DocumentedVariables, HaveARow) {
  for (const char* name : kNamed) EXPECT_TRUE(has_row(name)) << name;
}

TEST(DocumentedVariables, OrAReason) {
  for (const auto& [name, reason] : kWithoutRow) {
    EXPECT_FALSE(has_row(name)) << name << " has a row";
    EXPECT_GT(std::string(reason).size(), 20u) << name;
  }
}

/// The vendor's compiler is told of each of its passes by a name of its own.
TEST(DocumentedVariables, OnesForEveryPassOfTheGraphCompiler) {
  constexpr const char *kA = "PT_HPU_DISABLE_pass_reinplace_add", *kB = "PT_HPU_DISABLE_pass_eagerize_leaf_views";
  constexpr const char* kFamily = "PT_HPU_DISABLE_pass_*";
  for (const char* name : {kA, kB, kFamily}) EXPECT_FALSE(is_unknown_variable(name)) << name;
  for (const char* name : {"PT_HPU_DISABLE_pass_", "PT_HPU_DISABLE_reinplace", "PT_HPU_DISABLE_PASS_X"})
    EXPECT_TRUE(is_unknown_variable(name)) << name;
  EXPECT_FALSE(variable(kFamily).in_effect);
  EXPECT_EQ(RuntimeFlags::from_env()[kFamily].source, FlagSource::default_value);
  setenv(kA, "True", 1);
  setenv(kB, "1", 1);
  const Flag flag = RuntimeFlags::from_env()[kFamily];
  EXPECT_EQ(flag.source, FlagSource::environment);
  EXPECT_EQ(flag.value, std::string(kB) + "=1, " + kA + "=True");
  EXPECT_THAT(unknown_variables(), ::testing::IsEmpty());
  setenv(kB, "", 1);  // is not set
  EXPECT_EQ(RuntimeFlags::from_env()[kFamily].value, std::string(kA) + "=True");
  unsetenv(kA);
  unsetenv(kB);
}

}  // namespace
}  // namespace fp8::io
