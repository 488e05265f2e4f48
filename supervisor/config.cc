#include "supervisor/config.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <fmt/format.h>

#include "proto/base/flag_range.h"
#include "proto/base/log.h"
#include "proto/base/version.h"

namespace holdfast::supervisor {
namespace {

constexpr double kMaxSeconds = 7 * 86400;

Duration Seconds(double s) { return Duration(static_cast<Duration::rep>(std::llround(s * 1e9))); }
double InSeconds(Duration d) { return static_cast<double>(d.count()) / 1e9; }

}  // namespace

absl::StatusOr<SupervisorConfig> ParseCommandLine(int argc, const char* const* argv, std::string* help) {
  SupervisorConfig config;
  CLI::App app{"holdfast-supervisor: spawns the workers of one model, watches them, and gives frontends one place to ask", "holdfast-supervisor"};
  app.set_help_flag("--help", "Show this and exit");
  app.set_version_flag("--version", fmt::format("holdfast-supervisor {}", kVersion));
  const auto own = [&](const std::string& name, auto& value, const std::string& text) {
    return app.add_option(name, value, text)->capture_default_str()->group("Supervisor");
  };
  own("--runtime-dir", config.runtime_dir, "Directory of the socket, the lock and the incidents (default $XDG_RUNTIME_DIR/holdfast, "
                                           "/run/holdfast for root, else /tmp/holdfast-<uid>)");
  own("--listen", config.listen, "Serve Engine and Admin on this host:port, too (no authentication: keep it on a trusted network)");
  own("--worker", config.worker_binary, "Path of the worker binary (default: holdfast-worker beside this one)");
  app.add_flag("--exit-on-permanent", config.exit_on_permanent, "Exit with the worker's code when a restart cannot help, or with 69 when there is no room for the first start")->group("Supervisor");
  std::vector<std::pair<Duration*, std::unique_ptr<double>>> durations;
  const auto seconds = [&](const std::string& name, Duration& value, const std::string& text) {
    durations.emplace_back(&value, std::make_unique<double>(InSeconds(value)));
    own(name, *durations.back().second, text + ", seconds")->check(RealRange(0.001, kMaxSeconds));
  };
  GroupOptions& g = config.group;
  seconds("--attach-timeout", g.attach_timeout, "A worker must attach within");
  seconds("--load-timeout", g.load_timeout, "Loading may stand still for");
  seconds("--hang-timeout", g.liveness.hang_floor, "A step may stand still for (or 20 times the mean step, whichever is longer)");
  seconds("--heartbeat-timeout", g.liveness.silence, "A worker may be silent for");
  seconds("--drain-timeout", g.drain_timeout, "On SIGTERM running requests may go on for");
  seconds("--stop-grace", g.drain_grace, "From TERM to KILL when stopping");
  seconds("--loss-grace", g.loss_grace, "From TERM to KILL after a loss");
  seconds("--kill-timeout", g.kill_timeout, "From KILL to giving up on a process");
  seconds("--restart-delay", g.restart.second_delay, "Delay before the second restart in a row; doubles");
  seconds("--restart-max-delay", g.restart.max_delay, "The most it doubles to");
  seconds("--restart-window", g.restart.window, "Losses are counted over");
  seconds("--quarantine", g.restart.quarantine, "Pause after too many losses; doubles");
  own("--restart-intensity", g.restart.intensity, "Losses allowed within the restart window")->check(CLI::Range(1, 10000));
  own("--max-incidents", config.incidents.max_bundles, "Incident bundles kept")->check(CLI::Range(1, 10000));

  // The engine's flags: known by name so that a slip is caught here, valued by the worker.
  for (const std::string name : {"--model", "--max-running-requests", "--max-prefill-length", "--max-seq-len", "--kv-cache-dtype",
                                 "--num-tokens", "--memory-ratio", "--kv-reserve-tokens", "--reserve-output-tokens", "--swa-full-tokens-ratio", "--page-size",
                                 "--cache-type", "--max-queue", "--threads", "--backend", "--cpu-isa", "--cuda-graphs", "--collectives", "--audit-period", "--overlap", "--log-level"}) {
    app.add_option_function<std::string>(
           name,
           [&config, name](const std::string& value) {
             config.worker_args.push_back(name);
             config.worker_args.push_back(value);
             if (name == "--model") config.model = value;
             if (name == "--log-level") config.log_level = value;
             if (name == "--max-queue" && !CLI::detail::lexical_cast(value, config.max_queue)) {
               throw CLI::ValidationError(name, fmt::format("{} is not a number of requests", value));
             }
           },
           "Forwarded to the worker")
        ->trigger_on_parse()
        ->group("Engine (see holdfast-worker --help)");
  }
  own("--tp", g.ranks, "Tensor-parallel ranks: one worker each")->check(CLI::Range(1, 64));
  std::vector<std::string> raw;
  own("--worker-arg", raw, "Any other argument for the worker, as it stands; repeatable")->expected(1)->take_all()->allow_extra_args(false);

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    *help = app.help();
    return config;
  } catch (const CLI::CallForVersion& version) {
    *help = fmt::format("{}\n", version.what());
    return config;
  } catch (const CLI::Error& e) {
    return absl::InvalidArgumentError(fmt::format("{} (holdfast-supervisor --help lists the flags)", e.what()));
  }
  for (const auto& [target, value] : durations) *target = Seconds(*value);
  config.worker_args.insert(config.worker_args.end(), raw.begin(), raw.end());
  g.restart.environment_is_permanent_at_first = config.exit_on_permanent;
  if (config.model.empty()) return absl::InvalidArgumentError("--model is required: the path of a GGUF file");
  LogLevel level;
  if (!ParseLogLevel(config.log_level, &level)) {
    return absl::InvalidArgumentError(fmt::format("--log-level {}: expected debug, info, warn, error or off", config.log_level));
  }
  if (!config.listen.empty() && config.listen.rfind(':') == std::string::npos) {
    return absl::InvalidArgumentError(fmt::format("--listen {}: expected host:port, for example 127.0.0.1:7400", config.listen));
  }
  return config;
}

}  // namespace holdfast::supervisor
