#include "worker/bench.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "proto/base/clock.h"
#include "proto/base/exit_code.h"
#include "proto/base/log.h"
#include "proto/base/random.h"
#include "worker/runtime.h"

namespace holdfast::worker {
namespace {

class CountFindings final : public FindingSink {
 public:
  void Report(Finding finding) override {
    ++count;
    LogError("finding {}: {}", finding.kind, finding.detail);
  }
  int count = 0;
};

struct BenchFlags {
  uint32_t prompt = 512;
  uint32_t generate = 128;
  uint32_t repeat = 5;
  std::vector<uint32_t> requests{1, 4};
  bool json = false;
};

struct Rates {
  double prefill = 0;   // prompt tokens computed a second, all requests together
  double decode = 0;    // tokens a second, all requests together
  double host_us = 0;   // a decode step: all of it but the wait for its result
};

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// GB/s that `threads` threads read from memory far larger than the caches: the ceiling of decode.
double ReadBandwidth(int threads) {
  const size_t words = (size_t{256} << 20) / sizeof(uint64_t);
  std::vector<uint64_t> data(words * static_cast<size_t>(threads), 1);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    std::vector<std::thread> pool;
    std::vector<uint64_t> sums(static_cast<size_t>(threads) * 16);
    const Instant begin = Clock::Real().Now();
    for (int t = 0; t < threads; ++t) {
      pool.emplace_back([&, t] {
        const uint64_t* p = data.data() + words * static_cast<size_t>(t);
        // Four streams: one alone does not fill the memory system.
        uint64_t a = 0, b = 0, c = 0, d = 0;
        const size_t q = words / 4;
        for (size_t i = 0; i < q; ++i) {
          a += p[i];
          b += p[q + i];
          c += p[2 * q + i];
          d += p[3 * q + i];
        }
        sums[static_cast<size_t>(t) * 16] = a + b + c + d;
      });
    }
    for (auto& t : pool) t.join();
    const double gbs = static_cast<double>(data.size() * sizeof(uint64_t)) / Seconds(Clock::Real().Now() - begin) / 1e9;
    uint64_t sum = 0;
    for (const uint64_t s : sums) sum += s;
    if (sum != data.size()) std::abort();  // also keeps the loop alive
    best = std::max(best, gbs);
  }
  return best;
}

// GB/s, read and written, of a copy inside a device's memory, by the clock of the host over a tenth of a second or so; 0 where there is no room for it.
double DeviceBandwidth(kernels::Ops& ops) {
  const int64_t bytes = std::min(int64_t{512} << 20, ops.FreeMemory() / 4) / 64 * 64;
  if (bytes < (int64_t{1} << 20)) return 0;
  const kernels::Buffer from = ops.Allocate(bytes), to = ops.Allocate(bytes);
  if (from.data() == nullptr || to.data() == nullptr) return 0;
  double best = 0;
  for (int round = 0; round < 4; ++round) {   // the first warms up
    constexpr int kCopies = 100;
    ops.Sync();
    const Instant begin = Clock::Real().Now();
    for (int i = 0; i < kCopies; ++i) ops.CopyPage(to.data(), from.data(), bytes);
    ops.Sync();
    if (round > 0) best = std::max(best, 2.0 * kCopies * static_cast<double>(bytes) / Seconds(Clock::Real().Now() - begin) / 1e9);
  }
  return best;
}

// One run: `n` requests of different random prompts, prefill then decode, through the scheduler.
Rates RunOnce(Runtime& runtime, uint32_t n, const BenchFlags& flags, uint64_t seed, uint64_t* next_id) {
  auto& scheduler = runtime.scheduler();
  exec::SamplingTable table;
  const auto vocab = static_cast<uint64_t>(runtime.hparams().vocab);
  for (uint32_t i = 0; i < n; ++i) {
    sched::SubmitCommand command;
    command.request = RequestId(++*next_id);
    for (uint32_t t = 0; t < flags.prompt; ++t) {
      command.tokens.push_back(static_cast<TokenId>(Mix64(seed * 1000003 + i * 65537ull + t) % vocab));
    }
    command.prompt_tokens = flags.prompt;
    command.max_tokens = flags.generate;
    command.no_cache = true;
    command.run_ahead = true;
    table.Add(command.request, exec::SamplingParams{});
    scheduler.Submit(std::move(command));
  }
  Rates rates;
  Duration prefill_time{}, decode_time{};
  uint64_t prefill_tokens = 0, decode_tokens = 0, decode_steps = 0;
  Duration decode_wait{};
  const auto check = [](const absl::Status& status) {
    if (status.ok()) return;
    fmt::print(stderr, "holdfast bench: {}\n", std::string(status.message()));
    std::exit(static_cast<int>(ExitCode::kIntegrity));
  };
  struct InFlight {
    bool prefill;
    uint32_t tokens;
  };
  std::deque<InFlight> launched;
  // As the worker's loop does it. A step's time is what passes from one result to the next.
  for (Instant last = Clock::Real().Now();;) {
    const sched::StepPlan* plan = scheduler.Plan();
    if (plan != nullptr) {
      launched.push_back({std::any_of(plan->entries.begin(), plan->entries.end(), [](const auto& e) { return e.tokens.size() > 1; }), plan->total_tokens});
      check(runtime.executor().Launch(*plan, table));
      if (launched.size() <= runtime.overlap_depth()) continue;
    }
    if (launched.empty()) break;
    const Instant waits = Clock::Real().Now();
    const auto finished = runtime.executor().Finish();
    check(finished.status());
    const Duration waited = Clock::Real().Now() - waits;
    const auto [is_prefill, tokens] = launched.front();
    launched.pop_front();
    scheduler.Apply((*finished)->result);
    const Instant now = Clock::Real().Now();
    const Duration took = now - last;
    last = now;
    scheduler.TakeEvents();
    if (is_prefill) {
      prefill_time += took;
      prefill_tokens += tokens;
    } else {
      decode_time += took;
      decode_tokens += tokens;
      decode_wait += waited;
      ++decode_steps;
    }
  }
  if (decode_steps > 0) rates.host_us = 1e6 * Seconds(decode_time - decode_wait) / static_cast<double>(decode_steps);
  if (prefill_time.count() > 0) rates.prefill = static_cast<double>(prefill_tokens) / Seconds(prefill_time);
  if (decode_time.count() > 0) rates.decode = static_cast<double>(decode_tokens) / Seconds(decode_time);
  return rates;
}

bool ParseFlags(int argc, const char* const* argv, BenchFlags* flags, std::vector<const char*>* rest) {
  rest->push_back("holdfast-worker");
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto number = [&](uint32_t* to) {
      if (i + 1 >= argc) return false;
      *to = static_cast<uint32_t>(std::strtoul(argv[++i], nullptr, 10));
      return *to > 0;
    };
    if (a == "--prompt") {
      if (!number(&flags->prompt)) return false;
    } else if (a == "--generate") {
      if (!number(&flags->generate)) return false;
    } else if (a == "--repeat") {
      if (!number(&flags->repeat)) return false;
    } else if (a == "--json") {
      flags->json = true;
    } else if (a == "--requests") {
      if (i + 1 >= argc) return false;
      flags->requests.clear();
      for (const char* p = argv[++i]; *p != 0;) {
        char* end = nullptr;
        const unsigned long v = std::strtoul(p, &end, 10);
        if (end == p || v == 0) return false;
        flags->requests.push_back(static_cast<uint32_t>(v));
        p = *end == ',' ? end + 1 : end;
        if (*end != ',' && *end != 0) return false;
      }
      if (flags->requests.empty()) return false;
    } else {
      rest->push_back(argv[i]);
    }
  }
  return true;
}

}  // namespace

int Bench(int argc, const char* const* argv, const MakeCuda& make_cuda) {
  BenchFlags flags;
  std::vector<const char*> rest;
  if (!ParseFlags(argc, argv, &flags, &rest)) {
    fmt::print(stderr, "usage: holdfast bench --model FILE [--prompt N] [--generate N] [--requests N,N,...] [--repeat N] [--json] [worker flags]\n");
    return static_cast<int>(ExitCode::kConfig);
  }
  const uint32_t most = *std::max_element(flags.requests.begin(), flags.requests.end());
  const std::string running = std::to_string(std::max(most, 1u));
  rest.push_back("--max-running-requests");
  rest.push_back(running.c_str());
  std::string help;
  auto config = ParseWorkerConfig(static_cast<int>(rest.size()), rest.data(), &help);
  if (!config.ok() && !help.empty()) {
    fmt::print("holdfast bench: --prompt N, --generate N, --requests N,N,..., --repeat N, --json, and the worker's flags:\n{}", help);
    return 0;
  }
  if (!config.ok()) {
    fmt::print(stderr, "holdfast bench: {}\n", std::string(config.status().message()));
    return static_cast<int>(ExitCode::kConfig);
  }
  SetLogLevel(LogLevel::kWarn);
  CountFindings findings;
  auto built = Runtime::Build(*config, {}, &findings, make_cuda);
  if (!built.ok()) {
    fmt::print(stderr, "holdfast bench: {}\n", std::string(built.status().message()));
    return ExitCodeOf(built.status());
  }
  Runtime& runtime = **built;
  if (flags.prompt + flags.generate > runtime.cache_plan().max_seq_len) {
    fmt::print(stderr, "holdfast bench: --prompt {} + --generate {} exceeds the sequence limit of {}\n", flags.prompt, flags.generate,
               runtime.cache_plan().max_seq_len);
    return static_cast<int>(ExitCode::kConfig);
  }
  const int threads = config->threads > 0 ? config->threads : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const bool device = !runtime.ops().HostMemory();
  const double bandwidth = device ? DeviceBandwidth(runtime.ops()) : ReadBandwidth(threads);
  if (!flags.json) {
    fmt::print("{}\nweights {:.1f} MB, {} threads, {} {:.1f} GB/s, loaded in {} ms\n", runtime.ops().Describe(),
               static_cast<double>(runtime.weight_bytes()) / 1e6, threads, device ? "device copy (read and written)" : "memory read", bandwidth, runtime.load_ms());
    // Of a backend that computes on the host a step is the host's time.
    fmt::print("{:>9} {:>7} {:>9} | {:>15} {:>15} | {:>22}{}\n", "requests", "prompt", "generate", "prefill tok/s", "decode tok/s",
               device ? "decode of copy" : "decode of read limit", device ? fmt::format(" | {:>17}", "host us per step") : "");
  }
  uint64_t id = 0;
  std::string rows;
  for (const uint32_t n : flags.requests) {
    std::vector<double> prefill, decode, host;
    for (uint32_t r = 0; r < flags.repeat; ++r) {
      const Rates rates = RunOnce(runtime, n, flags, r * 77 + n, &id);
      prefill.push_back(rates.prefill);
      decode.push_back(rates.decode);
      host.push_back(rates.host_us);
    }
    const double best_prefill = *std::max_element(prefill.begin(), prefill.end());
    const double best_decode = *std::max_element(decode.begin(), decode.end());
    std::sort(decode.begin(), decode.end());
    std::sort(prefill.begin(), prefill.end());
    // A decode step reads every weight once, whatever the number of requests: tokens/s / requests = steps/s.
    const double share = bandwidth > 0 ? best_decode / n * static_cast<double>(runtime.weight_bytes()) / (bandwidth * 1e9) : 0;
    std::sort(host.begin(), host.end());
    if (flags.json) {
      rows += fmt::format("{}{{\"requests\":{},\"prompt\":{},\"generate\":{},\"prefill_tps\":{:.1f},\"decode_tps\":{:.1f},\"prefill_tps_median\":{:.1f},"
                          "\"decode_tps_median\":{:.1f},\"decode_of_read_limit\":{:.3f}{}}}",
                          rows.empty() ? "" : ",", n, flags.prompt, flags.generate, best_prefill, best_decode, prefill[prefill.size() / 2],
                          decode[decode.size() / 2], share, device ? fmt::format(",\"host_us_per_step\":{:.1f}", host[host.size() / 2]) : "");
    } else {
      fmt::print("{:>9} {:>7} {:>9} | {:>7.1f} ({:>6.1f}) {:>7.1f} ({:>5.1f}) | {:>20.1f} %{}\n", n, flags.prompt, flags.generate, best_prefill,
                 prefill[prefill.size() / 2], best_decode, decode[decode.size() / 2], 100 * share,
                 device ? fmt::format(" | {:>17.1f}", host[host.size() / 2]) : "");
    }
  }
  if (flags.json) {
    fmt::print("{{\"backend\":\"{}\",\"threads\":{},\"weight_bytes\":{},\"read_gbs\":{:.1f},\"runs\":[{}]}}\n", runtime.ops().Describe(), threads,
               runtime.weight_bytes(), bandwidth, rows);
  } else {
    fmt::print("best of {} (median in brackets)\n", flags.repeat);
  }
  return findings.count == 0 ? 0 : static_cast<int>(ExitCode::kIntegrity);
}

}  // namespace holdfast::worker
