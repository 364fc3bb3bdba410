#!/usr/bin/env bash
# Tests the C library as programs use it: installed, found by pkg-config, compiled as C11 and C++ with warnings as
# errors; each program as it is, with the sanitizers on its own code, and under valgrind, which looks for leaks.
# CARGO_TARGET_DIR is the place of the built library. Ends with one line: `test result: ok. N passed; M failed`.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
built=$CARGO_TARGET_DIR/debug
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Time limit of a program; under valgrind they take seconds.
SECONDS_MAX=300

"$here/install.sh" "$built" "$work/prefix"
export PKG_CONFIG_PATH=$work/prefix/lib/pkgconfig LD_LIBRARY_PATH=$work/prefix/lib
read -ra flags <<<"$(pkg-config --cflags --libs umemcg)"
read -ra static_flags <<<"$(pkg-config --cflags umemcg) $work/prefix/lib/libumemcg.a $(pkg-config --static --libs-only-l umemcg | sed 's/-lumemcg//')"
strict=(-std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -g -O1 -pthread)

passed=0 failed=0
check() {
    local name=$1 status=0
    shift
    timeout --kill-after=10 "$SECONDS_MAX" "$@" >"$work/log" 2>&1 || status=$?
    if [ "$status" -eq 0 ]; then
        echo "$name ... ok"
        passed=$((passed + 1))
    else
        echo "$name ... FAILED with status $status"
        cat "$work/log"
        failed=$((failed + 1))
    fi
}

soname=$(readelf -d "$work/prefix/lib/libumemcg.so" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
check "the soname is a file beside the library" test -e "$work/prefix/lib/$soname"
# The library exports its interface and nothing else.
exported() { nm -D --defined-only "$work/prefix/lib/libumemcg.so" | awk '{ print $3 }' | grep -v '^umemcg_'; }
check "nothing but the interface is exported" test -z "$(exported)"
check "the header is C++" g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$here/tests/programs/header.cpp" "${flags[@]}" -o "$work/header"
check "a C++ program runs" "$work/header"

# The program in the README.
sed -n '/^## From C$/,/^## From Python$/{/^```c$/,/^```$/{/^```/d;p}}' "$here/../../README.md" >"$work/readme.c"
for source in "$here"/tests/programs/*.c "$here"/examples/*.c "$work/readme.c"; do
    name=$(basename "$source" .c)
    # A forked child leaves what its parent's other threads had: that is no leak of the library.
    leaks=full detect_leaks=1
    [ "$name" != forks ] || leaks=no detect_leaks=0
    # One thread runs at a time: in turns, or one that never sleeps keeps the others from running.
    quietly=(valgrind --quiet --fair-sched=yes --error-exitcode=9 --leak-check=$leaks
        --show-leak-kinds=definite,indirect --errors-for-leak-kinds=definite,indirect)
    check "$name compiles" gcc "${strict[@]}" "$source" "${flags[@]}" -o "$work/$name"
    check "$name" "$work/$name"
    check "$name, linked statically" sh -c 'gcc "$@" && "$0"' "$work/$name-static" "${strict[@]}" "$source" "${static_flags[@]}" -o "$work/$name-static"
    check "$name, with sanitizers" env ASAN_OPTIONS=detect_leaks=$detect_leaks sh -c 'gcc "$@" && "$0"' "$work/$name-asan" "${strict[@]}" -fsanitize=address,undefined -fno-sanitize-recover=all "$source" "${flags[@]}" -o "$work/$name-asan"
    check "$name, without leaks or bad accesses" "${quietly[@]}" "$work/$name"
done
result=ok
[ "$failed" -eq 0 ] || result=FAILED
echo "test result: $result. $passed passed; $failed failed"
[ "$failed" -eq 0 ]
