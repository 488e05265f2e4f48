#include "frontend/api/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <mutex>
#include <set>

namespace holdfast::api {
namespace {

const prometheus::Histogram::BucketBoundaries kFirstToken = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
const prometheus::Histogram::BucketBoundaries kBetween = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10};

double Seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

// The name of a sample: its family, or that with a suffix of histograms.
std::string_view FamilyOf(std::string_view sample) { return sample.substr(0, sample.find_first_of("{ \t")); }

// Name in "# HELP name ..." or "# TYPE name ..."; "" for other comments.
std::string_view DescribedFamily(std::string_view line) {
  if (line.substr(0, 7) != "# HELP " && line.substr(0, 7) != "# TYPE ") return {};
  line.remove_prefix(7);
  return line.substr(0, line.find(' '));
}

template <class F>
void ForEachLine(std::string_view text, F f) {
  while (!text.empty()) {
    const size_t end = text.find('\n');
    f(text.substr(0, end));
    if (end == std::string_view::npos) return;
    text.remove_prefix(end + 1);
  }
}

}  // namespace

struct FrontendMetrics::Families {
  explicit Families(prometheus::Registry& r)
      : requests(prometheus::BuildCounter().Name("holdfast_requests_total").Help("Generation requests that ended, by how").Register(r)),
        http(prometheus::BuildCounter().Name("holdfast_http_requests_total").Help("HTTP requests answered, by route and status").Register(r)),
        prompt(prometheus::BuildCounter()
                   .Name("holdfast_prompt_tokens_total")
                   .Help("Prompt tokens of admitted requests, computed or taken from the prefix cache")
                   .Register(r)),
        resumes(prometheus::BuildCounter()
                    .Name("holdfast_resumes_total")
                    .Help("Choices that went on after the engine was lost")
                    .Register(r)
                    .Add({})),
        generated(prometheus::BuildCounter().Name("holdfast_generated_tokens_total").Help("Tokens generated").Register(r).Add({})),
        ttft(prometheus::BuildHistogram()
                 .Name("holdfast_ttft_seconds")
                 .Help("From the parsed request to its first token")
                 .Register(r)
                 .Add({}, kFirstToken)),
        between(prometheus::BuildHistogram()
                    .Name("holdfast_inter_token_seconds")
                    .Help("Between two tokens of a request")
                    .Register(r)
                    .Add({}, kBetween)),
        active(prometheus::BuildGauge().Name("holdfast_active_requests").Help("Generation requests at work").Register(r).Add({})),
        lease_age(prometheus::BuildGauge()
                      .Name("holdfast_health_lease_age_seconds")
                      .Help("Since the engine last stated its health; -1 before it ever did")
                      .Register(r)
                      .Add({})),
        ready(prometheus::BuildGauge().Name("holdfast_frontend_ready").Help("1 when requests can be served").Register(r).Add({})),
        engine_up(prometheus::BuildGauge()
                      .Name("holdfast_engine_up")
                      .Help("1 when the supervisor answered this scrape")
                      .Register(r)
                      .Add({})),
        computed(prompt.Add({{"source", "computed"}})),
        cached(prompt.Add({{"source", "cached"}})) {
    for (const char* end : {"stop", "length", "abort", "error", "refused"}) requests.Add({{"end", end}});
  }

  prometheus::Family<prometheus::Counter>& requests;
  prometheus::Family<prometheus::Counter>& http;
  prometheus::Family<prometheus::Counter>& prompt;
  prometheus::Counter& resumes;
  prometheus::Counter& generated;
  prometheus::Histogram& ttft;
  prometheus::Histogram& between;
  prometheus::Gauge& active;
  prometheus::Gauge& lease_age;
  prometheus::Gauge& ready;
  prometheus::Gauge& engine_up;
  prometheus::Counter& computed;
  prometheus::Counter& cached;
};

// Counts by the second, of the last few seconds.
class FrontendMetrics::RateWindow final {
 public:
  void Add(uint64_t n) {
    const int64_t now = Second();
    const std::lock_guard lock(mutex_);
    Bucket& bucket = buckets_[static_cast<size_t>(now) % buckets_.size()];
    if (bucket.second != now) bucket = {now, 0};
    bucket.count += n;
  }
  double PerSecond() const {
    const int64_t now = Second();
    const std::lock_guard lock(mutex_);
    uint64_t sum = 0;
    for (const Bucket& bucket : buckets_) {
      if (bucket.second >= now - kSeconds && bucket.second < now) sum += bucket.count;
    }
    return static_cast<double>(sum) / kSeconds;
  }

 private:
  static constexpr int64_t kSeconds = 5;
  struct Bucket {
    int64_t second = -kSeconds - 1;
    uint64_t count = 0;
  };
  static int64_t Second() { return std::chrono::duration_cast<std::chrono::seconds>(Clock::Real().Now().time_since_epoch()).count(); }

  mutable std::mutex mutex_;
  std::array<Bucket, kSeconds + 1> buckets_;
};

FrontendMetrics::FrontendMetrics(prometheus::Registry& registry)
    : registry_(registry), families_(std::make_unique<Families>(registry)), generated_rate_(std::make_unique<RateWindow>()),
      prompt_rate_(std::make_unique<RateWindow>()) {}
FrontendMetrics::~FrontendMetrics() = default;

void FrontendMetrics::RequestStarted() { families_->active.Increment(); }
void FrontendMetrics::RequestEnded(std::string_view end) {
  families_->active.Decrement();
  families_->requests.Add({{"end", std::string(end)}}).Increment();
}
void FrontendMetrics::Resumed() { families_->resumes.Increment(); }
void FrontendMetrics::GeneratedTokens(uint64_t n) {
  families_->generated.Increment(static_cast<double>(n));
  generated_rate_->Add(n);
}
FrontendMetrics::Rates FrontendMetrics::TokenRates() const { return {generated_rate_->PerSecond(), prompt_rate_->PerSecond()}; }
void FrontendMetrics::PromptTokens(uint64_t computed, uint64_t cached) {
  families_->computed.Increment(static_cast<double>(computed));
  families_->cached.Increment(static_cast<double>(cached));
  prompt_rate_->Add(computed);
}
void FrontendMetrics::TimeToFirstToken(Duration d) { families_->ttft.Observe(Seconds(d)); }
void FrontendMetrics::InterToken(Duration d) { families_->between.Observe(Seconds(d)); }
void FrontendMetrics::HttpRequest(std::string_view route, int code) {
  families_->http.Add({{"route", std::string(route)}, {"code", fmt::format("{}", code)}}).Increment();
}
void FrontendMetrics::SetHealth(double lease_age_seconds, bool ready, bool engine_reached) {
  families_->lease_age.Set(lease_age_seconds);
  families_->ready.Set(ready ? 1 : 0);
  families_->engine_up.Set(engine_reached ? 1 : 0);
}

std::string FrontendMetrics::Text() const { return prometheus::TextSerializer().Serialize(registry_.Collect()); }

std::string MergeMetricsText(std::string_view own, std::string_view engine) {
  std::set<std::string_view> described;
  ForEachLine(own, [&](std::string_view line) {
    if (const std::string_view family = DescribedFamily(line); !family.empty()) described.insert(family);
  });
  std::string out(own);
  if (!out.empty() && out.back() != '\n') out.push_back('\n');
  std::string_view skipped;  // the family whose description was dropped last
  ForEachLine(engine, [&](std::string_view line) {
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty()) return;
    if (line[0] == '#') {
      const std::string_view family = DescribedFamily(line);
      if (family.empty()) return;
      skipped = described.count(family) ? family : std::string_view();
      if (!skipped.empty()) return;
    } else {
      const char first = line[0];
      if (!((first >= 'a' && first <= 'z') || (first >= 'A' && first <= 'Z') || first == '_' || first == ':')) return;
      if (line.find(' ') == std::string_view::npos) return;
      const std::string_view name = FamilyOf(line);
      if (described.count(name)) return;
      if (!skipped.empty() && name.substr(0, skipped.size()) == skipped) {
        const std::string_view suffix = name.substr(skipped.size());
        if (suffix == "_bucket" || suffix == "_sum" || suffix == "_count") return;
      }
    }
    out.append(line);
    out.push_back('\n');
  });
  return out;
}

}  // namespace holdfast::api
