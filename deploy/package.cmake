# Installing, and a Debian package of it: `cpack -G DEB` in the build folder. Units and configuration have fixed places, whatever the prefix.
include(GNUInstallDirs)
install(TARGETS holdfast holdfast-supervisor holdfast-frontend holdfast-worker RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES deploy/systemd/holdfast-supervisor.service deploy/systemd/holdfast-frontend@.service DESTINATION lib/systemd/system)
install(FILES deploy/systemd/holdfast.sysusers DESTINATION lib/sysusers.d RENAME holdfast.conf)
install(FILES deploy/systemd/holdfast.tmpfiles DESTINATION lib/tmpfiles.d RENAME holdfast.conf)
install(FILES README.md CHANGELOG.md docs/operations.md docs/design.md docs/api.md docs/restart.md docs/default-model.md docs/dependencies.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Something to try an installation with: 2 MB.
install(FILES deploy/default-model/holdfast-tiny.gguf DESTINATION ${CMAKE_INSTALL_DATADIR}/holdfast)
install(DIRECTORY deploy/prometheus deploy/grafana deploy/kubernetes DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
# Absolute, as /etc is in a package; a plain `cmake --install` elsewhere puts it below the prefix.
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr" OR CMAKE_INSTALL_PREFIX STREQUAL "/usr/local")
  install(FILES deploy/config/holdfast.env DESTINATION /etc/holdfast)
else()
  install(FILES deploy/config/holdfast.env DESTINATION etc/holdfast)
endif()

# Installing takes what was built and builds nothing: the package is made from binaries that were tested.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME holdfast)
set(CPACK_PACKAGE_VENDOR "Holdfast")
set(CPACK_PACKAGE_CONTACT "Holdfast maintainers <maintainers@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "LLM inference server that does not fall over")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
# It makes the user. Without it, in a container say, the binaries run as whoever starts them.
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS systemd)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${CMAKE_SOURCE_DIR}/deploy/debian/postinst;${CMAKE_SOURCE_DIR}/deploy/debian/prerm;${CMAKE_SOURCE_DIR}/deploy/debian/postrm;${CMAKE_SOURCE_DIR}/deploy/debian/conffiles")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
find_program(HOLDFAST_SHLIBDEPS dpkg-shlibdeps)
if(HOLDFAST_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
endif()
include(CPack)
