# shellcheck shell=bash
# Sets up a bare Debian or Ubuntu machine. Sourced by tests/run and examples/quickstart.sh.
#
#   ctw_setup_system [more probes]   compiler, CMake and libraries; installs only missing packages
#   ctw_setup_python DIR REQUIREMENTS...   a virtual environment with these packages; ctw_pip_quiet="" shows pip's output
#   ctw_install PYTHON WHEEL EXTRAS   the package with these extras: from the file WHEEL, or, if WHEEL is empty, compiled
#   ctw_debian_mirror   prints the mirror of Debian that apt uses here, else Debian's own; DEBIAN_MIRROR is another
#   ctw_show_version NAME   the version of the project, as a command named NAME prints it
#   ctw_gpu_options   sets gpu_options, pip's options that compile the GPU backend for this machine's GPU; none without a GPU
#
# Needs root or sudo only if a system package is missing.

# "probe package": the package is missing if the probe (a command, or a path with wildcards) finds
# nothing.
CTW_SYSTEM_PROBES=(
  "cc build-essential"
  "make build-essential"
  "cmake cmake"
  "/usr/include/nng/nng.h libnng-dev"
  "/usr/include/cjson/cJSON.h libcjson-dev"
  "/usr/include/msgpack.h msgpack"
  "/usr/include/mbedtls/ssl.h libmbedtls-dev"
  "/usr/include/xxhash.h libxxhash-dev"
  "/usr/include/sqlite3.h libsqlite3-dev"
  "/usr/include/pcre2.h libpcre2-dev"
)

ctw_say() { printf '%s\n' "$*" >&2; }

ctw_probe() {
  case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    python:*) python3 -c "import ${1#python:}" 2>/dev/null ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# The C library of msgpack is libmsgpack-dev on Debian 12 and libmsgpack-c-dev on later releases.
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
    ctw_say "Missing packages: ${missing[*]} (Debian names). This machine has no apt: install them by hand."
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      ctw_say "Packages are missing and there is no sudo. As root, run: apt-get install ${missing[*]}"
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

# Reinstalls only if the list of requirements changed. Recreates the environment if Python changed or an
# earlier run was interrupted.
ctw_setup_python() {
  local dir=$1 python stamp found
  shift
  if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    ctw_say "python3 is $(python3 --version 2>&1), but 3.10 or newer is needed"
    return 1
  fi
  python="$(python3 --version 2>&1) of $(command -v python3)"
  stamp="$python: $(printf '%s\n' "$@" | cksum)"
  found=$(cat "$dir/requirements.stamp" 2>/dev/null || true)
  "$dir/bin/python" -c 'import pip' 2>/dev/null || found=""
  [ "$found" = "$stamp" ] && return 0
  ctw_say "Installing Python packages into $dir"
  rm -f "$dir/requirements.stamp"
  [ "${found%%: *}" = "$python" ] || python3 -m venv --clear "$dir" || return 1
  # shellcheck disable=SC2086 # no word if it is empty
  "$dir/bin/python" -m pip install ${ctw_pip_quiet--q} --retries 5 --disable-pip-version-check "$@" >&2 || return 1
  printf '%s\n' "$stamp" >"$dir/requirements.stamp"
}

ctw_install() {
  local python=$1 wheel=$2 extras=$3
  if [ -n "$wheel" ]; then
    # Another build of the same version would stay.
    "$python" -m pip install --disable-pip-version-check --no-deps --force-reinstall "$wheel" &&
      "$python" -m pip install --disable-pip-version-check "${wheel}[$extras]"
  else
    ctw_gpu_options
    "$python" -m pip install -v --disable-pip-version-check "${gpu_options[@]}" ".[$extras]"
  fi
}

ctw_debian_mirror() {
  local found
  found=$(sed -n 's/^URIs: *//p; s/^deb \(\[[^]]*\] \)\?\([^ ]*\) .* main.*/\2/p' \
    /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null | grep '/debian/\?$' | head -n 1) || true
  echo "${DEBIAN_MIRROR:-${found:-http://deb.debian.org/debian}}"
}

ctw_show_version() {
  echo "$1 of ctworker $(sed -n 's/^version = "\(.*\)"/\1/p' "$(dirname "${BASH_SOURCE[0]}")/../pyproject.toml")"
}

# Compiling for every GPU takes 5 minutes of processor time. (90a: the option always needs it.)
ctw_gpu_options() {
  local capability define=--config-settings=cmake.define
  gpu_options=()
  capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .) || true
  [ -n "$capability" ] || return 0
  gpu_options=("$define.CTW_CUDA=AUTO") # if there is a toolkit
  case $capability in
    90) gpu_options+=("$define.CTW_CUDA_ARCHITECTURES=90a") ;;
    80 | 86 | 89 | 100 | 120) gpu_options+=("$define.CTW_CUDA_ARCHITECTURES=$capability;90a") ;;
  esac
}
