#include "kernels/cpu/isa.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <thread>

#include "kernels/cpu/isa_parts.h"

namespace holdfast::kernels {
namespace {

struct Isa {
  std::string_view name;
  bool (*supported)();
  const KernelTable& (*table)();
};

bool Always() { return true; }

using Part = void (*)(KernelTable& table);
KernelTable Table(const char* name, Part gemm, Part vector, Part attention) {
  KernelTable t{};
  t.name = name;
  gemm(t);
  vector(t);
  attention(t);
  return t;
}

const KernelTable& ScalarKernels() {
  static const KernelTable t = Table("scalar", scalar::FillGemm, scalar::FillVector, scalar::FillAttention);
  return t;
}

#if defined(__x86_64__)
// __builtin_cpu_supports also asks XGETBV whether the system saves the wide registers.
bool HasAvx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"); }
bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl");
}
bool HasVnni() { return HasAvx512() && __builtin_cpu_supports("avx512vnni"); }

// AMX: the processor has int8 tiles, the system saves them (XCR0 bits 17 and 18), and it lets this process use them. The permission holds
// for all threads started later and enlarges their signal frames.
bool HasAmx() {
  if (!HasVnni()) return false;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d >> 24 & 3) != 3) return false;
  unsigned low = 0, high = 0;
  asm("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  if ((low >> 17 & 3) != 3) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return granted;
}

const KernelTable& Avx2Kernels() {
  static const KernelTable t = Table("avx2", avx2::FillGemm, avx2::FillVector, avx2::FillAttention);
  return t;
}
const KernelTable& Avx512Kernels() {
  static const KernelTable t = Table("avx512", avx512::FillGemm, avx512::FillVector, avx512::FillAttention);
  return t;
}
const KernelTable& VnniKernels() {
  static const KernelTable t = Table("avx512vnni", avx512vnni::FillGemm, avx512::FillVector, avx512::FillAttention);
  return t;
}
const KernelTable& AmxKernels() {
  static const KernelTable t = Table("avx512amx", avx512amx::FillGemm, avx512::FillVector, avx512::FillAttention);
  return t;
}
#endif

const Isa kIsas[] = {
    {"scalar", Always, ScalarKernels},
#if defined(__x86_64__)
    {"avx2", HasAvx2, Avx2Kernels},
    {"avx512", HasAvx512, Avx512Kernels},
    {"avx512vnni", HasVnni, VnniKernels},
    {"avx512amx", HasAmx, AmxKernels},
#endif
};

// Cores a cgroup directory grants: v2 cpu.max ("max 100000" or "200000 100000"), v1 cpu.cfs_quota_us; 0 = no limit stated.
double QuotaIn(const std::string& dir) {
  std::ifstream v2(dir + "/cpu.max");
  std::string quota;
  double period = 0;
  if (v2 >> quota >> period && quota != "max" && period > 0) return std::atof(quota.c_str()) / period;
  std::ifstream v1_quota(dir + "/cpu.cfs_quota_us"), v1_period(dir + "/cpu.cfs_period_us");
  double q = 0;
  if (v1_quota >> q && v1_period >> period && q > 0 && period > 0) return q / period;
  return 0;
}

double CgroupCores() {
  double least = 0;
  std::ifstream in("/proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {  // "0::/path" or "4:cpu,cpuacct:/path"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && (',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
    const std::string root = controllers.empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    for (std::string path = line.substr(second + 1);;) {
      const double cores = QuotaIn(root + (path == "/" ? "" : path));
      if (cores > 0 && (least == 0 || cores < least)) least = cores;
      if (path.empty() || path == "/") break;
      const size_t slash = path.rfind('/');
      if (slash == std::string::npos) break;
      path.resize(slash);
    }
  }
  return least;
}

}  // namespace

std::vector<std::string_view> AvailableIsas() {
  std::vector<std::string_view> names;
  for (const Isa& isa : kIsas) {
    if (isa.supported()) names.push_back(isa.name);
  }
  return names;
}

const KernelTable* KernelsFor(std::string_view name) {
  const KernelTable* best = nullptr;
  for (const Isa& isa : kIsas) {
    if (isa.supported()) best = &isa.table();
    if (name == isa.name) return best;
  }
  return name == "auto" ? best : nullptr;
}

int UsableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  const double quota = CgroupCores();
  if (quota > 0) cores = std::min(cores, static_cast<int>(quota));
  return std::max(cores, 1);
}

}  // namespace holdfast::kernels
