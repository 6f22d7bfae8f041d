# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<repository> -DBUILD=<folder> -P build.cmake: the program with training, and its libraries, up to date.
file(LOCK ${BUILD}/python.lock GUARD PROCESS TIMEOUT 3600)  # two at once would write the same files
if(NOT EXISTS ${BUILD}/CMakeCache.txt)
  execute_process(COMMAND ${ROOT}/tools/setup OUTPUT_VARIABLE libtorch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE ".*\n" "" libtorch "${libtorch}")
  find_program(NINJA ninja)
  set(generator "")
  if(NINJA)
    set(generator -G Ninja)
  endif()
  execute_process(COMMAND ${CMAKE_COMMAND} -S ${ROOT} -B ${BUILD} ${generator} -DFP8_LIBTORCH=${libtorch} -DFP8_UNITY=ON
    -DFP8_BUILD_TESTS=OFF -DFP8_BUILD_BENCHMARKS=OFF COMMAND_ERROR_IS_FATAL ANY)
endif()
cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
cmake_host_system_information(RESULT memory QUERY AVAILABLE_PHYSICAL_MEMORY)  # MiB; a unit takes up to 2 GB
math(EXPR jobs "${memory} / 2048")
if(jobs LESS 1)
  set(jobs 1)
elseif(jobs GREATER cores)
  set(jobs ${cores})
endif()
execute_process(COMMAND ${CMAKE_COMMAND} --build ${BUILD} --parallel ${jobs} --target fp8_train COMMAND_ERROR_IS_FATAL ANY)
