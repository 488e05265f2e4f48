#include "tests/unit/supervisor/process_harness.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace holdfast::supervisor::testing {

using std::chrono::milliseconds;
namespace fs = std::filesystem;

bool Eventually(milliseconds limit, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

namespace {
// Fields of /proc/<pid>/stat after the name: [0] = state, [1] = ppid.
std::vector<std::string> Stat(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const size_t close = text.rfind(')');
  if (close == std::string::npos) return {};
  std::istringstream in(text.substr(close + 1));
  std::vector<std::string> out;
  for (std::string word; in >> word;) out.push_back(word);
  return out;
}
}  // namespace

bool Alive(int pid) {
  const auto stat = Stat(pid);
  return !stat.empty() && stat[0] != "Z" && stat[0] != "X";
}

std::vector<int> ChildrenOf(int pid) {
  std::vector<int> out;
  for (const auto& entry : fs::directory_iterator("/proc")) {
    const int candidate = std::atoi(entry.path().filename().c_str());
    if (candidate <= 0) continue;
    const auto stat = Stat(candidate);
    if (stat.size() > 1 && std::atoi(stat[1].c_str()) == pid && stat[0] != "Z") out.push_back(candidate);
  }
  return out;
}

namespace {
size_t CountEntries(const std::string& folder) {
  std::error_code ec;
  size_t n = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder, ec)) ++n;
  return n;
}
}  // namespace

size_t OpenDescriptors(int pid) { return CountEntries("/proc/" + std::to_string(pid) + "/fd"); }
size_t Threads(int pid) { return CountEntries("/proc/" + std::to_string(pid) + "/task"); }

std::vector<uint32_t> Expected(std::vector<uint32_t> tokens, size_t count, uint32_t vocab) {
  std::vector<uint32_t> out;
  for (size_t i = 0; i < count; ++i) {
    uint64_t h = 1469598103934665603ull;
    for (const uint32_t t : tokens) h = (h ^ t) * 1099511628211ull;
    out.push_back(static_cast<uint32_t>((h >> 20) % vocab));
    tokens.push_back(out.back());
  }
  return out;
}

SupervisorRun::SupervisorRun(const std::string& script, std::vector<std::string> args, std::vector<std::string> env, const std::string& dir,
                             bool own_worker) {
  if (dir.empty()) {
    char pattern[] = "/tmp/holdfast-sup-XXXXXX";
    if (::mkdtemp(pattern) == nullptr) throw std::runtime_error("mkdtemp");
    dir_ = pattern;
    remove_dir_ = true;
  } else {
    dir_ = dir;
  }
  static int serial = 0;
  log_ = dir_ + "/stderr-" + std::to_string(++serial) + ".log";
  std::vector<std::string> all{HOLDFAST_SUPERVISOR_BINARY, "--runtime-dir", dir_, "--model", "fake.gguf"};
  if (own_worker) all.insert(all.end(), {"--worker", HOLDFAST_FAKE_WORKER_BINARY});
  all.insert(all.end(), args.begin(), args.end());
  std::map<std::string, std::string> vars;
  const auto put = [&](const std::string& text) { vars[text.substr(0, text.find('='))] = text; };
  for (char** e = environ; *e != nullptr; ++e) put(*e);
  put("HOLDFAST_FAKE=" + script);
  for (const auto& e : env) put(e);
  std::vector<char*> argv, envp;
  for (auto& a : all) argv.push_back(a.data());
  for (auto& [name, text] : vars) envp.push_back(text.data());
  argv.push_back(nullptr);
  envp.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (::posix_spawn(&pid_, all[0].c_str(), &actions, nullptr, argv.data(), envp.data()) != 0) throw std::runtime_error("posix_spawn " + all[0]);
  posix_spawn_file_actions_destroy(&actions);
  // A first call before the socket exists would put the channel into a back-off of seconds.
  Eventually(std::chrono::seconds(20), [&] {
    const auto stat = Stat(pid_);
    return fs::exists(dir_ + "/supervisor.sock") || stat.empty() || stat[0] == "Z";
  });
  grpc::ChannelArguments channel_args;
  channel_args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  channel_args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 50);
  channel_args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 100);
  channel_args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_args.SetMaxReceiveMessageSize(256 << 20);
  channel_ = grpc::CreateCustomChannel("unix:" + dir_ + "/supervisor.sock", grpc::InsecureChannelCredentials(), channel_args);
  admin_ = proto::Admin::NewStub(channel_);
  engine_ = proto::Engine::NewStub(channel_);
}

SupervisorRun::~SupervisorRun() {
  if (pid_ > 0) {
    ::kill(pid_, SIGCONT);
    ::kill(pid_, SIGTERM);
    if (Wait(std::chrono::seconds(8)) < 0) {
      ::kill(pid_, SIGKILL);
      Wait(std::chrono::seconds(5));
    }
  }
  std::error_code ec;
  if (remove_dir_) fs::remove_all(dir_, ec);
}

std::string SupervisorRun::stderr_text() const {
  std::ifstream file(log_);
  return std::string((std::istreambuf_iterator<char>(file)), {});
}

void SupervisorRun::Signal(int signal) const {
  if (pid_ > 0) ::kill(pid_, signal);
}

int SupervisorRun::Wait(milliseconds limit) {
  int status = 0;
  const bool ended = Eventually(limit, [&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return -1;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

proto::StatusReply SupervisorRun::Status() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(2));
  proto::StatusReply reply;
  return admin_->GetStatus(&context, {}, &reply).ok() ? reply : proto::StatusReply();
}

bool SupervisorRun::WaitState(const std::string& state, milliseconds limit) {
  return Eventually(limit, [&] { return Status().health().state() == state; });
}

bool SupervisorRun::WaitServing(uint64_t generation, milliseconds limit) {
  return Eventually(limit, [&] {
    const proto::StatusReply s = Status();
    return s.health().ready() && (generation == 0 || s.health().generation() == generation);
  });
}

int SupervisorRun::WorkerPid(uint32_t rank) {
  const proto::StatusReply s = Status();
  return rank < static_cast<uint32_t>(s.ranks_size()) ? static_cast<int>(s.ranks(static_cast<int>(rank)).pid()) : 0;
}

std::string SupervisorRun::Metrics() {
  grpc::ClientContext context;
  proto::MetricsReply reply;
  admin_->GetMetrics(&context, {}, &reply);
  return reply.text();
}

double SupervisorRun::Metric(const std::string& series) {
  std::istringstream in(Metrics());
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(series + " ", 0) == 0) return std::strtod(line.c_str() + series.size(), nullptr);
  }
  return -1;
}

std::vector<proto::Incident> SupervisorRun::Incidents() {
  grpc::ClientContext context;
  proto::ListIncidentsReply reply;
  admin_->ListIncidents(&context, {}, &reply);
  return {reply.incidents().begin(), reply.incidents().end()};
}

proto::GenerateRequest Request(uint64_t id, std::vector<uint32_t> prompt, uint32_t max_tokens) {
  proto::GenerateRequest request;
  request.set_request_id(id);
  request.set_trace_id("test-" + std::to_string(id));
  for (const uint32_t t : prompt) request.add_tokens(t);
  request.set_prompt_tokens(static_cast<uint32_t>(prompt.size()));
  request.set_max_tokens(max_tokens);
  return request;
}

Outcome Generate(SupervisorRun& run, const proto::GenerateRequest& request) {
  grpc::ClientContext context;
  const auto stream = run.engine().Generate(&context, request);
  Outcome out;
  proto::TokenEvent event;
  while (stream->Read(&event)) {
    for (const auto& t : event.tokens()) out.tokens.push_back(t.id());
    if (event.finish() != proto::FINISH_NONE) out.finish = event.finish();
    out.generation = event.generation();
    if (event.has_error()) out.error = event.error();
  }
  out.broken = out.finish == proto::FINISH_NONE;
  stream->Finish();
  return out;
}

Outcome GenerateWithResume(SupervisorRun& run, const proto::GenerateRequest& first, int* losses) {
  proto::GenerateRequest request = first;
  Outcome all;
  for (int round = 0; round < 2000; ++round) {
    const Outcome part = Generate(run, request);
    all.tokens.insert(all.tokens.end(), part.tokens.begin(), part.tokens.end());
    for (const uint32_t t : part.tokens) request.add_tokens(t);
    all.finish = part.finish;
    all.error = part.error;
    const bool lost = part.finish == proto::FINISH_LOST;
    const bool wait = part.finish == proto::FINISH_ERROR && part.error.kind() == proto::EngineError::UNAVAILABLE;
    if (lost && losses != nullptr) ++*losses;
    if (lost) request.set_resumes(request.resumes() + 1);
    if (!lost && !wait) return all;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return all;
}

}  // namespace holdfast::supervisor::testing
