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
#include "worker/model/shard.h"

namespace holdfast::model {

struct PlannedTensor {
  std::string name;                  // under which the model asks for it
  const GgufTensor* source = nullptr;
  bool is_vector = false;            // stored as f32 whatever the file's float type
  kernels::WeightUse use = kernels::WeightUse::kMatMul;
  int64_t in = 0;                    // matrices: row length; vectors: number of elements of one expert
  int64_t out = 1;
  int64_t experts = 1;

  // Where that lies in the source: a slice of a fused tensor (attn_qkv), this rank's share of a whole one, or both.
  int64_t source_in = 0;             // row length there; vectors: elements of one expert
  int64_t source_out = 1;            // rows of one expert there
  int64_t first_row = 0;             // rows [first_row, first_row + out); with second_row, out / 2 from each
  int64_t second_row = -1;           // >= 0: a gate_up matrix, whose halves are each cut
  int64_t first_column = 0;          // columns [first_column, first_column + in); vectors: elements

  bool whole_rows() const { return in == source_in; }
};

class TensorPlan {
 public:
  // kInvalidArgument when a tensor is missing (with the shape expected), has another shape, or a type that cannot serve. Tensors the
  // model does not use are counted and logged in one line. `hparams` are the whole model's; the plan is of the shard's part.
  static absl::StatusOr<TensorPlan> Make(const GgufFile& file, const Hparams& hparams, const Shard& shard);
  // The whole model, for one rank.
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
