#pragma once
// The memory behind the page tables: for every group one reservation of address space, in which each layer has its pages side by side
// (page p of a layer at layer_base + p * page_bytes). Base addresses never change, whatever a resize does; memory is taken when a page
// is first written and given back by SetPages. It knows nothing of who holds a page: worker/kv does.
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
  static absl::StatusOr<std::unique_ptr<KvStorage>> Create(const model::KvPlan& plan, const kv::CacheShape& cache,
                                                           const KvStorageOptions& options);
  ~KvStorage();
  KvStorage(const KvStorage&) = delete;
  KvStorage& operator=(const KvStorage&) = delete;

  model::KvView view() const { return {layers_}; }
  const model::KvPlan& plan() const { return plan_; }

  // Sets how many pages of the group are backed (<= reserve_pages). Shrinking gives the memory of the pages beyond back to the system;
  // their contents are gone. kResourceExhausted when growing does not fit.
  absl::Status SetPages(int group, uint32_t pages);
  uint32_t pages(int group) const { return groups_[group].pages; }
  // Copies every layer's part of page `from` to page `to`.
  void MovePage(kernels::Ops& ops, int group, uint32_t from, uint32_t to);
  uint64_t backed_bytes() const;

 private:
  struct Group {
    std::byte* base = nullptr;
    uint64_t reserved_bytes = 0;
    uint32_t pages = 0;
    uint32_t reserve_pages = 0;
    std::vector<int32_t> layers;
    std::vector<uint64_t> layer_offset;
  };
  KvStorage() = default;
  absl::Status Populate(int group, uint32_t first, uint32_t last);

  model::KvPlan plan_;
  std::vector<kernels::KvLayer> layers_;
  std::vector<Group> groups_;
  KvStorageOptions options_;
};

}  // namespace holdfast::exec
