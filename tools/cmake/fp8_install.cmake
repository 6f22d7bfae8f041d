# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` copies, and the package file that find_package(fp8 CONFIG) reads:
#   bin/fp8   lib/libfp8_*.so   include/fp8/{version,fp8}.h   include/fp8/<folder>/...: public headers   lib/cmake/fp8/
#   lib/fp8/: LibTorch's libraries   and what fp8_share.cmake names
# Libraries install themselves (fp8_add_library). With FP8_STATIC: bin/fp8-static and what fp8_share.cmake names.
include(CMakePackageConfigHelpers)
include(fp8_share)
set(FP8_CMAKE_DIR lib/cmake/fp8)
if(FP8_STATIC)
  install(TARGETS fp8_static RUNTIME DESTINATION bin)
  return()
endif()

install(TARGETS fp8_flags fp8_fp8 EXPORT fp8Targets)
install(EXPORT fp8Targets NAMESPACE fp8:: DESTINATION ${FP8_CMAKE_DIR})
install(EXPORT fp8TrainingTargets NAMESPACE fp8:: DESTINATION ${FP8_CMAKE_DIR})

# Public are these headers and what they include; all others are how it is done.
set(FP8_PUBLIC_HEADERS
  runtime/runtime.h recipes/recipes.h configs/configs.h measure/measure.h quant/quant.h transformer_engine/te.h
  runtime/kernels/cast.h runtime/kernels/gemm.h runtime/kernels/optim.h runtime/kernels/simd.h
  runtime/kernels/thread_pool.h
  runtime/io/base/runtime_flags.h runtime/io/json/json.h runtime/io/tensors/npz.h runtime/io/tensors/safetensors.h runtime/io/tensors/torch_file.h
  runtime/custom/hpu_custom_op_pt2.h runtime/ops/attention/attention_ops.h runtime/fp8_tensor/product.h
  runtime/fp8_tensor/cast.h runtime/ops/moe/moe_ops.h
  runtime/profile/hpu_profiler.h
  runtime/trainer/loggers.h runtime/trainer/parts.h runtime/trainer/callbacks/early_stopping.h
  runtime/trainer/callbacks/model_checkpoint.h runtime/trainer/callbacks/monitors.h
  runtime/data/data_loader.h runtime/data/image_folder.h runtime/data/torch_data.h
  runtime/io/atomic/atomic_file.h
  quant/checkpoint/reader_check.h quant/checkpoint/reform.h quant/damage/checkpoint_damage.h quant/model/damage_probe.h
  quant/forms/assumed_form.h quant/forms/ignore_list.h)
set(FP8_PUBLIC_TOOL_HEADERS tools/text/dataset.h tools/text/tokenizer.h tools/models/initialize.h
  tools/models/load.h tools/models/registry.h tools/models/save.h)

# fp8_install_headers(header...): these, relative to the source tree, and what they include.
function(fp8_install_headers)
  set(pending ${ARGN})
  set(done "")
  while(pending)
    list(POP_FRONT pending header)
    if(header IN_LIST done)
      continue()
    endif()
    list(APPEND done ${header})
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION include/fp8/${folder})
    file(STRINGS ${PROJECT_SOURCE_DIR}/${header} includes REGEX "^#include \"fp8/[a-z_]+/")
    foreach(line IN LISTS includes)
      string(REGEX REPLACE "^#include \"fp8/([^\"]+)\".*" "\\1" other "${line}")
      list(APPEND pending ${other})
    endforeach()
  endwhile()
endfunction()
fp8_install_headers(${FP8_PUBLIC_HEADERS})
install(FILES ${FP8_INCLUDE_DIR}/fp8/version.h ${FP8_INCLUDE_DIR}/fp8/fp8.h DESTINATION include/fp8)

if(TARGET fp8)
  set_target_properties(fp8 PROPERTIES INSTALL_RPATH "$ORIGIN/../lib")
  set_target_properties(fp8_commands fp8_program fp8_train_program PROPERTIES INSTALL_RPATH "${FP8_INSTALL_RPATH}")
  install(TARGETS fp8 fp8_commands fp8_program RUNTIME DESTINATION bin LIBRARY DESTINATION lib)
  install(TARGETS fp8_train_program LIBRARY DESTINATION lib OPTIONAL)
  fp8_install_headers(${FP8_PUBLIC_TOOL_HEADERS})
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/tools/cmake/fp8Config.cmake.in
  ${PROJECT_BINARY_DIR}/fp8Config.cmake INSTALL_DESTINATION ${FP8_CMAKE_DIR} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/fp8ConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/fp8Config.cmake ${PROJECT_BINARY_DIR}/fp8ConfigVersion.cmake
  ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_torch.cmake ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_extension.cmake
  DESTINATION ${FP8_CMAKE_DIR})

# After all libraries are in place: what they need beside them.
install(CODE "set(FP8_TORCH_ROOT \"${FP8_TORCH_ROOT}\")
set(FP8_BUILD_LIBRARIES \"${CMAKE_LIBRARY_OUTPUT_DIRECTORY}\")
set(FP8_INSTALL_LIBTORCH_DEFAULT ${FP8_INSTALL_LIBTORCH})
set(FP8_BUNDLE_DEFAULT ${FP8_BUNDLE})")
install(SCRIPT ${PROJECT_SOURCE_DIR}/tools/cmake/fp8_bundle.cmake)
