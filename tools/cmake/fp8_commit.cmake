# SPDX-License-Identifier: Apache-2.0
# fp8_add_commit(target): the commit that is built, as `kCommit` of tools/commands/cli/command.h. It is compiled into the
# program alone, so that a new commit compiles one small file. "" where git does not know: a tarball.
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit "")
  execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --show-toplevel
    OUTPUT_VARIABLE top OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(top)
    get_filename_component(top ${top} REALPATH)
    get_filename_component(source ${SOURCE} REALPATH)
    if(top STREQUAL source)  # a tarball may lie in the folder of another repository
      execute_process(COMMAND ${GIT} -C ${SOURCE} rev-parse --short=10 HEAD
        OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
  endif()
  file(WRITE ${OUT} "#include \"fp8/tools/commands/cli/command.h\"\nconst char fp8::commands::kCommit[] = \"${commit}\";\n")
  return()
endif()

set(fp8_commit_script ${CMAKE_CURRENT_LIST_FILE})
function(fp8_add_commit target)
  find_package(Git QUIET)
  set(git ${GIT_EXECUTABLE})
  if(NOT git)
    set(git false)
  endif()
  # git writes a line there whenever HEAD is another commit.
  execute_process(COMMAND ${git} -C ${PROJECT_SOURCE_DIR} rev-parse --git-path logs/HEAD
    OUTPUT_VARIABLE log OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(log)
    get_filename_component(log ${log} ABSOLUTE BASE_DIR ${PROJECT_SOURCE_DIR})
  endif()
  if(NOT EXISTS "${log}")
    set(log)
  endif()
  set(file ${CMAKE_CURRENT_BINARY_DIR}/commit.cpp)
  add_custom_command(OUTPUT ${file}
    COMMAND ${CMAKE_COMMAND} -DGIT=${git} -DSOURCE=${PROJECT_SOURCE_DIR} -DOUT=${file} -P ${fp8_commit_script}
    DEPENDS ${fp8_commit_script} ${log} VERBATIM)
  target_sources(${target} PRIVATE ${file})
endfunction()
