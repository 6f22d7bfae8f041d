# SPDX-License-Identifier: Apache-2.0
# fp8::torch: headers and libraries of LibTorch >= 2.13. Looked for in this order:
#   FP8_LIBTORCH (must be usable when given), $LIBTORCH, CMAKE_PREFIX_PATH (variable, then environment),
#   the folder that tools/setup chose last, the folder that tools/setup unpacks into.
# A candidate is a folder with include/ and lib/, its parent, or its share/cmake (what Python's torch.utils names).
# An explicit target instead of find_package(Torch): no Python, no search for CUDA. Also installed, for fp8Config.cmake.
include_guard(GLOBAL)
set(FP8_TORCH_MINIMUM 2.13)
set(FP8_LIBTORCH "" CACHE PATH "LibTorch folder (holds include/ and lib/)")

# Sets `version` to MAJOR.MINOR of the LibTorch in root, or to nothing when there is none.
function(fp8_torch_version root version)
  set(${version} "" PARENT_SCOPE)
  if(NOT EXISTS ${root}/lib/libtorch_cpu.so OR NOT EXISTS ${root}/include/ATen/core/Tensor.h)
    return()
  endif()
  foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)  # the second: before 2.9
    if(EXISTS ${root}/include/${header})
      file(STRINGS ${root}/include/${header} lines REGEX "define TORCH_VERSION_(MAJOR|MINOR) +[0-9]+")
      if("${lines}" MATCHES "MAJOR +([0-9]+).*MINOR +([0-9]+)")
        set(${version} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  set(${version} 0.0 PARENT_SCOPE)
endfunction()

# Sets `root` and `version` to the first usable candidate.
function(fp8_find_torch root version)
  if(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(cache $ENV{XDG_CACHE_HOME}/fp8)
  else()
    set(cache $ENV{HOME}/.cache/fp8)
  endif()
  set(chosen "")
  if(EXISTS ${cache}/libtorch-path)
    file(STRINGS ${cache}/libtorch-path chosen LIMIT_COUNT 1)
  endif()
  string(REPLACE ":" ";" prefixes "$ENV{CMAKE_PREFIX_PATH}")
  set(candidates ${FP8_LIBTORCH})
  if(NOT candidates)
    set(candidates $ENV{LIBTORCH} ${CMAKE_PREFIX_PATH} ${prefixes} ${chosen} ${cache}/torch-2.13.0+cpu/torch)
  endif()
  foreach(candidate ${candidates})
    foreach(folder ${candidate} ${candidate}/../.. ${candidate}/torch)
      get_filename_component(folder ${folder} ABSOLUTE)
      fp8_torch_version(${folder} found)
      if(found AND found VERSION_LESS FP8_TORCH_MINIMUM)
        message(STATUS "fp8: LibTorch ${found} in ${folder} is older than ${FP8_TORCH_MINIMUM}, skipped")
      elseif(found)
        set(${root} ${folder} PARENT_SCOPE)
        set(${version} ${found} PARENT_SCOPE)
        return()
      endif()
    endforeach()
  endforeach()
  if(FP8_LIBTORCH)
    message(FATAL_ERROR "fp8: FP8_LIBTORCH=${FP8_LIBTORCH} holds no LibTorch >= ${FP8_TORCH_MINIMUM} (include/ATen, lib/libtorch_cpu.so)")
  endif()
  message(FATAL_ERROR "fp8: no LibTorch >= ${FP8_TORCH_MINIMUM} found; run ./tools/setup or pass -DFP8_LIBTORCH=<folder with include/ and lib/>")
endfunction()

fp8_find_torch(FP8_TORCH_ROOT FP8_TORCH_VERSION)
message(STATUS "fp8: LibTorch ${FP8_TORCH_VERSION} in ${FP8_TORCH_ROOT}")

add_library(fp8::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(fp8::torch SYSTEM INTERFACE
  ${FP8_TORCH_ROOT}/include ${FP8_TORCH_ROOT}/include/torch/csrc/api/include)
target_link_libraries(fp8::torch INTERFACE ${FP8_TORCH_ROOT}/lib/libtorch_cpu.so ${FP8_TORCH_ROOT}/lib/libc10.so)
