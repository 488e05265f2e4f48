#include "worker/exec/sampler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/sampling_math.h"
#include "proto/base/check.h"
#include "proto/base/random.h"

namespace holdfast::exec {
namespace {

constexpr size_t kRepetitionWindow = 64;
constexpr uint32_t kMaxTop = 20;
constexpr int64_t kBlock = 4096;       // sums are taken block by block, so a draw need not walk the whole vocabulary twice
constexpr float kNegInf = -std::numeric_limits<float>::infinity();

// The order of tokens (kernels/sampling_math.h): higher logit first, then lower id.
bool Better(const std::pair<float, TokenId>& a, const std::pair<float, TokenId>& b) {
  return a.first > b.first || (a.first == b.first && a.second < b.second);
}

bool Greedy(const SamplingParams& p) { return !(p.temperature > 0.f) || p.top_k == 1; }
bool Repeats(const SamplingParams& p) { return p.repetition_penalty > 0.f && p.repetition_penalty != 1.f; }
bool Counts(const SamplingParams& p) { return p.frequency_penalty != 0.f || p.presence_penalty != 0.f; }
std::span<const TokenId> Recent(std::span<const TokenId> history) { return history.last(std::min(history.size(), kRepetitionWindow)); }

}  // namespace

bool Penalises(const SamplingParams& p) { return Repeats(p) || Counts(p); }

Sample FailedSample(kernels::DrawStatus status, bool constrained) {
  Sample out;
  out.failed = true;
  switch (status) {
    case kernels::DrawStatus::kNotFinite: out.why = "a logit is NaN or +inf"; break;
    case kernels::DrawStatus::kNothing: out.why = "every logit is -inf"; break;
    case kernels::DrawStatus::kEditedNotFinite: out.why = "a biased logit is not finite"; break;
    case kernels::DrawStatus::kNothingLeft:
      out.why = constrained ? "bias and suppression leave no token of those that the constraint allows" : "bias and suppression leave no token";
      break;
    case kernels::DrawStatus::kNoProbability: out.why = "no token has a finite probability"; break;
    case kernels::DrawStatus::kDrawn: HF_CHECKF(false, "a token was drawn"); break;
  }
  out.refused = status == kernels::DrawStatus::kEditedNotFinite || status == kernels::DrawStatus::kNothingLeft;
  return out;
}

void MaskOf(const AllowedTokens& allowed, const SamplingParams& params, int64_t vocab, std::vector<uint64_t>* bits) {
  const size_t words = static_cast<size_t>((vocab + 63) / 64);
  const auto set = [&](std::span<const TokenId> tokens) {
    for (const TokenId t : tokens) {
      if (t < vocab) (*bits)[t / 64] |= uint64_t{1} << (t % 64);
    }
  };
  if (allowed.dense) {
    HF_CHECKF(allowed.bits.size() >= words, "{} words for {} tokens", allowed.bits.size(), vocab);
    bits->assign(allowed.bits.begin(), allowed.bits.begin() + static_cast<ptrdiff_t>(words));
  } else {
    bits->assign(words, 0);
    set(allowed.few);
  }
  if (allowed.complete) return set(params.stop_tokens);
  for (const TokenId t : allowed.refused) {
    if (t < vocab) (*bits)[t / 64] &= ~(uint64_t{1} << (t % 64));
  }
}

struct Sampler::Peak {
  float max = kNegInf;
  TokenId argmax = 0;
  bool clean = true;     // no NaN, no +inf
};

Sampler::Sampler(int64_t vocab) : vocab_(vocab) {
  HF_CHECK(vocab > 0 && vocab < 1 << 23);  // so that weights do not overflow their sum
  probs_.resize(vocab);
  counts_.assign(vocab, 0);
}

// False when nothing finite is there.
bool Sampler::Scan(std::span<const float> logits, Peak* peak) const {
  *peak = Peak();
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    const int64_t end = std::min(vocab_, begin + kBlock);
    float best = kNegInf;
    int bad = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float v = logits[i];
      bad |= !(v < std::numeric_limits<float>::infinity());
      best = v > best ? v : best;
    }
    if (bad != 0) peak->clean = false;
    if (best > peak->max) {
      peak->max = best;
      for (int64_t i = begin; i < end; ++i) {
        if (logits[i] == best) {
          peak->argmax = static_cast<TokenId>(i);
          break;
        }
      }
    }
  }
  return peak->clean && peak->max > kNegInf;
}

void Sampler::FillLogprobs(std::span<const float> logits, const Peak& peak, TokenId token, uint32_t top, Sample* out) {
  double sum = 0;
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    const int64_t end = std::min(vocab_, begin + kBlock);
    float block[kBlock];
    for (int64_t i = begin; i < end; ++i) block[i - begin] = kernels::FastExp(logits[i] - peak.max);
    double s = 0;
    for (int64_t i = 0; i < end - begin; ++i) s += block[i];
    sum += s;
  }
  const double log_sum = std::log(sum) + peak.max;
  out->logprob = static_cast<float>(logits[token] - log_sum);
  top = std::min<uint32_t>(top, std::min<int64_t>(kMaxTop, vocab_));
  out->top.clear();
  if (top == 0) return;
  // A heap whose front is the worst of the best.
  candidates_.clear();
  for (int64_t i = 0; i < vocab_; ++i) {
    const std::pair<float, TokenId> c{logits[i], static_cast<TokenId>(i)};
    if (candidates_.size() < top) {
      candidates_.push_back(c);
      std::push_heap(candidates_.begin(), candidates_.end(), Better);
    } else if (Better(c, candidates_.front())) {
      std::pop_heap(candidates_.begin(), candidates_.end(), Better);
      candidates_.back() = c;
      std::push_heap(candidates_.begin(), candidates_.end(), Better);
    }
  }
  std::sort_heap(candidates_.begin(), candidates_.end(), Better);
  for (const auto& [logit, id] : candidates_) out->top.push_back({id, static_cast<float>(logit - log_sum)});
}

void Sampler::ApplyConstraint(std::span<float> logits, const SamplingParams& p, const AllowedTokens& allowed) {
  // What stays is put aside, or what goes is erased, whichever is less.
  candidates_.clear();
  const auto keep = [&](TokenId t) {
    if (t < vocab_) candidates_.push_back({logits[t], t});
  };
  if (allowed.complete) {
    for (const TokenId t : p.stop_tokens) keep(t);
  }
  if (!allowed.dense) {
    for (const TokenId t : allowed.few) keep(t);
    std::fill(logits.begin(), logits.end(), kNegInf);
  } else {
    HF_CHECKF(static_cast<int64_t>(allowed.bits.size()) * 64 >= vocab_, "{} words for {} tokens", allowed.bits.size(), vocab_);
    for (int64_t begin = 0; begin < vocab_; begin += 64) {
      const uint64_t word = allowed.bits[begin / 64];
      if (word == ~uint64_t{0}) continue;
      const int64_t n = std::min<int64_t>(64, vocab_ - begin);
      if (word == 0) {
        std::fill_n(logits.begin() + begin, n, kNegInf);
        continue;
      }
      for (uint64_t gone = ~word; gone != 0; gone &= gone - 1) {
        const int i = std::countr_zero(gone);
        if (i >= n) break;
        logits[begin + i] = kNegInf;
      }
    }
  }
  for (const auto& [logit, t] : candidates_) logits[t] = logit;
  if (allowed.complete) return;
  for (const TokenId t : allowed.refused) {
    if (t < vocab_) logits[t] = kNegInf;
  }
}

void Sampler::Count(std::span<const TokenId> tokens, std::vector<kernels::TokenCount>* out) {
  out->clear();
  for (const TokenId t : tokens) {
    if (t < vocab_ && counts_[t]++ == 0) out->push_back({t, 0});
  }
  for (kernels::TokenCount& c : *out) c.count = std::exchange(counts_[c.token], 0);
}

void Sampler::ApplyPenalties(std::span<float> logits, const SamplingParams& p, std::span<const TokenId> history, uint32_t prompt_tokens) {
  if (Repeats(p)) {
    Count(Recent(history), &counted_);
    for (const auto& c : counted_) logits[c.token] = kernels::Repeated(logits[c.token], p.repetition_penalty);
  }
  if (Counts(p)) {
    Count(history.subspan(std::min<size_t>(prompt_tokens, history.size())), &counted_);
    for (const auto& c : counted_) logits[c.token] = kernels::Penalised(logits[c.token], p.frequency_penalty, p.presence_penalty, c.count);
  }
}

kernels::DrawSpec Sampler::SpecOf(const SamplingParams& p, std::span<const TokenId> history, uint32_t prompt_tokens, std::span<const uint64_t> allowed,
                                  uint32_t unseen, DrawLists* lists) {
  HF_CHECKF(history.size() >= prompt_tokens, "history of {} with a prompt of {}", history.size(), prompt_tokens);
  HF_CHECKF(unseen == 0 || (!Repeats(p) && !Counts(p)), "penalties over a history of which {} tokens are not known", unseen);
  kernels::DrawSpec spec;
  spec.temperature = p.temperature;
  spec.top_p = p.top_p;
  spec.top_k = p.top_k;
  spec.min_p = p.min_p;
  spec.u = Greedy(p) ? 0 : SampleUniform(p.seed, p.choice, history.size() + unseen - prompt_tokens);
  spec.allowed = allowed;
  spec.suppressed = p.suppress_tokens;
  spec.bias = p.logit_bias;
  lists->recent.clear();
  lists->generated.clear();
  if (Repeats(p)) {
    Count(Recent(history), &counted_);
    for (const auto& c : counted_) lists->recent.push_back(c.token);
  }
  if (Counts(p)) Count(history.subspan(prompt_tokens), &lists->generated);
  spec.repetition_penalty = p.repetition_penalty;
  spec.recent = lists->recent;
  spec.frequency_penalty = p.frequency_penalty;
  spec.presence_penalty = p.presence_penalty;
  spec.generated = lists->generated;
  return spec;
}

Sample Sampler::Draw(std::span<float> logits, const SamplingParams& p, std::span<const TokenId> history, uint32_t prompt_tokens,
                     const AllowedTokens* allowed, uint32_t unseen) {
  HF_CHECKF(static_cast<int64_t>(logits.size()) == vocab_, "{} logits", logits.size());
  HF_CHECKF(history.size() >= prompt_tokens, "history of {} with a prompt of {}", history.size(), prompt_tokens);
  Sample out;
  Peak raw;
  if (!Scan(logits, &raw)) return FailedSample(raw.clean ? kernels::DrawStatus::kNothing : kernels::DrawStatus::kNotFinite, allowed != nullptr);
  const bool penalised = Penalises(p);
  HF_CHECKF(unseen == 0 || !penalised, "penalties over a history of which {} tokens are not known", unseen);
  const bool edited = allowed != nullptr || penalised || !p.logit_bias.empty() || !p.suppress_tokens.empty();
  // The raw distribution is wanted after the choice is known, but before the edits: keep a copy then.
  std::span<const float> model = logits;
  if (edited) {
    if (p.logprobs) {
      std::copy(logits.begin(), logits.end(), probs_.begin());
      model = probs_;
    }
    if (allowed != nullptr) ApplyConstraint(logits, p, *allowed);
    for (const TokenId t : p.suppress_tokens) {
      if (t < vocab_) logits[t] = kNegInf;
    }
    for (const LogitBias& b : p.logit_bias) {
      if (b.token < vocab_) logits[b.token] += b.bias;
    }
    if (penalised) ApplyPenalties(logits, p, history, prompt_tokens);
  }
  Peak peak = raw;
  if (edited && !Scan(logits, &peak)) {
    return FailedSample(peak.clean ? kernels::DrawStatus::kNothingLeft : kernels::DrawStatus::kEditedNotFinite, allowed != nullptr);
  }
  // Choose uses probs_ as scratch: with logprobs of an edited distribution, score first.
  out.token = peak.argmax;
  if (!Greedy(p)) {
    std::vector<float> kept;
    if (p.logprobs && edited) kept.assign(model.begin(), model.end());
    const double u = SampleUniform(p.seed, p.choice, history.size() + unseen - prompt_tokens);
    if (!Choose(logits, p, u, &out.token)) return FailedSample(kernels::DrawStatus::kNoProbability, allowed != nullptr);
    if (!kept.empty()) {
      FillLogprobs(kept, raw, out.token, p.top_logprobs, &out);
      return out;
    }
  }
  if (p.logprobs) FillLogprobs(model, raw, out.token, p.top_logprobs, &out);
  return out;
}

Sample Sampler::Score(std::span<const float> logits, TokenId token, uint32_t top) {
  HF_CHECK(static_cast<int64_t>(logits.size()) == vocab_ && token < vocab_);
  Sample out;
  out.token = token;
  Peak peak;
  if (!Scan(logits, &peak)) {
    out.failed = true;
    out.why = "the logits are not finite";
    return out;
  }
  FillLogprobs(logits, peak, token, top, &out);
  return out;
}

bool Sampler::Choose(std::span<const float> logits, const SamplingParams& p, double u, TokenId* token) {
  Peak peak;
  if (!Scan(logits, &peak)) return false;
  const float inverse = kernels::InverseTemperature(p.temperature);
  for (int64_t i = 0; i < vocab_; ++i) probs_[i] = kernels::RelativeProbability(logits[i], peak.max, inverse);

  // top_k: the best k of the order.
  const bool by_k = p.top_k > 0 && p.top_k < vocab_;
  if (by_k) {
    candidates_.clear();
    candidates_.reserve(vocab_);
    float floor = kNegInf;
    for (int64_t i = 0; i < vocab_; ++i) {
      if (logits[i] < floor) continue;
      candidates_.push_back({logits[i], static_cast<TokenId>(i)});
      if (candidates_.size() >= 2 * size_t{p.top_k} + 1024) {  // prune now and then: what is left is a superset of the best k
        std::nth_element(candidates_.begin(), candidates_.begin() + (p.top_k - 1), candidates_.end(), Better);
        candidates_.resize(p.top_k);
        floor = candidates_[p.top_k - 1].first;
      }
    }
    if (candidates_.size() > p.top_k) {
      std::nth_element(candidates_.begin(), candidates_.begin() + (p.top_k - 1), candidates_.end(), Better);
      candidates_.resize(p.top_k);
    }
  }

  const bool by_p = p.top_p > 0.f && p.top_p < 1.f;
  if (by_p) {
    const uint64_t fraction = kernels::FractionOf(p.top_p);
    // How many of `ordered` have the mass.
    const auto prefix = [&](const std::vector<std::pair<float, TokenId>>& ordered, uint64_t wanted) {
      size_t keep = 0;
      for (uint64_t sum = 0; keep < ordered.size() && sum < wanted;) sum += kernels::WeightOf(probs_[ordered[keep++].second]);
      return keep;
    };
    if (!by_k) {
      // Bucket by how far below the best (64 buckets a nat): only the bucket in which the mass is reached needs an order.
      constexpr int kBuckets = 64 * 28;
      std::array<uint64_t, kBuckets> mass{};
      const auto bucket = [&](int64_t i) {
        return std::min<int>(kBuckets - 1, static_cast<int>(kernels::Exponent(logits[i], peak.max, inverse) * -64.f));
      };
      uint64_t total = 0;
      for (int64_t i = 0; i < vocab_; ++i) {
        if (probs_[i] == 0.f) continue;
        mass[bucket(i)] += kernels::WeightOf(probs_[i]);
      }
      for (const uint64_t m : mass) total += m;
      uint64_t wanted = kernels::MassWanted(total, fraction);
      int edge = 0;
      while (edge < kBuckets - 1 && mass[edge] < wanted) wanted -= mass[edge++];
      candidates_.clear();
      std::vector<std::pair<float, TokenId>> last;
      for (int64_t i = 0; i < vocab_; ++i) {
        if (probs_[i] == 0.f) continue;
        const int b = bucket(i);
        if (b < edge) candidates_.push_back({logits[i], static_cast<TokenId>(i)});
        if (b == edge) last.push_back({logits[i], static_cast<TokenId>(i)});
      }
      std::sort(last.begin(), last.end(), Better);
      last.resize(prefix(last, wanted));
      candidates_.insert(candidates_.end(), last.begin(), last.end());
    } else {
      std::sort(candidates_.begin(), candidates_.end(), Better);
      uint64_t total = 0;
      for (const auto& c : candidates_) total += kernels::WeightOf(probs_[c.second]);
      candidates_.resize(prefix(candidates_, kernels::MassWanted(total, fraction)));
    }
  }

  const float floor = p.min_p > 0.f ? p.min_p : 0.f;  // of the best's probability, which is 1 here
  if (by_k || by_p) {
    std::sort(candidates_.begin(), candidates_.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    const auto weight = [&](TokenId t) { return probs_[t] < floor ? 0 : kernels::WeightOf(probs_[t]); };
    uint64_t total = 0, sum = 0;
    for (const auto& c : candidates_) total += weight(c.second);
    if (total == 0) return false;
    const uint64_t target = kernels::DrawTarget(total, kernels::FractionOf(u));
    for (const auto& c : candidates_) {
      sum += weight(c.second);
      *token = c.second;
      if (sum > target) break;
    }
    return true;
  }
  // No filter but min_p: the vocabulary in id order.
  uint64_t total = 0;
  std::vector<uint64_t> blocks;
  for (int64_t begin = 0; begin < vocab_; begin += kBlock) {
    uint64_t s = 0;
    for (int64_t i = begin; i < std::min(vocab_, begin + kBlock); ++i) s += probs_[i] < floor ? 0 : kernels::WeightOf(probs_[i]);
    blocks.push_back(s);
    total += s;
  }
  if (total == 0) return false;
  const uint64_t target = kernels::DrawTarget(total, kernels::FractionOf(u));
  uint64_t sum = 0;
  size_t b = 0;
  while (sum + blocks[b] <= target) sum += blocks[b++];
  for (int64_t i = static_cast<int64_t>(b) * kBlock;; ++i) {
    sum += probs_[i] < floor ? 0 : kernels::WeightOf(probs_[i]);
    if (sum <= target) continue;
    *token = static_cast<TokenId>(i);
    return true;
  }
}

}  // namespace holdfast::exec
