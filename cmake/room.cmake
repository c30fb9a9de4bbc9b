# grace_room(NAME [LINK libs...]): one room = one static library of src/grace/NAME/*.cc, its *_test.cc one test program.
# A room's uses come from rooms.txt, so that the build and the layering test read the same file.
add_library(grace_flags INTERFACE)
target_include_directories(grace_flags INTERFACE ${PROJECT_SOURCE_DIR}/src)
target_compile_definitions(grace_flags INTERFACE GRACE_VERSION="${PROJECT_VERSION}")
target_compile_options(grace_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Wold-style-cast)
# Of a header that was compiled before, g++ 12 forgets that it is not ours, and warns of what std::string does. Without the first, ccache
# keeps nothing.
if(NOT CMAKE_DISABLE_PRECOMPILE_HEADERS)
  target_compile_options(grace_flags INTERFACE
    $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess;-Wno-array-bounds;-Wno-restrict;-Wno-stringop-overflow;-Wno-stringop-overread>)
endif()
if(GRACE_WERROR)
  target_compile_options(grace_flags INTERFACE -Werror)
endif()
if(GRACE_SANITIZE)
  target_compile_options(grace_flags INTERFACE -fsanitize=${GRACE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(grace_flags INTERFACE -fsanitize=${GRACE_SANITIZE})
endif()
if(GRACE_FUZZ)  # the rooms tell the fuzzer which of their branches it has reached; without that it only guesses
  target_compile_options(grace_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
# The command line and the tests: nothing in them needs the optimiser, and their headers' templates take half of a build's time.
add_library(grace_light_flags INTERFACE)
target_compile_options(grace_light_flags INTERFACE $<$<CONFIG:Release>:-O1> $<$<CONFIG:RelWithDebInfo>:-O0>
  $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-expand=300;--param=ggc-min-heapsize=524288>)

# Headers that nearly every source reads are compiled once and shared by all rooms, and with GoogleTest's by all test programs:
# half of a build's time. They would hide an include that is missing, so the presets for fuzzing and clang-tidy go without.
set(GRACE_SHARED_HEADERS <fmt/format.h> <algorithm> <filesystem> <functional> <limits> <map> <memory> <numeric> <optional> <set> <span>
                         <string> <string_view> <vector>)
function(grace_share_headers target owner)
  if(target STREQUAL owner)
    target_precompile_headers(${target} PRIVATE ${GRACE_SHARED_HEADERS} ${ARGN})
  else()
    target_precompile_headers(${target} REUSE_FROM ${owner})
  endif()
endfunction()

file(STRINGS ${PROJECT_SOURCE_DIR}/rooms.txt GRACE_ROOM_LINES REGEX "^[a-z]")
set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/rooms.txt)

# Sets `out` to the rooms that `room` may use.
function(grace_room_uses room out)
  foreach(line IN LISTS GRACE_ROOM_LINES)
    if(line MATCHES "^${room}:([^#]*)")
      string(STRIP "${CMAKE_MATCH_1}" uses)
      separate_arguments(uses)
      set(${out} ${uses} PARENT_SCOPE)
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "rooms.txt has no line for ${room}")
endfunction()

function(grace_room room)
  cmake_parse_arguments(ARG "" "" "LINK" ${ARGN})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${room}/*.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  grace_room_uses(${room} uses)
  list(TRANSFORM uses PREPEND grace_)
  if(NOT sources)
    add_library(grace_${room} INTERFACE)
    target_link_libraries(grace_${room} INTERFACE grace_flags ${uses} ${ARG_LINK})
  else()
    add_library(grace_${room} STATIC ${sources})
    target_link_libraries(grace_${room} PUBLIC grace_flags ${uses} ${ARG_LINK})
    grace_share_headers(grace_${room} grace_base)
  endif()
  if(GRACE_TESTS AND tests)
    add_executable(${room}_test ${tests})
    target_link_libraries(${room}_test PRIVATE grace_${room} grace_light_flags GTest::gmock GTest::gtest_main)
    target_compile_definitions(${room}_test PRIVATE GRACE_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    grace_share_headers(${room}_test base_test <gmock/gmock.h> <gtest/gtest.h>)
    add_test(NAME ${room} COMMAND ${room}_test)
    set_tests_properties(${room} PROPERTIES LABELS unit TIMEOUT 600)
  endif()
endfunction()
