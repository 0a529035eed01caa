# Set-up of a bare Debian or Ubuntu machine, for tests/run and examples/quickstart.sh (sourced).
#
#   ctw_setup_system [more probes]   compiler, CMake and libraries; asks apt only for what is missing
#   ctw_setup_python DIR REQUIREMENTS...   a virtual environment with those packages
#
# Needs root or sudo only when something is missing.

# "probe package": the package is missing when the probe (a command, or a path with wildcards)
# finds nothing.
CTW_SYSTEM_PROBES=(
  "cc build-essential"
  "make build-essential"
  "cmake cmake"
  "/usr/include/nng/nng.h libnng-dev"
  "/usr/include/cjson/cJSON.h libcjson-dev"
  "/usr/include/msgpack.h msgpack"
  "/usr/include/mbedtls/ssl.h libmbedtls-dev"
  "/usr/include/xxhash.h libxxhash-dev"
)

ctw_say() { printf '%s\n' "$*" >&2; }

ctw_probe() {
  case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    python:*) python3 -c "import ${1#python:}" 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# The C part of msgpack is libmsgpack-dev on Debian 12, libmsgpack-c-dev later.
ctw_package_name() {
  if [ "$1" != msgpack ]; then
    echo "$1"
  elif apt-cache show libmsgpack-c-dev >/dev/null 2>&1; then
    echo libmsgpack-c-dev
  else
    echo libmsgpack-dev
  fi
}

ctw_setup_system() {
  local entry probe package sudo="" missing=() names=()
  for entry in "${CTW_SYSTEM_PROBES[@]}" "python:venv,ensurepip python3-venv" "$@"; do
    read -r probe package <<<"$entry"
    ctw_probe "$probe" || missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  if ! command -v apt-get >/dev/null; then
    ctw_say "Missing: ${missing[*]} (Debian's names). This machine has no apt: install them by hand."
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      ctw_say "Missing packages and neither root nor sudo. As root: apt-get install ${missing[*]}"
      return 1
    fi
    sudo="sudo"
    [ -t 0 ] || sudo="sudo -n"
  fi
  export DEBIAN_FRONTEND=noninteractive
  ctw_say "Installing system packages: ${missing[*]}"
  $sudo apt-get -q -o Acquire::Retries=3 update >&2 || return 1
  for package in "${missing[@]}"; do
    names+=("$(ctw_package_name "$package")")
  done
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3 \
    install --no-install-recommends "${names[@]}" >&2
}

# Installs anew only when the list of requirements changed; makes the environment anew when Python did, or
# when an earlier run was cut short.
ctw_setup_python() {
  local dir=$1 python stamp found
  shift
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    ctw_say "python3 is $(python3 --version 2>&1); 3.10 or newer is needed"
    return 1
  fi
  python="$(python3 --version 2>&1) of $(command -v python3)"
  stamp="$python: $(printf '%s\n' "$@" | cksum)"
  found=$(cat "$dir/requirements.stamp" 2>/dev/null || true)
  "$dir/bin/python" -c 'import pip' 2>/dev/null || found=""
  [ "$found" = "$stamp" ] && return 0
  ctw_say "Python packages into $dir ..."
  rm -f "$dir/requirements.stamp"
  [ "${found%%: *}" = "$python" ] || python3 -m venv --clear "$dir" || return 1
  "$dir/bin/python" -m pip install -q --retries 5 --disable-pip-version-check "$@" >&2 || return 1
  printf '%s\n' "$stamp" >"$dir/requirements.stamp"
}
