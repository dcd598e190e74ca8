# Contents of `cmake --install` and of the wheel: the core, its plug-ins, the preloaded libraries, the headers,
# a CMake package (isthmus::isthmus, ::sycl, ::mpi, ::plugin) and a pkg-config file. A wheel installs all of it
# into the folder of the Python package, because it must not write anywhere else in an environment.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
if(SKBUILD)
  set(install_lib isthmus)
  set(install_include isthmus/include)
  set(install_package isthmus/cmake)
  set(install_pkgconfig isthmus)  # next to the library, so that its paths contain no ..
else()
  set(install_lib ${CMAKE_INSTALL_LIBDIR})
  set(install_include ${CMAKE_INSTALL_INCLUDEDIR})
  set(install_package ${CMAKE_INSTALL_LIBDIR}/cmake/isthmus)
  set(install_pkgconfig ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

# Interface targets without a library. The configuration file of the package finds what the compiler of the user
# must provide (SYCL, MPI), if the component is requested.
foreach(name sycl mpi plugin)
  add_library(isthmus_interface_${name} INTERFACE)
  set_target_properties(isthmus_interface_${name} PROPERTIES EXPORT_NAME ${name})
  target_compile_features(isthmus_interface_${name} INTERFACE cxx_std_20)
endforeach()
target_link_libraries(isthmus_interface_sycl INTERFACE isthmus)
target_link_libraries(isthmus_interface_mpi INTERFACE isthmus)
target_include_directories(isthmus_interface_plugin INTERFACE $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
set(interfaces isthmus_interface_sycl isthmus_interface_mpi isthmus_interface_plugin)
# The names of the installed package, for projects that add this one with add_subdirectory or FetchContent.
add_library(isthmus::isthmus ALIAS isthmus)
foreach(name sycl mpi plugin)
  add_library(isthmus::${name} ALIAS isthmus_interface_${name})
endforeach()
get_property(plugins GLOBAL PROPERTY ISTHMUS_PLUGINS)  # the loader searches the folder isthmus/ next to the core
add_custom_target(isthmus_with_plugins DEPENDS isthmus ${plugins})
if(NOT ISTHMUS_INSTALL)
  return()
endif()

set(libraries isthmus)
if(TARGET isthmus_ggml)
  list(APPEND libraries isthmus_ggml)
endif()
get_property(ggml_engines GLOBAL PROPERTY ISTHMUS_GGML_ENGINES)
list(APPEND libraries ${ggml_engines})
# A wheel is a zip file and cannot hold links. Its library has the file name that programs look for, and libisthmus.so,
# which -listhmus looks for, is a linker script.
if(SKBUILD)
  set_target_properties(isthmus PROPERTIES VERSION 0)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/libisthmus.so "INPUT(libisthmus.so.0)\n")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/libisthmus.so DESTINATION ${install_lib} COMPONENT isthmus)
endif()
get_property(engines GLOBAL PROPERTY ISTHMUS_MPI_ENGINES)
if(TARGET isthmus_mpi_preload)
  list(APPEND libraries isthmus_mpi_preload ${engines})
endif()
if(TARGET isthmus_nccl_preload)
  list(APPEND libraries isthmus_nccl_preload isthmus_nccl_engine)
endif()
install(TARGETS isthmus ${interfaces} EXPORT isthmus COMPONENT isthmus
        LIBRARY DESTINATION ${install_lib} COMPONENT isthmus NAMELINK_COMPONENT isthmus_development
        INCLUDES DESTINATION ${install_include})
list(REMOVE_ITEM libraries isthmus)
if(libraries)
  install(TARGETS ${libraries} LIBRARY DESTINATION ${install_lib} COMPONENT isthmus)
endif()
install(TARGETS ${plugins} LIBRARY DESTINATION ${install_lib}/isthmus COMPONENT isthmus)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${install_include} COMPONENT isthmus
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp" PATTERN "*.def")

install(EXPORT isthmus NAMESPACE isthmus:: FILE isthmusTargets.cmake DESTINATION ${install_package} COMPONENT isthmus)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/package/isthmusConfig.cmake.in isthmusConfig.cmake
                              INSTALL_DESTINATION ${install_package})
write_basic_package_version_file(isthmusConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/isthmusConfig.cmake ${CMAKE_CURRENT_BINARY_DIR}/isthmusConfigVersion.cmake
        DESTINATION ${install_package} COMPONENT isthmus)

# Paths are relative to the file, so that an installation can be moved.
foreach(folder lib include)
  file(RELATIVE_PATH path /prefix/${install_pkgconfig} /prefix/${install_${folder}})
  string(REGEX REPLACE "/$" "" to_${folder} "/${path}")
endforeach()
configure_file(${PROJECT_SOURCE_DIR}/cmake/package/isthmus.pc.in isthmus.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/isthmus.pc DESTINATION ${install_pkgconfig} COMPONENT isthmus)
