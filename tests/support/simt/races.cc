#include "tests/support/simt/races.h"

#include <algorithm>

#include "proto/base/check.h"

namespace simt {

void Races::Grow(size_t bytes) {
  const size_t words = (bytes + 3) / 4;
  if (words <= words_.size()) return;
  words_.resize(words);
  bytes_.resize(words * 4);
  split_.resize(words, 0);
}

Races::Clash Races::TouchRecord(Record& r, bool write, const Toucher& who) {
  Clash clash;
  if (r.write_epoch == epoch_ && !(r.write_warp == who.warp && (r.write_lane == who.lane || r.write_clock <= who.knows[r.write_lane]))) {
    clash = {true, true, r.write_warp, r.write_lane, false};
  }
  const bool read_now = r.read_epoch == epoch_;
  if (write) {
    if (read_now && !clash.found) {
      if (r.read_warp == kMany) {
        clash = {true, false, 0, 0, true};
      } else {
        for (uint32_t lanes = r.read_lanes; lanes != 0; lanes &= lanes - 1) {
          const uint32_t lane = static_cast<uint32_t>(__builtin_ctz(lanes));
          if (r.read_warp == who.warp && (lane == who.lane || r.read_clock <= who.knows[lane])) continue;
          clash = {true, false, r.read_warp, lane, false};
          break;
        }
      }
    }
    r.write_epoch = epoch_;
    r.write_clock = who.clock;
    r.write_warp = static_cast<uint16_t>(who.warp);
    r.write_lane = static_cast<uint16_t>(who.lane);
    r.read_epoch = 0;  // what was read before is ordered before this write, or was just reported
    return clash;
  }
  const uint32_t me = uint32_t{1} << who.lane;
  if (!read_now) {
    r.read_epoch = epoch_;
    r.read_warp = static_cast<uint16_t>(who.warp);
    r.read_lanes = me;
    r.read_clock = who.clock;
  } else if (r.read_warp == kMany || r.read_warp != who.warp) {
    r.read_warp = kMany;
  } else {
    bool ordered = true;
    for (uint32_t lanes = r.read_lanes & ~me; lanes != 0 && ordered; lanes &= lanes - 1) {
      ordered = r.read_clock <= who.knows[__builtin_ctz(lanes)];
    }
    if (ordered) {
      r.read_lanes = me;
      r.read_clock = who.clock;
    } else {
      r.read_lanes |= me;
      r.read_clock = std::min(r.read_clock, who.clock);
    }
  }
  return clash;
}

Races::Clash Races::Touch(size_t offset, size_t bytes, bool write, const Toucher& who) {
  HF_CHECK(epoch_ != 0);
  Clash first;
  for (size_t at = offset, end = offset + bytes; at < end;) {
    const size_t word = at / 4;
    const bool whole = at % 4 == 0 && end - at >= 4;
    if (split_[word] != epoch_) {
      if (whole) {
        const Clash c = TouchRecord(words_[word], write, who);
        if (c.found && !first.found) first = c;
        at += 4;
        continue;
      }
      split_[word] = epoch_;
      for (size_t i = 0; i < 4; ++i) bytes_[word * 4 + i] = words_[word];
    }
    const size_t stop = std::min(end, (word + 1) * 4);
    for (; at < stop; ++at) {
      const Clash c = TouchRecord(bytes_[at], write, who);
      if (c.found && !first.found) first = c;
    }
  }
  return first;
}

}  // namespace simt
