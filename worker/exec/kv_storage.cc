#include "worker/exec/kv_storage.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"
#include "worker/model/memory.h"

namespace holdfast::exec {
namespace {

constexpr uint64_t kGranule = uint64_t{2} << 20;  // layers begin at huge-page boundaries

uint64_t AlignUp(uint64_t v, uint64_t a) { return (v + a - 1) / a * a; }

}  // namespace

absl::StatusOr<std::unique_ptr<KvStorage>> KvStorage::Create(kernels::Ops& ops, const model::KvPlan& plan, const kv::CacheShape& cache,
                                                             const KvStorageOptions& options) {
  if (cache.groups.size() != plan.groups.size() || static_cast<int32_t>(cache.page_size) != plan.page_size) {
    return absl::InvalidArgumentError(fmt::format("the cache has {} page groups of page size {}, the model needs {} of {}", cache.groups.size(),
                                                  cache.page_size, plan.groups.size(), plan.page_size));
  }
  std::unique_ptr<KvStorage> storage(new KvStorage);
  storage->ops_ = &ops;
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
  if (options.check_memory) HF_RETURN_IF_ERROR(storage->RequireRoom(backed, "the KV cache"));
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    Group& group = storage->groups_[g];
    group.layers = plan.groups[g].layers;
    group.reserve_pages = std::max(cache.groups[g].reserve_pages, cache.groups[g].pages);
    uint64_t bytes = 0;
    for (const int32_t layer : group.layers) {
      group.layer_offset.push_back(bytes);
      bytes += AlignUp(static_cast<uint64_t>(plan.layers[layer].page_bytes) * std::max(1u, group.reserve_pages), kGranule);
    }
    auto memory = ops.Reserve(static_cast<int64_t>(bytes));
    if (!memory.ok()) {
      return absl::Status(memory.status().code(), fmt::format("no address space for {} of KV pages ({}): {}", model::BytesText(bytes), plan.groups[g].name,
                                                              MessageOf(memory.status())));
    }
    group.memory = *std::move(memory);
    HF_CHECKF(kGranule % static_cast<uint64_t>(group.memory->granule()) == 0, "memory comes in {} bytes", group.memory->granule());
    group.pages = cache.groups[g].pages;
    HF_RETURN_IF_ERROR(storage->Back(static_cast<int>(g), 0, group.pages));
  }
  storage->layers_.resize(plan.layers.size());
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = storage->groups_[g];
    for (size_t i = 0; i < group.layers.size(); ++i) {
      const model::KvLayerPlan& p = plan.layers[group.layers[i]];
      kernels::KvLayer& layer = storage->layers_[group.layers[i]];
      layer.base = group.memory->base() + group.layer_offset[i];
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

absl::Status KvStorage::RequireRoom(uint64_t bytes, const char* what) const {
  if (ops_->HostMemory()) return model::RequireMemory(bytes, what);
  const uint64_t left = static_cast<uint64_t>(ops_->FreeMemory());
  if (bytes <= left) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("{} needs {} of the device's memory, of which {} are left", what, model::BytesText(bytes),
                                                  model::BytesText(left)));
}

absl::Status KvStorage::Back(int index, uint32_t first, uint32_t last) {
  Group& group = groups_[index];
  for (size_t i = 0; i < group.layers.size() && first < last; ++i) {
    const uint64_t page = plan_.layers[group.layers[i]].page_bytes;
    const absl::Status backed = group.memory->Back(static_cast<int64_t>(group.layer_offset[i] + first * page),
                                                   static_cast<int64_t>(group.layer_offset[i] + last * page), options_.populate);
    if (!backed.ok()) {
      return absl::Status(backed.code(), fmt::format("no memory for KV pages {} to {} of {}: {}", first, last, plan_.groups[index].name, MessageOf(backed)));
    }
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
    if (options_.check_memory) HF_RETURN_IF_ERROR(RequireRoom(more, "growing the KV cache"));
    HF_RETURN_IF_ERROR(Back(index, group.pages, pages));
  } else {
    ops_->Sync();  // who still reads them
    for (size_t i = 0; i < group.layers.size(); ++i) {
      // Never a byte of a page that stays: a layer begins at a granule, and beyond its last page there is nothing.
      const uint64_t page = plan_.layers[group.layers[i]].page_bytes;
      group.memory->Release(static_cast<int64_t>(group.layer_offset[i] + pages * page), static_cast<int64_t>(group.layer_offset[i] + group.pages * page));
    }
  }
  group.pages = pages;
  return absl::OkStatus();
}

void KvStorage::MovePage(int index, uint32_t from, uint32_t to) {
  HF_CHECK(index >= 0 && index < static_cast<int>(groups_.size()));
  const Group& group = groups_[index];
  HF_CHECKF(from < group.pages && to < group.pages, "page {} to {} of {}", from, to, group.pages);
  for (size_t i = 0; i < group.layers.size(); ++i) {
    const int64_t page = plan_.layers[group.layers[i]].page_bytes;
    std::byte* base = group.memory->base() + group.layer_offset[i];
    ops_->CopyPage(base + to * page, base + from * page, page);
  }
}

uint64_t KvStorage::backed_bytes() const {
  uint64_t sum = 0;
  for (size_t g = 0; g < groups_.size(); ++g) sum += static_cast<uint64_t>(plan_.groups[g].page_bytes) * groups_[g].pages;
  return sum;
}

}  // namespace holdfast::exec
