#pragma once
// What this frontend knows of the engine: the health lease and the model of the current card. It asks for a card when a statement names a
// fingerprint it does not hold, and keeps the model over every restart of the engine. Loop thread only.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "frontend/admin_client.h"
#include "frontend/health_lease.h"
#include "frontend/loop.h"
#include "frontend/model_view.h"
#include "frontend/text_pool.h"

namespace holdfast::api {

class EngineState final {
 public:
  EngineState(Loop& loop, TextPool& pool, ParserNames parsers = {});
  ~EngineState();

  // Where cards come from; set once, before the first statement. The client outlives the last statement.
  void UseCards(AdminClient* admin) { admin_ = admin; }

  void OnStatement(const proto::HealthStatement& statement);
  void OnDisconnected();

  const HealthLease& lease() const { return lease_; }
  // Null until the first card arrived.
  std::shared_ptr<const ModelView> model() const { return model_; }

  // Requests can be served now: the lease is fresh and says so, and the model of its card is here.
  bool ready() const;
  bool accepting() const { return ready() && lease_.accepting(loop_.Now()); }
  // "ready", or the state and reason for people.
  std::string state() const;
  std::string reason() const;

  // Called after everything that may have changed ready(), also when the lease runs out. Not re-entrant: the call may subscribe and
  // unsubscribe. Returns the number to unsubscribe with.
  uint64_t Subscribe(std::function<void()> changed);
  void Unsubscribe(uint64_t id);

 private:
  void WantCard();
  void OnCard(const std::string& fingerprint, const absl::Status& status, std::string card);
  void Changed();
  bool HasModelOfStatement() const;

  Loop& loop_;
  TextPool& pool_;
  const ParserNames parsers_;
  AdminClient* admin_ = nullptr;
  HealthLease lease_;
  std::shared_ptr<const ModelView> model_;
  std::string wanted_;          // fingerprint being fetched
  std::string card_error_;      // why the current card is of no use
  std::string card_error_of_;
  std::unique_ptr<Timer> expiry_;
  std::unique_ptr<Timer> retry_;
  std::map<uint64_t, std::function<void()>> listeners_;
  uint64_t last_listener_ = 0;
  bool was_ready_ = false;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace holdfast::api
