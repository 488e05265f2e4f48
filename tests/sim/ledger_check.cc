// T3: every interleaving of a few small requests, on the real ledger and scheduler. Depth-first over copies of the whole scheduler;
// states are compared by a canonical form with pages renamed. At every state anything may happen that can: the next request arrives, a step
// is launched, the oldest step settles with any set of requests stopping, any request is cancelled, any evictable page is given up. After
// every action the full audit runs and the content oracle checks every read.
//
//   ledger_check            the scopes for CI
//   ledger_check --long     larger ones, hours of them
//   ledger_check NAME...    by name
//   --seconds=S             each scope for at most so long; what was not finished is said to be BOUNDED
//   ledger_check --drills   (drill build) every mutant that shows in these scopes must be found; says after how many states
#include <absl/container/flat_hash_set.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "proto/base/random.h"
#include "tests/sim/fake_engine.h"
#include "tests/sim/test_peer.h"
#include "worker/kv/drill.h"

using namespace holdfast;
using sched::SchedulerImpl;
using sched::TestPeer;

namespace {

struct Template {
  char name;
  std::vector<TokenId> tokens;
  uint32_t max_tokens;
};

const Template kTemplates[] = {
    {'A', {1, 1, 2}, 2},       {'B', {1, 1, 3}, 2},    {'C', {1, 1, 2, 4}, 1},          {'D', {5, 1}, 2},
    {'P', {1, 1, 1, 2, 2}, 1}, {'Q', {1, 1, 1, 3}, 1}, {'R', {1, 1, 1, 2}, 2},          {'X', {1, 1, 1, 1, 2, 3}, 2},
    {'Y', {1, 1, 1, 1, 2, 4, 4}, 2}, {'E', {1, 1}, 4},      {'F', {1, 2}, 3},
};
constexpr TokenId kDrawn = 9;  // whatever is sampled

struct Scope {
  const char* name;
  const char* requests;  // names of templates, in order of arrival; a small letter: it runs ahead of its tokens
  std::vector<uint32_t> windows;
  uint32_t full, window_pages;  // window_pages 0 = the floor
  uint32_t page_size, running, chunk, overlap;
  uint32_t reserve = 0;
  bool large = false;
};

const Scope kScopes[] = {
    {"ABA", "ABA", {0, 2}, 8, 0, 1, 2, 2, 1},
    {"ABAB-D0", "ABAB", {0, 2}, 8, 0, 1, 2, 2, 0},
    {"PQ-W3", "PQ", {0, 3}, 9, 0, 1, 2, 2, 1},
    {"XY-ps2", "XY", {0, 3}, 6, 0, 2, 2, 4, 1},
    {"AB-windows-only", "AB", {2, 3}, 0, 0, 1, 2, 2, 1},
    {"AB-reserve", "AB", {0, 2}, 6, 0, 1, 2, 2, 0, 1},
    // Decodes launched before their token is known.
    {"ab-ahead", "ab", {0, 2}, 8, 0, 1, 2, 2, 1},
    {"aBe-ahead", "aBe", {0, 2}, 8, 0, 1, 2, 2, 1},
    {"ef-ahead-ps2", "ef", {0, 3}, 6, 0, 2, 2, 4, 1},
    {"ee-ahead-reserve", "ee", {0, 2}, 6, 0, 1, 2, 2, 1, 1},
    {"ef-ahead-D2", "ef", {0, 2}, 8, 0, 1, 2, 2, 2},
    {"abe-ahead-D2", "abe", {0, 2}, 8, 0, 1, 2, 2, 2},
    {"eFa-ahead-ps2", "eFa", {0, 3}, 8, 0, 2, 2, 4, 1},
    {"efe-ahead-reserve", "efe", {0, 2}, 7, 0, 1, 2, 2, 1, 1},
    // The scopes the design was first checked with.
    {"ABCA", "ABCA", {0, 2}, 8, 0, 1, 2, 2, 1},
    {"PQDP", "PQDP", {0, 3}, 9, 12, 1, 2, 2, 1},
    {"ABAB-D2", "ABAB", {0, 2}, 8, 0, 1, 2, 2, 2},
    {"PQR-N3", "PQR", {0, 2}, 9, 0, 1, 3, 3, 1},
    {"XYX-ps2", "XYX", {0, 3}, 8, 0, 2, 2, 4, 1},
    // One size beyond.
    {"eFab-ahead", "eFab", {0, 2}, 9, 0, 1, 2, 2, 1, 0, true},
    {"efa-ahead-N3", "efa", {0, 2}, 10, 0, 1, 3, 3, 1, 0, true},
    {"ABCAB", "ABCAB", {0, 2}, 8, 0, 1, 2, 2, 1, 0, true},
    {"PQDPQ", "PQDPQ", {0, 3}, 9, 12, 1, 2, 2, 1, 0, true},
    {"PQRA-N3", "PQRA", {0, 2}, 9, 0, 1, 3, 3, 1, 0, true},
    {"ABCABA", "ABCABA", {0, 2}, 8, 0, 1, 2, 2, 1, 0, true},
    {"PQDPQP", "PQDPQP", {0, 3}, 9, 12, 1, 2, 2, 1, 0, true},
    {"ABCPQR-N3", "ABCPQR", {0, 2}, 10, 0, 1, 3, 3, 1, 0, true},
    {"ABAB-two-windows-D2", "ABAB", {0, 2, 3}, 8, 0, 1, 2, 2, 2, 0, true},
    {"ABA-two-windows", "ABA", {0, 2, 3}, 8, 0, 1, 2, 2, 1, 0, true},
};

struct Action {
  enum Kind : uint8_t { kSubmit, kLaunch, kSettle, kCancel, kEvict } kind;
  uint32_t a = 0, b = 0;
};

// Of every position up to the entry's last.
std::vector<uint64_t> Tags(const sched::StepEntry& e) {
  std::vector<uint64_t> tags;
  uint64_t tag = 1;
  for (size_t i = 0; i < e.start + e.tokens.size(); ++i) {
    tag = Mix64(tag ^ ((i < e.history.size() ? e.history[i] : kDrawn) + 1ull));
    tags.push_back(tag);
  }
  return tags;
}

struct State {
  std::unique_ptr<SchedulerImpl> s;
  std::vector<std::vector<uint64_t>> content;  // [group][page * page_size + offset]
  struct Step {
    uint64_t number;
    std::vector<RequestId> samples;  // who draws a token in it
    struct Named {
      size_t group;
      int32_t page;
      RequestId request;
    };
    std::vector<Named> named;        // pages that it writes, and for whom
  };
  std::vector<Step> queue;           // launched, the oldest first
  uint32_t submitted = 0;
  uint32_t ended = 0;
};

class Checker {
 public:
  explicit Checker(const Scope& scope) : scope_(scope) {}

  int Run(double seconds) {
    sched::SchedulerConfig c;
    c.cache.page_size = scope_.page_size;
    for (uint32_t w : scope_.windows) {
      uint32_t pages = w == 0 ? scope_.full : scope_.window_pages;
      if (w != 0 && pages == 0) pages = static_cast<uint32_t>(kv::WindowNeed(w, scope_.page_size, scope_.running, scope_.chunk, scope_.overlap));
      c.cache.groups.push_back({w, pages, pages});
    }
    c.max_running = scope_.running;
    c.prefill_chunk = scope_.chunk;
    c.overlap_depth = scope_.overlap;
    c.max_seq_len = 12;
    c.audit_period = 0;
    c.reserve_tokens = scope_.reserve;
    auto created = sched::Scheduler::Create(c, &log_);
    if (!created.ok()) {
      fmt::print("{}: {}\n", scope_.name, std::string(created.status().message()));
      return 1;
    }
    State start;
    start.s.reset(static_cast<SchedulerImpl*>(created->release()));
    for (const kv::GroupShape& g : c.cache.groups) start.content.emplace_back(static_cast<size_t>(g.pages) * c.cache.page_size, 0);
    const auto begin = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
    seen_.insert(Key(start));
    Push(std::move(start), {});
    uint64_t edges = 0;
    size_t deepest = 0;
    bool bounded = false;
    while (!stack_.empty()) {
      Frame& frame = stack_.back();
      deepest = std::max(deepest, stack_.size());
      if (frame.next == frame.actions.size()) {
        if (!frame.progress && frame.busy) return Report("deadlock");
        stack_.pop_back();
        continue;
      }
      const Action action = frame.actions[frame.next++];
      State next = frame.next == frame.actions.size() ? std::move(frame.state) : Copy(frame.state);  // the last action may have the original
      const bool happened = Do(next, action);
      if (!error_.empty()) {
        trace_.push_back(action);
        return Report(error_.c_str());
      }
      if (!happened) continue;
      if (action.kind <= Action::kSettle) frame.progress = true;
      ++edges;
      if (!seen_.insert(Key(next)).second) continue;
      Push(std::move(next), action);
      if (seconds > 0 && (seen_.size() & 1023) == 0 && elapsed() > seconds) {
        bounded = true;
        break;
      }
    }
    fmt::print("{} {}: requests {} ps {} N {} B {} D {} reserve {}: {} states, {} edges, depth {}, {:.1f} s, no violation, no deadlock\n",
               bounded ? "BOUNDED" : "COMPLETE", scope_.name, scope_.requests, scope_.page_size, scope_.running, scope_.chunk, scope_.overlap,
               scope_.reserve, seen_.size(), edges, deepest, elapsed());
    std::fflush(stdout);
    return 0;
  }

 private:
  struct Frame {
    State state;
    std::vector<Action> actions;
    size_t next = 0;
    bool progress = false, busy = false;
    Action by;
  };

  State Copy(const State& from) {
    State to;
    to.s = TestPeer::Clone(*from.s);
    to.content = from.content;
    to.queue = from.queue;
    to.submitted = from.submitted;
    to.ended = from.ended;
    return to;
  }

  void Push(State state, Action by) {
    Frame frame;
    frame.actions = Actions(*state.s, state);
    frame.busy = state.s->running() + state.s->waiting() > 0;
    frame.state = std::move(state);
    frame.by = by;
    stack_.push_back(std::move(frame));
  }

  std::vector<Action> Actions(SchedulerImpl& s, const State& state) {
    std::vector<Action> out;
    if (scope_.requests[state.submitted] != 0) out.push_back({Action::kSubmit});
    if (s.outstanding_steps() <= scope_.overlap) out.push_back({Action::kLaunch});
    if (!state.queue.empty()) {
      for (uint32_t mask = 0; mask < 1u << state.queue[0].samples.size(); ++mask) out.push_back({Action::kSettle, mask});
    }
    for (const auto* list : {&TestPeer::waiting(s), &TestPeer::running(s)}) {
      for (const sched::Sequence* q : *list) {
        if (q->state != sched::SequenceState::kEnded) out.push_back({Action::kCancel, static_cast<uint32_t>(q->request.v)});
      }
    }
    const kv::Ledger& ledger = TestPeer::ledger(s);
    for (size_t g = 0; g < ledger.groups(); ++g) {
      for (uint32_t n = 0; n < ledger.index().slab_size(); ++n) {
        if (ledger.index().live(kv::NodeId(n)) && ledger.index().in_heap(kv::NodeId(n), g)) out.push_back({Action::kEvict, static_cast<uint32_t>(g), n});
      }
    }
    return out;
  }

  bool Do(State& state, const Action& action) {
    SchedulerImpl& s = *state.s;
    switch (action.kind) {
      case Action::kSubmit: {
        const char name = scope_.requests[state.submitted];
        const Template& t = *std::find_if(std::begin(kTemplates), std::end(kTemplates), [&](const Template& x) { return x.name == std::toupper(name); });
        sched::SubmitCommand c;
        c.request = RequestId(++state.submitted);
        c.tokens = t.tokens;
        c.prompt_tokens = static_cast<uint32_t>(t.tokens.size());
        c.max_tokens = t.max_tokens;
        c.run_ahead = std::islower(name) != 0;
        s.Submit(std::move(c));
        break;
      }
      case Action::kLaunch: {
        const sched::StepPlan* plan = s.Plan();
        if (plan == nullptr) return !s.TakeEvents().empty();
        Execute(state, *plan);
        break;
      }
      case Action::kSettle: {
        sched::StepResult result;
        result.step = StepNo(state.queue[0].number);
        for (size_t i = 0; i < state.queue[0].samples.size(); ++i) result.sampled.push_back({state.queue[0].samples[i], kDrawn, (action.a >> i & 1) != 0, false});
        state.queue.erase(state.queue.begin());
        s.Apply(result);
        break;
      }
      case Action::kCancel: s.Cancel(RequestId(action.a)); break;
      case Action::kEvict: TestPeer::ledger(s).EvictNode(action.a, kv::NodeId(action.b)); break;
    }
    for (const sched::RequestEvent& e : s.TakeEvents()) {
      if (e.end == sched::EndReason::kNone) continue;
      if (state.ended >> e.request.v & 1) error_ = fmt::format("request {} ended twice", e.request.v);
      if (e.end == sched::EndReason::kFailed || e.end == sched::EndReason::kNeverFits) error_ = "request failed: " + e.message;
      state.ended |= 1u << e.request.v;
    }
    if (!log_.findings.empty()) error_ = log_.Text();
    kv::Ledger& ledger = TestPeer::ledger(s);
    if (ledger.HasEvents()) error_ = ledger.DrainEvents()[0].what;
    if (!ledger.FingerprintsHold()) error_ = "fingerprints";
    const kv::AuditReport report = ledger.Audit();
    if (!report.clean()) error_ = fmt::format("audit: {} {}", report.problems[0].kind, report.problems[0].detail);
    if (ledger.has_full() && ledger.Available(0) < static_cast<int64_t>(TestPeer::reserved(s))) error_ = "I9";
    return true;
  }

  void Execute(State& state, const sched::StepPlan& plan) {
    const uint32_t ps = scope_.page_size;
    State::Step step{plan.step.v, {}, {}};
    for (const sched::StepEntry& e : plan.entries) {
      if (e.awaits && (state.queue.empty() || std::count(state.queue.back().samples.begin(), state.queue.back().samples.end(), e.request) == 0)) {
        error_ = "a token is awaited that the step before does not draw";
      }
      const std::vector<uint64_t> tags = Tags(e);
      for (size_t g = 0; g < state.content.size(); ++g) {
        for (uint32_t i = e.start; i < tags.size(); ++i) {
          if (e.tables[g][i / ps] < 0) error_ = "no page to write";
          else state.content[g][static_cast<size_t>(e.tables[g][i / ps]) * ps + i % ps] = tags[i];
        }
      }
      if (e.tokens.empty()) error_ = "a chunk of no tokens";
      if (e.sample) step.samples.push_back(e.request);
      // A page that a launched step writes is nobody else's until it has settled (I6, I12).
      for (size_t g = 0; g < state.content.size(); ++g) {
        for (uint32_t i = e.start / ps; i * ps < e.start + e.tokens.size(); ++i) step.named.push_back({g, e.tables[g][i], e.request});
      }
    }
    for (const State::Step& earlier : state.queue) {
      for (const auto& a : earlier.named) {
        for (const auto& b : step.named) {
          if (a.group == b.group && a.page == b.page && a.request != b.request) error_ = fmt::format("request {} writes a page of request {}, whose step is in flight", b.request.v, a.request.v);
        }
      }
    }
    for (const sched::StepEntry& e : plan.entries) {
      const std::vector<uint64_t> tags = Tags(e);
      for (size_t g = 0; g < state.content.size(); ++g) {
        const uint32_t w = scope_.windows[g];
        for (uint32_t i = w == 0 || e.start < w ? 0 : e.start - w + 1; i < tags.size(); ++i) {
          const int32_t page = e.tables[g][i / ps];
          if (page < 0 || state.content[g][static_cast<size_t>(page) * ps + i % ps] != tags[i]) {
            error_ = fmt::format("request {} reads wrong KV at {} of group {}", e.request.v, i, g);
          }
        }
      }
    }
    state.queue.push_back(std::move(step));
  }

  uint64_t Key(const State& state) {
    const uint32_t ps = scope_.page_size;
    TestPeer::Canonical(*state.s, [&](size_t g, uint32_t page, uint32_t o) { return state.content[g][static_cast<size_t>(page) * ps + o]; }, &words_);
    uint64_t h = state.submitted;
    for (uint64_t w : words_) h = Mix64(h ^ w) + w;
    return h;
  }

  int Report(const char* what) {
    fmt::print("VIOLATION {} after {} states, depth {}: {}\n", scope_.name, seen_.size(), stack_.size(), what);
    std::vector<Action> actions;
    for (const Frame& f : stack_) actions.push_back(f.by);
    actions.insert(actions.end(), trace_.begin(), trace_.end());
    const char* const names[] = {"submit", "launch", "settle", "cancel", "evict"};
    for (size_t i = 1; i < actions.size(); ++i) fmt::print("    {} {} {}\n", names[actions[i].kind], actions[i].a, actions[i].b);
    return 1;
  }

  const Scope& scope_;
  sim::FindingLog log_;
  std::vector<Frame> stack_;
  std::vector<Action> trace_;
  absl::flat_hash_set<uint64_t> seen_;  // fingerprints of canonical states
  std::vector<uint64_t> words_;
  std::string error_;
};

}  // namespace

#ifdef HOLDFAST_DRILLS
// The mutants that change what a single rank does with intact memory.
int RunDrills() {
  const std::pair<kv::Drill, const char*> drills[] = {
      {kv::Drill::kFreeTokenCommit, "commit frees the duplicate and leaves the row naming it"},
      {kv::Drill::kDisplacingRevive, "commit displaces a page under its readers"},
      {kv::Drill::kSlideOnLaunched, "windows slide on the launched position"},
      {kv::Drill::kNoReservation, "admission without reservation"},
      {kv::Drill::kDedupKeepsTally, "de-duplication forgets the row's tally"},
      {kv::Drill::kHealMoves, "healing moves the page instead of sharing it"},
      {kv::Drill::kMatchShortWindow, "a match needs one block less than the window"},
      {kv::Drill::kReleaseAtStop, "a row is released at its stop with a step ahead in flight"},
      {kv::Drill::kCommitAwaited, "a block is committed with the step that computes it in flight"},
  };
  int survivors = 0;
  for (const auto& [drill, name] : drills) {
    kv::drill::active = drill;
    bool killed = false;
    for (const Scope& scope : kScopes) {
      if (scope.large || killed) continue;
      fmt::print("drill: {}: ", name);
      killed = Checker(scope).Run(0) != 0;
    }
    survivors += !killed;
    if (!killed) fmt::print("SURVIVED: {}\n", name);
  }
  return survivors;
}
#endif

int main(int argc, char** argv) {
#ifdef HOLDFAST_DRILLS
  if (argc > 1 && std::strcmp(argv[1], "--drills") == 0) return RunDrills();
#endif
  bool large = false;
  std::vector<std::string> names;
  double seconds = 0;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--long") == 0) large = true;
    else if (std::strncmp(argv[i], "--seconds=", 10) == 0) seconds = std::stod(argv[i] + 10);
    else names.push_back(argv[i]);
  }
  int ran = 0;
  for (const Scope& scope : kScopes) {
    const bool wanted = names.empty() ? large || !scope.large : std::find(names.begin(), names.end(), scope.name) != names.end();
    if (!wanted) continue;
    ++ran;
    if (int rc = Checker(scope).Run(seconds); rc != 0) return rc;
  }
  if (ran == 0) fmt::print("no scope of that name\n");
  return ran > 0 ? 0 : 1;
}
