# `cmake --install build --component development`: headers, library and find_package(backpass). A wheel holds the same.
include(CMakePackageConfigHelpers)
set(beside "$ORIGIN/backpass")
if(NOT SKBUILD_STATE STREQUAL "wheel")  # which must not look where it was built
  list(APPEND beside "$<TARGET_FILE_DIR:DNNL::dnnl>")
endif()
set_target_properties(backpass PROPERTIES INSTALL_RPATH "${beside}")
install(TARGETS backpass EXPORT backpass-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/backpass DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/backpass")
install(EXPORT backpass-targets NAMESPACE backpass:: FILE backpass-config.cmake DESTINATION ${package_dir}
        COMPONENT development)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/backpass-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/backpass-config-version.cmake" DESTINATION ${package_dir} COMPONENT development)

# The shared libraries that the engine needs and a machine may lack go with it, in a folder of their own, once each,
# under the names the loader asks for. Those names stay the usual ones: a process that has loaded a libgomp.so.1, as
# PyTorch does, uses that one, and there are never two OpenMP runtimes with two sets of threads.
function(backpass_bundle library name)
  file(REAL_PATH "${library}" file)
  install(PROGRAMS "${file}" DESTINATION ${CMAKE_INSTALL_LIBDIR}/backpass RENAME ${name} COMPONENT development)
endfunction()

foreach(target IN ITEMS DNNL::dnnl hwy::hwy)
  get_target_property(configurations ${target} IMPORTED_CONFIGURATIONS)
  list(GET configurations 0 configuration)
  get_target_property(library ${target} IMPORTED_LOCATION_${configuration})
  get_target_property(name ${target} IMPORTED_SONAME_${configuration})
  if(name)  # otherwise static
    backpass_bundle("${library}" ${name})
  endif()
endforeach()
file(GLOB notices "${dnnl_DIR}/../../../share/doc/onednn/*")
install(FILES ${notices} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/onednn COMPONENT development)
if(OpenMP_gomp_LIBRARY)
  backpass_bundle("${OpenMP_gomp_LIBRARY}" libgomp.so.1)
endif()
