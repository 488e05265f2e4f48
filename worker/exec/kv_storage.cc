#include "worker/exec/kv_storage.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"
#include "worker/model/memory.h"

namespace holdfast::exec {
namespace {

constexpr uint64_t kGranule = uint64_t{2} << 20;  // layers begin at huge-page boundaries

uint64_t AlignUp(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvStorage>> KvStorage::Create(const model::KvPlan& plan, const kv::CacheShape& cache, const KvStorageOptions& options) {
  if (cache.groups.size() != plan.groups.size() || static_cast<int32_t>(cache.page_size) != plan.page_size) {
    return absl::InvalidArgumentError(fmt::format("the cache has {} page groups of page size {}, the model needs {} of {}", cache.groups.size(),
                                                  cache.page_size, plan.groups.size(), plan.page_size));
  }
  std::unique_ptr<KvStorage> storage(new KvStorage);
  storage->plan_ = plan;
  storage->options_ = options;
  storage->groups_.resize(plan.groups.size());
  uint64_t backed = 0;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    if (cache.groups[g].window != plan.groups[g].window) {
      return absl::InvalidArgumentError(fmt::format("page group {} has window {}, the model needs {}", g, cache.groups[g].window, plan.groups[g].window));
    }
    backed += static_cast<uint64_t>(plan.groups[g].page_bytes) * cache.groups[g].pages;
  }
  if (options.check_memory) HF_RETURN_IF_ERROR(model::RequireMemory(backed, "the KV cache"));
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Group& group = storage->groups_[g];
    group.layers = plan.groups[g].layers;
    group.reserve_pages = std::max(cache.groups[g].reserve_pages, cache.groups[g].pages);
    for (const int32_t layer : group.layers) {
      group.layer_offset.push_back(group.reserved_bytes);
      group.reserved_bytes += AlignUp(static_cast<uint64_t>(plan.layers[layer].page_bytes) * std::max(1u, group.reserve_pages), kGranule);
    }
    void* p = mmap(nullptr, group.reserved_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
      return absl::ResourceExhaustedError(fmt::format("no address space for {} of KV pages ({}): {}", model::BytesText(group.reserved_bytes),
                                                      plan.groups[g].name, strerror(errno)));
    }
    group.base = static_cast<std::byte*>(p);
    madvise(p, group.reserved_bytes, MADV_HUGEPAGE);  // advice only
    group.pages = cache.groups[g].pages;
    if (options.populate) HF_RETURN_IF_ERROR(storage->Populate(static_cast<int>(g), 0, group.pages));
  }
  storage->layers_.resize(plan.layers.size());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = storage->groups_[g];
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const model::KvLayerPlan& p = plan.layers[group.layers[i]];
      kernels::KvLayer& layer = storage->layers_[group.layers[i]];
      layer.base = group.base + group.layer_offset[i];
      layer.page_stride = p.page_bytes;
      layer.page_size = plan.page_size;
      layer.kv_heads = p.kv_heads;
      layer.head_dim_k = layer.head_dim_v = p.head_dim;
      layer.dtype = plan.dtype;
      layer.group = static_cast<int32_t>(g);
    }
  }
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    if (!plan.layers[i].owns) storage->layers_[i] = storage->layers_[plan.layers[i].source];
  }
  return storage;
}

KvStorage::~KvStorage() {
  for (const Group& g : groups_) {
    if (g.base != nullptr) munmap(g.base, g.reserved_bytes);
  }
}

absl::Status KvStorage::Populate(int index, uint32_t first, uint32_t last) {
  const Group& group = groups_[index];
  const uint64_t system_page = sysconf(_SC_PAGESIZE);
  for (size_t i = 0; i < group.layers.size() && first < last; ++i) {
    const uint64_t page = plan_.layers[group.layers[i]].page_bytes;
    const uint64_t begin = (group.layer_offset[i] + first * page) / system_page * system_page;
    const uint64_t end = AlignUp(group.layer_offset[i] + last * page, system_page);
#ifdef MADV_POPULATE_WRITE
    if (madvise(group.base + begin, end - begin, MADV_POPULATE_WRITE) == 0 || errno == EINVAL) continue;  // EINVAL: older kernel
    return absl::ResourceExhaustedError(fmt::format("no memory for KV pages {} to {} of {}: {}", first, last, plan_.groups[index].name, strerror(errno)));
#endif
  }
  return absl::OkStatus();
}

absl::Status KvStorage::SetPages(int index, uint32_t pages) {
  HF_CHECK(index >= 0 && index < static_cast<int>(groups_.size()));
  Group& group = groups_[index];
  if (pages > group.reserve_pages) {
    return absl::InvalidArgumentError(fmt::format("{} pages of {} exceed the reservation of {}", pages, plan_.groups[index].name, group.reserve_pages));
  }
  if (pages > group.pages) {
    const uint64_t more = static_cast<uint64_t>(plan_.groups[index].page_bytes) * (pages - group.pages);
    if (options_.check_memory) HF_RETURN_IF_ERROR(model::RequireMemory(more, "growing the KV cache"));
    if (options_.populate) HF_RETURN_IF_ERROR(Populate(index, group.pages, pages));
  } else {
    const uint64_t system_page = sysconf(_SC_PAGESIZE);
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const uint64_t page = plan_.layers[group.layers[i]].page_bytes;
      const uint64_t begin = AlignUp(group.layer_offset[i] + pages * page, system_page);  // never a byte of a page that stays
      const uint64_t end = AlignUp(group.layer_offset[i] + group.pages * page, system_page);
      if (begin < end) madvise(group.base + begin, end - begin, MADV_DONTNEED);
    }
  }
  group.pages = pages;
  return absl::OkStatus();
}

void KvStorage::MovePage(kernels::Ops& ops, int index, uint32_t from, uint32_t to) {
  HF_CHECK(index >= 0 && index < static_cast<int>(groups_.size()));
  const Group& group = groups_[index];
  HF_CHECKF(from < group.pages && to < group.pages, "page {} to {} of {}", from, to, group.pages);
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const int64_t page = plan_.layers[group.layers[i]].page_bytes;
    std::byte* base = group.base + group.layer_offset[i];
    ops.CopyPage(base + to * page, base + from * page, page);
  }
}

uint64_t KvStorage::backed_bytes() const {
  uint64_t sum = 0;
  for (size_t g = 0; g < groups_.size(); ++g) sum += static_cast<uint64_t>(plan_.groups[g].page_bytes) * groups_[g].pages;
  return sum;
}

}  // namespace holdfast::exec
