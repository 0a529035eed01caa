#!/bin/sh
# Checks --help, --version, exit codes and one-line errors of every command: cli.sh PATH-OF-CTWORKER
set -u
worker=$1
fail=0
out=$(mktemp) err=$(mktemp)
trap 'rm -f "$out" "$err"' EXIT

# expect CODE STREAM PIECE -- ARGUMENTS: checks the exit code, and that the stream (out or err) contains PIECE.
expect() {
    code=$1 stream=$2 piece=$3
    shift 4
    "$worker" "$@" >"$out" 2>"$err" </dev/null
    got=$?
    if [ "$stream" = out ]; then file=$out; else file=$err; fi
    if [ $got -ne "$code" ] || ! grep -qF -e "$piece" "$file"; then
        echo "ctworker $*: exit code $got (expected $code), expected on $stream: $piece"
        cat "$out" "$err"
        fail=1
    fi
    if [ "$stream" = err ] && { [ -s "$out" ] || [ "$(wc -l <"$err")" -ne 1 ]; }; then
        echo "ctworker $*: expected one line on standard error and nothing on standard output"
        cat "$out" "$err"
        fail=1
    fi
}

expect 0 out "Usage: ctworker COMMAND" -- --help
expect 0 out "Usage: ctworker COMMAND" -- -h
expect 0 out "Usage: ctworker COMMAND" -- help
expect 0 out "ctworker " -- --version
expect 0 out "nng      " -- --version
expect 64 err "a command is missing" --
expect 64 err 'no command "scroe"; did you mean "score"; ctworker --help lists the commands' -- scroe
expect 64 err 'no command "benchmark"; ctworker --help lists the commands' -- benchmark
expect 64 err 'no command "--verbose"' -- --verbose
n_commands=0
for command in $("$worker" --help | sed -n 's/^  \([a-z]*\) .* .*/\1/p' | grep -v ctworker); do
    case $command in echo | lm_eval | "") continue ;; esac
    expect 0 out "Usage: ctworker $command" -- "$command" --help
    expect 0 out "ctworker 0" -- "$command" --version
    expect 64 err "unknown option --hepl; did you mean --help" -- "$command" --hepl
    n_commands=$((n_commands + 1))
done
if [ $n_commands -lt 7 ]; then
    echo "--help lists $n_commands commands, expected at least 7"
    fail=1
fi

expect 64 err "--model DIR is missing (or set CTW_MODEL): the checkpoint: its folder or its file" -- score
expect 64 err "--hashes prints only the hashes; remove --identity" -- inspect --hashes --identity .
expect 64 err "--hashes prints only the hashes; remove --tensors" -- inspect --tensors --hashes .
expect 64 err "--hashes prints only the hashes; remove --json" -- inspect --json --hashes .
expect 64 err "--json has no list of matrices; remove --tensors" -- inspect --json --tensors .

# A full disk and a closed pipe are errors with a message, not silence and not a signal.
"$worker" --help >/dev/full 2>"$err"
got=$?
if [ $got -ne 74 ] || ! grep -q "cannot write to standard output" "$err"; then
    echo "--help to a full disk: exit code $got"
    fail=1
fi
# A limit on the size of files is an error as well. (The thread sanitizer itself writes a file before main().)
if ! "$worker" --version | grep -q "thread sanitizer"; then
    (ulimit -f 0; exec "$worker" --help) >"$out" 2>/dev/null
    got=$?
    if [ $got -ne 74 ]; then
        echo "--help to a file at its size limit: exit code $got"
        fail=1
    fi
fi
# "true" reads nothing: its end of the pipe is closed before the worker writes.
code=$({ (sleep 0.2; "$worker" --help 2>/dev/null; echo $? >&3) | true; } 3>&1)
if [ "$code" != 74 ]; then
    echo "--help to a closed pipe: exit code $code"
    fail=1
fi
exit $fail
