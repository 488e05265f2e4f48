// A scripted worker: speaks proto/worker.proto as the real one must, and misbehaves on request. For tests of the supervisor and the
// frontend; it has no model. Its tokens follow from the token history alone, so a resumed stream must equal an undisturbed one.
//
// HOLDFAST_FAKE is a list of key=value, separated by commas:
//   load_ms=N        loading takes N ms, with progress          load_stall=1   loading stands still for ever
//   token_ms=N       a step takes N ms (default 2)              vocab=N        tokens are < N (default 1000)
//   max_running=N    (default 4)    max_seq_len=N (default 4096)
//   die_at=PHASE     spawn|hello|card|loading|warming|ready|submit|step=N (the Nth step)|drain   with
//   die=HOW          exit code, or kill|abort|segv|stop (SIGSTOP) (default 70)
//   message=TEXT     Failure.message before dying by exit code
//   poison=TOKEN     a request whose prompt holds TOKEN kills the worker (by `die`) at its first step
//   poison_at=N      ... only once it has generated N tokens
//   hang_at=N        the step thread parks at the Nth step; heartbeats go on and tell the truth
//   stall_at=N       from the Nth step on it claims to be idle although requests are in flight
//   mute=1           no heartbeats           no_attach=1     never says Hello
//   lie_generation=1 says Hello as the generation after its own          lie_token=1  with a wrong token
//   old_steps=1      its steps carry the generation before its own       garbage=1    its first step claims commands nobody sent
//   ignore_term=1    TERM does nothing       finding=N       reports a finding of severity N at its third step
//   flood=N          writes N lines to stderr at start                   linger=1      ends its stream but lives on (at ready)
//   generations=N    all of this only in generations <= N (0 = in all)   rank=R        only in rank R
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "proto/model_card.pb.h"
#include "proto/worker.grpc.pb.h"

namespace {

using holdfast::proto::Command;
using holdfast::proto::SupervisorMessage;
using holdfast::proto::WorkerLink;
using holdfast::proto::WorkerMessage;
using Clock = std::chrono::steady_clock;

std::map<std::string, std::string> script;

long Number(const std::string& key, long otherwise = 0) {
  const auto it = script.find(key);
  return it == script.end() ? otherwise : std::strtol(it->second.c_str(), nullptr, 10);
}
std::string Text(const std::string& key) {
  const auto it = script.find(key);
  return it == script.end() ? "" : it->second;
}
void Sleep(long ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

struct Sequence {
  uint64_t id = 0;
  std::vector<uint32_t> tokens;
  uint32_t prompt = 0;
  uint32_t max_tokens = 0;
  bool admitted = false;
  std::vector<uint32_t> stop;
};

class Worker {
 public:
  Worker(std::string address, uint64_t generation, uint32_t rank) : generation_(generation), rank_(rank) {
    grpc::ChannelArguments args;
    args.SetMaxReceiveMessageSize(256 << 20);
    auto channel = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args);
    stub_ = WorkerLink::NewStub(channel);
    stream_ = stub_->Attach(&context_);
  }

  int Run() {
    DieIf("spawn");
    Hello();
    std::thread(&Worker::Read, this).detach();
    DieIf("hello");
    Card();
    DieIf("card");
    Load();
    Ready();
    DieIf("ready");
    if (Number("linger") != 0) {
      Sleep(500);  // a cancel drops what has not arrived yet: it would look like a worker that never was ready
      stream_->WritesDone();
      context_.TryCancel();
      for (;;) Sleep(1000);
    }
    std::thread(&Worker::Beat, this).detach();
    for (;;) Step();
  }

  [[noreturn]] void Die() {
    const std::string how = Text("die").empty() ? "70" : Text("die");
    if (how == "kill") ::raise(SIGKILL);
    if (how == "abort") std::abort();
    if (how == "segv") ::raise(SIGSEGV);
    if (how == "stop") {
      ::raise(SIGSTOP);
      for (;;) Sleep(1000);
    }
    if (!Text("message").empty()) {
      WorkerMessage m;
      m.mutable_failure()->set_exit_code(std::atoi(how.c_str()));
      m.mutable_failure()->set_message(Text("message"));
      Write(m);
      Sleep(20);
    }
    std::fprintf(stderr, "fake worker dies with %s\n", how.c_str());
    ::_exit(std::atoi(how.c_str()));
  }

 private:
  void DieIf(const std::string& phase) {
    if (Text("die_at") == phase) Die();
  }
  bool Write(const WorkerMessage& m) {
    std::lock_guard lock(write_mutex_);
    return stream_->Write(m);
  }

  void Hello() {
    WorkerMessage m;
    auto* hello = m.mutable_hello();
    hello->set_generation(generation_ + (Number("lie_generation") != 0 ? 1 : 0));
    hello->set_rank(rank_);
    hello->set_pid(static_cast<uint32_t>(::getpid()));
    const char* token = std::getenv("HOLDFAST_WORKER_TOKEN");
    hello->set_token(Number("lie_token") != 0 ? "wrong" : token == nullptr ? "" : token);
    hello->set_version("fake");
    Write(m);
  }

  void Card() {
    holdfast::proto::ModelCard card;
    card.set_fingerprint("fake-" + std::to_string(Number("vocab", 1000)));
    card.set_name("fake");
    card.set_architecture("fake");
    card.set_vocab_size(static_cast<uint32_t>(Number("vocab", 1000)));
    card.set_context_length(static_cast<uint32_t>(Number("max_seq_len", 4096)));
    WorkerMessage m;
    m.set_model_card(card.SerializeAsString());
    Write(m);
  }

  void Load() {
    const long total = Number("load_ms", 0);
    WorkerMessage m;
    m.mutable_progress()->set_phase("reading");
    m.mutable_progress()->set_total_bytes(static_cast<uint64_t>(total));
    for (long t = 0; t < total; t += 20) {
      m.mutable_progress()->set_done_bytes(static_cast<uint64_t>(t) + 1);
      Write(m);
      Sleep(20);
      if (t >= total / 2) DieIf("loading");
    }
    DieIf("loading");
    while (Number("load_stall") != 0) {
      Write(m);  // the same number again and again is no progress
      Sleep(50);
    }
    m.mutable_progress()->set_phase("warming");
    m.mutable_progress()->set_done_bytes(1);
    Write(m);
    DieIf("warming");
  }

  void Ready() {
    WorkerMessage m;
    auto* ready = m.mutable_ready();
    auto* limits = ready->mutable_limits();
    limits->set_max_seq_len(static_cast<uint32_t>(Number("max_seq_len", 4096)));
    limits->set_max_running(static_cast<uint32_t>(Number("max_running", 4)));
    limits->set_prefill_chunk(256);
    limits->set_page_size(16);
    limits->set_max_request_tokens(1 << 20);
    ready->set_backend("fake");
    ready->set_load_ms(static_cast<uint32_t>(Number("load_ms", 0)));
    Pool(ready->add_pools());
    Write(m);
  }

  void Pool(holdfast::proto::PoolStatus* pool) {
    pool->set_name("full");
    pool->set_capacity(100);
    pool->set_held(static_cast<uint32_t>(running_.size()));
    pool->set_free(100 - pool->held());
    pool->set_evictions(steps_);
  }

  void Read() {
    SupervisorMessage m;
    while (stream_->Read(&m)) {
      if (m.has_refused()) {
        std::fprintf(stderr, "fake worker refused: %s\n", m.refused().why().c_str());
        ::_exit(75);
      }
      if (m.has_stop() && Number("ignore_term") == 0) ::_exit(0);
      if (!m.has_command()) continue;
      std::lock_guard lock(commands_mutex_);
      commands_.push_back(m.command());
    }
    if (Number("linger") != 0 || Number("ignore_term") != 0) return;
    ::_exit(73);  // the supervisor is gone
  }

  void Beat() {
    while (Number("mute") == 0) {
      WorkerMessage m;
      auto* beat = m.mutable_heartbeat();
      beat->set_generation(generation_);
      beat->set_step(steps_);
      beat->set_step_outstanding(outstanding_);
      const auto since = Clock::now() - Clock::time_point(Clock::duration(moved_.load()));
      beat->set_last_change_ms(static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(since).count()));
      beat->set_mean_step_us(static_cast<uint32_t>(Number("token_ms", 2) * 1000));
      beat->set_resident_bytes(1 << 20);
      Write(m);
      Sleep(100);
    }
  }

  void Moved() { moved_ = Clock::now().time_since_epoch().count(); }

  uint32_t Next(const std::vector<uint32_t>& history) const {
    uint64_t h = 1469598103934665603ull;
    for (const uint32_t t : history) h = (h ^ t) * 1099511628211ull;
    return static_cast<uint32_t>((h >> 20) % static_cast<uint64_t>(Number("vocab", 1000)));
  }

  void Take(WorkerMessage* m) {
    std::deque<Command> commands;
    {
      std::lock_guard lock(commands_mutex_);
      commands.swap(commands_);
    }
    for (const Command& c : commands) {
      consumed_ = c.seq();
      if (c.has_submit()) {
        DieIf("submit");
        const auto& r = c.submit().request();
        Sequence s;
        s.id = r.request_id();
        s.tokens.assign(r.tokens().begin(), r.tokens().end());
        s.prompt = r.prompt_tokens();
        s.max_tokens = r.max_tokens();
        s.stop.assign(r.sampling().stop_tokens().begin(), r.sampling().stop_tokens().end());
        waiting_.push_back(std::move(s));
      } else if (c.has_cancel()) {
        for (auto* list : {&waiting_, &running_}) {
          for (auto it = list->begin(); it != list->end(); ++it) {
            if (it->id != c.cancel().request_id()) continue;
            auto* event = m->mutable_step()->add_events();
            event->set_request_id(it->id);
            event->set_finish(holdfast::proto::FINISH_CANCELLED);
            list->erase(it);
            break;
          }
        }
      } else if (c.has_resize()) {
        WorkerMessage report;
        report.mutable_resize()->set_operation(c.resize().operation());
        report.mutable_resize()->set_state(c.resize().cancel() ? holdfast::proto::ResizeReport::CANCELLED : holdfast::proto::ResizeReport::DONE);
        report.mutable_resize()->set_message("fake");
        Write(report);
      }
    }
  }

  void Step() {
    WorkerMessage m;
    Take(&m);
    while (!waiting_.empty() && running_.size() < static_cast<size_t>(Number("max_running", 4))) {
      running_.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    if (running_.empty() && !m.has_step()) {
      Moved();
      Sleep(1);
      return;
    }
    const uint64_t n = steps_ + 1;
    if (Number("stall_at") != 0 && n >= static_cast<uint64_t>(Number("stall_at"))) {
      Sleep(20);
      return;
    }
    outstanding_ = true;
    Moved();
    if (Number("hang_at") != 0 && n == static_cast<uint64_t>(Number("hang_at"))) {
      for (;;) Sleep(1000);
    }
    DieIf("step=" + std::to_string(n));
    Sleep(Number("token_ms", 2));
    auto* step = m.mutable_step();
    if (Number("finding", -1) >= 0 && n == 3) {
      WorkerMessage finding;
      finding.mutable_finding()->set_severity(static_cast<holdfast::proto::FindingReport::Severity>(Number("finding")));
      finding.mutable_finding()->set_kind("fake");
      finding.mutable_finding()->set_detail("asked for");
      Write(finding);
    }
    std::deque<Sequence> keep;
    for (Sequence& s : running_) {
      if (Number("poison", -1) >= 0 && s.tokens.size() - s.prompt >= static_cast<size_t>(Number("poison_at", 0))) {
        for (size_t i = 0; i < s.prompt; ++i) {
          if (s.tokens[i] == static_cast<uint32_t>(Number("poison"))) Die();
        }
      }
      auto* event = step->add_events();
      event->set_request_id(s.id);
      if (!s.admitted) {
        s.admitted = true;
        event->mutable_admitted()->set_cached_tokens(0);
      }
      const uint32_t token = Next(s.tokens);
      event->add_tokens()->set_id(token);
      s.tokens.push_back(token);
      bool stop = false;
      for (const uint32_t t : s.stop) stop = stop || t == token;
      if (stop) {
        event->set_finish(holdfast::proto::FINISH_STOP);
      } else if (s.tokens.size() - s.prompt >= s.max_tokens) {
        event->set_finish(holdfast::proto::FINISH_LENGTH);
      } else {
        keep.push_back(std::move(s));
      }
    }
    running_ = std::move(keep);
    steps_ = n;
    step->set_generation(generation_ - (Number("old_steps") != 0 ? 1 : 0));
    step->set_step(n);
    step->set_command_seq(consumed_ + (Number("garbage") != 0 ? 1000 : 0));
    step->set_running(static_cast<uint32_t>(running_.size()));
    step->set_waiting(static_cast<uint32_t>(waiting_.size()));
    step->set_step_us(static_cast<uint32_t>(Number("token_ms", 2) * 1000));
    step->mutable_cache()->set_lookups(n);
    Pool(step->add_pools());
    Write(m);
    outstanding_ = false;
    Moved();
  }

  const uint64_t generation_;
  const uint32_t rank_;
  grpc::ClientContext context_;
  std::unique_ptr<WorkerLink::Stub> stub_;
  std::unique_ptr<grpc::ClientReaderWriter<WorkerMessage, SupervisorMessage>> stream_;
  std::mutex write_mutex_;
  std::mutex commands_mutex_;
  std::deque<Command> commands_;
  std::deque<Sequence> waiting_, running_;
  std::atomic<uint64_t> steps_{0};
  std::atomic<bool> outstanding_{false};
  std::atomic<Clock::rep> moved_{Clock::now().time_since_epoch().count()};
  uint64_t consumed_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const pid_t parent = ::getppid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) return 73;
  std::string address;
  uint64_t generation = 0;
  uint32_t rank = 0;
  int lifeline = -1;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--supervisor") address = argv[i + 1];
    if (flag == "--generation") generation = std::strtoull(argv[i + 1], nullptr, 10);
    if (flag == "--rank") rank = static_cast<uint32_t>(std::atoi(argv[i + 1]));
    if (flag == "--lifeline-fd") lifeline = std::atoi(argv[i + 1]);
  }
  std::string text = std::getenv("HOLDFAST_FAKE") == nullptr ? "" : std::getenv("HOLDFAST_FAKE");
  for (size_t at = 0; at < text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string one = text.substr(at, comma - at);
    const size_t eq = one.find('=');
    if (eq != std::string::npos) script[one.substr(0, eq)] = one.substr(eq + 1);
    at = comma + 1;
  }
  const bool other_generation = Number("generations") != 0 && generation > static_cast<uint64_t>(Number("generations"));
  const bool other_rank = script.count("rank") > 0 && Number("rank") != static_cast<long>(rank);
  if (other_generation || other_rank) {
    const std::map<std::string, std::string> all = std::exchange(script, {});
    for (const char* key : {"token_ms", "vocab", "max_running", "max_seq_len", "load_ms"}) {  // what it is, not what it does wrong
      if (all.count(key) > 0) script[key] = all.at(key);
    }
  }

  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  std::thread([set] {
    for (;;) {
      int signal = 0;
      ::sigwait(&set, &signal);
      if (Number("ignore_term") == 0) ::_exit(0);
    }
  }).detach();
  if (lifeline >= 0) {
    std::thread([lifeline] {
      char byte;
      while (::read(lifeline, &byte, 1) > 0) {
      }
      ::_exit(73);
    }).detach();
  }
  for (long i = 0; i < Number("flood"); ++i) std::fprintf(stderr, "flood line %ld of the fake worker\n", i);
  while (Number("no_attach") != 0) Sleep(1000);
  Worker worker(address, generation, rank);
  return worker.Run();
}
