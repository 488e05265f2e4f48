#pragma once
// The ranks of a group as threads of one process: each has a place in the same shared memory and runs the same function.
#include <catch2/catch.hpp>
#include <fcntl.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "proto/base/check.h"
#include "proto/base/group_memory.h"
#include "worker/tp/collective_shm.h"
#include "worker/tp/group.h"

namespace holdfast::test {

inline UniqueFd Copy(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)); }

inline std::unique_ptr<tp::Group> JoinAs(const UniqueFd& memory, tp::GroupOptions options) {
  auto group = tp::Group::Join(Copy(memory), options);
  HF_CHECKF(group.ok(), "{}", std::string(group.status().message()));
  return *std::move(group);
}

// Runs body(rank, group, collective) on a thread for each rank, from when all have joined. Checks of Catch belong after the call: it does
// not take them from several threads.
inline void RunRanks(uint32_t size, const std::function<void(uint32_t, tp::Group&, tp::ShmCollective&)>& body, tp::GroupOptions options = {}) {
  const UniqueFd memory = CreateGroupMemory(size);
  HF_CHECK(memory);
  std::vector<std::thread> threads;
  for (uint32_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      tp::GroupOptions own = options;
      own.rank = r;
      own.size = size;
      const auto group = JoinAs(memory, own);
      HF_CHECK(group->Meet().ok());
      tp::ShmCollective collective(group.get());
      body(r, *group, collective);
    });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace holdfast::test
