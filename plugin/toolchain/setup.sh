#!/usr/bin/env bash
# setup.sh
#
# Finds or makes a TinyGo that can build the gate, and writes build/toolchain/env.sh, which tinygo-build.sh reads:
#
#   TINYGO          the compiler
#   TINYGO_ARGS     the target and the flags that go with it (a bash array)
#   TINYGOROOT      set for our own compiler only
#   TINYGO_GOFLAGS  what GOFLAGS has to hold besides: the wasm modules' go.mod, build/toolchain/gate.mod
#
# gate.mod is go.mod with one more replacement, github.com/tidwall/pretty by the folder pretty here (which says why). The
# programs are built without it.
#
# An official TinyGo release on PATH (0.40 or newer, one that accepts this Go) is used as it is. Otherwise the compiler is
# built from the module that go.mod here pins. That module has no wasi-libc and no compiler-rt in it (git submodules
# upstream), so both come from Debian packages, through the target description wasip1-gate.json; they are installed when
# missing. The compiler wants to write below its root, so TINYGOROOT is a copy of the module's folder.
#
# Everything lands in build/toolchain. A second run finds it unchanged and does nothing.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
top=$(cd "$here/../.." && pwd -P)
dir=$top/build/toolchain
mkdir -p "$dir"

# Two makes in one checkout must not set up the same folder at once. The lock is this process's alone: whatever a child
# leaves running in the background must not keep it.
exec 9>"$dir/lock"
flock 9

# official prints the path of a usable TinyGo release on PATH, or nothing.
official() {
	local bin version
	bin=$(command -v tinygo) || return 0
	version=$("$bin" version 2>/dev/null | sed -n 's/^tinygo version \([0-9][0-9]*\.[0-9][0-9]*\).*/\1/p')
	case $version in
	0.[0-9] | 0.[123][0-9] | '')
		echo "TinyGo ${version:-of unknown version} at $bin is older than 0.40: building our own" >&2
		return 0
		;;
	esac
	# info runs the compiler's own checks: of the Go version, and of its root.
	if ! "$bin" info -target=wasip1 >/dev/null 2>&1; then
		echo "TinyGo $version at $bin does not work with $(go env GOVERSION): building our own" >&2
		return 0
	fi
	printf '%s\n' "$bin"
}

# keep FILE puts FILE.new in the place of FILE: whole or not at all, and only when it changed, because time stamps are
# what the wasm files depend on.
keep() {
	if cmp -s "$1.new" "$1"; then
		rm "$1.new"
	else
		mv "$1.new" "$1"
	fi
}

write_env() {
	{
		cat
		printf 'TINYGO_GOFLAGS=%q\n' "'-modfile=$dir/gate.mod'"
	} >"$dir/env.sh.new"
	keep "$dir/env.sh"
}

cp "$top/go.mod" "$dir/gate.new.mod"
go mod edit -replace=github.com/tidwall/pretty=./plugin/toolchain/pretty "$dir/gate.new.mod"
mv "$dir/gate.new.mod" "$dir/gate.mod.new"
keep "$dir/gate.mod"
cp "$top/go.sum" "$dir/gate.sum.new"
keep "$dir/gate.sum"

tinygo=$(official)
if [ -n "$tinygo" ]; then
	write_env <<-END
		# $("$tinygo" version)
		TINYGO=$(printf %q "$tinygo")
		TINYGO_ARGS=(-target=wasip1 -buildmode=c-shared -scheduler=none -tags=custommalloc)
	END
	exit 0
fi

"$top/.ci/apt-install" \
	g++:g++ \
	/usr/lib/llvm-19/include/llvm-c/Core.h:llvm-19-dev \
	/usr/lib/llvm-19/include/clang-c/Index.h:libclang-19-dev \
	clang-19:clang-19 \
	wasm-ld-19:lld-19 \
	/usr/lib/wasm32-wasi/libc.a:wasi-libc \
	/usr/lib/llvm-19/lib/clang/19/lib/wasi/libclang_rt.builtins-wasm32.a:libclang-rt-19-dev-wasm32 \
	wasm-opt:binaryen 9>&-

fingerprint=$(
	{
		go env GOVERSION GOOS GOARCH
		cat "$here/go.mod" "$here/go.sum" "$here/setup.sh"
	} | sha256sum | cut -d' ' -f1
)
if [ "$(cat "$dir/fingerprint" 2>/dev/null)" != "$fingerprint" ] || [ ! -x "$dir/tinygo" ] || [ ! -d "$dir/root/src/net" ]; then
	echo "building TinyGo (once, a minute or two)"
	rm -rf "$dir/fingerprint" "$dir/root" "$dir/root.new"
	cd "$here"
	CGO_ENABLED=1 "$top/.ci/try" go build -buildvcs=false -tags llvm19 -o "$dir/tinygo" github.com/tinygo-org/tinygo 9>&-
	cp -r "$(go list -m -f '{{.Dir}}' github.com/tinygo-org/tinygo)" "$dir/root.new"
	chmod -R u+w "$dir/root.new"
	# A submodule upstream; its absence is an error, an empty folder is not, and nothing built here imports net.
	mkdir -p "$dir/root.new/src/net"
	mv "$dir/root.new" "$dir/root"
	printf '%s\n' "$fingerprint" >"$dir/fingerprint"
fi

write_env <<END
# TinyGo of plugin/toolchain/go.mod: $fingerprint $(sha256sum <"$here/wasip1-gate.json" | cut -d' ' -f1)
TINYGO=$(printf %q "$dir/tinygo")
TINYGO_ARGS=(-target=$(printf %q "$here/wasip1-gate.json"))
export TINYGOROOT=$(printf %q "$dir/root")
END
