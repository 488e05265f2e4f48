// Drawing on a device: the token and the failure that the host's sampler has for the same logits.
#include <catch2/catch.hpp>

#include <cmath>
#include <limits>

#include "tests/unit/kernels/rig.h"
#include "worker/exec/sampler.h"

namespace holdfast::kernels::test {
namespace {

using exec::AllowedTokens;
using exec::Sample;
using exec::Sampler;
using exec::SamplingParams;

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class T>
T OneOf(Random& random, std::initializer_list<T> values) { return values.begin()[random.Below(static_cast<uint32_t>(values.size()))]; }

// A row to draw from, and what the host's sampler makes of it.
struct Case {
  std::vector<float> logits;
  SamplingParams params;
  std::vector<TokenId> history;
  uint32_t prompt = 0;
  bool constrained = false;
  AllowedTokens allowed;
  std::vector<uint64_t> bits, mask;
  std::vector<TokenId> few, refused;
  exec::DrawLists lists;
  Sample want;
};

// Logits of every kind: spread, rounded so that most are equal, all equal, few finite, and such as cannot be drawn from.
std::vector<float> Logits(Random& random, int64_t vocab) {
  auto logits = random.Normals(vocab, OneOf(random, {0.01f, 1.f, 3.f, 40.f}));
  switch (random.Below(8)) {
    case 0:
      for (float& l : logits) l = std::nearbyint(l);
      break;
    case 1: std::fill(logits.begin(), logits.end(), -2.5f); break;
    case 2:
      for (float& l : logits) l = random.Below(20) == 0 ? l : -kInf;
      break;
    case 3:
      for (float& l : logits) l = random.Below(2) == 0 ? 0.f : -0.f;
      break;
    case 4:
      if (random.Below(3) == 0) std::fill(logits.begin(), logits.end(), -kInf);
      logits[random.Below(static_cast<uint32_t>(vocab))] = OneOf(random, {std::nanf(""), kInf, -kInf, 3e38f, 1e-40f});
      break;
    default: break;
  }
  return logits;
}

void Fill(Random& random, int64_t vocab, Case* c) {
  const auto token = [&] { return random.Below(static_cast<uint32_t>(random.Below(3) == 0 ? vocab + 3 : std::min<int64_t>(vocab, 40))); };  // some beyond the end
  c->logits = Logits(random, vocab);
  SamplingParams& p = c->params;
  p.temperature = OneOf(random, {0.f, 0.01f, 0.7f, 1.f, 2.f, 50.f});
  p.top_k = OneOf(random, {0u, 0u, 1u, 2u, 40u, static_cast<uint32_t>(vocab), static_cast<uint32_t>(vocab) - 1u});
  p.top_p = OneOf(random, {0.f, 1.f, 1e-30f, 0.1f, 0.9f, 0.999f});
  p.min_p = OneOf(random, {0.f, 0.f, 0.05f, 1.f, 1.5f});
  p.seed = random.Below(1u << 30);
  p.choice = random.Below(3);
  if (random.Below(2) == 0) {
    p.repetition_penalty = OneOf(random, {0.f, 1.f, 1.3f, 0.7f});
    p.frequency_penalty = OneOf(random, {0.f, 0.6f, -0.5f});
    p.presence_penalty = OneOf(random, {0.f, 1.1f});
  }
  for (uint32_t i = random.Below(3) * 30; i > 0; --i) p.suppress_tokens.push_back(token());
  for (uint32_t i = random.Below(3) * 20; i > 0; --i) {
    const float bias = random.Below(20) == 0 ? OneOf(random, {100.f, kInf, -kInf}) : random.Normal(3.f);
    p.logit_bias.push_back({token(), bias});
  }
  std::stable_sort(p.logit_bias.begin(), p.logit_bias.end(), [](const auto& a, const auto& b) { return a.token < b.token; });
  for (uint32_t i = random.Below(4) * 50; i > 0; --i) c->history.push_back(token());
  c->prompt = random.Below(static_cast<uint32_t>(c->history.size()) + 1);
  c->constrained = random.Below(3) == 0;
  if (c->constrained) {
    p.stop_tokens = {token(), token()};
    c->refused = {token()};
    c->allowed.complete = random.Below(2) == 0;
    c->allowed.dense = random.Below(2) == 0;
    c->bits.resize(static_cast<size_t>(vocab) / 64 + 2);
    for (uint64_t& w : c->bits) w = OneOf(random, {uint64_t{0}, ~uint64_t{0}, uint64_t{random.Below(~0u)} << random.Below(33)});
    for (uint32_t i = random.Below(6); i > 0; --i) c->few.push_back(token());
    std::sort(c->few.begin(), c->few.end());
    c->allowed.bits = c->bits;
    c->allowed.few = c->few;
    c->allowed.refused = c->refused;
    exec::MaskOf(c->allowed, p, vocab, &c->mask);
  }
}

std::string Told(const Case& c) {
  const SamplingParams& p = c.params;
  return fmt::format("vocabulary {}, temperature {}, top_k {}, top_p {}, min_p {}, penalties {} {} {}, {} suppressed, {} biased, history {} of {}, {}",
                     c.logits.size(), p.temperature, p.top_k, p.top_p, p.min_p, p.repetition_penalty, p.frequency_penalty, p.presence_penalty,
                     p.suppress_tokens.size(), p.logit_bias.size(), c.prompt, c.history.size(), c.constrained ? "constrained" : "free");
}

// Draws all cases in one call and compares; a row without a slot between them stays as it was.
void MustAgree(Ops& ops, std::vector<Case>& cases, int64_t vocab, int64_t gap) {
  Sampler sampler(vocab);
  const int64_t rows = static_cast<int64_t>(cases.size()) + 1, stride = vocab + gap, idle = rows / 2;
  ops.ReserveDraws(rows, rows + 5, vocab);
  std::vector<float> logits(static_cast<size_t>(rows * stride), 7.f);
  std::vector<DrawSpec> specs(static_cast<size_t>(rows));
  std::vector<Drawn> drawn(static_cast<size_t>(rows) + 5);
  const auto row_of = [&](size_t i) { return static_cast<int64_t>(i) + (static_cast<int64_t>(i) >= idle); };
  for (size_t i = 0; i < cases.size(); ++i) {
    Case& c = cases[i];
    std::copy(c.logits.begin(), c.logits.end(), logits.begin() + row_of(i) * stride);
    DrawSpec& spec = specs[static_cast<size_t>(row_of(i))];
    spec = sampler.SpecOf(c.params, c.history, c.prompt, c.mask, 0, &c.lists);
    spec.slot = static_cast<int32_t>(i) + 3;
    auto copy = c.logits;
    c.want = sampler.Draw(copy, c.params, c.history, c.prompt, c.constrained ? &c.allowed : nullptr);
  }
  const Held<float> held(ops, logits, stride);
  ops.Draw(held.mat().Columns(0, vocab), specs, drawn.data());
  const auto after = held.Get();
  REQUIRE(ops.Health().ok());
  for (size_t i = 0; i < cases.size(); ++i) {
    const Drawn& d = drawn[i + 3];
    INFO(Told(cases[i]) << "; row " << i);
    if (cases[i].want.failed) {
      REQUIRE(d.status != DrawStatus::kDrawn);
      CHECK(d.token == 0);
      const Sample got = exec::FailedSample(d.status, cases[i].constrained);
      CHECK(std::string(got.why) == cases[i].want.why);
      CHECK(got.refused == cases[i].want.refused);
    } else {
      CHECK(d.status == DrawStatus::kDrawn);
      CHECK(d.token == cases[i].want.token);
    }
  }
  bool untouched = true;
  for (int64_t at = 0; at < stride; ++at) untouched = untouched && after[static_cast<size_t>(idle * stride + at)] == 7.f;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t at = vocab; at < stride; ++at) untouched = untouched && after[static_cast<size_t>(r * stride + at)] == 7.f;
  }
  CHECK(untouched);
}

TEST_CASE("a device draws what the host's sampler draws, and fails as it does") {
  for (const Backend& b : CudaBackends()) {
    INFO(b.name);
    Random random(static_cast<uint32_t>(SimtSeed()));
    for (const int64_t vocab : {5, 1000, 4096, 4097, 9000, 32000}) {
      const int rounds = !b.emulated ? 60 : vocab <= 1000 ? 40 : vocab < 9000 ? 6 : vocab < 32000 ? 4 : 1;
      for (int round = 0; round < rounds; ++round) {
        std::vector<Case> cases(1 + random.Below(8));
        for (Case& c : cases) Fill(random, vocab, &c);
        MustAgree(*b.ops, cases, vocab, round % 2 == 0 ? 0 : 3);
      }
    }
  }
}

TEST_CASE("filters that cut a crowd of equal tokens cut it by id") {
  for (const Backend& b : CudaBackends()) {
    INFO(b.name);
    const int64_t vocab = 9000;   // more equal tokens than a block keeps at hand
    std::vector<Case> cases(6);
    for (size_t i = 0; i < cases.size(); ++i) {
      Case& c = cases[i];
      c.logits.assign(static_cast<size_t>(vocab), 1.f);
      for (size_t t = 0; t < 100; ++t) c.logits[t * 77 + 5] = 1.25f;
      c.params.temperature = 1.f;
      c.params.seed = 40 + i;
      c.params.top_k = i % 2 == 0 ? 5000 + static_cast<uint32_t>(i) : 0;
      c.params.top_p = i % 3 == 0 ? 1.f : 0.4f;
    }
    cases[5].params.top_k = 60;
    MustAgree(*b.ops, cases, vocab, 0);
  }
}

TEST_CASE("a step's rows take the tokens that the one before drew, on the device") {
  for (const Backend& b : CudaBackends()) {
    INFO(b.name);
    Ops& ops = *b.ops;
    const int64_t vocab = 50, width = 32;
    Random random(3);
    const auto rows = random.Normals(vocab * width);
    const PackedWeight table(ops, DType::kF32, vocab, width, {reinterpret_cast<const std::byte*>(rows.data()), reinterpret_cast<const std::byte*>(rows.data() + rows.size())},
                             WeightUse::kEmbedding);
    ops.ReserveDraws(4, 6, vocab);
    std::vector<Drawn> drawn[2] = {std::vector<Drawn>(6), std::vector<Drawn>(6)};
    std::vector<uint64_t> marks;
    std::vector<Held<float>> logits, embedded;
    for (int step = 0; step < 2; ++step) {
      logits.emplace_back(ops, random.Normals(3 * vocab), vocab);
      embedded.emplace_back(ops, std::vector<float>(4 * width), width);
    }
    const auto values = std::vector<std::vector<float>>{logits[0].Get(), logits[1].Get()};
    // Two steps without a wait between them. The second one's rows: drawn, given, drawn, drawn by what failed (none did: slot 4).
    const std::vector<uint32_t> first = {7, 8, 9, 10}, second = {0, 11, 0, 12};
    const std::vector<int32_t> positions = {0, 1, 2, 3}, awaited = {5, -1, 2, -1};
    const std::vector<DrawSpec> specs = [] {
      std::vector<DrawSpec> s(3);
      s[0].slot = 2, s[1].slot = 4, s[2].slot = 5;
      return s;
    }();
    for (int step = 0; step < 2; ++step) {
      Batch batch;
      batch.tokens = step == 0 ? first : second;
      batch.positions = positions;
      if (step == 1) batch.awaited = awaited;
      batch.page_size = 16;
      ops.BeginStep(batch);
      ops.Embed(table.weight, 1.f, embedded[static_cast<size_t>(step)].mat());
      ops.Draw(logits[static_cast<size_t>(step)].mat(), specs, drawn[step].data());
      marks.push_back(ops.Mark());
    }
    const auto best = [&](int step, size_t row) {
      const auto at = values[static_cast<size_t>(step)].begin() + static_cast<ptrdiff_t>(row * vocab);
      return static_cast<TokenId>(std::max_element(at, at + vocab) - at);
    };
    for (int step = 0; step < 2; ++step) {
      CHECK(drawn[step][2].token == 0);
      ops.Wait(marks[static_cast<size_t>(step)]);
      REQUIRE(ops.Health().ok());
      CHECK(drawn[step][2].token == best(step, 0));
      CHECK(drawn[step][4].token == best(step, 1));
      CHECK(drawn[step][5].token == best(step, 2));
    }
    const auto got = embedded[1].Get();
    const std::vector<uint32_t> want = {best(0, 2), 11, best(0, 0), 12};
    for (size_t t = 0; t < want.size(); ++t) CHECK(std::equal(got.begin() + static_cast<ptrdiff_t>(t * width), got.begin() + static_cast<ptrdiff_t>((t + 1) * width), rows.begin() + want[t] * width));
  }
}

// More under way than the pinned memory of a side holds, with marks behind each: every download arrives, and none before its mark is waited for.
TEST_CASE("downloads arrive with the mark that stands behind them") {
  for (const Backend& b : CudaBackends()) {
    INFO(b.name);
    Ops& ops = *b.ops;
    std::vector<std::vector<float>> got(7);
    std::vector<uint64_t> marks;
    std::vector<Held<float>> sources;
    for (size_t i = 0; i < got.size(); ++i) {
      const size_t n = i == 3 ? 2 << 20 : 1000 + i;   // one of 8 MiB
      sources.emplace_back(ops, std::vector<float>(n, static_cast<float>(i) + 1.f));
      got[i].assign(n, 0.f);
    }
    for (size_t i = 0; i < got.size(); ++i) {
      ops.CopyToHost(reinterpret_cast<std::byte*>(got[i].data()), reinterpret_cast<const std::byte*>(sources[i].data()), static_cast<int64_t>(got[i].size() * 4));
      marks.push_back(ops.Mark());
      if (i == 0) continue;
      if (i > 3 && b.emulated) CHECK(got[i][0] == 0.f);
      ops.Wait(marks[i - 1]);
      CHECK(got[i - 1].back() == static_cast<float>(i));
    }
    ops.Wait(marks.back());
    CHECK(got.back().back() == static_cast<float>(got.size()));
  }
}

}  // namespace
}  // namespace holdfast::kernels::test
