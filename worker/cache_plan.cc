#include "worker/cache_plan.h"

#include <algorithm>

#include <fmt/format.h>

#include "worker/kv/capacity.h"
#include "worker/model/memory.h"

namespace holdfast::worker {
namespace {

using model::BytesText;

constexpr uint64_t kMaxPages = 1u << 24;         // page indices are int32 in the block tables; far below that
constexpr uint64_t kAutoFullTokens = 1u << 18;   // without --num-tokens the full pool does not grow beyond this many tokens ...
constexpr double kDefaultSwaRatio = 0.2;
constexpr uint32_t kReserveFactor = 4;           // address space for later growth, times the pages at start

uint64_t CeilDiv(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

// Pages a window pool gets for a full pool of this many tokens.
uint64_t WindowPages(const CachePlanInput& in, uint32_t window, uint64_t full_tokens) {
  if (in.swa_ratio) return static_cast<uint64_t>(*in.swa_ratio * static_cast<double>(full_tokens)) / in.page_size;
  const uint64_t wanted = kv::WindowNeed(window, in.page_size, in.max_running, in.prefill_chunk, in.overlap_depth);
  const uint64_t by_ratio = static_cast<uint64_t>(kDefaultSwaRatio * static_cast<double>(full_tokens)) / in.page_size;
  // Beyond the need pages only keep prefixes warm; more than the full pool's tokens could never be filled.
  return std::max(wanted, by_ratio);
}

uint64_t PoolBytes(const CachePlanInput& in, uint64_t full_pages, uint64_t full_tokens) {
  uint64_t bytes = 0;
  for (const GroupCost& g : in.groups) bytes += g.page_bytes * (g.window == 0 ? full_pages : WindowPages(in, g.window, full_tokens));
  return bytes;
}

}  // namespace

absl::StatusOr<CachePlan> PlanCache(const CachePlanInput& in) {
  CachePlan out;
  const uint32_t context = std::max(in.context_length, 2u);
  if (in.max_seq_len && *in.max_seq_len > context) {
    return absl::InvalidArgumentError(fmt::format("--max-seq-len {} is more than the model's context of {}; the nearest value that works is {}",
                                                  *in.max_seq_len, context, context));
  }
  const uint64_t share = static_cast<uint64_t>(in.memory_ratio * static_cast<double>(in.memory_bytes));
  if (share < in.weight_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("the weights take {}, --memory-ratio {:.2f} of the {} {} is {}: no room for them; free memory, raise the ratio or "
                    "choose a smaller model",
                    BytesText(in.weight_bytes), in.memory_ratio, BytesText(in.memory_bytes), in.memory_name, BytesText(share)));
  }
  if (share - in.weight_bytes < in.activation_bytes) {
    return absl::ResourceExhaustedError(
        fmt::format("a step's activations take {}, --memory-ratio {:.2f} of the {} {} is {}, {} of which are weights: no room for them; free memory, "
                    "raise the ratio, take a smaller chunk (--max-prefill-length {}) or choose a smaller model",
                    BytesText(in.activation_bytes), in.memory_ratio, BytesText(in.memory_bytes), in.memory_name, BytesText(share), BytesText(in.weight_bytes),
                    in.prefill_chunk));
  }
  const uint64_t budget = share - in.weight_bytes - in.activation_bytes;
  const uint32_t ps = in.page_size;
  const bool has_full = !in.groups.empty() && in.groups.front().window == 0;
  const uint64_t want_seq = in.max_seq_len.value_or(context);

  // Tokens of the full pool (of a model with windows only: the tokens the ratio refers to). Short sequences take less than the floor.
  const uint64_t floor = kv::FullNeed(ps, in.max_running, in.prefill_chunk) * ps;
  uint64_t tokens = in.num_tokens ? *in.num_tokens
                                  : std::max<uint64_t>({want_seq, std::min<uint64_t>(want_seq * in.max_running, kAutoFullTokens), floor,
                                                        in.kv_reserve_tokens.value_or(0)});
  uint64_t pages = CeilDiv(tokens, ps);
  if (in.num_tokens && in.kv_reserve_tokens && *in.num_tokens < *in.kv_reserve_tokens) {
    return absl::InvalidArgumentError(fmt::format("--num-tokens {} is below --kv-reserve-tokens {}; the nearest value that works is {}", *in.num_tokens,
                                                  *in.kv_reserve_tokens, CeilDiv(*in.kv_reserve_tokens, ps) * ps));
  }
  const uint64_t least = in.num_tokens ? pages : CeilDiv(std::max<uint64_t>(in.kv_reserve_tokens.value_or(0), 1), ps);
  if (PoolBytes(in, pages, pages * ps) > budget) {
    if (PoolBytes(in, least, least * ps) > budget) {
      // Asked for by a flag: waiting will not help, the flag must change. Otherwise memory may come free.
      const auto code = in.num_tokens || in.kv_reserve_tokens ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kResourceExhausted;
      return absl::Status(code, fmt::format(
          "the KV pools need {} for {} tokens; {} is left of --memory-ratio {:.2f} x {} {} after {} of weights{}: ask for fewer tokens "
          "(--num-tokens), fewer requests (--max-running-requests {}), a smaller chunk (--max-prefill-length {}) or an 8-bit cache "
          "(--kv-cache-dtype q8_0)",
          BytesText(PoolBytes(in, least, least * ps)), least * ps, BytesText(budget), in.memory_ratio, BytesText(in.memory_bytes), in.memory_name,
          BytesText(in.weight_bytes), in.activation_bytes > 0 ? fmt::format(" and {} of activations", BytesText(in.activation_bytes)) : "", in.max_running,
          in.prefill_chunk));
    }
    uint64_t low = least, high = pages;  // PoolBytes is monotone in the pages
    while (low < high) {
      const uint64_t middle = low + (high - low + 1) / 2;
      if (PoolBytes(in, middle, middle * ps) <= budget) low = middle;
      else high = middle - 1;
    }
    out.notes.push_back(fmt::format("the full pool shrinks from {} to {} tokens to fit the memory", pages * ps, low * ps));
    pages = low;
  }
  pages = std::min(pages, kMaxPages);
  tokens = pages * ps;

  out.max_seq_len = static_cast<uint32_t>(want_seq);
  if (has_full && tokens < want_seq) {
    if (in.max_seq_len) {
      return absl::InvalidArgumentError(fmt::format("--max-seq-len {} does not fit the full pool of {} tokens; the nearest value that works is {}",
                                                    *in.max_seq_len, tokens, tokens));
    }
    out.max_seq_len = static_cast<uint32_t>(std::max<uint64_t>(tokens, 2));
    out.notes.push_back(fmt::format("sequences are limited to {} of the model's {} tokens: that is what the full pool holds", out.max_seq_len, context));
  }

  out.shape.page_size = ps;
  kv::CapacityQuestion question;
  question.page_size = ps;
  question.max_running = in.max_running;
  question.chunk = in.prefill_chunk;
  question.overlap_depth = in.overlap_depth;
  question.max_seq_len = out.max_seq_len;
  std::vector<uint32_t> usable;
  uint64_t pool_bytes = 0;
  for (const GroupCost& g : in.groups) {
    kv::GroupShape shape;
    shape.window = g.window;
    shape.pages = static_cast<uint32_t>(std::min(g.window == 0 ? pages : WindowPages(in, g.window, tokens), kMaxPages));
    shape.reserve_pages = static_cast<uint32_t>(std::min<uint64_t>(uint64_t{shape.pages} * kReserveFactor, kMaxPages));
    out.notes.push_back(fmt::format("pool {}: {} pages of {} tokens x {} = {}", kv::PoolName(g.window), shape.pages, ps, BytesText(g.page_bytes),
                                    BytesText(uint64_t{shape.pages} * g.page_bytes)));
    out.shape.groups.push_back(shape);
    pool_bytes += uint64_t{shape.pages} * g.page_bytes;
    question.windows.push_back(g.window);
    usable.push_back(shape.pages);
  }
  // The whole sum in one line; the shares add up to what the ratio gives.
  out.notes.push_back(fmt::format("memory: {} {} x --memory-ratio {:.2f} = {}: weights {}, {}KV pools {}, {} of it not needed", BytesText(in.memory_bytes),
                                  in.memory_name, in.memory_ratio, BytesText(share), BytesText(in.weight_bytes),
                                  in.activation_bytes > 0 ? fmt::format("activations {}, ", BytesText(in.activation_bytes)) : "", BytesText(pool_bytes),
                                  BytesText(budget - std::min(budget, pool_bytes))));
  const kv::CapacityAnswer answer = kv::Evaluate(question, usable);
  if (!answer.ok) {
    std::string hint;
    if (in.swa_ratio) {
      // The ratio at which every window pool reaches its floor, rounded up to what can be typed.
      double ratio = 0;
      for (size_t i = 0; i < in.groups.size(); ++i) {
        if (in.groups[i].window == 0) continue;
        ratio = std::max(ratio, static_cast<double>(uint64_t{answer.groups[i].floor} * ps) / static_cast<double>(tokens));
      }
      ratio = (static_cast<double>(static_cast<uint64_t>(ratio * 10000)) + 1) / 10000;
      hint = ratio <= 1 ? fmt::format(" (--swa-full-tokens-ratio {:.4f})", ratio) : std::string(" (no ratio up to 1 works: raise --num-tokens)");
    }
    return absl::InvalidArgumentError(answer.message + hint);
  }
  if (answer.chunk < in.prefill_chunk) {
    out.notes.push_back(fmt::format("warning: the chunk is capped from {} to {} tokens by the window pools", in.prefill_chunk, answer.chunk));
  }
  return out;
}

}  // namespace holdfast::worker
