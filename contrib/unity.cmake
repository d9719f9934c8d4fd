# SPDX-License-Identifier: BSD-3-Clause
# Sources of a target are compiled as one (CMake's unity build): a third of the compiler's time.
# unity.awk says which, whenever cmake runs: `cmake BUILD-FOLDER` chooses anew where a name has come
# into a source that another one of its batch has, too.
set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${CMAKE_CURRENT_LIST_DIR}/unity.awk)

# Sources of the targets of a folder. One that several targets have keeps its first batch.
function(rnbdkit_choose_batches folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  set(placed)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type STREQUAL "INTERFACE_LIBRARY" OR type STREQUAL "UTILITY")
      continue()
    endif()
    set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
    get_target_property(sources ${target} SOURCES)
    set(files)
    foreach(source IN LISTS sources)
      if(source MATCHES "^[^$].*[.]cpp$")
        cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${folder} NORMALIZE)
        # A copy with bugs, which may not be there yet, has the names of its source.
        string(REGEX REPLACE "^.*/planted/" "${CMAKE_SOURCE_DIR}/" original ${source})
        if(EXISTS ${original} AND NOT source IN_LIST placed)
          list(APPEND files ${original})
          list(APPEND placed ${source})
          set(source_of_${original} ${source})
        endif()
      endif()
    endforeach()
    if(files)
      execute_process(COMMAND awk -v most=${CMAKE_UNITY_BUILD_BATCH_SIZE} -f ${CMAKE_SOURCE_DIR}/contrib/unity.awk
                              ${files}
                      OUTPUT_VARIABLE lines COMMAND_ERROR_IS_FATAL ANY)
      string(REGEX MATCHALL "[^\n]+" lines "${lines}")
      foreach(line IN LISTS lines)
        string(REGEX MATCH "^([0-9]+) (.*)$" all ${line})
        set_source_files_properties(${source_of_${CMAKE_MATCH_2}} DIRECTORY ${folder} PROPERTIES
                                    UNITY_GROUP ${CMAKE_MATCH_1})
      endforeach()
    endif()
  endforeach()
  get_property(below DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(one IN LISTS below)
    rnbdkit_choose_batches(${one})
  endforeach()
endfunction()
