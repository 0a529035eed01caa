#!/usr/bin/env bash
# check_libm.sh LIBM ARCHIVE...
# Scores must not depend on the C library's version, nor on the code path that it selects for a processor: our objects
# use only functions of libm whose results are exact or correctly rounded everywhere. kernels/math.h has the others.
set -euo pipefail
libm=$1
shift
allowed='^(sqrt|fma|fmin|fmax|rint|nearbyint|floor|ceil|trunc|round|lrint|llrint|lround|llround|ldexp|frexp|modf)f?$'
symbols=$(nm -D --defined-only "$libm" | awk '{sub(/@.*/, "", $NF); print $NF}' | sort -u)
grep -qx exp <<<"$symbols" || { echo "$libm defines no exp: expected the math library"; exit 1; }
status=0
for archive in "$@"; do
  used=$(nm -u "$archive" | awk '$1 == "U" {sub(/@.*/, "", $2); print $2}' | sort -u)
  found=$(comm -12 <(echo "$symbols") <(echo "$used") | grep -vE "$allowed" || true)
  if [ -n "$found" ]; then
    echo "$(basename "$archive") uses libm's ${found//$'\n'/, }; use kernels/math.h, whose results are the same everywhere"
    status=1
  fi
done
exit $status
