#include "frontend/cli/serve.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "frontend/cli/child.h"
#include "frontend/cli/ctl.h"
#include "frontend/cli/http_client.h"
#include "frontend/text/json_value.h"
#include "proto/base/exit_code.h"
#include "proto/base/signals.h"

namespace holdfast::cli {
namespace {

using std::chrono::milliseconds;

// One of the two children and when to start it again.
struct Service {
  std::string name;
  std::vector<std::string> argv;
  bool capture_stdout = false;
  std::optional<Child> child;
  Instant started{};
  Instant restart_at{};
  int quick_deaths = 0;      // in a row, each within 5 s of its start

  absl::Status Start() {
    auto spawned = Child::Spawn(argv, capture_stdout);
    if (!spawned.ok()) return spawned.status();
    child.emplace(*std::move(spawned));
    started = Clock::Real().Now();
    return absl::OkStatus();
  }
};

class ServeRun {
 public:
  explicit ServeRun(const ServeOptions& options) : options_(options) {}

  int Run() {
    signals_ = BlockSignals({SIGTERM, SIGINT, SIGHUP});
    // Children ask for SIGTERM when this very process dies.
    ::setenv("HOLDFAST_DIE_WITH_PARENT", std::to_string(::getpid()).c_str(), 1);
    if (const auto status = PrepareRuntimeFolder(); !status.ok()) {
      Say(std::string(status.message()));
      return static_cast<int>(ExitCode::kEnvironment);
    }
    const std::string folder = OwnFolder();
    supervisor_.name = "supervisor";
    supervisor_.argv = {folder + "/holdfast-supervisor", "--runtime-dir", runtime_dir_, "--exit-on-permanent", "--model", options_.model,
                        "--log-level", options_.log_level};
    supervisor_.argv.insert(supervisor_.argv.end(), options_.supervisor_flags.begin(), options_.supervisor_flags.end());
    frontend_.name = "frontend";
    frontend_.capture_stdout = true;
    port_ = options_.port;
    for (Service* s : {&supervisor_, &frontend_}) {
      if (s == &frontend_) BuildFrontendCommand();
      if (const auto status = s->Start(); !status.ok()) {
        Say(std::string(status.message()));
        StopAll();
        return static_cast<int>(ExitCode::kEnvironment);
      }
    }
    const int status = Loop();
    StopAll();
    if (own_folder_) {
      std::error_code ignored;
      std::filesystem::remove_all(runtime_dir_, ignored);
    }
    return status;
  }

 private:
  static void Say(const std::string& line) { fmt::print(stderr, "holdfast: {}\n", line); }

  absl::Status PrepareRuntimeFolder() {
    if (!options_.runtime_dir.empty()) {
      runtime_dir_ = options_.runtime_dir;
      return absl::OkStatus();
    }
    const char* base = std::getenv("TMPDIR");
    std::string pattern = fmt::format("{}/holdfast-XXXXXX", base != nullptr && *base != 0 ? base : "/tmp");
    if (::mkdtemp(pattern.data()) == nullptr) {
      return absl::UnavailableError(fmt::format("cannot make a runtime folder {}: {}", pattern, std::strerror(errno)));
    }
    runtime_dir_ = pattern;
    own_folder_ = true;
    return absl::OkStatus();
  }

  void BuildFrontendCommand() {
    frontend_.argv = {OwnFolder() + "/holdfast-frontend", "--engine", "unix:" + runtime_dir_ + "/supervisor.sock", "--host", options_.host,
                      "--port", std::to_string(port_), "--log-level", options_.log_level, "--drain-timeout",
                      fmt::format("{}", options_.drain_timeout_s)};
    frontend_.argv.insert(frontend_.argv.end(), options_.frontend_flags.begin(), options_.frontend_flags.end());
  }

  // The loop of the command: children, signals, the frontend's stdout, and polling health until the model answers.
  int Loop() {
    for (;;) {
      std::vector<pollfd> fds{{signals_.get(), POLLIN, 0}};
      for (Service* s : {&supervisor_, &frontend_}) {
        if (s->child) fds.push_back({s->child->pidfd(), POLLIN, 0});
      }
      if (frontend_.child && frontend_.child->out() >= 0) fds.push_back({frontend_.child->out(), POLLIN, 0});
      ::poll(fds.data(), fds.size(), announced_ ? 500 : 50);
      if (ReadSignal(signals_.get()) != 0) return 0;
      ReadFrontendLine();
      for (Service* s : {&supervisor_, &frontend_}) {
        if (const auto code = CheckService(*s)) return *code;
      }
      if (!announced_) PollHealth();
    }
  }

  void ReadFrontendLine() {
    if (!frontend_.child || frontend_.child->out() < 0) return;
    pollfd p{frontend_.child->out(), POLLIN, 0};
    if (::poll(&p, 1, 0) <= 0) return;
    char chunk[512];
    const ssize_t n = ::read(frontend_.child->out(), chunk, sizeof chunk);
    if (n <= 0) {
      frontend_.child->CloseOut();
      return;
    }
    line_.append(chunk, static_cast<size_t>(n));
    const size_t end = line_.find('\n');
    if (end == std::string::npos) return;
    const std::string line = line_.substr(0, end);
    line_.erase(0, end + 1);
    if (line.rfind("ready ", 0) != 0) return;
    base_url_ = line.substr(6);
    const bool tls = base_url_.rfind("https://", 0) == 0;
    if (const auto url = ParseBaseUrl(tls ? "http" + base_url_.substr(5) : base_url_); url.ok() && url->socket.empty() && port_ == 0) {
      port_ = std::atoi(url->port.c_str());  // a restarted frontend takes the same port
      BuildFrontendCommand();
    }
  }

  // Exit status of the whole command, when this service's end means it.
  std::optional<int> CheckService(Service& s) {
    if (!s.child) {
      if (Clock::Real().Now() < s.restart_at) return std::nullopt;
      if (const auto status = s.Start(); !status.ok()) {
        Say(std::string(status.message()));
        return static_cast<int>(ExitCode::kEnvironment);
      }
      return std::nullopt;
    }
    const auto ended = s.child->Poll();
    if (!ended) return std::nullopt;
    s.child.reset();
    const int code = WIFEXITED(*ended) ? WEXITSTATUS(*ended) : -1;
    std::error_code ec;
    if (&s == &supervisor_ && code == 0 && std::filesystem::exists(runtime_dir_ + "/stop-asked", ec)) {
      Say("the engine was drained and stopped by an operator");
      return 0;
    }
    if (IsPermanent(code) || code == static_cast<int>(ExitCode::kEnvironment)) {
      if (!announced_ || IsPermanent(code)) return code;  // it said why on stderr
    }
    const Instant now = Clock::Real().Now();
    s.quick_deaths = now - s.started < std::chrono::seconds(5) ? s.quick_deaths + 1 : 0;
    if (s.quick_deaths > 10) {
      Say(fmt::format("the {} dies at once again and again ({}); giving up", s.name, DescribeStatus(*ended)));
      return code > 0 ? code : 1;
    }
    const auto delay = milliseconds(std::min(5000, 50 << std::min(s.quick_deaths, 7)));
    Say(fmt::format("the {} ended by {}; starting it again in {} ms", s.name, DescribeStatus(*ended), delay.count()));
    s.restart_at = now + delay;
    return std::nullopt;
  }

  void PollHealth() {
    if (base_url_.empty()) return;
    if (base_url_.rfind("https://", 0) == 0) {
      // This process speaks no TLS: the supervisor is asked instead.
      CtlOptions supervisor;
      supervisor.target = "unix:" + runtime_dir_ + "/supervisor.sock";
      supervisor.timeout_s = 1;
      if (Accepting(supervisor)) Announce();
      return;
    }
    const auto url = ParseBaseUrl(base_url_);
    if (!url.ok()) return;
    HttpCall call;
    call.path = "/health";
    call.timeout = std::chrono::seconds(1);
    const auto reply = Call(*url, call);
    if (!reply.ok()) return;
    if (reply->status == 200) {
      Announce();
    } else {
      ShowProgress(reply->body);
    }
  }

  void Announce() {
    announced_ = true;
    fmt::print("ready {}\n", base_url_);
    std::fflush(stdout);
  }

  // "loading: repacking 45 %", once a change.
  void ShowProgress(const std::string& body) {
    const auto json = text::ParseJson(body);
    if (!json.ok()) return;
    const auto* state = json->Find("state");
    const auto* progress = json->Find("progress");
    std::string line = state != nullptr && state->is_string() ? state->AsString() : "starting";
    const auto* phase = progress != nullptr ? progress->Find("phase") : nullptr;
    // The last phase, warming, is a state as well, and counts nothing.
    if (phase != nullptr && phase->is_string() && phase->AsString() != line) {
      const auto *done = progress->Find("done_bytes"), *total = progress->Find("total_bytes");
      if (!phase->AsString().empty()) line += ": " + phase->AsString();
      if (done != nullptr && total != nullptr && done->is_number() && total->is_number() && total->AsDouble() > 0) {
        line += fmt::format(" {:.0f} %", 100 * done->AsDouble() / total->AsDouble());
      }
    }
    if (line == shown_ || line == "unknown") return;  // unknown: the frontend has not heard from the supervisor yet
    shown_ = line;
    Say(line);
  }

  // Frontend first (its streams end or finish), then the supervisor and with it the workers; KILL for what does not listen.
  void StopAll() {
    const Instant begin = Clock::Real().Now();
    bool patient = true;
    const auto wait_until = [&](Service& s, milliseconds limit) {
      int again = 0;
      while (s.child && !s.child->Poll() && Clock::Real().Now() - begin < limit) {
        pollfd fds[2] = {{s.child->pidfd(), POLLIN, 0}, {signals_.get(), POLLIN, 0}};
        ::poll(fds, 2, 50);
        if (ReadSignal(signals_.get()) != 0) patient = false;  // a second Ctrl-C: for whoever is still to be stopped, too
        // Two that come at once are one to who reads them, hence a third.
        if (!patient && again++ < 2) s.child->Signal(SIGTERM);
      }
    };
    const auto drain = milliseconds(static_cast<int64_t>(options_.drain_timeout_s * 1000));
    if (frontend_.child) frontend_.child->Signal(SIGTERM);
    wait_until(frontend_, drain + milliseconds(300));
    if (supervisor_.child) supervisor_.child->Signal(SIGTERM);
    wait_until(supervisor_, drain + milliseconds(800));
    for (Service* s : {&frontend_, &supervisor_}) {
      if (s->child && !s->child->Poll()) {
        s->child->Signal(SIGCONT);
        s->child->Signal(SIGKILL);
        wait_until(*s, drain + milliseconds(1000));
      }
    }
  }

  const ServeOptions& options_;
  UniqueFd signals_;
  std::string runtime_dir_;
  bool own_folder_ = false;
  Service supervisor_, frontend_;
  int port_ = 0;
  std::string base_url_;
  std::string line_;
  std::string shown_;
  bool announced_ = false;
};

}  // namespace

int Serve(const ServeOptions& options) { return ServeRun(options).Run(); }

}  // namespace holdfast::cli
