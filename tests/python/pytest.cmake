# SPDX-License-Identifier: Apache-2.0
# cmake -DTESTS=<folder> -P pytest.cmake: its tests on two processes, with the Python of FP8_TEST_PYTHON; SKIPPED without.
# A file's tests run in one of the two, for what they share is made once in each. (Marks of groups do the same, but
# pytest-xdist 3.8 passes over them with pytest 9.2.)
if("$ENV{FP8_TEST_PYTHON}" STREQUAL "")
  message("SKIPPED: FP8_TEST_PYTHON names no Python")
  return()
endif()
execute_process(COMMAND $ENV{FP8_TEST_PYTHON} -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -p no:cacheprovider ${TESTS} RESULT_VARIABLE result)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "pytest: ${result}")
endif()
