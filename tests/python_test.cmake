# SPDX-License-Identifier: Apache-2.0
# cmake -DFP8=<the tool> -DSCRIPT=<a script> -P python_test.cmake
# Runs SCRIPT with the Python in FP8_TEST_PYTHON. Without one it is skipped by name, and fails where CI=true: there
# tools/test has set it up.
if(NOT DEFINED ENV{FP8_TEST_PYTHON})
  if("$ENV{CI}" STREQUAL "true")
    message(FATAL_ERROR "FP8_TEST_PYTHON is not set: FP8_TEST_PYTHON=$(./tools/setup --python)")
  endif()
  message("SKIPPED: FP8_TEST_PYTHON is not set (./tools/setup --python prints it)")
  return()
endif()
execute_process(COMMAND $ENV{FP8_TEST_PYTHON} ${SCRIPT} --binary ${FP8} --subset --jobs 2 RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SCRIPT}: ${result}")
endif()
