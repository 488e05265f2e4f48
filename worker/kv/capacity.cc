#include "worker/kv/capacity.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/check.h"
#include "worker/kv/drill.h"

namespace holdfast::kv {
namespace {

uint32_t CeilDiv(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }

uint32_t Saturate(uint64_t v) { return static_cast<uint32_t>(std::min<uint64_t>(v, UINT32_MAX)); }

uint64_t Floor(const CapacityQuestion& q, uint32_t window, uint32_t running) {
  if (window == 0) return FullNeed(q.page_size, running, q.chunk);
  return WindowNeed(window, q.page_size, running, SmallestChunk(running, q.chunk), q.overlap_depth);
}

bool Serves(const CapacityQuestion& q, std::span<const uint32_t> usable, uint32_t running) {
  for (size_t g = 0; g < q.windows.size(); ++g) {
    if (usable[g] < Floor(q, q.windows[g], running)) return false;
  }
  return true;
}

}  // namespace

std::string PoolName(uint32_t window) { return window == 0 ? "full" : fmt::format("window-{}", window); }

uint32_t WindowPagesPerRow(uint32_t window, uint32_t page_size) {
  if (page_size == 1) return window - 1;
  return CeilDiv(window > 2 ? window - 2 : 0, page_size) + 2;
}

uint64_t WindowNeed(uint32_t window, uint32_t page_size, uint32_t running, uint32_t chunk, uint32_t overlap_depth) {
  const uint64_t in_flight = (overlap_depth + 1ull) * std::max(chunk, running);
  const uint64_t windows = HF_DRILL(kFloorWithoutWindows) ? 0 : static_cast<uint64_t>(running) * WindowPagesPerRow(window, page_size);
  return windows + in_flight / page_size;
}

uint64_t FullNeed(uint32_t page_size, uint32_t running, uint32_t chunk) {
  return static_cast<uint64_t>(running) + CeilDiv(SmallestChunk(running, chunk), page_size);
}

uint32_t SmallestChunk(uint32_t running, uint32_t chunk) { return std::max(running, std::min(kSmallestChunk, chunk)); }

StepLimits EvaluateStep(const CapacityQuestion& q, std::span<const uint32_t> usable) {
  HF_CHECKF(usable.size() == q.windows.size() && q.page_size > 0 && q.max_running > 0, "{} groups", usable.size());
  StepLimits out;
  // Fewer running requests before a chunk below the smallest: the serving floor is monotone in the number of requests.
  uint32_t low = 0, high = q.max_running;
  if (Serves(q, usable, high)) low = high;
  while (low < high) {
    const uint32_t middle = low + (high - low + 1) / 2;
    if (Serves(q, usable, middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  out.running = low;
  if (low == 0) return out;
  out.chunk = std::max(q.chunk, low);
  out.tokens_in_flight = UINT32_MAX;
  for (size_t g = 0; g < q.windows.size(); ++g) {
    if (q.windows[g] == 0) continue;
    const uint64_t windows = HF_DRILL(kFloorWithoutWindows) ? 0 : static_cast<uint64_t>(low) * WindowPagesPerRow(q.windows[g], q.page_size);
    const uint64_t spare = (usable[g] - std::min<uint64_t>(usable[g], windows)) * q.page_size;
    out.tokens_in_flight = std::min(out.tokens_in_flight, Saturate(spare + q.page_size - 1));
    if (WindowNeed(q.windows[g], q.page_size, low, out.chunk, q.overlap_depth) <= usable[g]) continue;
    out.chunk = std::max(SmallestChunk(low, q.chunk), Saturate(spare / (q.overlap_depth + 1)));
  }
  return out;
}

CapacityAnswer Evaluate(const CapacityQuestion& q, std::span<const uint32_t> usable) {
  CapacityAnswer out;
  const StepLimits step = EvaluateStep(q, usable);
  out.ok = step.running == q.max_running;
  out.running = step.running;
  out.chunk = step.chunk;
  out.tokens_in_flight = step.tokens_in_flight;
  const uint32_t smallest = SmallestChunk(q.max_running, q.chunk);
  for (size_t g = 0; g < q.windows.size(); ++g) {
    const uint32_t w = q.windows[g];
    GroupCapacity group;
    group.floor = Saturate(Floor(q, w, q.max_running));
    group.recommended = w == 0 ? std::max(group.floor, CeilDiv(std::max(q.max_seq_len, 1u), q.page_size))
                               : Saturate(WindowNeed(w, q.page_size, q.max_running, q.chunk, q.overlap_depth));
    out.groups.push_back(group);
    if (usable[g] >= group.floor || !out.message.empty()) continue;
    const std::string fewer = step.running > 0 ? fmt::format(", or at most {} running requests", step.running) : std::string();
    if (w == 0) {
      out.message = fmt::format(
          "the full pool has {} pages ({} tokens); {} running requests need a page each and {} for the smallest chunk of {} tokens, {} in all: "
          "give it at least {} pages ({} tokens){}",
          usable[g], static_cast<uint64_t>(usable[g]) * q.page_size, q.max_running, group.floor - q.max_running, smallest, group.floor, group.floor,
          static_cast<uint64_t>(group.floor) * q.page_size, fewer);
    } else {
      const uint64_t w1 = WindowPagesPerRow(w, q.page_size);
      out.message = fmt::format(
          "pool {} has {} pages ({} tokens); {} running requests need {} x {} = {} pages for their windows and {} for the smallest chunk of {} "
          "tokens with {} step(s) in flight, {} in all: give it at least {} pages ({} tokens){}",
          PoolName(w), usable[g], static_cast<uint64_t>(usable[g]) * q.page_size, q.max_running, q.max_running, w1, q.max_running * w1,
          group.floor - q.max_running * w1, smallest, q.overlap_depth + 1, group.floor, group.floor,
          static_cast<uint64_t>(group.floor) * q.page_size, fewer);
    }
  }
  return out;
}

}  // namespace holdfast::kv
