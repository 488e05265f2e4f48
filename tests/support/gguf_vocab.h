#pragma once
// The tokenizer metadata of a GGUF file as a model card, for tests of text alone: no tensors, no checks but its bounds. The product reads
// model files with worker/model.
#include <filesystem>
#include <optional>
#include <string>

#include "proto/model_card.pb.h"

namespace holdfast::testing {

// nullopt and a message when the file cannot be read.
std::optional<proto::ModelCard> ReadVocabularyCard(const std::filesystem::path& file, std::string* error);

// Directory of the shared test data ($HOLDFAST_SHARED, else shared beside the source tree); nullopt when it is not there.
std::optional<std::filesystem::path> SharedData();

}  // namespace holdfast::testing
