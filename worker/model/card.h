#pragma once
// ModelCard from a GGUF file: tokenizer metadata, chat templates, limits, sampling defaults and the fingerprint. No weight is read
// (a few bytes of each tensor for the fingerprint aside). What a frontend would otherwise trip over is refused here, by name: a
// tokenizer we do not have, token arrays of unequal length, special ids beyond the vocabulary, duplicate token texts, broken merges.
#include <absl/status/statusor.h>

#include "proto/model_card.pb.h"
#include "worker/model/gguf_file.h"

namespace holdfast::model {

absl::StatusOr<proto::ModelCard> MakeCard(const GgufFile& file);

}  // namespace holdfast::model
