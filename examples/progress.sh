# shellcheck shell=bash
# Shows the progress of long commands. Sourced by examples/quickstart.sh and examples/sweep.sh.
#
#   ctw_run WHAT LOG COMMAND...   runs the command with its output in the file LOG, and shows every few seconds what it does:
#                                 on a terminal in one line, elsewhere in a short line every 5 seconds. If the command
#                                 fails, the end of LOG follows.

# The line of a running command: its time and the last line of its output, until standard input ends.
ctw_tick() {
  local what=$1 log=$2 line last every=5 before="" after=$'\n' start=$SECONDS
  if [ -t 2 ]; then every=1 before=$'\r\033[K' after=""; fi
  while read -r -t $every || [ $? -gt 128 ]; do # above 128: no end yet
    last=$(tail -c 4096 "$log" 2>/dev/null | tr '\r' '\n' | grep -a '[^[:space:]]' | tail -n 1) || true
    # Without lm-eval's times, and the words of its bar.
    last=$(sed -E 's/^[[:space:]]*//; s/^[-:0-9]{10,} [A-Z]+ +\[[^]]*\] //; s/^Running \w+ requests: *//' <<<"$last")
    line="  $what, $((SECONDS - start)) s${last:+: $last}"
    printf '%s%s%s' "$before" "${line:0:100}" "$after" >&2
  done
}

ctw_run() {
  local what=$1 log=$2 code=0 start=$SECONDS
  # shellcheck disable=SC2034 # read by ctw_setup_python
  local ctw_pip_quiet=""
  shift 2
  : >"$log"
  exec 9> >(ctw_tick "$what" "$log") # ends with descriptor 9, so also if this shell is killed
  # In a shell of its own: otherwise, what a trap says while a function runs would go to the log.
  ("$@") >"$log" 2>&1 </dev/null 9>&- || code=$?
  exec 9>&-
  wait $! || true
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  if [ $code -ne 0 ]; then
    tail -n 30 "$log" >&2
    ctw_say "$what: failed (exit code $code) after $((SECONDS - start)) s. The whole output is in $log."
    return $code
  fi
  ctw_say "  $what: $((SECONDS - start)) s"
}
