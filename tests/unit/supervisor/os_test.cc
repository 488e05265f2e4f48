// The parts of the shell that know processes, files and sockets.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <filesystem>
#include <fstream>

#include "proto/base/systemd_notify.h"
#include "supervisor/child_log.h"
#include "supervisor/incident.h"
#include "supervisor/launcher.h"
#include "supervisor/runtime_dir.h"

namespace holdfast::supervisor {
namespace {

namespace fs = std::filesystem;

struct TempDir {
  TempDir() {
    char pattern[] = "/tmp/holdfast-os-XXXXXX";
    REQUIRE(::mkdtemp(pattern) != nullptr);
    path = pattern;
  }
  ~TempDir() {
    std::error_code ec;
    fs::remove_all(path, ec);
  }
  std::string path;
};

std::string Slurp(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

ExitStatus WaitFor(ChildProcess& child) {
  pollfd p{child.pid_fd(), POLLIN, 0};
  REQUIRE(::poll(&p, 1, 20000) == 1);
  ExitStatus status;
  REQUIRE(child.Reap(&status));
  CHECK_FALSE(child.running());
  return status;
}

std::string ReadAll(int fd) {
  std::string out;
  char buffer[4096];
  pollfd p{fd, POLLIN, 0};
  for (;;) {
    ::poll(&p, 1, 20000);
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return out;
    out.append(buffer, static_cast<size_t>(n));
  }
}

TEST_CASE("A child's end is reported as it was") {
  for (const int code : {0, 65, 70}) {
    auto child = Launch({"/bin/sh", {"-c", "exit " + std::to_string(code)}, {}});
    REQUIRE(child.ok());
    const ExitStatus status = WaitFor(*child);
    CHECK_FALSE(status.signalled);
    CHECK(status.code == code);
  }
  auto child = Launch({"/bin/sleep", {"100"}, {}});
  REQUIRE(child.ok());
  ExitStatus early;
  CHECK_FALSE(child->Reap(&early));
  child->Signal(SIGKILL);
  const ExitStatus status = WaitFor(*child);
  CHECK(status.signalled);
  CHECK(status.code == SIGKILL);
  child->Signal(SIGKILL);  // nobody is there any more: no effect
}

TEST_CASE("A binary that cannot be executed is an error, not a child") {
  CHECK(Launch({"/nonexistent", {}, {}}).status().code() == absl::StatusCode::kNotFound);
  CHECK(Launch({"/etc/passwd", {}, {}}).status().code() == absl::StatusCode::kPermissionDenied);
  TempDir dir;
  std::ofstream(dir.path + "/script") << "no interpreter line";
  fs::permissions(dir.path + "/script", fs::perms::owner_all);
  CHECK_FALSE(Launch({dir.path + "/script", {}, {}}).ok());
}

TEST_CASE("A binary given as a descriptor is the one that was opened, whatever is at its path by now") {
  TempDir dir;
  const std::string path = dir.path + "/tool";
  fs::copy_file("/bin/echo", path);
  const UniqueFd opened(::open(path.c_str(), O_PATH | O_CLOEXEC));
  const auto says = [&](int fd) {
    LaunchSpec spec{path, {"first"}, {}};
    spec.binary_fd = fd;
    auto child = Launch(spec);
    REQUIRE(child.ok());
    const std::string out = ReadAll(child->log_fd());
    CHECK(WaitFor(*child).code == 0);
    return out;
  };
  CHECK(says(opened.get()) == "first\n");
  fs::copy_file("/bin/true", path + ".new");
  fs::rename(path + ".new", path);  // as a package manager does it
  CHECK(says(opened.get()) == "first\n");
  CHECK(says(-1).empty());
  const UniqueFd closed(::open("/dev/null", O_PATH | O_CLOEXEC));  // cannot be executed: the path has to do
  CHECK(says(closed.get()).empty());
}

TEST_CASE("A child gets its four descriptors, its own group, clean signals and our environment with additions") {
  const UniqueFd leak(::open("/dev/null", O_RDONLY));  // not close-on-exec, on purpose
  ::setenv("NOTIFY_SOCKET", "/nowhere", 1);
  ::signal(SIGPIPE, SIG_IGN);
  const auto output = [](const LaunchSpec& spec, pid_t* pid = nullptr) {
    auto child = Launch(spec);
    REQUIRE(child.ok());
    if (pid != nullptr) *pid = child->pid();
    const std::string out = ReadAll(child->log_fd());
    CHECK(WaitFor(*child).code == 0);
    return out;
  };
  CHECK(output({"/bin/ls", {"/proc/self/fd"}, {}}) == "0\n1\n2\n3\n4\n");  // 4: the folder that ls reads
  CHECK(output({"/bin/sh", {"-c", "echo \"$TOKEN:$NOTIFY_SOCKET\""}, {"TOKEN=secret"}}) == "secret:\n");
  pid_t pid = 0;
  const std::string group = output({"/bin/sh", {"-c", "cut -d' ' -f5 /proc/$$/stat"}, {}}, &pid);
  CHECK(group == std::to_string(pid) + "\n");
  const std::string signals = output({"/bin/grep", {"-E", "SigIgn|SigBlk", "/proc/self/status"}, {}});
  CHECK(signals.find("SigBlk:\t0000000000000000") != std::string::npos);
  const size_t ignored = signals.find("SigIgn:\t");
  REQUIRE(ignored != std::string::npos);
  CHECK((std::stoull(signals.substr(ignored + 8, 16), nullptr, 16) & 0x7fffffff) == 0);  // above: glibc's own two
  ::unsetenv("NOTIFY_SOCKET");
}

TEST_CASE("The lifeline ends when its owner does") {
  auto child = Launch({"/bin/sh", {"-c", "cat <&3 >/dev/null; echo gone; exit 73"}, {}});
  REQUIRE(child.ok());
  ExitStatus early;
  CHECK_FALSE(child->Reap(&early));
  child->CloseLifeline();
  CHECK(WaitFor(*child).code == 73);
}

TEST_CASE("Launching leaves no descriptor behind") {
  const auto count = [] { return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator{}); };
  const auto before = count();
  for (int i = 0; i < 50; ++i) {
    auto child = Launch({"/bin/true", {}, {}});
    REQUIRE(child.ok());
    WaitFor(*child);
    CHECK_FALSE(Launch({"/nonexistent", {}, {}}).ok());
  }
  CHECK(count() == before);
}

TEST_CASE("A worker's log is split into lines, cut, and bounded") {
  ChildLog log(UniqueFd(), -1);
  log.Feed("one\ntw");
  CHECK(log.lines().size() == 1);
  log.Feed("o\n\nthree");
  REQUIRE(log.lines().size() == 3);
  CHECK(log.lines()[1] == "two");
  CHECK(log.lines()[2].empty());
  log.Flush();
  CHECK(log.lines().back() == "three");
  log.Feed(std::string(3 * ChildLog::kMaxLine, 'x') + "\nafter\n");
  CHECK(log.lines()[log.lines().size() - 2].size() == ChildLog::kMaxLine);
  CHECK(log.lines().back() == "after");
  for (int i = 0; i < 100000; ++i) log.Feed("flood\n");
  CHECK(log.lines().size() == ChildLog::kKeepLines);
  CHECK(log.total_lines() == 100006);
}

TEST_CASE("The last words of a worker are what is no log object of ours") {
  ChildLog log{UniqueFd(), -1};
  log.Feed("{\"msg\":\"ready\"}\n");
  CHECK(log.LastWords().empty());
  log.Feed("terminate called after throwing\n{\"msg\":\"x\"}\n\n");
  CHECK(log.LastWords() == "terminate called after throwing");
  CHECK(log.LastWords(8, 9) == "terminate");
  for (int i = 0; i < 10; ++i) log.Feed("{}\n");
  CHECK(log.LastWords().empty());  // long ago: not about this end
}

TEST_CASE("A reader that stands still does not stop the log: lines are dropped and counted") {
  int fds[2];
  REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
  const UniqueFd read_end(fds[0]), write_end(fds[1]);
  ChildLog log(UniqueFd(), write_end.get());
  for (int i = 0; i < 10000; ++i) log.Feed("a line of the worker that nobody reads\n");  // would block for ever if it could
  CHECK(log.dropped_lines() > 0);
  CHECK(log.lines().size() == ChildLog::kKeepLines);
}

IncidentInput Input(uint64_t generation, const std::string& words = "why") {
  IncidentInput in;
  in.loss.cause = LossCause::kSignal;
  in.loss.phase = "serving";
  in.loss.detail = words;
  in.loss.generation = Generation(generation);
  in.loss.exit = {true, 11};
  in.loss.exit_known = true;
  in.loss.last_step = 99;
  in.unix_ms = 1'700'000'000'000 + static_cast<int64_t>(generation);
  in.findings = {"a \"finding\""};
  in.command_line = {"--model", "x.gguf"};
  in.log_lines = {{"last", "words"}};
  return in;
}

TEST_CASE("An incident bundle holds what S8 asks for") {
  TempDir dir;
  IncidentStore store(dir.path + "/incidents", {});
  IncidentInput in = Input(3);
  std::ofstream(dir.path + "/flight") << "record";
  in.flight_records = {dir.path + "/flight"};
  const auto written = store.Write(in);
  REQUIRE(written.ok());
  const std::string json = Slurp(written->path + "/incident.json");
  for (const char* part : {"\"cause\": \"signal\"", "\"phase\": \"serving\"", "\"last_step\": 99", "signal 11", "a \\\"finding\\\"", "x.gguf"}) {
    INFO(part);
    CHECK(json.find(part) != std::string::npos);
  }
  CHECK(Slurp(written->path + "/log-r0.txt") == "last\nwords\n");
  CHECK(Slurp(written->path + "/flight-r0.bin") == "record");
  CHECK_FALSE(fs::exists(dir.path + "/flight"));
  REQUIRE(store.List(10).size() == 1);
  CHECK(store.List(10)[0].generation == 3);
  IncidentStore next_life(dir.path + "/incidents", {});
  REQUIRE(next_life.List(10).size() == 1);
  const IncidentSummary seen = next_life.List(10)[0], told = store.List(10)[0];
  CHECK(seen.generation == 3);
  CHECK(seen.rank == told.rank);
  CHECK(seen.cause == told.cause);
  CHECK(seen.phase == told.phase);
  CHECK(seen.detail == told.detail);
  CHECK(seen.unix_ms == told.unix_ms);
  // Without its file there is still the name.
  for (const char* content : {"", "{", "[1]", "{\"generation\": \"x\"}"}) {
    std::ofstream(written->path + "/incident.json") << content;
    CHECK(next_life.List(10)[0].generation == 3);
    CHECK(next_life.List(10)[0].cause == "signal");
  }
}

TEST_CASE("Incidents are bounded in number and bytes, the oldest go first") {
  TempDir dir;
  IncidentOptions o;
  o.max_bundles = 5;
  o.max_total_bytes = 20000;
  IncidentStore store(dir.path, o);
  for (uint64_t g = 1; g <= 30; ++g) REQUIRE(store.Write(Input(g)).ok());
  CHECK(store.List(100).size() == 5);
  CHECK(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator{}) == 5);
  CHECK(store.List(100)[0].generation == 30);
  IncidentInput big = Input(31);
  big.log_lines = {std::vector<std::string>(100, std::string(190, 'x'))};
  REQUIRE(store.Write(big).ok());
  CHECK(std::distance(fs::directory_iterator(dir.path), fs::directory_iterator{}) < 5);
  CHECK(fs::exists(store.List(1)[0].path));
}

TEST_CASE("An incident that cannot be written is an error and still listed") {
  TempDir dir;
  std::ofstream(dir.path + "/file") << "not a folder";
  IncidentStore store(dir.path + "/file", {});
  CHECK_FALSE(store.Write(Input(1)).ok());
  CHECK(store.List(10).size() == 1);
}

TEST_CASE("The runtime directory: ours alone, one at a time, and clean") {
  TempDir dir;
  const std::string path = dir.path + "/run";
  {
    auto first = RuntimeDir::Open(path);
    REQUIRE(first.ok());
    struct stat st {};
    REQUIRE(::stat(path.c_str(), &st) == 0);
    CHECK((st.st_mode & 0777) == 0700);
    const auto second = RuntimeDir::Open(path);
    CHECK(second.status().code() == absl::StatusCode::kAlreadyExists);
    CHECK(std::string(second.status().message()).find("pid " + std::to_string(::getpid())) != std::string::npos);
    std::ofstream(first->flight_record(1, 0)) << "x";
  }
  auto again = RuntimeDir::Open(path);  // the lock went with its owner
  REQUIRE(again.ok());
  CHECK_FALSE(fs::exists(again->flight_record(1, 0)));
  CHECK(RuntimeDir::Open(dir.path + "/" + std::string(120, 'x')).status().code() == absl::StatusCode::kFailedPrecondition);
  std::ofstream(dir.path + "/file") << "x";
  CHECK(RuntimeDir::Open(dir.path + "/file").status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(RuntimeDir::Open(dir.path + "/no/such/parent").status().code() == absl::StatusCode::kFailedPrecondition);
}

TEST_CASE("systemd's notify protocol, to a path and to an abstract name") {
  TempDir dir;
  for (const std::string& name : {dir.path + "/notify", std::string("@holdfast-test-") + std::to_string(::getpid())}) {
    const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::copy(name.begin(), name.end(), address.sun_path);
    if (name[0] == '@') address.sun_path[0] = 0;
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size());
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), length) == 0);
    const auto receive = [&] {
      char buffer[512];
      const ssize_t n = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      return n < 0 ? std::string() : std::string(buffer, static_cast<size_t>(n));
    };
    SystemdNotify notify(name, std::chrono::seconds(10));
    CHECK(notify.watchdog_period() == std::chrono::seconds(5));
    notify.Starting("40 %", std::chrono::seconds(70));
    CHECK(receive() == "EXTEND_TIMEOUT_USEC=70000000\nSTATUS=40 %");
    notify.Starting("41 %", std::chrono::seconds(70));
    CHECK(receive().empty());  // not twice a second,
    notify.Starting("a pause", std::chrono::seconds(900));
    CHECK(receive() == "EXTEND_TIMEOUT_USEC=900000000\nSTATUS=a pause");  // but for a longer promise
    notify.Ready("serving");
    CHECK(receive() == "READY=1\nSTATUS=serving");
    notify.Starting("loading again", std::chrono::seconds(1800));
    CHECK(receive() == "STATUS=loading again");  // an extension would put the watchdog off
    notify.Watchdog();
    CHECK(receive() == "WATCHDOG=1");
    notify.Stopping("bye", std::chrono::seconds(40));
    CHECK(receive() == "STOPPING=1\nEXTEND_TIMEOUT_USEC=40000000\nSTATUS=bye");
  }
  SystemdNotify("/nonexistent/socket", {}).Ready("nobody listens");  // no effect, no error
  SystemdNotify().Ready("no socket");
}

}  // namespace
}  // namespace holdfast::supervisor
