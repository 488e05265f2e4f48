#pragma once
// Who touched which byte of a block's shared memory last, and whether what lies between makes an order (engine.h says which orders count).
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simt {

struct Toucher {
  uint32_t thread;             // linear in the block
  uint32_t warp, lane;
  uint32_t clock;              // of the lane: counts its __syncwarps
  const uint32_t* knows;       // [32]: up to which clock of each lane of its warp it is ordered after
};

class Races {
 public:
  // The warp of all that do atomic operations, as if they were one thread: ordered among themselves, and with nobody else but by barriers.
  static constexpr uint32_t kAtomic = 0xfffe;
  void Grow(size_t bytes);
  // A new order of everything before and after: a block barrier, the next block.
  void NewEpoch() { ++epoch_; }
  // Empty, or what is wrong: the other access, by its thread.
  struct Clash {
    bool found = false;
    bool other_wrote = false;
    uint32_t other_warp = 0, other_lane = 0;
    bool many = false;         // readers of several warps
  };
  Clash Touch(size_t offset, size_t bytes, bool write, const Toucher& who);

 private:
  struct Record {
    uint32_t write_epoch = 0, write_clock = 0;
    uint16_t write_warp = 0, write_lane = 0;
    uint32_t read_epoch = 0, read_clock = 0, read_lanes = 0;
    uint16_t read_warp = 0;    // kMany: readers of several warps
    uint16_t unused = 0;
  };
  static constexpr uint16_t kMany = 0xffff;
  Clash TouchRecord(Record& r, bool write, const Toucher& who);

  uint32_t epoch_ = 1;
  std::vector<Record> words_, bytes_;
  std::vector<uint32_t> split_;  // [word] epoch in which its bytes have records of their own
};

}  // namespace simt
