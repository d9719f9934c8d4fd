# SPDX-License-Identifier: BSD-3-Clause
# Runs at the end of `cmake --install`: what was installed is stripped, and its debug information goes
# to lib/debug/.build-id/ of the prefix, where gdb looks for it when the prefix is /usr.
# Variables: READELF, OBJCOPY, STRIP are programs.
foreach(file IN LISTS CMAKE_INSTALL_MANIFEST_FILES)
  set(path "$ENV{DESTDIR}${file}")
  if(IS_SYMLINK "${path}" OR NOT file MATCHES "/s?bin/|\\.so(\\.|$)")
    continue()
  endif()
  execute_process(COMMAND ${READELF} --notes ${path} OUTPUT_VARIABLE notes ERROR_QUIET)
  if(NOT notes MATCHES "Build ID: ([0-9a-f][0-9a-f])([0-9a-f]+)")
    continue()
  endif()
  set(debug "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}/lib/debug/.build-id/${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}.debug")
  file(MAKE_DIRECTORY "${debug}")
  execute_process(COMMAND ${OBJCOPY} --only-keep-debug --compress-debug-sections ${path} ${debug}/${name}
                  COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND ${STRIP} --strip-unneeded --remove-section=.comment ${path}
                  COMMAND_ERROR_IS_FATAL ANY)
  file(CHMOD "${debug}/${name}" PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
endforeach()
