// holdfast-worker: one tensor-parallel rank. `holdfast-worker bench ...` measures a model and `holdfast-worker replay BUNDLE` re-runs a
// recorded scheduler, both without any other process.
#include <sys/prctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>

#include "proto/base/exit_code.h"
#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/version.h"
#include "worker/bench.h"
#include "worker/config.h"
#include "worker/replay/replay.h"
#include "worker/tp/group.h"
#include "worker/worker.h"

namespace holdfast::worker {
namespace {

int Main(int argc, char** argv) {
  ExitWhenExhausted("holdfast-worker");
  ::prctl(PR_SET_NAME, "holdfast-worker");  // executed through a descriptor, it would be called by that one's number
  if (argc >= 2 && std::strcmp(argv[1], "bench") == 0) return Bench(argc - 1, argv + 1);
  if (argc >= 2 && std::strcmp(argv[1], "replay") == 0) return replay::ReplayCommand(argc - 1, argv + 1);
  if (argc >= 2 && std::strcmp(argv[1], "--version") == 0) {
    std::printf("holdfast-worker %s\n", kVersion);
    return 0;
  }
  std::string help;
  const auto config = ParseWorkerConfig(argc, argv, &help);
  if (!config.ok()) {
    if (!help.empty()) {
      std::fputs(help.c_str(), stdout);
      return 0;
    }
    std::fprintf(stderr, "holdfast-worker: %s\n", std::string(config.status().message()).c_str());
    return static_cast<int>(ExitCode::kConfig);
  }
  SetLogLevel(config->log_level);
  SetLogContext("worker", {{"rank", config->rank}, {"generation", config->generation}});
  std::string error;
  if (!InitFaults(&error, static_cast<int>(config->rank), config->generation)) {
    std::fprintf(stderr, "holdfast-worker: %s\n", error.c_str());
    return static_cast<int>(ExitCode::kConfig);
  }
  if (config->supervisor.empty()) {
    std::fprintf(stderr, "holdfast-worker is started by holdfast-supervisor; to serve a model run `holdfast serve --model FILE`\n");
    return static_cast<int>(ExitCode::kConfig);
  }
  // NCCL's ranks find each other over sockets, and all of ours are on this machine: nobody else need reach them. Before there are threads.
  if (config->tp > 1) ::setenv("NCCL_SOCKET_IFNAME", "lo", 0);
  Inbox inbox;
  StepPulse pulse;
  Lifeline lifeline(config->lifeline_fd, &inbox);
  std::optional<Keeper> keeper;
  if (config->keep_fd >= 0) keeper.emplace(UniqueFd(config->keep_fd));
  std::unique_ptr<tp::Group> group;
  if (config->tp > 1) {
    tp::GroupOptions options;
    options.rank = config->rank;
    options.size = config->tp;
    auto joined = tp::Group::Join(UniqueFd(config->group_fd), options);
    if (!joined.ok()) {
      std::fprintf(stderr, "holdfast-worker: %s\n", std::string(joined.status().message()).c_str());
      return static_cast<int>(ExitCode::kConfig);
    }
    group = *std::move(joined);
  }
  if (FaultPoint("worker.start")) return static_cast<int>(ExitCode::kDevice);
  SupervisorLink::Options link_options;
  link_options.target = config->supervisor;
  link_options.generation = Generation(config->generation);
  link_options.rank = Rank(config->rank);
  link_options.token = config->token;
  link_options.version = kVersion;
  int code;
  {
    SupervisorLink link(link_options, &inbox, &pulse);
    Worker worker(*config, &inbox, &pulse, &link, &lifeline, keeper ? &*keeper : nullptr, group.get());
    code = worker.Run();
    link.Flush(std::chrono::seconds(1));
  }
  LogInfo("leaving with exit code {} ({})", code, ExitCodeName(static_cast<ExitCode>(code)));
  return code;
}

}  // namespace
}  // namespace holdfast::worker

int main(int argc, char** argv) { return holdfast::worker::Main(argc, argv); }
