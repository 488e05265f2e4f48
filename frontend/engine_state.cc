#include "frontend/engine_state.h"

#include <utility>

#include "proto/base/fault.h"
#include "proto/base/log.h"
#include "proto/base/status_wire.h"

namespace holdfast::api {

EngineState::EngineState(Loop& loop, TextPool& pool, ParserNames parsers) : loop_(loop), pool_(pool), parsers_(std::move(parsers)) {}
EngineState::~EngineState() = default;

bool EngineState::HasModelOfStatement() const {
  const proto::HealthStatement* statement = lease_.statement();
  return model_ && statement && (statement->card_fingerprint().empty() || statement->card_fingerprint() == model_->fingerprint());
}

bool EngineState::ready() const { return lease_.ready(loop_.Now()) && HasModelOfStatement(); }

std::string EngineState::state() const {
  if (lease_.ready(loop_.Now()) && !HasModelOfStatement()) return "loading";
  return lease_.state(loop_.Now());
}

std::string EngineState::reason() const {
  if (lease_.ready(loop_.Now()) && !HasModelOfStatement()) {
    return card_error_.empty() ? "Loading model" : "The model's vocabulary or template cannot be used: " + card_error_;
  }
  return lease_.reason(loop_.Now());
}

void EngineState::OnStatement(const proto::HealthStatement& statement) {
  if (FaultPoint("frontend.statement")) return;
  if (!lease_.Receive(statement, loop_.Now())) return;
  expiry_ = loop_.After(lease_.expires() - loop_.Now() + std::chrono::milliseconds(1), [this] { Changed(); });
  WantCard();
  Changed();
}

void EngineState::OnDisconnected() {
  lease_.Disconnected();
  wanted_.clear();
  Changed();
}

void EngineState::WantCard() {
  const std::string& fingerprint = lease_.statement()->card_fingerprint();
  if (!admin_ || fingerprint.empty() || fingerprint == wanted_ || fingerprint == card_error_of_) return;
  if (model_ && model_->fingerprint() == fingerprint) return;
  wanted_ = fingerprint;
  proto::ModelCardRequest request;
  request.set_fingerprint(fingerprint);
  admin_->GetModelCard(request, [this, fingerprint](const absl::Status& status, const proto::ModelCardReply& reply) {
    OnCard(fingerprint, status, reply.card());
  });
}

void EngineState::OnCard(const std::string& fingerprint, const absl::Status& status, std::string card) {
  if (wanted_ != fingerprint) return;
  const auto again = [this] {
    wanted_.clear();
    retry_ = loop_.After(std::chrono::milliseconds(200), [this] {
      if (lease_.statement()) WantCard();
    });
  };
  if (!status.ok()) {
    LogWarn("the model card could not be fetched: {}", MessageOf(status));
    again();
    return;
  }
  auto work = [this, fingerprint, card = std::move(card), parsers = parsers_, alive = std::weak_ptr(alive_), loop = &loop_] {
    auto made = ModelView::Create(card, parsers);
    loop->Post([this, fingerprint, made = std::move(made), alive] {
      if (!alive.lock() || wanted_ != fingerprint) return;
      wanted_.clear();
      if (made.ok()) {
        model_ = *made;
        card_error_.clear();
        card_error_of_.clear();
        LogInfo("model {} ({}, {} tokens in the vocabulary)", model_->name(), model_->architecture(), model_->vocab_size());
        if (!model_->template_error().empty()) LogWarn("{}", model_->template_error());
      } else {
        // The same bytes would fail again: wait for another card.
        card_error_ = MessageOf(made.status());
        card_error_of_ = fingerprint;
        LogError("the model card {} cannot be used: {}", fingerprint, card_error_);
      }
      Changed();
    });
  };
  if (!pool_.Run(std::move(work))) again();
}

void EngineState::Changed() {
  const bool now = ready();
  if (std::exchange(was_ready_, now) != now) LogInfo("engine {}{}{}", state(), now ? "" : ": ", now ? "" : reason());
  const auto listeners = listeners_;
  for (const auto& [id, changed] : listeners) {
    if (listeners_.count(id)) changed();
  }
}

uint64_t EngineState::Subscribe(std::function<void()> changed) {
  listeners_.emplace(++last_listener_, std::move(changed));
  return last_listener_;
}

void EngineState::Unsubscribe(uint64_t id) { listeners_.erase(id); }

}  // namespace holdfast::api
