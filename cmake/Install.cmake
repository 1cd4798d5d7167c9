# `cmake --install build --component development`: headers, library and find_package(backpass).
include(CMakePackageConfigHelpers)
install(TARGETS backpass EXPORT backpass-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY include/backpass DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/backpass")
install(EXPORT backpass-targets NAMESPACE backpass:: FILE backpass-config.cmake DESTINATION ${package_dir}
        COMPONENT development)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/backpass-config-version.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/backpass-config-version.cmake" DESTINATION ${package_dir} COMPONENT development)
