#!/usr/bin/env bash
# check_libm.sh LIBM ARCHIVE...
# Scores must not depend on the C library's version, nor on the code that it picks for a processor: our objects use
# no function of libm but those whose results are exact or correctly rounded everywhere. kernels/math.h has others.
set -euo pipefail
libm=$1
shift
allowed='^(sqrt|fma|fmin|fmax|rint|nearbyint|floor|ceil|trunc|round|lrint|llrint|lround|llround|ldexp|frexp|modf)f?$'
symbols=$(nm -D --defined-only "$libm" | awk '{sub(/@.*/, "", $NF); print $NF}' | sort -u)
grep -qx exp <<<"$symbols" || { echo "$libm has no exp: not the math library?"; exit 1; }
status=0
for archive in "$@"; do
  used=$(nm -u "$archive" | awk '$1 == "U" {sub(/@.*/, "", $2); print $2}' | sort -u)
  found=$(comm -12 <(echo "$symbols") <(echo "$used") | grep -vE "$allowed" || true)
  if [ -n "$found" ]; then
    echo "$(basename "$archive") uses libm's ${found//$'\n'/, }; kernels/math.h has functions that are the same everywhere"
    status=1
  fi
done
exit $status
