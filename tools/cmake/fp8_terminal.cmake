# SPDX-License-Identifier: Apache-2.0
# A step of `cmake --install`: man pages and completions, as the program that was built (FP8_PROGRAM) prints them, by way
# of the build folder (FP8_PAGES). A program for another machine can't run here: then they are left out, which is said.
file(REMOVE_RECURSE ${FP8_PAGES})

# fp8_print(folder file argument...): what `fp8 argument...` prints becomes DESTINATION/file. A macro: file(INSTALL) notes
# what it installed, for the uninstall target, in a variable of its scope.
macro(fp8_print folder file)
  execute_process(COMMAND ${FP8_PROGRAM} ${ARGN} RESULT_VARIABLE code OUTPUT_VARIABLE text ERROR_VARIABLE error)
  if(code EQUAL 0)
    file(WRITE ${FP8_PAGES}/${file} "${text}")
    file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/${folder} TYPE FILE FILES ${FP8_PAGES}/${file})
  else()
    message(STATUS "install: left out ${folder}/${file}: ${error}")
  endif()
endmacro()
fp8_print(share/bash-completion/completions fp8 completion bash)
fp8_print(share/zsh/site-functions _fp8 completion zsh)
fp8_print(share/fish/vendor_completions.d fp8.fish completion fish)

file(MAKE_DIRECTORY ${FP8_PAGES}/man1)
execute_process(COMMAND ${FP8_PROGRAM} man --out ${FP8_PAGES}/man1 RESULT_VARIABLE code OUTPUT_QUIET ERROR_VARIABLE error)
file(GLOB pages ${FP8_PAGES}/man1/*.1)
if(code EQUAL 0 AND pages)
  file(INSTALL DESTINATION ${CMAKE_INSTALL_PREFIX}/share/man/man1 TYPE FILE FILES ${pages})
else()
  message(STATUS "install: left out share/man/man1: ${error}")
endif()
