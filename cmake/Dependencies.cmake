# Finds what the engine needs and gathers it in `backpass_internal`, the usage requirements of engine sources.

# The Python of a virtual environment on CMAKE_PREFIX_PATH, or of ./.venv, before the system's.
if(NOT Python_EXECUTABLE)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH ITEMS "$ENV{VIRTUAL_ENV}" "${PROJECT_SOURCE_DIR}/.venv")
    if(prefix AND EXISTS "${prefix}/bin/python")
      set(Python_EXECUTABLE "${prefix}/bin/python")
      break()
    endif()
  endforeach()
endif()
if(BACKPASS_BUILD_PYTHON)
  find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
else()
  find_package(Python 3.11 COMPONENTS Interpreter)
endif()

# oneDNN: any 3.2 or newer; by default the one that `pip install onednn-devel-cpu-gomp` puts beside that Python.
if(NOT dnnl_DIR AND Python_EXECUTABLE)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" -c
            "from importlib.metadata import files; \
             print(next(f.locate().resolve().parent for f in files('onednn-devel-cpu-gomp') if f.name == 'dnnl-config.cmake'))"
    OUTPUT_VARIABLE onednn_hint OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
find_package(dnnl 3.2 REQUIRED CONFIG HINTS "${onednn_hint}")

find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(hwy REQUIRED CONFIG)
find_path(PROTOZERO_INCLUDE_DIR protozero/pbf_reader.hpp REQUIRED)
# Headers only; flatc and they must be of one version, which the generated code checks.
find_path(FLATBUFFERS_INCLUDE_DIR flatbuffers/flatbuffers.h REQUIRED)
find_program(FLATC flatc REQUIRED)

add_library(backpass_internal INTERFACE)
target_include_directories(backpass_internal INTERFACE "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src")
target_include_directories(backpass_internal SYSTEM INTERFACE "${PROTOZERO_INCLUDE_DIR}" "${FLATBUFFERS_INCLUDE_DIR}")
target_compile_options(backpass_internal INTERFACE ${backpass_warnings})
target_link_libraries(backpass_internal INTERFACE DNNL::dnnl hwy::hwy OpenMP::OpenMP_CXX)
