#include "worker/model/kv_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace holdfast::model {

absl::StatusOr<kernels::KvDType> KvDTypeFromFlag(std::string_view flag) {
  if (flag == "auto") return kernels::KvDType::kF16;
  if (const auto type = kernels::KvDTypeFromName(flag)) return *type;
  return absl::InvalidArgumentError(fmt::format("KV cache type {} is unknown; auto, f16, bf16, q8_0 and fp8_e4m3 exist", Quoted(flag)));
}

absl::StatusOr<KvPlan> MakeKvPlan(const Hparams& h, const kernels::Ops& ops, kernels::KvDType dtype, int32_t page_size) {
  if (page_size < 1 || page_size > 256 || (page_size & (page_size - 1)) != 0) {
    return absl::InvalidArgumentError(fmt::format("page size {} is not a power of two from 1 to 256", page_size));
  }
  KvPlan plan;
  plan.dtype = dtype;
  plan.page_size = page_size;
  const bool eight_bit = dtype == kernels::KvDType::kQ8_0 || dtype == kernels::KvDType::kFp8E4M3;
  // Full attention first, then each distinct window in the order of its first layer.
  const auto window_of = [&h](const LayerHparams& l) { return l.windowed ? h.window : 0u; };
  for (const LayerHparams& l : h.layers) {
    if (l.owns_kv && window_of(l) == 0 && plan.groups.empty()) plan.groups.push_back({"full", 0, {}, 0});
  }
  plan.layers.resize(h.layers.size());
  for (int32_t i = 0; i < static_cast<int32_t>(h.layers.size()); ++i) {
    const LayerHparams& l = h.layers[i];
    KvLayerPlan& p = plan.layers[i];
    p.owns = l.owns_kv;
    p.source = l.kv_source;
    p.kv_heads = l.kv_heads;
    p.head_dim = l.head_dim;
    if (!l.owns_kv) continue;
    if (eight_bit && l.head_dim % 32 != 0) {
      return absl::InvalidArgumentError(fmt::format("KV cache type {} needs head sizes that are multiples of 32; layer {} has {} (f16 and bf16 work)",
                                                    kernels::KvDTypeName(dtype), i, l.head_dim));
    }
    const uint32_t window = window_of(l);
    auto group = std::find_if(plan.groups.begin(), plan.groups.end(), [window](const KvGroup& g) { return g.window == window; });
    if (group == plan.groups.end()) {
      plan.groups.push_back({fmt::format("window-{}", window), window, {}, 0});
      group = plan.groups.end() - 1;
    }
    p.group = static_cast<int32_t>(group - plan.groups.begin());
    p.page_bytes = ops.KvPageBytes(dtype, page_size, l.kv_heads, l.head_dim, l.head_dim);
    group->layers.push_back(i);
    group->page_bytes += p.page_bytes;
  }
  for (KvLayerPlan& p : plan.layers) {
    if (p.owns) continue;
    p.group = plan.layers[p.source].group;
    p.page_bytes = plan.layers[p.source].page_bytes;
  }
  return plan;
}

}  // namespace holdfast::model
