#include "tests/support/fake_engine.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <map>
#include <future>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "proto/admin.grpc.pb.h"
#include "proto/engine.grpc.pb.h"

namespace holdfast::testing {
namespace {

struct Active {
  proto::GenerateRequest request;
  std::vector<uint32_t> script;
  size_t next = 0;          // index into script
  bool told = false;        // admitted was sent
};

}  // namespace

struct FakeEngine::State final : proto::Engine::Service, proto::Admin::Service {
  State(const proto::ModelCard& c, Script s) : card(c), script(std::move(s)) {
    char pattern[] = "/tmp/hf-fake-XXXXXX";
    folder = mkdtemp(pattern);
    target = "unix:" + folder + "/engine.sock";
    health.set_ready(true);
    health.set_accepting(true);
    health.set_state("serving");
    health.set_lease_ms(2000);
    health.set_generation(1);
    health.set_card_fingerprint(card.fingerprint());
    health.mutable_limits()->set_max_seq_len(256);
    health.mutable_limits()->set_max_request_tokens(4096);
    health.mutable_limits()->set_max_running(4);
  }

  ~State() override {
    unlink((folder + "/engine.sock").c_str());
    rmdir(folder.c_str());
  }

  // ---- Engine --------------------------------------------------------------------------------------------------------
  grpc::Status Session(grpc::ServerContext* context, grpc::ServerReaderWriter<proto::SessionEvent, proto::SessionRequest>* stream) override {
    std::mutex session_mutex;
    std::map<uint64_t, Active> active;
    std::atomic<bool> closed{false};
    context->AddInitialMetadata("fake", "1");
    stream->SendInitialMetadata();
    const auto count = [&](int64_t change) {
      const std::lock_guard lock(mutex);
      running += change;
    };
    std::thread pump([&] {
      while (!closed) {
        proto::SessionEvent out;
        bool cut = false;
        {
          const std::lock_guard lock(session_mutex);
          for (auto it = active.begin(); it != active.end() && !cut;) {
            const bool over = Step(it->second, &out, &cut);
            if (over) count(-1);
            it = over ? active.erase(it) : std::next(it);
          }
          if (cut && cut_by_loss) {
            for (const auto& [id, one] : active) {
              proto::TokenEvent& event = *out.add_events();
              event.set_request_id(id);
              event.set_finish(proto::FINISH_LOST);
            }
            count(-static_cast<int64_t>(active.size()));
            active.clear();
          }
          if (out.events_size() > 0) stream->Write(out);
        }
        if (cut && !cut_by_loss) context->TryCancel();
        std::this_thread::sleep_for(std::chrono::microseconds(step_micros.load()));
      }
    });
    proto::SessionRequest in;
    while (stream->Read(&in)) {
      if (in.has_generate()) {
        Accept(in.generate(), stream, &session_mutex, &active);
      } else if (in.has_cancel()) {
        const std::lock_guard lock(session_mutex);
        if (active.erase(in.cancel().request_id())) count(-1);
        const std::lock_guard state_lock(mutex);
        ++cancels;
      }
    }
    closed = true;
    pump.join();
    count(-static_cast<int64_t>(active.size()));
    return grpc::Status::OK;
  }

  template <class Stream>
  void Accept(const proto::GenerateRequest& request, Stream* stream, std::mutex* session_mutex, std::map<uint64_t, Active>* active) {
    Refuse refuse_now;
    {
      const std::lock_guard lock(mutex);
      seen.push_back(request);
      refuse_now = refuse;
    }
    proto::EngineError error;
    if (refuse_now && refuse_now(request, &error)) {
      proto::SessionEvent out;
      proto::TokenEvent& event = *out.add_events();
      event.set_request_id(request.request_id());
      event.set_finish(proto::FINISH_ERROR);
      *event.mutable_error() = error;
      const std::lock_guard lock(*session_mutex);
      stream->Write(out);
      return;
    }
    Active one;
    one.request = request;
    one.script = script(request);
    const size_t prompt = request.prompt_tokens() ? request.prompt_tokens() : request.tokens_size();
    one.next = request.tokens_size() - prompt;
    {
      const std::lock_guard lock(mutex);
      ++running;
    }
    const std::lock_guard lock(*session_mutex);
    active->emplace(request.request_id(), std::move(one));
  }

  // True when the request is over. *cut: the engine or the session is lost now.
  bool Step(Active& one, proto::SessionEvent* out, bool* cut) {
    {
      const std::lock_guard lock(mutex);
      if (!open && one.told) return false;
    }
    proto::TokenEvent event;
    event.set_request_id(one.request.request_id());
    event.set_generation(1);
    if (!one.told) {
      one.told = true;
      event.mutable_admitted()->set_cached_tokens(cached_tokens);
      if (one.request.prompt_logprobs()) {
        for (const uint32_t id : one.request.tokens()) FillToken(one.request, id, event.add_prompt());
      }
      *out->add_events() = event;
      return false;
    }
    bool over = false;
    for (uint32_t i = 0; i < tokens_per_event && !over && !*cut; ++i) {
      if (one.next >= one.script.size()) {
        event.set_finish(proto::FINISH_ERROR);
        event.mutable_error()->set_message("the test's script ran out");
        over = true;
        break;
      }
      const uint32_t id = one.script[one.next++];
      FillToken(one.request, id, event.add_tokens());
      const auto& stops = one.request.sampling().stop_tokens();
      if (std::find(stops.begin(), stops.end(), id) != stops.end()) {
        event.set_finish(proto::FINISH_STOP);
        over = true;
      } else if (one.next >= one.request.max_tokens()) {
        event.set_finish(proto::FINISH_LENGTH);
        over = true;
      }
      const std::lock_guard lock(mutex);
      if (cut_after > 0 && --cut_after == 0) *cut = true;
    }
    *out->add_events() = event;
    return over;
  }

  static void FillToken(const proto::GenerateRequest& request, uint32_t id, proto::Token* token) {
    token->set_id(id);
    if (!request.sampling().logprobs()) return;
    token->set_logprob(-0.25f);
    for (uint32_t i = 0; i < request.sampling().top_logprobs(); ++i) {
      proto::TokenLogprob& top = *token->add_top();
      top.set_token(i == 0 ? id : 'a' + i);
      // The last alternative has no probability at all.
      top.set_logprob(i + 1 == request.sampling().top_logprobs() && i > 0 ? -std::numeric_limits<float>::infinity() : -0.25f - static_cast<float>(i));
    }
  }

  // ---- Admin ------------------------------------------------------------------------------------------------------------
  grpc::Status Watch(grpc::ServerContext* context, const proto::WatchRequest*, grpc::ServerWriter<proto::HealthStatement>* writer) override {
    uint64_t sent_version = 0;
    while (!context->IsCancelled()) {
      proto::HealthStatement statement;
      {
        std::unique_lock lock(mutex);
        changed.wait_for(lock, std::chrono::milliseconds(std::max<uint32_t>(health.lease_ms() / 4, 5)),
                         [&] { return version != sent_version || stopping; });
        if (stopping) break;
        if (silent) {
          lock.unlock();
          std::this_thread::sleep_for(std::chrono::milliseconds(5));
          continue;
        }
        sent_version = version;
        health.set_sequence(++sequence);
        health.set_instance(instance);
        statement = health;
      }
      if (!writer->Write(statement)) break;
    }
    return grpc::Status::OK;
  }

  grpc::Status GetModelCard(grpc::ServerContext*, const proto::ModelCardRequest*, proto::ModelCardReply* reply) override {
    reply->set_fingerprint(card.fingerprint());
    card.SerializeToString(reply->mutable_card());
    return grpc::Status::OK;
  }

  grpc::Status GetStatus(grpc::ServerContext*, const proto::StatusRequest*, proto::StatusReply* reply) override {
    const std::lock_guard lock(mutex);
    *reply->mutable_health() = health;
    proto::PoolStatus& pool = *reply->add_pools();
    pool.set_name("full");
    pool.set_capacity(64);
    pool.set_free(60);
    pool.set_held(4);
    pool.set_floor(8);
    reply->set_backend("fake");
    return grpc::Status::OK;
  }

  grpc::Status GetMetrics(grpc::ServerContext*, const proto::MetricsRequest*, proto::MetricsReply* reply) override {
    const std::lock_guard lock(mutex);
    reply->set_text(metrics_text);
    return grpc::Status::OK;
  }

  grpc::Status ListRequests(grpc::ServerContext*, const proto::ListRequestsRequest*, proto::ListRequestsReply* reply) override {
    const std::lock_guard lock(mutex);
    for (const proto::GenerateRequest& one : seen) reply->add_requests()->set_trace_id(one.trace_id());
    return grpc::Status::OK;
  }

  grpc::Status ListIncidents(grpc::ServerContext*, const proto::ListIncidentsRequest*, proto::ListIncidentsReply* reply) override {
    proto::Incident& incident = *reply->add_incidents();
    incident.set_id("i-1");
    incident.set_cause("signal 9");
    return grpc::Status::OK;
  }

  grpc::Status ResizeCache(grpc::ServerContext*, const proto::ResizeCacheRequest* request, proto::ResizeCacheReply* reply) override {
    proto::ResizeReport& report = *reply->mutable_report();
    report.set_operation(7);
    if (request->targets_size() > 0 && request->targets(0).pages() < 8) {
      report.set_state(proto::ResizeReport::REFUSED);
      report.set_message("full: 4 pages are below the floor of 8");
    } else {
      report.set_state(proto::ResizeReport::DONE);
    }
    return grpc::Status::OK;
  }

  const proto::ModelCard card;
  const Script script;
  std::string folder, target;
  std::unique_ptr<grpc::Server> server;
  mutable std::mutex mutex;
  std::condition_variable changed;
  proto::HealthStatement health;
  std::string instance = "fake-1";
  uint64_t version = 1, sequence = 0, lives = 0;
  bool stopping = false, silent = false, open = true;
  Refuse refuse;
  std::atomic<uint32_t> tokens_per_event{1}, step_micros{300}, cached_tokens{0};
  uint32_t cut_after = 0;
  std::atomic<bool> cut_by_loss{true};
  std::vector<proto::GenerateRequest> seen;
  std::string metrics_text = "# HELP holdfast_pages Pages\n# TYPE holdfast_pages gauge\nholdfast_pages{pool=\"full\",state=\"free\"} 60\n";
  size_t cancels = 0;
  int64_t running = 0;
};

FakeEngine::FakeEngine(const proto::ModelCard& card, Script script) : state_(std::make_unique<State>(card, std::move(script))) { Start(); }
FakeEngine::~FakeEngine() { Stop(); }

const std::string& FakeEngine::target() const { return state_->target; }

// gRPC 1.51 can abort when the last user of its process-wide callback queue goes (see LeaveProcess in proto/base/exit_code.h). A channel that
// has made a call and is never destroyed keeps it in use, so that a test binary tears down as often as it likes.
void KeepCallbackQueue() {
  static const auto* const channel = [] {
    auto* kept = new std::shared_ptr<grpc::Channel>(grpc::CreateChannel("unix:/nonexistent/keep", grpc::InsecureChannelCredentials()));
    const auto stub = proto::Admin::NewStub(*kept);
    grpc::ClientContext context;
    const proto::StatusRequest request;
    proto::StatusReply reply;
    std::promise<void> done;
    stub->async()->GetStatus(&context, &request, &reply, [&](const grpc::Status&) { done.set_value(); });
    done.get_future().wait();
    return kept;
  }();
  (void)channel;
}

void FakeEngine::Start() {
  if (state_->server) return;
  KeepCallbackQueue();
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = false;
    state_->instance = "fake-" + std::to_string(++state_->lives);
  }
  grpc::ServerBuilder builder;
  builder.AddListeningPort(state_->target, grpc::InsecureServerCredentials());
  builder.RegisterService(static_cast<proto::Engine::Service*>(state_.get()));
  builder.RegisterService(static_cast<proto::Admin::Service*>(state_.get()));
  state_->server = builder.BuildAndStart();
  if (!state_->server) throw std::runtime_error("the fake engine cannot listen on " + state_->target);
}

void FakeEngine::Stop() {
  if (!state_->server) return;
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->changed.notify_all();
  state_->server->Shutdown(std::chrono::system_clock::now());
  state_->server->Wait();
  state_->server.reset();
}

void FakeEngine::SetRefuse(Refuse refuse) {
  const std::lock_guard lock(state_->mutex);
  state_->refuse = std::move(refuse);
}
void FakeEngine::SetTokensPerEvent(uint32_t n) { state_->tokens_per_event = n; }
void FakeEngine::SetStepMicros(uint32_t micros) { state_->step_micros = micros; }
void FakeEngine::SetCachedTokens(uint32_t n) { state_->cached_tokens = n; }
void FakeEngine::SetOpen(bool open) {
  const std::lock_guard lock(state_->mutex);
  state_->open = open;
}
void FakeEngine::LoseAfter(uint32_t tokens) {
  const std::lock_guard lock(state_->mutex);
  state_->cut_by_loss = true;
  state_->cut_after = tokens;
}
void FakeEngine::BreakAfter(uint32_t tokens) {
  const std::lock_guard lock(state_->mutex);
  state_->cut_by_loss = false;
  state_->cut_after = tokens;
}

void FakeEngine::SetHealth(bool ready, const std::string& state, uint32_t lease_ms, const std::string& reason) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->health.set_ready(ready);
    state_->health.set_accepting(ready);
    state_->health.set_state(state);
    state_->health.set_lease_ms(lease_ms);
    state_->health.set_reason(reason);
    ++state_->version;
  }
  state_->changed.notify_all();
}
void FakeEngine::SetSilent(bool silent) {
  const std::lock_guard lock(state_->mutex);
  state_->silent = silent;
}
void FakeEngine::SetLimits(uint32_t max_seq_len, uint64_t max_request_tokens) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->health.mutable_limits()->set_max_seq_len(max_seq_len);
    state_->health.mutable_limits()->set_max_request_tokens(max_request_tokens);
    ++state_->version;
  }
  state_->changed.notify_all();
}
void FakeEngine::SetMetricsText(std::string text) {
  const std::lock_guard lock(state_->mutex);
  state_->metrics_text = std::move(text);
}

std::vector<proto::GenerateRequest> FakeEngine::requests() const {
  const std::lock_guard lock(state_->mutex);
  return state_->seen;
}
size_t FakeEngine::cancels() const {
  const std::lock_guard lock(state_->mutex);
  return state_->cancels;
}
size_t FakeEngine::running() const {
  const std::lock_guard lock(state_->mutex);
  return static_cast<size_t>(state_->running);
}

std::vector<uint32_t> ByteIds(std::string_view text) {
  std::vector<uint32_t> ids;
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

}  // namespace holdfast::testing
