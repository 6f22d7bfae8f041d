# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<source tree> -P layering_test.cmake: fails unless every folder includes only folders to its left,
#
#   runtime <- recipes <- configs <- measure <- quant <- transformer_engine <- tools
#
# and the torch-free folders include neither LibTorch nor a folder that may. Each violation is named with file, line
# number and text. fp8/version.h is free to all; fp8/fp8.h includes everything, so only tools may have it. Operators are registered with
# FP8_LIBRARY: what TORCH_LIBRARY registers is taken back at exit, and a second copy of it ends the process.
cmake_minimum_required(VERSION 3.22)
set(layers runtime recipes configs measure quant transformer_engine tools)
set(torch_free runtime/kernels runtime/io recipes configs tools/text)
set(include_of "^[ \t]*#[ \t]*include[ \t]*[<\"]")
set(violations "")

# Which entry of torch_free holds `path`, or nothing.
function(torch_free_folder path result)
  set(${result} "" PARENT_SCOPE)
  foreach(folder ${torch_free})
    if("${path}" MATCHES "^${folder}/")
      set(${result} ${folder} PARENT_SCOPE)
    endif()
  endforeach()
endfunction()

# Why `file` (relative to ROOT, in layer number `rank`) may not include `header`; nothing when it may.
function(reason_against file rank header result)
  set(${result} "" PARENT_SCOPE)
  torch_free_folder(${file} home)
  if(header MATCHES "^\\.\\./|/\\.\\./")
    set(${result} "spell it fp8/<folder>/..." PARENT_SCOPE)
  elseif(header MATCHES "^fp8/([a-z_]+)/")
    set(folder ${CMAKE_MATCH_1})  # the next regular expression clears it
    list(FIND layers ${folder} other)
    string(REGEX REPLACE "^fp8/" "" target ${header})
    torch_free_folder(${target} target_home)
    if(other EQUAL -1)
      set(${result} "no such folder" PARENT_SCOPE)
    elseif(other GREATER rank)
      list(GET layers ${rank} own)
      set(${result} "${own} must not know ${folder}" PARENT_SCOPE)
    elseif(home AND NOT target_home)
      set(${result} "${home} is torch-free, that header is not" PARENT_SCOPE)
    endif()
  elseif(header STREQUAL "fp8/fp8.h" AND rank LESS 6)
    set(${result} "it includes every folder" PARENT_SCOPE)
  elseif(home AND header MATCHES "^(torch|ATen|c10|caffe2|torchgen)/")
    set(${result} "${home} is torch-free" PARENT_SCOPE)
  endif()
endfunction()

set(rank 0)
set(count 0)
foreach(layer ${layers})
  file(GLOB_RECURSE files RELATIVE ${ROOT}
    ${ROOT}/${layer}/*.h ${ROOT}/${layer}/*.cpp ${ROOT}/${layer}/*.inc ${ROOT}/${layer}/*.in)
  foreach(file ${files})
    math(EXPR count "${count} + 1")
    file(READ ${ROOT}/${file} text)
    if(NOT text MATCHES "#[ \t]*include")
      continue()
    endif()
    # One list entry per line: the characters that CMake's lists give a meaning are replaced first.
    string(REGEX REPLACE "[][;\\]" "_" text "${text}")
    string(REPLACE "\n" ";" lines "${text}")
    set(number 0)
    foreach(line IN LISTS lines)
      math(EXPR number "${number} + 1")
      if("${line}" MATCHES "${include_of}([^>\"]+)[>\"]")
        reason_against(${file} ${rank} "${CMAKE_MATCH_1}" reason)
        if(reason)
          list(APPEND violations "${file}:${number}: ${line}  <- ${reason}")
        endif()
      elseif("${line}" MATCHES "^TORCH_LIBRARY")
        list(APPEND violations "${file}:${number}: ${line}  <- register with FP8_LIBRARY (fp8/runtime/device/registration.h)")
      endif()
    endforeach()
  endforeach()
  math(EXPR rank "${rank} + 1")
endforeach()

if(count EQUAL 0)
  message(FATAL_ERROR "layering: no source files under ${ROOT}")
elseif(violations)
  list(JOIN violations "\n" text)
  message(FATAL_ERROR "layering violated:\n${text}")
endif()
message(STATUS "layering: ${count} files obey runtime <- recipes <- configs <- measure <- quant <- transformer_engine <- tools")
