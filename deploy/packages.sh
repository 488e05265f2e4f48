# shellcheck shell=bash
set -o pipefail
# What Holdfast needs from Debian 12, by name, and how to get it. Sourced by deploy/quickstart.sh and tests/run.sh.

build_packages=(g++ cmake ninja-build pkg-config libgrpc++-dev protobuf-compiler protobuf-compiler-grpc libprotobuf-dev grpc-proto
  libabsl-dev libboost1.81-dev libfmt-dev prometheus-cpp-dev rapidjson-dev libcli11-dev libssl-dev curl ca-certificates)
fetch_packages=(python3 python3-pip unzip)
# libFuzzer and what it is linked with, for the fuzz targets of the tests.
fuzz_packages=(clang libclang-rt-14-dev)
test_packages=(catch2 librapidcheck-dev libboost-context1.81-dev python3 python3-venv python3-pytest python3-grpcio python3-protobuf python3-yaml jq git systemd)

say() { printf '== %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# every N REGEX: of the lines on stdin that begin with REGEX, each Nth goes to stderr, so that long work is seen to go on.
every() {
  local line n=0
  while IFS= read -r line; do
    [[ $line =~ ^($2) ]] || continue
    n=$((n + 1))
    [ $((n % $1)) != 0 ] || printf '   %s\n' "$line" >&2
  done
}

# install_missing PACKAGE...: installs those that are not there; does nothing (and needs no network) when all are.
install_missing() {
  command -v dpkg-query >/dev/null 2>&1 || die "this is no Debian system (no dpkg). Install the equivalents of: $*; then build with: cmake --preset release && cmake --build --preset release"
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f='${db:Status-Status}\n' "$p" 2>/dev/null | grep -qx installed || missing+=("$p")
  done
  [ ${#missing[@]} = 0 ] && return 0
  [ "$(id -u)" = 0 ] || command -v sudo >/dev/null 2>&1 ||
    die "${#missing[@]} packages are missing and installing them needs root: run this as root, install sudo, or have root run: apt-get install -y --no-install-recommends ${missing[*]}"
  say "installing ${#missing[@]} packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq || die "apt-get update failed: is the package mirror reachable?"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" | every 40 'Unpacking |Setting up ' ||
    die "apt-get could not install: ${missing[*]} (its words are above)"
}

# Jobs for a build: one a core, but no more than memory allows (a gRPC translation unit takes about 600 MB).
build_jobs() {
  local cores mem
  cores=$(nproc)
  mem=$(awk '/MemAvailable/ {print int($2 / 700000)}' /proc/meminfo)
  [ "$mem" -lt 1 ] && mem=1
  [ "$cores" -lt "$mem" ] && echo "$cores" || echo "$mem"
}

# cuda_flags: how the CUDA backend is configured for this machine's GPUs: device code for them alone, and none where there is none (nvcc takes
# minutes for every architecture). The preset cuda compiles for all.
cuda_flags() {
  local cap archs=
  for cap in $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | sort -u); do
    [[ $cap =~ ^[0-9]+\.[0-9]$ ]] || continue
    if [ "${cap%.*}" -lt 8 ]; then
      say "a GPU of compute capability $cap is too old (8.0 and later serve)"
      continue
    fi
    [ "$cap" = 9.0 ] && cap=9.0a
    archs+=${archs:+;}${cap/./}-real
  done
  if [ -z "$archs" ]; then
    echo -DHOLDFAST_CUDA=OFF
  else
    command -v nvcc >/dev/null 2>&1 || [ -x /usr/local/cuda/bin/nvcc ] ||
      say "there is a GPU, but no CUDA toolkit (nvcc): this build will compute on the CPU. Install the toolkit (12 or later) and run this again"
    echo "-DHOLDFAST_CUDA=AUTO -DHOLDFAST_CUDA_ARCHITECTURES=$archs"
  fi
}

# configure_and_build PRESET TARGET...: progress on the terminal, the log in build/PRESET/build.log.
configure_and_build() {
  local preset=$1; shift
  local log=build/$preset/build.log launcher=()
  mkdir -p "build/$preset"
  if command -v ccache >/dev/null 2>&1; then
    launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
    # Checkouts in different folders share what they compiled.
    export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
  fi
  say "configuring ($preset)"
  cmake --preset "$preset" "${launcher[@]}" ${configure_extra:-} >"$log" 2>&1 || { tail -n 40 "$log" >&2; die "cmake failed; the whole log is $log"; }
  say "building ($(build_jobs) jobs); a first build takes several minutes"
  local failed=0
  if [ -t 2 ]; then
    NINJA_STATUS='[%f/%t %es] ' ninja -C "build/$preset" -j "$(build_jobs)" "$@" 2>&1 | tee -a "$log" >&2 || failed=1
  else
    # Not a terminal: a line every 25 steps; what a compiler says comes below, if it fails.
    NINJA_STATUS='[%f/%t %es] ' ninja -C "build/$preset" -j "$(build_jobs)" "$@" 2>&1 | tee -a "$log" | every 25 '\[' || failed=1
  fi
  [ $failed = 0 ] || { grep -E -m 20 'error|FAILED' "$log" >&2 || tail -n 20 "$log" >&2; die "the build failed; the whole log is $log"; }
}
