# SPDX-License-Identifier: Apache-2.0
# fp8_add_library(name [SOURCES ...] [LINK ...] [PRIVATE_LINK ...] [PCH|GLUE] [TRAINING]): the shared library fp8_<name>,
# alias and export fp8::<name>. LINK is what its headers need, PRIVATE_LINK what only its sources need. PCH: it includes
# LibTorch. GLUE: it does not, and builds text, JSON and plans: compiled at -O1, but for its sources under FAST.
# TRAINING: of the wing that may be left unbuilt; it has an export set of its own and is installed where it was built.
# Shared, because a static archive drops registrations (TORCH_LIBRARY) that nobody refers to. Its folders add their
# sources with fp8_sources(). With FP8_STATIC its objects alone, and nothing of what includes LibTorch (PCH).
#
# Where a library looks for others: beside itself, then in fp8/ there, where fp8_bundle.cmake puts LibTorch. In the build
# tree fp8/ is a link to the LibTorch that is built against.
set(FP8_INSTALL_RPATH "$ORIGIN;$ORIGIN/fp8")
if(NOT FP8_STATIC)
  file(MAKE_DIRECTORY ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
  file(CREATE_LINK ${FP8_TORCH_ROOT}/lib ${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/fp8 SYMBOLIC)
endif()
if(NOT FP8_INSTALL_LIBTORCH)
  list(APPEND FP8_INSTALL_RPATH ${FP8_TORCH_ROOT}/lib)
endif()

# fp8_target_sources(target SOURCE...): of tests. A `|` ends a unit:
#   fp8_target_sources(quant_test a.cpp b.cpp | c.cpp d.cpp | e.cpp)     with FP8_UNITY: {a b} {c d} {e}, else each alone
# The headers of LibTorch take 80 to 95 % of a source's compile time; a unit reads them once. What follows the last `|`
# stays alone: new sources go there.
function(fp8_target_sources target)
  set(unit 1)
  set(pending "")
  foreach(source ${ARGN})
    if(NOT source STREQUAL "|")
      list(APPEND pending ${source})
      target_sources(${target} PRIVATE ${source})
      continue()
    endif()
    if(FP8_UNITY)
      set_source_files_properties(${pending} PROPERTIES UNITY_GROUP ${unit})
      set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    endif()
    math(EXPR unit "${unit} + 1")
    set(pending "")
  endforeach()
endfunction()

# fp8_sources(target SOURCE... [TOGETHER SOURCE...] [ALONE SOURCE...] [FAST SOURCE...]): adds the sources of the calling folder, in
# alphabetical order. With FP8_UNITY those of a target, folder after folder, are compiled in units of FP8_UNIT: before it
# reads its first line, a unit pays five seconds for what LibTorch's headers leave to be instantiated. Two sources of one
# unit must not use the same name in their anonymous namespaces; what can't be helped stands under ALONE. TOGETHER are a
# unit by themselves: they share headers that nobody else reads. FAST are hot in a library of GLUE: each alone, at -O3.
set(FP8_UNIT 9)
function(fp8_sources target)
  if(NOT TARGET ${target})
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "TOGETHER;ALONE;FAST" ${ARGN})
  set(sources ${ARG_UNPARSED_ARGUMENTS})
  get_property(count GLOBAL PROPERTY fp8_count_${target})
  if(NOT count)
    set(count 0)
  endif()
  foreach(source IN LISTS sources ARG_TOGETHER ARG_ALONE ARG_FAST)
    set(path ${CMAKE_CURRENT_SOURCE_DIR}/${source})
    target_sources(${target} PRIVATE ${path})
    if(source IN_LIST ARG_FAST)
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON
        COMPILE_OPTIONS "$<$<CONFIG:Release>:-O3>")
    endif()
    if(NOT FP8_UNITY)
      continue()
    elseif(source IN_LIST ARG_ALONE OR source IN_LIST ARG_FAST)
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    elseif(source IN_LIST ARG_TOGETHER)
      get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder})
    else()
      math(EXPR unit "${count} / ${FP8_UNIT}")
      math(EXPR count "${count} + 1")
      set_source_files_properties(${path} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${unit})
    endif()
  endforeach()
  set_property(GLOBAL PROPERTY fp8_count_${target} ${count})
  if(FP8_UNITY)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  endif()
endfunction()

# fp8_embed(target FILE NAMESPACE NAME): the text of FILE is NAME, a std::string_view, to sources of the target that include
# "<its name with _ for .>.h". It is a file for people to edit and a string in the program.
function(fp8_embed target file namespace name)
  string(REGEX REPLACE "[.-]" "_" stem ${file})
  get_filename_component(stem ${stem} NAME)
  file(READ ${file} text)
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${stem}.h @ONLY CONTENT
    "// Made from ${file}.\n#pragma once\n#include <string_view>\nnamespace ${namespace} {\ninline constexpr std::string_view ${name} = R\"text(@text@)text\";\n}\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  target_include_directories(${target} PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
endfunction()

# fp8_precompile(target [OPTIMIZE level] [TORCH_FREE]): the target's sources take the precompiled header of LibTorch and
# JSON, or of JSON alone. They include what they use all the same: FP8_PCH=OFF builds without. A release is compiled at -O3, or at `level`: what
# hands its work to LibTorch and fp8_kernels gains nothing by more than -O2 and takes a quarter less time to compile,
# what orders work but does none compiles in half the time at -O1. The level is the header's, whatever its users ask for.
function(fp8_precompile target)
  cmake_parse_arguments(ARG "TORCH_FREE" "OPTIMIZE" "" ${ARGN})
  set(pch fp8_pch${ARG_OPTIMIZE})
  set(header pch.h)
  if(ARG_TORCH_FREE)
    set(pch fp8_glue_pch${ARG_OPTIMIZE})
    set(header glue_pch.h)
  endif()
  set(level "$<$<AND:$<CONFIG:Release>,$<BOOL:${ARG_OPTIMIZE}>>:-O${ARG_OPTIMIZE}>")
  target_compile_options(${target} PRIVATE ${level})
  if(NOT FP8_PCH OR FP8_STATIC)  # whose objects get further options
    return()
  endif()
  if(NOT TARGET ${pch})
    file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/${pch}.cpp CONTENT "// Gives ${pch} a source.\n")
    add_library(${pch} OBJECT ${PROJECT_BINARY_DIR}/${pch}.cpp)
    target_link_libraries(${pch} PRIVATE fp8_flags nlohmann_json::nlohmann_json)
    if(NOT ARG_TORCH_FREE)
      target_link_libraries(${pch} PRIVATE fp8::torch)
    endif()
    target_precompile_headers(${pch} PRIVATE ${PROJECT_SOURCE_DIR}/tools/cmake/${header})
    target_compile_options(${pch} PRIVATE ${level})
  endif()
  target_precompile_headers(${target} REUSE_FROM ${pch})
endfunction()

# fp8_bind_own(target): a library's own functions are those it calls, and need no search of all libraries when it is
# loaded (two thirds of ours). So is the type information of others' templates (own_types.map: half of what is left);
# other data stay one for the whole process (types of fp8, statics of inline functions).
function(fp8_bind_own target)
  set(own_types ${PROJECT_SOURCE_DIR}/tools/cmake/own_types.map)
  if(NOT FP8_STATIC AND CMAKE_EXECUTABLE_FORMAT STREQUAL "ELF")
    target_link_options(${target} PRIVATE LINKER:-Bsymbolic-functions LINKER:--version-script=${own_types})
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${own_types})
  endif()
endfunction()

function(fp8_add_library name)
  cmake_parse_arguments(ARG "PCH;GLUE;TRAINING" "" "SOURCES;LINK;PRIVATE_LINK" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "fp8_add_library(${name}): unknown argument '${ARG_UNPARSED_ARGUMENTS}', allowed: SOURCES, LINK, PRIVATE_LINK, PCH, GLUE, TRAINING")
  endif()
  if(FP8_STATIC AND ARG_PCH)
    return()
  elseif(FP8_STATIC)
    add_library(fp8_${name} OBJECT EXCLUDE_FROM_ALL)
  else()
    add_library(fp8_${name} SHARED)
  endif()
  fp8_target_sources(fp8_${name} ${ARG_SOURCES})
  add_library(fp8::${name} ALIAS fp8_${name})
  set_target_properties(fp8_${name} PROPERTIES
    EXPORT_NAME ${name}
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} INSTALL_RPATH "${FP8_INSTALL_RPATH}")
  target_link_libraries(fp8_${name} PUBLIC fp8_flags ${ARG_LINK} PRIVATE ${ARG_PRIVATE_LINK})
  fp8_bind_own(fp8_${name})
  if(ARG_GLUE)
    fp8_precompile(fp8_${name} OPTIMIZE 1 TORCH_FREE)
  elseif(ARG_PCH)
    fp8_precompile(fp8_${name} OPTIMIZE 2)
    # Errors without a backtrace in their text: runtime/errors.cpp.
    target_link_options(fp8_${name} PRIVATE
      "LINKER:--wrap=_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
      "LINKER:--wrap=_ZN3c106detail14torchCheckFailEPKcS2_jS2_")
  endif()
  if(ARG_TRAINING)
    install(TARGETS fp8_${name} EXPORT fp8TrainingTargets LIBRARY DESTINATION lib OPTIONAL)
  elseif(NOT FP8_STATIC)
    install(TARGETS fp8_${name} EXPORT fp8Targets LIBRARY DESTINATION lib)
  endif()
endfunction()
