#pragma once
// Runs the real supervisor with the scripted worker in a directory of its own, and talks to it as a frontend does.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "proto/admin.grpc.pb.h"
#include "proto/engine.grpc.pb.h"

namespace holdfast::supervisor::testing {

// True once `condition` holds, asked every 5 ms; false after `limit`.
bool Eventually(std::chrono::milliseconds limit, const std::function<bool()>& condition);

bool Alive(int pid);                        // exists and is no zombie
std::vector<int> ChildrenOf(int pid);       // live ones
size_t OpenDescriptors(int pid);
size_t Threads(int pid);
// What the scripted worker generates after `tokens` (see tests/support/fake_worker.cc).
std::vector<uint32_t> Expected(std::vector<uint32_t> tokens, size_t count, uint32_t vocab = 1000);

class SupervisorRun {
 public:
  // script: HOLDFAST_FAKE. extra: further arguments of the supervisor, further environment "NAME=value".
  explicit SupervisorRun(const std::string& script, std::vector<std::string> args = {}, std::vector<std::string> env = {}, const std::string& dir = "",
                         bool own_worker = true);
  ~SupervisorRun();  // kills what is left and removes the directory

  const std::string& dir() const { return dir_; }
  int pid() const { return pid_; }
  std::string stderr_text() const;
  void Signal(int signal) const;
  // The exit code, or 128 + signal; -1 when it does not end within `limit`.
  int Wait(std::chrono::milliseconds limit);

  std::shared_ptr<grpc::Channel> channel() const { return channel_; }
  proto::Admin::Stub& admin() { return *admin_; }
  proto::Engine::Stub& engine() { return *engine_; }

  proto::StatusReply Status();              // default-constructed when it does not answer
  bool WaitState(const std::string& state, std::chrono::milliseconds limit = std::chrono::seconds(20));
  bool WaitServing(uint64_t generation = 0, std::chrono::milliseconds limit = std::chrono::seconds(20));
  int WorkerPid(uint32_t rank = 0);
  std::string Metrics();
  double Metric(const std::string& series);  // by its whole text up to the value; -1 = absent
  std::vector<proto::Incident> Incidents();

 private:
  std::string dir_;
  std::string log_;
  bool remove_dir_ = false;
  int pid_ = -1;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<proto::Admin::Stub> admin_;
  std::unique_ptr<proto::Engine::Stub> engine_;
};

proto::GenerateRequest Request(uint64_t id, std::vector<uint32_t> prompt, uint32_t max_tokens);

// What one request got.
struct Outcome {
  std::vector<uint32_t> tokens;
  proto::FinishReason finish = proto::FINISH_NONE;
  proto::EngineError error;
  uint64_t generation = 0;
  bool broken = false;  // the stream ended without a finish
};

// Generate over its own call, to the end.
Outcome Generate(SupervisorRun& run, const proto::GenerateRequest& request);
// As Generate, but goes on after a loss as a frontend does, until the end or an error that is not "unavailable".
Outcome GenerateWithResume(SupervisorRun& run, const proto::GenerateRequest& request, int* losses = nullptr);

}  // namespace holdfast::supervisor::testing
