#pragma once
// What a step takes of a device's memory beside weights and pages.
#include <cstdint>

#include "worker/model/hparams.h"

namespace holdfast::model {

// Bytes, not less than what a model (Model::Reserve), its executor (the logits' tile) and a backend's scratch (activations as products take them,
// rows of experts, parts of split attention, tables of rotations) come to: so much is kept free when pools are sized. rows: most of a step; logit_rows:
// of the tile; sequences: that decode at once; tokens: of all of them together.
uint64_t ActivationBytes(const Hparams& hparams, uint64_t rows, uint64_t logit_rows, uint64_t sequences, uint64_t tokens);

}  // namespace holdfast::model
