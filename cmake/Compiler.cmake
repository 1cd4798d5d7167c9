# Compiler flags, sanitizers and ccache.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g0 -DNDEBUG")

# No -ffast-math (NaN and infinity matter) and no -march=native (Highway and oneDNN dispatch at run time).
# Nobody interposes our symbols, so calls inside the library need no indirection.
add_compile_options(-fno-math-errno -fno-trapping-math -fno-semantic-interposition)

# The same source gives the same object in any checkout, which also lets checkouts share a ccache.
add_compile_options("-ffile-prefix-map=${PROJECT_SOURCE_DIR}=.")
find_program(BACKPASS_CCACHE ccache)
if(BACKPASS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1
                                  ${BACKPASS_CCACHE})
endif()

set(backpass_warnings -Wall -Wextra -Wshadow)
if(BACKPASS_WERROR)
  list(APPEND backpass_warnings -Werror)
endif()

set(sanitizers "")
if(BACKPASS_BUILD_FUZZERS)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "BACKPASS_BUILD_FUZZERS needs clang: -DCMAKE_CXX_COMPILER=clang++")
  endif()
  list(APPEND sanitizers fuzzer-no-link address undefined)
endif()
if(BACKPASS_ASAN)
  list(APPEND sanitizers address)
endif()
if(BACKPASS_UBSAN)
  list(APPEND sanitizers undefined)
endif()
if(BACKPASS_TSAN)
  list(APPEND sanitizers thread)
  add_compile_definitions(HWY_COMPILE_ONLY_STATIC)  # races do not depend on the instruction set
endif()
set(sanitized 0)
if(sanitizers)
  set(sanitized 1)
  list(REMOVE_DUPLICATES sanitizers)
  list(JOIN sanitizers "," sanitizers)
  # -O1 compiles in two thirds of the time that -O2 takes (processor time, five sources with ASan and UBSan).
  add_compile_options(-O1 -fsanitize=${sanitizers} -fno-sanitize-recover=undefined -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${sanitizers})
endif()
