#!/usr/bin/env bash
# tinygo-build.sh [--max-bytes N] [--allow-malloc] OUT PKGDIR
#
# Builds the Proxy-Wasm module in PKGDIR (relative to the top of the checkout, or absolute) into OUT and checks it with
# plugin/wasmcheck; OUT exists afterwards only if the check passed. OUT.d lists what it was made of, for make.
#
#   --max-bytes N     fail when the result has more than N bytes
#   --allow-malloc    let the module export malloc (a test guest that wants the host to use it)
#
# setup.sh must have run before.
set -euo pipefail

usage() {
	echo "usage: tinygo-build.sh [--max-bytes N] [--allow-malloc] OUT PKGDIR" >&2
	exit 2
}

max=
malloc=
while [ $# -gt 0 ]; do
	case $1 in
	--max-bytes)
		[ $# -ge 2 ] || usage
		max=$2
		shift 2
		;;
	--allow-malloc)
		malloc=yes
		shift
		;;
	-*) usage ;;
	*) break ;;
	esac
done
[ $# -eq 2 ] || usage

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
top=$(cd "$here/../.." && pwd -P)
cd "$top"
out=$1
pkg=$2
# By its import path, since the package may be in a module that go.mod takes from a folder here.
case $pkg in
/*) ;;
*) pkg=github.com/oncegate/oncegate/$pkg ;;
esac

if [ ! -f build/toolchain/env.sh ]; then
	echo "tinygo-build.sh: no TinyGo yet: run plugin/toolchain/setup.sh (or make) first" >&2
	exit 1
fi
# shellcheck source=/dev/null
. build/toolchain/env.sh

mkdir -p "$(dirname "$out")"
# Two makes in one checkout must not build the same file at once.
exec 9>"$out.lock"
flock 9

tmp=$out.tmp.wasm
started=$out.started
ok=
trap 'rm -f "$tmp" "$started" "$out.target.json"; [ -n "$ok" ] || rm -f "$out"' EXIT
# OUT gets the time at which the build began, so that a source saved during the build counts as newer.
touch "$started"

if [ -n "$malloc" ]; then
	# Our own target description carries the tag itself.
	args=()
	for arg in "${TINYGO_ARGS[@]}"; do
		case $arg in
		-tags=custommalloc) ;;
		-target=*.json)
			sed 's/, "custommalloc"//' "${arg#-target=}" >"$out.target.json"
			args+=("-target=$out.target.json")
			;;
		*) args+=("$arg") ;;
		esac
	done
	TINYGO_ARGS=("${args[@]}")
fi

# -opt=2 makes the gate a fifth larger and its hits no faster (make bench).
GOFLAGS="${GOFLAGS:-} $TINYGO_GOFLAGS" "$TINYGO" build "${TINYGO_ARGS[@]}" -no-debug -opt=s -o "$tmp" "$pkg"
go run -buildvcs=false ./plugin/wasmcheck --shorten-names ${max:+--max-bytes "$max"} ${malloc:+--allow-malloc} "$tmp"

# What the module was made of: files, and their folders for what is added to or taken from them. Each is a target without
# a rule as well, so that one that has gone means "build again" to make, not an error.
GOFLAGS="${GOFLAGS:-} $TINYGO_GOFLAGS" GOOS=wasip1 GOARCH=wasm go list -deps -tags tinygo,tinygo.wasm,custommalloc -f \
	'{{if not .Standard}}{{$d := .Dir}}{{$d}}{{"\n"}}{{range .GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}' "$pkg" |
	sort -u | awk -v out="$out" -v top="$top/" '
		{ if (index($0, top) != 1) next; f = substr($0, length(top) + 1); print out ": " f; print f ":" }' >"$out.d"

touch -r "$started" "$tmp"
mv "$tmp" "$out"
ok=yes
echo "$out: $(stat -c %s "$out") bytes"
