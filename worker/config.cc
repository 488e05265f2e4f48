#include "worker/config.h"

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdlib>

#include <fmt/format.h>

#include "proto/base/flag_range.h"

namespace holdfast::worker {
namespace {

// An optional flag: empty text keeps it unset.
template <class T>
void Optional(CLI::App& app, const std::string& name, std::optional<T>* to, const std::string& help, CLI::Validator check) {
  app.add_option_function<T>(name, [to](const T& v) { *to = v; }, help)->check(check);
}

}  // namespace

absl::StatusOr<WorkerConfig> ParseWorkerConfig(int argc, const char* const* argv, std::string* help) {
  WorkerConfig c;
  std::string log_level = "info", cache_type = "radix", cuda_graphs = "auto", overlap = "auto";
  CLI::App app{"holdfast-worker: one tensor-parallel rank. Started by holdfast-supervisor; `holdfast-worker bench` measures."};
  app.name("holdfast-worker");
  app.add_option("--supervisor", c.supervisor, "unix:PATH of the supervisor");
  app.add_option("--generation", c.generation, "Generation of the group");
  app.add_option("--rank", c.rank, "This worker's rank");
  app.add_option("--tp", c.tp, "Ranks of the group")->check(CLI::Range(1u, 64u));
  app.add_option("--lifeline-fd", c.lifeline_fd, "Inherited pipe that closes when the supervisor dies");
  app.add_option("--group-fd", c.group_fd, "Inherited memory that the ranks of this generation share");
  app.add_option("--keep-fd", c.keep_fd, "Inherited socket over which the supervisor keeps weights and recording beyond this process");
  app.add_option("--flight-record", c.flight_record, "File for the last steps when something goes wrong");
  app.add_flag("--safe", c.safe, "Safe profile: no prefix cache, an audit each step, no CUDA graphs, one step at a time");
  app.add_option("--model", c.model, "GGUF file")->required();
  app.add_option("--max-running-requests", c.max_running, "Sequences computed at once")->capture_default_str()->check(CLI::Range(1u, 4096u));
  app.add_option("--max-prefill-length,--max-extend-length", c.prefill_chunk, "Prompt tokens computed in one step")
      ->capture_default_str()
      ->check(CLI::Range(1u, 1u << 20));
  Optional<uint32_t>(app, "--max-seq-len", &c.max_seq_len, "Longest prompt + answer (default: the model's context)", CLI::Range(2u, 1u << 30));
  app.add_option("--max-queue", c.max_queue, "Requests that may wait in the worker")->capture_default_str()->check(CLI::Range(1u, 1u << 20));
  app.add_option("--kv-cache-dtype", c.kv_dtype, "auto, f16, bf16, q8_0 or fp8_e4m3")->capture_default_str();
  Optional<uint32_t>(app, "--num-tokens", &c.num_tokens, "Tokens the full KV pool holds (default: by memory)", CLI::Range(1u, 1u << 30));
  Optional<uint32_t>(app, "--kv-reserve-tokens", &c.kv_reserve_tokens, "Least tokens the full KV pool must hold", CLI::Range(1u, 1u << 30));
  app.add_option("--reserve-output-tokens", c.reserve_output_tokens,
                 "Answer tokens whose KV is reserved at admission; a longer answer may be put back into the queue for a while; 0 = all of max_tokens")
      ->capture_default_str()
      ->check(CLI::Range(0u, 1u << 30));
  app.add_option("--memory-ratio", c.memory_ratio, "Share of the available memory for weights and KV")->capture_default_str()->check(RealRange(0.01, 1.0));
  Optional<double>(app, "--swa-full-tokens-ratio", &c.swa_ratio, "Size of the window pools relative to the full pool (default 0.2, at least what the chunk needs)",
                   RealRange(1e-6, 1.0));
  app.add_option("--page-size", c.page_size, "Tokens in a KV page")->capture_default_str()->check(CLI::IsMember({1, 2, 4, 8, 16, 32, 64, 128, 256}));
  app.add_option("--cache-type", cache_type, "radix: share prefixes; none: do not")->capture_default_str()->check(CLI::IsMember({"radix", "none", "naive"}));
  app.add_option("--threads", c.threads, "Compute threads of each rank; 0 = the cores this process may use, divided among the ranks")->capture_default_str()->check(CLI::Range(0, 1024));
  app.add_option("--backend", c.backend, "auto (CUDA where a device is, else the CPU), cpu, cuda or reference")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "cpu", "cuda", "reference"}));
  app.add_option("--cpu-isa", c.cpu_isa, "auto, scalar, avx2, avx512, ...")->capture_default_str();
  app.add_option("--cuda-graphs", cuda_graphs, "auto: decode steps are launched as CUDA graphs; off: call by call")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "off"}));
  app.add_option("--collectives", c.collectives, "How ranks with a GPU each sum: auto (NCCL where all have it, else through the host's memory), nccl or host")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "nccl", "host"}));
  app.add_flag("--check-tensors", c.check_tensors, "Refuse files with non-finite weights (costs a pass over the data)");
  app.add_option("--audit-period", c.audit_period, "Steps between full audits of the ledger")->capture_default_str()->check(CLI::Range(1u, 1u << 20));
  app.add_option("--overlap", overlap, "Steps launched beyond the one that computes: 0, 1, or auto (1 where a device computes by itself and there is one rank)")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "0", "1"}));
  app.add_option("--log-level", log_level, "debug, info, warn, error or off")->capture_default_str();
  try {
    app.parse(argc, const_cast<char**>(argv));
  } catch (const CLI::CallForHelp&) {
    if (help != nullptr) *help = app.help();
    return absl::CancelledError("help");
  } catch (const CLI::ParseError& e) {
    return absl::InvalidArgumentError(e.what());
  }
  if (!ParseLogLevel(log_level, &c.log_level)) {
    return absl::InvalidArgumentError(fmt::format("--log-level {}: one of debug, info, warn, error, off", log_level));
  }
  c.prefix_cache = cache_type == "radix";
  c.cuda_graphs = cuda_graphs == "auto";
  if (c.rank >= c.tp) return absl::InvalidArgumentError(fmt::format("--rank {} of --tp {}: ranks count from 0 to {}", c.rank, c.tp, c.tp - 1));
  if (c.tp > 1 && c.group_fd < 0) {
    return absl::InvalidArgumentError(fmt::format("--tp {} without --group-fd: the supervisor gives the ranks of a group their shared memory", c.tp));
  }
  if (c.num_tokens && *c.num_tokens % c.page_size != 0) {
    return absl::InvalidArgumentError(fmt::format("--num-tokens {} is no multiple of --page-size {}; the next one is {}", *c.num_tokens,
                                                  c.page_size, (*c.num_tokens + c.page_size - 1) / c.page_size * c.page_size));
  }
  if (const char* token = std::getenv("HOLDFAST_WORKER_TOKEN")) c.token = token;
  if (overlap != "auto") c.overlap = overlap == "1" ? 1 : 0;
  if (c.safe) {
    c.overlap = 0;
    c.prefix_cache = false;
    c.audit_period = 1;
    c.cuda_graphs = false;
  }
  return c;
}

}  // namespace holdfast::worker
