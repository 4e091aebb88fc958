#!/bin/sh
# Installs the build into a prefix of its own, builds examples/embed.c against that copy with pkg-config alone, as C and
# with all warnings, and runs it. Also: the library exports the functions of evenkeel.h and nothing else.
#     embed.sh BUILD SOURCE COMPILER
set -eu
build=$1 source=$2 compiler=$3
prefix=$(mktemp -d "${TMPDIR:-/tmp}/evenkeel-install-XXXXXX")
trap 'rm -rf "$prefix"' EXIT INT TERM

DESTDIR='' cmake --install "$build" --prefix "$prefix" >"$prefix/log" || { cat "$prefix/log"; exit 1; }
pc=$(find "$prefix" -name evenkeel.pc)
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH
# shellcheck disable=SC2046 # flags are words
"$compiler" -std=c17 -Wall -Wextra -Wpedantic -Werror "$source/examples/embed.c" -o "$prefix/embed" \
    $(pkg-config --cflags --libs evenkeel) -lm
LD_LIBRARY_PATH=$(dirname "$(find "$prefix" -name libevenkeel.so)")
export LD_LIBRARY_PATH
"$prefix/embed"
test "$(grep -c "" "$source/examples/embed.c")" -lt 200 || { echo "examples/embed.c has grown to 200 lines"; exit 1; }

library=$(find "$prefix" -name 'libevenkeel.so.0')
nm -D --defined-only "$library" | awk '$2 == "T" {print $3}' | sort >"$prefix/exported"
grep -o '^EK_API [^(]*(' "$source/include/evenkeel.h" | sed 's/($//; s/.*[ *]//' | sort >"$prefix/declared"
diff "$prefix/declared" "$prefix/exported" || { echo "the library exports (>) other functions than evenkeel.h declares (<)"; exit 1; }
if readelf -d "$library" | grep NEEDED | grep -v -e 'lib[cm]\.so' -e ld-linux -e libmpi; then
    echo "the library needs more than the C library, and MPI for the engine mpi"
    exit 1
fi
"$prefix/bin/evenkeel" version
