# SPDX-License-Identifier: BSD-3-Clause
# Sources of a folder are compiled as one (CMake's unity build): a third of the compiler's time.
# unity.awk says which, whenever cmake runs: `cmake BUILD-FOLDER` chooses anew where a name has come
# into a source that another one of its batch has, too.
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${CMAKE_CURRENT_LIST_DIR}/unity.awk)

# Calls itself for the folders below.
function(rnbdkit_choose_batches folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  set(files)
  foreach(target IN LISTS targets)
    get_target_property(sources ${target} SOURCES)
    foreach(source IN LISTS sources)
      if(source MATCHES "^[^$].*[.]cpp$")
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
        # A copy with bugs, which may not be there yet, has the names of its source.
        string(REGEX REPLACE "^.*/planted/" "${CMAKE_SOURCE_DIR}/" original ${source})
        if(EXISTS ${original})
          list(APPEND files ${original})
          set(source_of_${original} ${source})
        endif()
      endif()
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES files)
  if(files)
    execute_process(COMMAND awk -f ${CMAKE_SOURCE_DIR}/contrib/unity.awk ${files}
                    OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCHALL "[^\n]+" lines "${lines}")
    foreach(line IN LISTS lines)
      string(REGEX MATCH "^([0-9]+) (.*)$" all ${line})
      set_source_files_properties(${source_of_${CMAKE_MATCH_2}} DIRECTORY ${folder} PROPERTIES
                                  UNITY_GROUP ${CMAKE_MATCH_1})
    endforeach()
  endif()
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(NOT type STREQUAL "INTERFACE_LIBRARY" AND NOT type STREQUAL "UTILITY")
      set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    endif()
  endforeach()
  foreach(one IN LISTS below)
    rnbdkit_choose_batches(${one})
  endforeach()
endfunction()
