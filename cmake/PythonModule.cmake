# The nanobind module backpass._core, and build/python/backpass: a mirror of python/backpass with this build's module in
# it, so that `PYTHONPATH=build/python python` runs the checkout without installing anything.
execute_process(COMMAND "${Python_EXECUTABLE}" -m nanobind --cmake_dir
                OUTPUT_VARIABLE nanobind_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
find_package(nanobind REQUIRED CONFIG)

file(GLOB binding_sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/python/bindings/*.cpp")
nanobind_add_module(_core NB_STATIC NB_SUPPRESS_WARNINGS ${binding_sources})
target_link_libraries(_core PRIVATE backpass)
target_include_directories(_core PRIVATE "${PROJECT_SOURCE_DIR}/src")
target_compile_options(_core PRIVATE ${backpass_warnings})
target_compile_definitions(_core PRIVATE BACKPASS_VERSION="${PROJECT_VERSION}")

set(mirror "${PROJECT_BINARY_DIR}/python/backpass")
set_target_properties(_core backpass PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${mirror}")
file(MAKE_DIRECTORY "${mirror}")
file(GLOB package_files CONFIGURE_DEPENDS LIST_DIRECTORIES true "${PROJECT_SOURCE_DIR}/python/backpass/*")
list(FILTER package_files EXCLUDE REGEX "__pycache__|\\.so$")
foreach(path IN LISTS package_files)
  cmake_path(GET path FILENAME name)
  file(CREATE_LINK "${path}" "${mirror}/${name}" SYMBOLIC)
endforeach()

# The installed package is itself a prefix: the module in it finds the engine in its lib/, as C++ programs do.
set_target_properties(_core PROPERTIES INSTALL_RPATH "$ORIGIN/${CMAKE_INSTALL_LIBDIR}")
install(TARGETS _core LIBRARY DESTINATION . COMPONENT python)
install(TARGETS backpass LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT python)
