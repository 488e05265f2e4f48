#pragma once
// The supervisor's Prometheus series. Counters the worker reports start at zero with every generation; here they only ever rise.
// Label values come from closed sets or are bounded in number. Loop thread only (scraping is safe from any thread).
#include <array>
#include <map>
#include <string>
#include <string_view>

#include "proto/base/metrics.h"
#include "proto/worker.pb.h"
#include "supervisor/group_machine.h"

namespace holdfast::supervisor {

class SupervisorMetrics {
 public:
  explicit SupervisorMetrics(prometheus::Registry& registry = MetricsRegistry());

  void SetState(GroupState state, Generation generation);
  void CountRestart(LossCause cause);
  void CountIncident() { incidents_->Increment(); }
  void CountWeightLoad(bool mapped) { (mapped ? weights_mapped_ : weights_loaded_)->Increment(); }
  void SetQueue(size_t waiting, size_t running);
  void SetFenced(uint64_t total);
  void CountRequest(std::string_view end);                   // stop|length|cancelled|error|lost|refused...
  void CountFinding(std::string_view severity, const std::string& kind);
  // A report of rank 0; stepped: it tells of a new step.
  void OnReport(const proto::StepReport& step, bool stepped);
  void OnPools(const google::protobuf::RepeatedPtrField<proto::PoolStatus>& pools);
  // The worker is gone: its gauges fall to zero, its counters are kept.
  void OnGroupLost();
  void SetRecovery(Duration d);                              // from the last loss to the first token after it

 private:
  struct Rising {
    prometheus::Counter* counter = nullptr;
    double last = 0;  // as reported by the present generation
    void Report(double value) {
      counter->Increment(value >= last ? value - last : value);
      last = value;
    }
  };
  prometheus::Family<prometheus::Gauge>& pages_;
  prometheus::Family<prometheus::Gauge>& capacity_;
  prometheus::Family<prometheus::Counter>& evictions_;
  prometheus::Family<prometheus::Counter>& findings_;
  prometheus::Family<prometheus::Counter>& restarts_;
  prometheus::Family<prometheus::Counter>& requests_;
  std::array<prometheus::Gauge*, kGroupStates> states_{};
  prometheus::Gauge* generation_;
  prometheus::Gauge* queue_;
  prometheus::Gauge* running_;
  prometheus::Gauge* recovery_;
  prometheus::Counter* incidents_;
  prometheus::Counter* weights_mapped_;
  prometheus::Counter* weights_loaded_;
  prometheus::Counter* generated_;
  Rising fenced_;
  prometheus::Histogram* step_seconds_;
  std::map<std::string, Rising> cache_;                      // by field name
  std::map<std::string, Rising> pool_evictions_;
  std::map<std::string, bool> finding_kinds_;
};

}  // namespace holdfast::supervisor
