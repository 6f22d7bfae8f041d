# SPDX-License-Identifier: Apache-2.0
# fp8_add_extension(name SOURCES source...): the library <name>.so of operators (fp8/runtime/custom/extension.h), for
# `fp8 ... --load`, FP8_EXTENSIONS and torch.ops.load_library. What it uses of fp8 and LibTorch is what the program that
# loads it has loaded already; of training (a callback, an optimizer) too, where fp8 was built with it. Sources of the
# vendor's find hpu_custom_op.h and hpu_custom_op_pt2.h.
function(fp8_add_extension name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS OR NOT ARG_SOURCES)
    message(FATAL_ERROR "fp8_add_extension(${name}): found '${ARG_UNPARSED_ARGUMENTS}', allowed: SOURCES and one or more files")
  endif()
  add_library(${name} MODULE ${ARG_SOURCES})
  set_target_properties(${name} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden)
  target_link_libraries(${name} PRIVATE fp8::runtime $<$<TARGET_EXISTS:fp8::training>:fp8::training>)
  target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../../include/fp8/runtime/custom)
endfunction()
