# SPDX-License-Identifier: Apache-2.0
# cmake -DROOT=<source tree> -DLIBTORCH=<a usable LibTorch> -DGENERATOR=... -DWORK=<scratch folder> -P setup_test.cmake
# tools/setup and fp8_torch.cmake choose the same LibTorch: one that is too old or built for CUDA is refused by name and
# the next candidate is taken; the answer is one line on stdout and is noted in the cache. Nothing is fetched here.
cmake_minimum_required(VERSION 3.22)
file(REMOVE_RECURSE ${WORK})

# A folder that looks like LibTorch 2.<minor>.
function(make_libtorch folder minor)
  file(WRITE ${folder}/lib/libtorch_cpu.so "")
  file(WRITE ${folder}/include/ATen/core/Tensor.h "")
  file(WRITE ${folder}/include/torch/headeronly/version.h
    "/// major\n#define TORCH_VERSION_MAJOR 2\n\n#define TORCH_VERSION_MINOR ${minor}\n#define TORCH_VERSION_PATCH 0\n")
endfunction()
make_libtorch(${WORK}/old/torch 9)
make_libtorch(${WORK}/cuda/torch 13)
file(WRITE ${WORK}/cuda/torch/lib/libtorch_cuda.so "")
make_libtorch("${WORK}/with space/torch" 20)

# Runs tools/setup with LIBTORCH=first and CMAKE_PREFIX_PATH=second; expects the folder `chosen` and `words` on stderr.
function(expect_choice first second chosen words)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env XDG_CACHE_HOME=${WORK}/cache LIBTORCH=${first} CMAKE_PREFIX_PATH=${second}
      bash ${ROOT}/tools/setup --no-packages
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  file(REAL_PATH "${chosen}" real)
  if(NOT rc EQUAL 0 OR NOT output STREQUAL "${real}\n")
    message(FATAL_ERROR "rc ${rc}, expected ${real}, got: ${output}${errors}")
  endif()
  if(NOT errors MATCHES "${words}")
    message(FATAL_ERROR "expected '${words}' in: ${errors}")
  endif()
  file(READ ${WORK}/cache/fp8/libtorch-path noted)
  if(NOT noted STREQUAL output)
    message(FATAL_ERROR "the cache notes '${noted}', expected '${output}'")
  endif()
endfunction()

expect_choice(${LIBTORCH} /nowhere ${LIBTORCH} "LIBTORCH")
expect_choice(${LIBTORCH}/share/cmake "" ${LIBTORCH} "LIBTORCH")
expect_choice("" /nowhere:${LIBTORCH} ${LIBTORCH} "CMAKE_PREFIX_PATH")
expect_choice(${WORK}/old/torch ${LIBTORCH} ${LIBTORCH} "LibTorch 2.9 in [^ ]*/old/torch .LIBTORCH. is older than 2.13, skipped")
expect_choice(${WORK}/cuda/torch ${LIBTORCH} ${LIBTORCH} "is a build for cuda, skipped")
expect_choice("${WORK}/with space" "" "${WORK}/with space/torch" "LibTorch 2.20")

# The same folders through CMake: a project of one line that includes the module.
file(WRITE ${WORK}/project/CMakeLists.txt
  "cmake_minimum_required(VERSION 3.22)\nproject(p LANGUAGES NONE)\ninclude(${ROOT}/tools/cmake/fp8_torch.cmake)\n")
function(expect_cmake argument first code words)
  file(REMOVE_RECURSE ${WORK}/build)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env XDG_CACHE_HOME=${WORK}/cache LIBTORCH=${first} CMAKE_PREFIX_PATH=${WORK}/old:${LIBTORCH}
      ${CMAKE_COMMAND} -S ${WORK}/project -B ${WORK}/build -G ${GENERATOR} ${argument}
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE output)
  string(REGEX REPLACE "[ \n]+" " " output "${output}")
  if(NOT rc EQUAL code OR NOT output MATCHES "${words}")
    message(FATAL_ERROR "rc ${rc}, expected ${code} and '${words}': ${output}")
  endif()
endfunction()
expect_cmake("" ${WORK}/old 0 "LibTorch 2.9 in [^ ]*/old/torch is older than 2.13, skipped.*LibTorch 2.1[3-9] in ")
expect_cmake(-DFP8_LIBTORCH=${WORK}/old/torch "" 1 "FP8_LIBTORCH=[^ ]*/old/torch holds no LibTorch >= 2.13")

# Who asks what a script does gets that, and nothing is started.
foreach(script bench demo format release setup test)
  execute_process(COMMAND ${CMAKE_COMMAND} -E env XDG_CACHE_HOME=${WORK}/help FP8_BUILD=${WORK}/help FP8_BUILD_DIR=${WORK}/help
      ${ROOT}/tools/${script} --help RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(NOT rc EQUAL 0 OR NOT output MATCHES "/tools/${script}" OR output MATCHES "SPDX|set -eu" OR NOT errors STREQUAL "")
    message(FATAL_ERROR "tools/${script} --help: rc ${rc}: ${output}${errors}")
  endif()
endforeach()
if(EXISTS ${WORK}/help)
  message(FATAL_ERROR "--help has made ${WORK}/help")
endif()

# --python where the wheel cannot be had: it says so, and leaves no environment that a later run would take for whole.
find_program(python python3)
set(rc 1)
if(python)
  execute_process(COMMAND ${python} -c "import ensurepip, pip" RESULT_VARIABLE rc OUTPUT_QUIET ERROR_QUIET)
endif()
if(rc EQUAL 0)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env XDG_CACHE_HOME=${WORK}/python-cache PIP_NO_INDEX=1 PIP_FIND_LINKS=${WORK}/nowhere
      PIP_CONFIG_FILE=/dev/null bash ${ROOT}/tools/setup --python
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(rc EQUAL 0 OR NOT output STREQUAL "" OR NOT errors MATCHES "torch 2[^ ]* for Python 3[^ ]* could not be fetched")
    message(FATAL_ERROR "rc ${rc}, expected a wheel that cannot be fetched: ${output}${errors}")
  endif()
  # One that has the right name and other bytes.
  file(WRITE ${WORK}/wheel.py "
import platform, sys, zipfile
tag = 'cp%d%d' % sys.version_info[:2]
name = f'{sys.argv[1]}/torch-2.13.0+cpu-{tag}-{tag}-manylinux_2_28_{platform.machine()}.whl'
with zipfile.ZipFile(name, 'w') as wheel:
    info = 'torch-2.13.0+cpu.dist-info'
    wheel.writestr(f'{info}/METADATA', 'Metadata-Version: 2.1\\nName: torch\\nVersion: 2.13.0+cpu\\n')
    wheel.writestr(f'{info}/WHEEL', f'Wheel-Version: 1.0\\nRoot-Is-Purelib: false\\nTag: {tag}-{tag}-manylinux_2_28_{platform.machine()}\\n')
    wheel.writestr(f'{info}/RECORD', '')
")
  file(MAKE_DIRECTORY ${WORK}/wheels)
  execute_process(COMMAND ${python} ${WORK}/wheel.py ${WORK}/wheels COMMAND_ERROR_IS_FATAL ANY)
  execute_process(
    COMMAND ${CMAKE_COMMAND} -E env XDG_CACHE_HOME=${WORK}/python-cache PIP_NO_INDEX=1 PIP_FIND_LINKS=${WORK}/wheels
      PIP_CONFIG_FILE=/dev/null bash ${ROOT}/tools/setup --python
    RESULT_VARIABLE rc OUTPUT_VARIABLE output ERROR_VARIABLE errors)
  if(rc EQUAL 0 OR NOT output STREQUAL "" OR NOT errors MATCHES "torch-2[^ ]*whl is not the file of this name in [^ ]*/tools/hashes.txt")
    message(FATAL_ERROR "rc ${rc}, expected a wheel that is refused: ${output}${errors}")
  endif()
  if(EXISTS ${WORK}/python-cache/fp8/venv)
    message(FATAL_ERROR "${WORK}/python-cache/fp8/venv was left behind")
  endif()
endif()
