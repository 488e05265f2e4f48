#include "tests/sim/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/sim/test_peer.h"
#include "tests/sim/transcript.h"
#include "worker/kv/drill.h"

namespace holdfast::sim {
namespace {

constexpr uint32_t kAlphabet = 3;  // few tokens: paths meet by chance, in prompts and in answers

struct Live {
  std::vector<TokenId> tokens;   // prompt, then delivered
  uint32_t prompt = 0, max_tokens = 0;
  uint64_t salt = 0;
  bool admitted = false;
  bool run_ahead = false;
};

class Player {
 public:
  explicit Player(const CommandConfig& config) : c_(config), engine_(config.scheduler.cache) {}

  CommandOutcome Play(const std::vector<Command>& commands) {
    for (uint32_t rank = 0; rank < c_.ranks; ++rank) {
      Skew(rank);
      auto created = sched::Scheduler::Create(c_.scheduler, &log_);
      if (!created.ok()) {
        out_.error = "not created: " + std::string(created.status().message());
        return out_;
      }
      ranks_.push_back(*std::move(created));
    }
    if (c_.transcript != nullptr) *c_.transcript += ConfigLine(c_.scheduler) + "\n";
    CheckFloor();
    for (; out_.at < commands.size() && out_.error.empty(); ++out_.at) {
      Do(commands[out_.at]);
      Examine();
    }
    Drain();
    out_.digest = s().digest();
    out_.counters = s().counters();
    return out_;
  }

 private:
  sched::Scheduler& s() { return *ranks_[0]; }
  void Skew([[maybe_unused]] uint32_t rank) {
#ifdef HOLDFAST_DRILLS
    kv::drill::rank_skew = rank * 0x5555;
#endif
  }
  template <class F>
  void All(F f) {
    for (uint32_t rank = 0; rank < c_.ranks; ++rank) {
      Skew(rank);
      f(*ranks_[rank]);
    }
  }
  // A command and what followed from it, on the first rank.
  void Log(const std::string& line) {
    if (c_.transcript != nullptr) *c_.transcript += line + "\n" + StateLine(s()) + "\n";
  }
  void Error(const std::string& what) {
    if (out_.error.empty()) out_.error = what;
  }

  // The formula again, from the proof and not from the code: one page less must be refused.
  void CheckFloor() {
    const sched::SchedulerConfig& c = c_.scheduler;
    for (size_t g = 0; g < c.cache.groups.size(); ++g) {
      const uint64_t w = c.cache.groups[g].window, ps = c.cache.page_size, n = c.max_running;
      if (w == 0) continue;
      uint64_t row = 0;  // pages that meet a window of W-1 positions at the worst alignment, and one more for tokens in flight
      if (ps == 1) {
        row = w - 1;
      } else {
        row = ((w > 2 ? w - 2 : 0) + ps - 1) / ps + 2;
      }
      const uint64_t smallest = std::max<uint64_t>(n, std::min<uint64_t>(256, c.prefill_chunk));
      const uint64_t floor = n * row + (c.overlap_depth + 1) * smallest / ps;
      sched::SchedulerConfig less = c;
      if (floor == 0) continue;
      less.cache.groups[g].pages = static_cast<uint32_t>(floor - 1);
      if (sched::Scheduler::Create(less, nullptr).ok()) Error(fmt::format("a window pool of {} pages was accepted, the floor is {}", floor - 1, floor));
    }
  }

  void Do(const Command& command) {
    switch (command.kind) {
      case Command::kSubmit: Submit(command); break;
      case Command::kStep: Step(); break;
      case Command::kSettle: Settle(command.a, command.b); break;
      case Command::kCancel: Cancel(command.a); break;
      case Command::kEvict: Evict(command.a, command.b); break;
      case Command::kSuspect: Suspect(command.a, command.b); break;
      case Command::kResize: Resize(command.a, command.b, false); break;
      case Command::kResizeCancel: Resize(0, 0, true); break;
      case Command::kResetIndex: ResetIndex(); break;
      case Command::kKinds: break;
    }
    Events();
  }

  void Submit(const Command& command) {
    if (live_.size() >= 10) return;
    Rng rng(command.a);
    const uint32_t ps = c_.scheduler.cache.page_size;
    sched::SubmitCommand submit;
    submit.request = RequestId(next_request_++);
    // A stretch of one of three shared texts, then an own end.
    Rng text(command.b % 3 + 1);
    const uint32_t shared = rng.Below(5 * ps + 12), own = rng.Below(2 * ps + 4) + 1;
    for (uint32_t i = 0; i < shared; ++i) submit.tokens.push_back(text.Below(kAlphabet));
    for (uint32_t i = 0; i < own; ++i) submit.tokens.push_back(rng.Below(kAlphabet));
    const uint32_t count = static_cast<uint32_t>(submit.tokens.size());
    submit.prompt_tokens = count;
    if (rng.Percent(10) && count > 2) submit.prompt_tokens = count - 1;  // resumed
    submit.max_tokens = rng.Between(submit.prompt_tokens < count ? 2 : 1, ps + 10);
    if (rng.Percent(50) && shared > 0) submit.anchors.push_back(shared);
    if (rng.Percent(15)) submit.cache_salt = "tenant";
    submit.no_cache = rng.Percent(8);
    submit.prompt_logprobs = rng.Percent(4);
    submit.run_ahead = rng.Percent(75);
    Live live;
    live.tokens = submit.tokens;
    live.prompt = submit.prompt_tokens;
    live.max_tokens = submit.max_tokens;
    live.run_ahead = submit.run_ahead;
    told_[submit.request.v] = count;
    live.salt = submit.cache_salt.empty() ? 0 : 1000;
    if (submit.no_cache) live.salt += submit.request.v * 7919;  // its KV must be met by nobody
    engine_.Know(submit.request, live.salt);
    live_[submit.request.v] = std::move(live);
    All([&](sched::Scheduler& r) { r.Submit(submit); });
    Log(SubmitLine(submit));
  }

  void Step() {
    const sched::StepPlan* plan = nullptr;
    bool first = true;
    uint64_t digest = 0;
    All([&](sched::Scheduler& r) {
      const sched::StepPlan* p = r.Plan();
      std::vector<sched::PageMove> moves = r.TakePageMoves();
      if (first) {
        plan = p;
        engine_.Move(moves);
        digest = p == nullptr ? r.digest() : p->digest;
      } else if ((p == nullptr) != (plan == nullptr) || (p == nullptr ? r.digest() : p->digest) != digest) {
        Error("ranks diverge");
      }
      first = false;
    });
    Log(PlanLine(plan, [this](const sched::StepEntry& e) { return engine_.Awaited(e); }));
    if (plan == nullptr || !out_.error.empty()) return;
    ++out_.steps;
    CheckPlan(*plan);
    CheckAwaited(*plan);
    if (!engine_.Run(*plan)) Error(engine_.error());
    // A page that a launched step writes is nobody else's until it has settled (I6, I12).
    Pending pending;
    for (const sched::StepEntry& e : plan->entries) pending.starts[e.request.v] = e.start;
    const uint32_t ps = c_.scheduler.cache.page_size;
    for (const sched::StepEntry& e : plan->entries) {
      const uint32_t end = (e.start + static_cast<uint32_t>(e.tokens.size()) + ps - 1) / ps;
      for (size_t g = 0; g < e.tables.size(); ++g) {
        for (uint32_t i = e.start / ps; i < end; ++i) {
          if (e.tables[g][i] < 0) continue;
          const std::pair<size_t, int32_t> page(g, e.tables[g][i]);
          for (const Pending& earlier : queue_) {
            const auto named = earlier.pages.find(page);
            if (named != earlier.pages.end() && named->second != e.request.v && suspects_ == 0) Error(fmt::format("page {} of group {} is written by request {} while a step of request {} is in flight", page.second, g, e.request.v, named->second));
          }
          pending.pages[page] = e.request.v;
        }
      }
    }
    pending.result.step = plan->step;
    for (const sched::StepEntry& e : plan->entries) {
      if (!e.sample) continue;
      sched::SampledToken t;
      t.request = e.request;
      t.token = engine_.Sample(e) % kAlphabet;
      engine_.Drew(e, t.token);
      pending.result.sampled.push_back(t);
    }
    queue_.push_back(std::move(pending));
  }

  void CheckPlan(const sched::StepPlan& plan) {
    const auto& limits = sched::TestPeer::limits(s());
    if (plan.total_tokens > limits.chunk) Error("more tokens than the chunk");
    std::set<uint32_t> slots;
    bool prefill_seen = false;
    for (const sched::StepEntry& e : plan.entries) {
      if (e.slot.v >= c_.scheduler.max_running || !slots.insert(e.slot.v).second) Error("slot used twice or out of range");
      const sched::Sequence* sequence = sched::TestPeer::Find(s(), e.request);
      const bool decode = sequence != nullptr && e.start >= sequence->target;
      if (!decode) prefill_seen = true;
      if (decode && prefill_seen) Error("a decode behind a prefill");
      if (decode && e.tokens.size() != 1) Error("a decode of several tokens");
      for (size_t g = 0; g < e.tables.size(); ++g) {
        for (uint32_t i = e.start / c_.scheduler.cache.page_size; i <= (e.start + e.tokens.size() - 1) / c_.scheduler.cache.page_size; ++i) {
          if (doomed_.count({g, e.tables[g][i]})) Error("a quarantined page was handed out");
        }
      }
    }
  }

  // A decode that runs ahead: of a request that may, of a token that the step before draws and that is not its last.
  void CheckAwaited(const sched::StepPlan& plan) {
    for (const sched::StepEntry& e : plan.entries) {
      const auto live = live_.find(e.request.v);
      if (live == live_.end()) continue;
      const size_t most = std::min<size_t>(live->second.prompt + live->second.max_tokens, c_.scheduler.max_seq_len);
      if (e.sample && e.start + e.tokens.size() >= most) Error(fmt::format("request {} draws a token beyond its last", e.request.v));
      if (!e.awaits) continue;
      ++out_.awaited;
      if (!live->second.run_ahead) Error(fmt::format("request {} does not run ahead", e.request.v));
      if (e.start + 1 >= most) Error(fmt::format("request {} awaits its last token", e.request.v));
      if (queue_.empty()) {
        Error("a token is awaited that no step draws");
        continue;
      }
      const auto& drawn = queue_.back().result.sampled;
      if (std::none_of(drawn.begin(), drawn.end(), [&](const sched::SampledToken& t) { return t.request == e.request; })) {
        Error(fmt::format("request {} awaits a token that the step before does not draw", e.request.v));
      }
    }
  }

  // What a step in flight computes is in no node (I6): a row's indexed blocks end where its oldest step in flight begins.
  void CheckIndexed() {
    for (const sched::Sequence* q : sched::TestPeer::running(s())) {
      const uint32_t indexed = q->row.indexed * c_.scheduler.cache.page_size;
      if (indexed > told_[q->request.v]) Error(fmt::format("request {} has a block indexed with a token that nobody was told", q->request.v));
      if (suspects_ > 0) continue;  // restarted requests have steps in flight that no longer count
      for (const Pending& step : queue_) {
        const auto start = step.starts.find(q->request.v);
        if (start == step.starts.end()) continue;
        if (indexed > start->second) Error(fmt::format("request {} has blocks indexed that a step in flight computes", q->request.v));
        break;
      }
    }
  }

  void Settle(uint32_t stop_mask, uint32_t fail_mask) {
    if (queue_.empty()) return;
    const bool newest = c_.newest_first && queue_.size() > 1;
    Pending pending = newest ? queue_.back() : queue_.front();
    if (newest) queue_.pop_back(); else queue_.pop_front();
    for (size_t i = 0; i < pending.result.sampled.size(); ++i) {
      pending.result.sampled[i].is_stop = stop_mask >> (i % 32) & 1;
      pending.result.sampled[i].failed = fail_mask >> (i % 32) & 1;
    }
    All([&](sched::Scheduler& r) { r.Apply(pending.result); });
    Log(ApplyLine(pending.result));
  }

  void Cancel(uint32_t pick) {
    if (live_.empty()) return;
    auto it = live_.begin();
    std::advance(it, pick % live_.size());
    const RequestId id(it->first);
    All([&](sched::Scheduler& r) { r.Cancel(id); });
    Log(fmt::format("cancel {}", id.v));
  }

  void Evict(uint32_t group, uint32_t count) {
    All([&](sched::Scheduler& r) {
      kv::Ledger& ledger = sched::TestPeer::ledger(r);
      for (uint32_t i = 0; i < count; ++i) ledger.EvictOne(group % ledger.groups());
    });
    Log(fmt::format("evict {} {}", group % sched::TestPeer::ledger(s()).groups(), count));
  }

  void ResetIndex() {
    All([](sched::Scheduler& r) { sched::TestPeer::ledger(r).ResetIndex(); });
    Log("reset");
  }

  void Suspect(uint32_t group, uint32_t pick) {
    if (suspects_ >= 3) return;
    const size_t g = group % ranks_.size() == 0 ? pick % sched::TestPeer::ledger(s()).groups() : 0;
    const kv::Arena& arena = sched::TestPeer::ledger(s()).arena(g);
    std::vector<uint32_t> held;
    for (uint32_t p = 0; p < arena.limit(); ++p) {
      if (arena.word(p).kind() == kv::PageKind::kHeld) held.push_back(p);
    }
    if (held.empty()) return;
    // Only while every pool has pages to spare: a pool at its floor has to give up requests, which is another test.
    for (const kv::PoolView& pool : s().Pools()) {
      if (pool.capacity - pool.quarantined <= pool.floor + 1) return;
    }
    if (s().resize().phase == sched::ResizeState::Phase::kRunning) return;
    uint32_t largest = 0;
    for (const auto& [id, live] : live_) largest = std::max<uint32_t>(largest, live.prompt + live.max_tokens + c_.scheduler.cache.page_size);
    if (sched::TestPeer::ledger(s()).has_full() && largest > (sched::TestPeer::ledger(s()).Usable(0) - 1) * c_.scheduler.cache.page_size) return;
    ++suspects_;
    const uint32_t page = held[pick % held.size()];
    doomed_.insert({g, static_cast<int32_t>(page)});
    All([&](sched::Scheduler& r) { r.SuspectPage(static_cast<uint8_t>(g), page); });
    Log(fmt::format("suspect {} {}", g, page));
  }

  void Resize(uint32_t full, uint32_t window, bool cancel) {
    sched::ResizeCommand command;
    command.operation = ++operation_;
    command.cancel = cancel;
    if (cancel) {
      command.operation = 0;
    } else {
      if (s().resize().phase == sched::ResizeState::Phase::kRunning) return;
      for (const kv::GroupShape& g : c_.scheduler.cache.groups) {
        uint32_t& target = g.window == 0 ? command.full_pages : command.window_pages;
        target = std::max(g.reserve_pages, g.pages) * (50 + (g.window == 0 ? full : window) % 51) / 100;
      }
    }
    All([&](sched::Scheduler& r) { r.Resize(command); });
    Log(fmt::format("resize {} {} {} {:d}", command.operation, command.full_pages, command.window_pages, cancel));
  }

  void Events() {
    std::vector<sched::RequestEvent> events;
    bool first = true;
    All([&](sched::Scheduler& r) {
      std::vector<sched::RequestEvent>& mine = r.TakeEvents();
      if (first) events = mine;
      else if (events.size() != mine.size()) Error("ranks differ in events");
      first = false;
    });
    for (const sched::RequestEvent& e : events) {
      const auto it = live_.find(e.request.v);
      if (it == live_.end()) {
        Error(fmt::format("an event of request {} after its end", e.request.v));
        continue;
      }
      Live& live = it->second;
      if (e.admitted) {
        if (live.admitted) Error("admitted twice");
        live.admitted = true;
      }
      if (e.has_token) {
        // Recomputed from its own tokens alone, as a cold solo run would.
        uint64_t tag = live.salt;
        bool begun = false;
        for (TokenId t : live.tokens) {
          tag = Mix64((begun ? tag : live.salt + 1) ^ (t + 1ull));
          begun = true;
        }
        const TokenId expected = static_cast<TokenId>(Mix64(tag ^ 0x73) % 30000 + 10) % kAlphabet;
        if (e.token != expected) Error(fmt::format("request {} token {}: {} instead of {}", e.request.v, live.tokens.size(), e.token, expected));
        live.tokens.push_back(e.token);
        ++told_[e.request.v];
        if (live.tokens.size() > live.prompt + static_cast<size_t>(live.max_tokens)) Error("more tokens than asked for");
      }
      switch (e.end) {
        case sched::EndReason::kNone: continue;
        case sched::EndReason::kLength:
          if (live.tokens.size() != std::min<size_t>(live.prompt + live.max_tokens, c_.scheduler.max_seq_len)) Error("ended by length too early");
          break;
        case sched::EndReason::kFailed:
          if (e.message.find("finite") == std::string::npos) Error("failed: " + e.message);
          break;
        case sched::EndReason::kNeverFits: {
          if (live.prompt + live.max_tokens <= e.limit || e.limit != s().max_request_tokens()) Error("refused although it fits: " + e.message);
          break;
        }
        default: break;
      }
      engine_.Forget(e.request);
      live_.erase(it);
    }
  }

  void Examine() {
    CheckIndexed();
    for (const Finding& f : log_.findings) {
      const std::string kind = f.kind;
      if (suspects_ > 0 && (kind == "suspect_page" || kind == "replayed" || kind == "quarantine" || kind == "containments")) continue;
      Error(fmt::format("finding {}: {}", kind, f.detail));
    }
    All([&](sched::Scheduler& r) {
      kv::Ledger& ledger = sched::TestPeer::ledger(r);
      if (ledger.HasEvents()) {
        const kv::ArenaEvent e = ledger.DrainEvents()[0];
        Error(fmt::format("{} of page {}", e.what, e.page));
        return;
      }
      const kv::AuditReport report = ledger.Audit();
      if (!report.clean()) Error(fmt::format("audit: {} group {} page {}: {}", report.problems[0].kind, report.problems[0].group, report.problems[0].page, report.problems[0].detail));
      uint64_t reserved = 0;
      for (const sched::Sequence* q : sched::TestPeer::running(r)) reserved += q->reserved;
      if (reserved != sched::TestPeer::reserved(r)) Error("R is not the sum of reservations");
      if (ledger.has_full() && ledger.Available(0) < static_cast<int64_t>(reserved)) Error("I9: reserved pages are not there");
      for (size_t g = 0; g < ledger.groups(); ++g) {
        if (ledger.window(g) != 0 && suspects_ == 0 && ledger.Available(g) < 0) Error("I10: rows hold more than the window pool");
      }
    });
  }

  void Drain() {
    for (uint32_t i = 0; i < 5000 && out_.error.empty(); ++i) {
      if (queue_.empty() && s().running() + s().waiting() == 0) break;
      const uint64_t steps = out_.steps;
      Step();
      if (!queue_.empty()) Settle(i > 60 ? 0xFFFFFFFFu : 0, 0);
      else if (steps == out_.steps && s().resize().phase == sched::ResizeState::Phase::kRunning) Resize(0, 0, true);
      Events();
      if (i % 16 == 0) Examine();
    }
    if (!out_.error.empty()) return;
    Examine();
    if (!live_.empty()) Error(fmt::format("request {} never ended", live_.begin()->first));
    ResetIndex();
    All([&](sched::Scheduler& r) {
      kv::Ledger& ledger = sched::TestPeer::ledger(r);
      for (size_t g = 0; g < ledger.groups(); ++g) {
        const kv::Arena& arena = ledger.arena(g);
        if (arena.count(kv::PageKind::kHeld) != 0) Error(fmt::format("{} pages of group {} leaked", arena.count(kv::PageKind::kHeld), g));
      }
      if (ledger.index().size() != 0) Error("nodes leaked");
    });
    Examine();
  }

  struct Pending {
    sched::StepResult result;
    std::map<uint64_t, uint32_t> starts;                   // [request] first position computed
    std::map<std::pair<size_t, int32_t>, uint64_t> pages;  // named by the step, and by whom
  };
  CommandConfig c_;
  FindingLog log_;
  FakeEngine engine_;
  std::vector<std::unique_ptr<sched::Scheduler>> ranks_;
  std::deque<Pending> queue_;
  std::map<uint64_t, Live> live_;
  std::map<uint64_t, size_t> told_;  // [request] tokens of the prompt and of its events, also when it has ended
  std::set<std::pair<size_t, int32_t>> doomed_;
  uint64_t next_request_ = 1, operation_ = 0;
  uint32_t suspects_ = 0;
  CommandOutcome out_;
};

}  // namespace

CommandOutcome RunCommands(const CommandConfig& config, const std::vector<Command>& commands) { return Player(config).Play(commands); }

}  // namespace holdfast::sim
