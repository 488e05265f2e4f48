#pragma once
// Which layers keep K and V where: page groups, the bytes of a page, and each layer's place in its group.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "worker/model/hparams.h"

namespace holdfast::model {

// One page group: full attention (window 0, always first when the model has any full layer), or one distinct window.
struct KvGroup {
  std::string name;                  // "full", "window-1024"
  uint32_t window = 0;
  std::vector<int32_t> layers;       // model layers that own a cache here, ascending
  int64_t page_bytes = 0;            // of all its layers: what one page of the pool costs
};

struct KvLayerPlan {
  bool owns = true;
  int32_t source = 0;                // the layer whose cache this layer reads (itself when it owns one)
  int32_t group = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
  int64_t page_bytes = 0;            // of this layer alone
};

struct KvPlan {
  kernels::KvDType dtype = kernels::KvDType::kF16;
  int32_t page_size = 16;
  std::vector<KvGroup> groups;
  std::vector<KvLayerPlan> layers;   // one a model layer

  int64_t BytesPerToken(int32_t group) const { return groups[group].page_bytes / page_size; }
};

// "auto", "f16", "bf16", "q8_0", "fp8_e4m3"; auto is f16. kInvalidArgument lists what exists.
absl::StatusOr<kernels::KvDType> KvDTypeFromFlag(std::string_view flag);

// kInvalidArgument when the type cannot hold a head (8-bit types need head_dim % 32 == 0) or page_size is not a power of two in 1..256.
absl::StatusOr<KvPlan> MakeKvPlan(const Hparams& hparams, const kernels::Ops& ops, kernels::KvDType dtype, int32_t page_size);

}  // namespace holdfast::model
