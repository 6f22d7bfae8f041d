# SPDX-License-Identifier: Apache-2.0
# Build type, warnings, sanitizers, ccache, and the include tree <build>/include/fp8/<folder> with the two headers
# that are made here: version.h and fp8.h.
# A sanitizer build has its own type: -O1 keeps its compile time and memory bearable.
set(CMAKE_CXX_FLAGS_SANITIZE "-O1 -g1")
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(_type Release)
  if(FP8_SANITIZE)
    set(_type Sanitize)
  endif()
  set(CMAKE_BUILD_TYPE ${_type} CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
# A program of the build tree looks for libraries where an installed one does, by the same RUNPATH: the one that CMake
# makes for a build tree has empty entries, and an empty entry is the folder that the user happens to stand in. What is
# not installed (tests, benchmarks) takes these; lib/fp8 is LibTorch's folder (fp8_library.cmake).
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../lib;$ORIGIN/../lib/fp8")

find_program(FP8_CCACHE ccache)
if(FP8_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${FP8_CCACHE})
endif()

# One include spelling inside and outside: #include "fp8/recipes/scaling.h".
set(FP8_INCLUDE_DIR ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${FP8_INCLUDE_DIR}/fp8)
foreach(folder runtime recipes configs measure quant transformer_engine tools)
  file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${folder} ${FP8_INCLUDE_DIR}/fp8/${folder} SYMBOLIC)
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/version.h.in ${FP8_INCLUDE_DIR}/fp8/version.h)

# fp8/fp8.h includes the header of every folder that has one.
set(FP8_UMBRELLA_INCLUDES "")
foreach(header runtime/runtime.h recipes/recipes.h configs/configs.h measure/measure.h quant/quant.h transformer_engine/te.h)
  if(EXISTS ${PROJECT_SOURCE_DIR}/${header})
    string(APPEND FP8_UMBRELLA_INCLUDES "#include \"fp8/${header}\"\n")
  endif()
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/tools/cmake/fp8.h.in ${FP8_INCLUDE_DIR}/fp8/fp8.h @ONLY)

add_library(fp8_flags INTERFACE)
target_include_directories(fp8_flags INTERFACE
  $<BUILD_INTERFACE:${FP8_INCLUDE_DIR}> $<INSTALL_INTERFACE:include>)
target_compile_features(fp8_flags INTERFACE cxx_std_20)
# NDEBUG always: at::RecordFunction has another layout without it than in the packaged LibTorch.
target_compile_definitions(fp8_flags INTERFACE NDEBUG)
target_compile_options(fp8_flags INTERFACE
  "$<BUILD_INTERFACE:-Wall;-Wextra;-Wno-unused-parameter;-ffp-contract=off>"
  # False alarms: g++ 12 sees overlapping copies in "text" + std::string; g++ >= 13 takes a reference that a small handle
  # object returns for one into that object.
  $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:$<IF:$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,-Wno-restrict,-Wno-dangling-reference>>>
  $<$<BOOL:${FP8_WERROR}>:$<BUILD_INTERFACE:-Werror>>)
# A unit of several sources (FP8_UNITY) has a large heap: collecting garbage in it early costs g++ a tenth of its time.
# False alarm there: a class of one source that holds that source's anonymous types.
if(FP8_UNITY)
  target_compile_options(fp8_flags INTERFACE
    "$<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=1048576;-Wno-subobject-linkage>>")
endif()
# What g++ concludes about std::string and std::shared_ptr after inlining: units inline more, and in a precompiled header
# the standard library counts as our code. g++ 12 says it of correct code (not shown), later ones rarely (shown, but no
# error); ./tools/test --strict has neither units nor a precompiled header, and all of these are errors.
if(FP8_UNITY OR FP8_PCH)
  foreach(alarm stringop-overflow stringop-overread free-nonheap-object array-bounds maybe-uninitialized uninitialized
      use-after-free nonnull dangling-pointer)
    target_compile_options(fp8_flags INTERFACE
      $<BUILD_INTERFACE:$<$<CXX_COMPILER_ID:GNU>:$<IF:$<VERSION_LESS:$<CXX_COMPILER_VERSION>,13>,-Wno-${alarm},-Wno-error=${alarm}>>>)
  endforeach()
endif()
if(FP8_SANITIZE)
  target_compile_options(fp8_flags INTERFACE
    "$<BUILD_INTERFACE:-fsanitize=${FP8_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=undefined>")
  target_link_options(fp8_flags INTERFACE $<BUILD_INTERFACE:-fsanitize=${FP8_SANITIZE}>)
endif()
