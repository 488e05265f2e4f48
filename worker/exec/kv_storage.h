#pragma once
// The memory behind the page tables: for every group one reservation of the backend's address space, in which each layer has its pages side by side
// (page p of a layer at layer_base + p * page_bytes). Base addresses never change, whatever a resize does; memory is taken when a page
// is first written (on a device: when it is backed) and given back by SetPages. It knows nothing of who holds a page: worker/kv does.
//
// Threads: the worker's step thread only.
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "worker/kv/units.h"
#include "worker/model/kv_plan.h"
#include "worker/model/model.h"

namespace holdfast::exec {

struct KvStorageOptions {
  bool populate = false;      // touch every backed page now, so that a lack of memory shows here and not under a request
  bool check_memory = true;   // refuse when the backed pages cannot fit what the machine or cgroup has left
};

class KvStorage {
 public:
  // cache.groups[i] sizes plan.groups[i] (same windows, same order). kResourceExhausted with the numbers when there is no room.
  // ops must outlive the storage.
  static absl::StatusOr<std::unique_ptr<KvStorage>> Create(kernels::Ops& ops, const model::KvPlan& plan, const kv::CacheShape& cache,
                                                           const KvStorageOptions& options);
  KvStorage(const KvStorage&) = delete;
  KvStorage& operator=(const KvStorage&) = delete;

  model::KvView view() const { return {layers_}; }
  const model::KvPlan& plan() const { return plan_; }

  // Sets how many pages of the group are backed (<= reserve_pages). Shrinking gives the memory of the pages beyond back to the system;
  // their contents are gone. kResourceExhausted when growing does not fit.
  absl::Status SetPages(int group, uint32_t pages);
  uint32_t pages(int group) const { return groups_[group].pages; }
  // Copies every layer's part of page `from` to page `to`.
  void MovePage(int group, uint32_t from, uint32_t to);
  uint64_t backed_bytes() const;
  // kResourceExhausted with the numbers when `bytes` more do not fit what the machine, or the device, has left.
  absl::Status RequireRoom(uint64_t bytes, const char* what) const;

 private:
  struct Group {
    std::unique_ptr<kernels::Reservation> memory;
    uint32_t pages = 0;
    uint32_t reserve_pages = 0;
    std::vector<int32_t> layers;
    std::vector<uint64_t> layer_offset;
  };
  KvStorage() = default;
  absl::Status Back(int group, uint32_t first, uint32_t last);

  kernels::Ops* ops_ = nullptr;
  model::KvPlan plan_;
  std::vector<kernels::KvLayer> layers_;
  std::vector<Group> groups_;
  KvStorageOptions options_;
};

}  // namespace holdfast::exec
