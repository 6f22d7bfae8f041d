# SPDX-License-Identifier: Apache-2.0
# cmake -DBUILD=<fp8's build tree> -DCONSUMER=<this folder> -DVERSION=... -DGENERATOR=... -DCOMPILER=... -DTOOLS=ON|OFF
#   -P package_test.cmake
# Installs the build tree into a fresh prefix, moves that prefix (an install tree must not depend on its place), builds
# the consumer against it and runs the consumer and the installed program.
cmake_minimum_required(VERSION 3.22)
set(work ${BUILD}/package)
set(prefix ${work}/moved)
file(REMOVE_RECURSE ${work})
file(MAKE_DIRECTORY ${work})

# Runs a command; fails with its output. The last command's stdout is in `output`.
macro(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT rc EQUAL 0)
    message(FATAL_ERROR "rc ${rc}: ${ARGN}\n${output}${errors}")
  endif()
endmacro()

run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${work}/prefix)
file(RENAME ${work}/prefix ${prefix})
foreach(file include/fp8/fp8.h include/fp8/version.h include/fp8/runtime/kernels/format.h lib/cmake/fp8/fp8Config.cmake)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()

# What is no program and no library.
foreach(file lib/pkgconfig/fp8.pc share/fp8/presets/maxabs_quant.json share/fp8/recipes/recipe_nvidia.json
    share/fp8/schema/quant_config.schema.json share/doc/fp8/LICENSE share/doc/fp8/NOTICE share/doc/fp8/README.md
    share/doc/fp8/copyright)
  if(NOT EXISTS ${prefix}/${file})
    message(FATAL_ERROR "not installed: ${file}")
  endif()
endforeach()
if(TOOLS)
  foreach(file share/man/man1/fp8.1 share/bash-completion/completions/fp8 share/zsh/site-functions/_fp8
      share/fish/vendor_completions.d/fp8.fish)
    if(NOT EXISTS ${prefix}/${file})
      message(FATAL_ERROR "not installed: ${file}")
    endif()
  endforeach()
endif()
# Whoever installs, it runs for others: no library looks into a folder of his.
file(GLOB libraries ${prefix}/lib/libfp8_*.so)
foreach(library IN LISTS libraries)
  file(READ_ELF ${library} RUNPATH runpath)
  if(NOT runpath STREQUAL "$ORIGIN;$ORIGIN/fp8")
    message(FATAL_ERROR "${library}: RUNPATH: found '${runpath}', expected $ORIGIN:$ORIGIN/fp8")
  endif()
endforeach()

foreach(internal quant/plan/rules.h quant/checkpoint/stream/stream.h runtime/kernels/cast runtime/kernels/gemm
    runtime/kernels/attention runtime/kernels/highway runtime/kernels/optim)
  if(EXISTS ${prefix}/include/fp8/${internal})
    message(FATAL_ERROR "installed, and no interface: ${internal}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${work}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
if(NOT output STREQUAL "fp8 ${VERSION}\n")
  message(FATAL_ERROR "consumer printed '${output}', expected 'fp8 ${VERSION}'")
endif()
run(${work}/build/profilers)

# Without the libraries of training the rest is found, built against and run: in the same folders, where the consumer,
# compiled already, is only linked anew.
file(GLOB training RELATIVE ${prefix}/lib ${prefix}/lib/libfp8_train* ${prefix}/lib/libfp8_transformer_engine*)
file(MAKE_DIRECTORY ${work}/training)
foreach(library IN LISTS training)
  file(RENAME ${prefix}/lib/${library} ${work}/training/${library})
endforeach()
file(REMOVE ${work}/build/CMakeCache.txt ${work}/build/consumer)
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${work}/build -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work}/build --target consumer)
run(${work}/build/consumer)
if(TOOLS)
  execute_process(COMMAND ${prefix}/bin/fp8 train --data ${CMAKE_CURRENT_LIST_FILE} --out ${work}/trained
    --init ${CMAKE_CURRENT_LIST_DIR}/../../tools/demo_data/kjv-byte-1.7M/config.json
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT rc EQUAL 1 OR NOT errors MATCHES "cmake --build build --target fp8_train")
    message(FATAL_ERROR "bin/fp8 train without training: rc ${rc}, ${output}${errors}")
  endif()
endif()
foreach(library IN LISTS training)
  file(RENAME ${work}/training/${library} ${prefix}/lib/${library})
endforeach()

# A library of operators, by itself and in the installed program.
run(${CMAKE_COMMAND} -S ${CONSUMER}/extension -B ${work}/extension -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER}
  -DCMAKE_PREFIX_PATH=${prefix})
run(${CMAKE_COMMAND} --build ${work}/extension)

if(TOOLS)
  run(${prefix}/bin/fp8 doctor --load ${work}/extension/gelu_mul.so --json)
  if(NOT output MATCHES "my::gelu_mul\",\"my::gelu_mul_backward")
    message(FATAL_ERROR "bin/fp8 doctor --load knows no my::gelu_mul: ${output}")
  endif()
  set(twice ${work}/extension/gelu_mul.so:${work}/extension/gelu_mul_again.so)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env FP8_EXTENSIONS=${twice} ${prefix}/bin/fp8 doctor
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT rc EQUAL 1 OR NOT errors MATCHES "gelu_mul_again.so': .my::gelu_mul. found an operator of that name")
    message(FATAL_ERROR "the same operators twice: rc ${rc}, ${output}${errors}")
  endif()
  run(${prefix}/bin/fp8 --version)
  if(NOT output MATCHES "${VERSION}")
    message(FATAL_ERROR "bin/fp8 --version printed '${output}', expected ${VERSION}")
  endif()
endif()
# What was installed goes, and nothing else does: of a copy, for python_extension uses what lies there.
run(${CMAKE_COMMAND} -E copy_directory ${prefix} ${work}/prefix)
file(WRITE ${work}/prefix/share/doc/of_others "")
run(${CMAKE_COMMAND} -DMANIFEST=${BUILD}/install_manifest.txt -P ${CMAKE_CURRENT_LIST_DIR}/../../tools/cmake/fp8_uninstall.cmake)
file(GLOB_RECURSE left RELATIVE ${work}/prefix ${work}/prefix/*)
file(GLOB_RECURSE folders RELATIVE ${work}/prefix LIST_DIRECTORIES true ${work}/prefix/*)
list(FILTER folders INCLUDE REGEX "fp8")
if(NOT left STREQUAL "share/doc/of_others" OR folders)
  message(FATAL_ERROR "uninstall left '${left}' and the folders '${folders}'")
endif()
message(STATUS "package: consumer and bin/fp8 ${VERSION} work from ${prefix}")
