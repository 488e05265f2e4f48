#pragma once
// Plain data of the ledger that others may see: shapes and numbers, no pages in the hand.
#include <cstdint>
#include <string>
#include <vector>

namespace holdfast::kv {

// One page group: full attention (window 0) or one distinct sliding window.
struct GroupShape {
  uint32_t window = 0;          // W counts the token itself: query i sees keys i-W+1 .. i
  uint32_t pages = 0;           // capacity backed at start
  uint32_t reserve_pages = 0;   // address space: the most a resize can reach, >= pages
};

struct CacheShape {
  uint32_t page_size = 16;                // tokens in a page: 1, 16, 32, ...
  std::vector<GroupShape> groups;         // at least one; the full group, if any, is first
};

// One pool as operators see it. capacity = free + held + evictable + retiring + quarantined; unbacked pages are beyond it.
struct PoolView {
  std::string name;             // "full", "window-1024"
  uint32_t window = 0;
  uint32_t capacity = 0;
  uint32_t free = 0;
  uint32_t held = 0;            // in use by a running request (shared ones count once)
  uint32_t evictable = 0;       // held by the prefix index only
  uint32_t retiring = 0;
  uint32_t quarantined = 0;
  uint32_t unbacked = 0;
  uint32_t reserved = 0;        // promised to running requests (full pool), not taken yet
  uint32_t floor = 0;           // least capacity that serves max_running with the smallest chunk
  uint32_t recommended = 0;     // capacity from which on the configured chunk is not capped
  uint64_t evictions = 0;
};

}  // namespace holdfast::kv
