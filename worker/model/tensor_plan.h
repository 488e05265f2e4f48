#pragma once
// What a model needs from a file: every tensor by name, with the shape its hyper-parameters imply, compared with the file before a
// byte is allocated. The plan's order is the order of the weight arena, so it must be a function of (hparams, file) alone.
#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "worker/model/gguf_file.h"
#include "worker/model/hparams.h"

namespace holdfast::model {

struct PlannedTensor {
  std::string name;                  // under which the model asks for it
  const GgufTensor* source = nullptr;
  bool is_vector = false;            // stored as f32 whatever the file's float type
  kernels::WeightUse use = kernels::WeightUse::kMatMul;
  int64_t in = 0;                    // matrices: row length; vectors: number of elements of one expert
  int64_t out = 1;
  int64_t experts = 1;
  int64_t first_row = 0;             // a slice of a fused tensor (attn_qkv): rows [first_row, first_row + out) of the source
};

class TensorPlan {
 public:
  // kInvalidArgument when a tensor is missing (with the shape expected), has another shape, or a type that cannot serve. Tensors the
  // model does not use are counted and logged in one line.
  static absl::StatusOr<TensorPlan> Make(const GgufFile& file, const Hparams& hparams);

  const std::vector<PlannedTensor>& tensors() const { return tensors_; }
  uint64_t parameters() const { return parameters_; }
  size_t ignored() const { return ignored_; }

 private:
  std::vector<PlannedTensor> tensors_;
  uint64_t parameters_ = 0;
  size_t ignored_ = 0;
};

}  // namespace holdfast::model
