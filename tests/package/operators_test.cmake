# SPDX-License-Identifier: Apache-2.0
# Runs SCRIPT with the Python in FP8_TEST_PYTHON, else python3. Without a matching torch there it says SKIPPED.
# -DLIBRARY= -DSCRIPT= -DWORK= -DVERSION= [-DMORE=further arguments]
if(DEFINED ENV{FP8_TEST_PYTHON})
  set(python $ENV{FP8_TEST_PYTHON})
else()
  find_program(python python3)
endif()
if(NOT python)
  message("SKIPPED: no python3")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND ${python} ${SCRIPT} ${LIBRARY} ${WORK} ${VERSION} ${MORE} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
message("${output}")
if(NOT result EQUAL 0 AND NOT output MATCHES "SKIPPED")
  message(FATAL_ERROR "${python} ${SCRIPT}: ${result}")
endif()
