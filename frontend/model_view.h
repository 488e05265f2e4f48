#pragma once
// What a frontend makes of a ModelCard: tokenizer, chat template and the sets of special ids. Immutable and shared between the loop and
// the text pool; made on the pool (a vocabulary of 262k entries takes a while).
#include <absl/status/statusor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/api/valid_request.h"
#include "frontend/text/json_value.h"

namespace holdfast::grammar {
class ConstraintCache;
}

namespace holdfast::tools {
class Format;
}

namespace holdfast::text {
class ChatTemplate;
class Tokenizer;
}  // namespace holdfast::text

namespace holdfast::api {

// Token ids of a prompt and the prefix lengths at which a later prompt is likely to part from it.
struct PreparedPrompt {
  std::vector<uint32_t> tokens;
  std::vector<uint32_t> anchors;      // ascending, each in (0, tokens.size())
  // A conversation's: what the template wrote behind the last text of the request, where a thought may have been opened.
  std::string tail;
};

// Which parsers read a model's output: names of tools::FormatNames(), "auto" (from the chat template) or "none".
struct ParserNames {
  std::string tools = "auto", reasoning = "auto";
};

struct SamplingDefaults {
  std::optional<double> temperature, top_p, min_p;
  std::optional<uint32_t> top_k;
};

class ModelView final {
 public:
  // `card` is a serialised proto::ModelCard. kInvalidArgument says what in it cannot be used.
  static absl::StatusOr<std::shared_ptr<const ModelView>> Create(std::string_view card, const ParserNames& parsers = {});
  ~ModelView();

  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& name() const { return name_; }
  const std::string& architecture() const { return architecture_; }
  uint32_t vocab_size() const { return vocab_size_; }
  uint32_t context_length() const { return context_length_; }
  uint64_t parameter_count() const { return parameter_count_; }
  uint64_t file_bytes() const { return file_bytes_; }
  const std::string& quantization() const { return quantization_; }
  const SamplingDefaults& sampling() const { return sampling_; }

  // "" when chats can be rendered, else why not.
  const std::string& template_error() const { return template_error_; }

  // How the model writes thoughts and calls; null when neither is known.
  const tools::Format* format() const { return format_.get(); }
  const std::string& tool_format() const { return tool_format_; }            // "" = none
  const std::string& reasoning_format() const { return reasoning_format_; }  // "" = none
  bool has_tool_format() const { return format_ && !tool_format_.empty(); }
  // A conversation with tools shows them to the model, and its calls are read.
  bool takes_tools() const;
  const std::string& format_error() const { return format_error_; }          // why the parsers that were asked for cannot be had; "" = they can
  // Compiled constraints, which depend on the vocabulary's markers. Any thread.
  grammar::ConstraintCache& constraints() const { return *constraints_; }

  const text::Tokenizer& tokenizer() const { return *tokenizer_; }
  // Ids that end a generation, ascending.
  const std::vector<uint32_t>& stop_ids() const;
  bool IsStop(uint32_t id) const;
  const std::vector<uint32_t>& suppress_ids() const { return suppress_ids_; }
  // Text pool. kInvalidArgument carries the template's own words when it refuses the conversation. BOS and EOS are added as the model
  // wants them; one that the template wrote itself is not doubled.
  absl::StatusOr<PreparedPrompt> EncodeChat(const ValidRequest& request, int64_t unix_seconds) const;
  // A raw prompt: its author writes the markers, so they are recognised.
  PreparedPrompt EncodeText(std::string_view text) const;
  // The bytes an id has in a text; a marker's own text for ids that have none. "" beyond the vocabulary.
  std::string_view PieceOf(uint32_t id) const;
  // The text of ids as /detokenize gives it, markers included. Any thread.
  std::string Decode(const std::vector<uint32_t>& ids) const;
  // Adds the anchors to ids that came as ids.
  PreparedPrompt FromIds(std::vector<uint32_t> ids) const;

 private:
  ModelView();
  void ChooseFormat(const ParserNames& parsers, std::string_view chat_template);

  std::string fingerprint_, name_, architecture_, quantization_;
  uint32_t vocab_size_ = 0, context_length_ = 0;
  uint64_t parameter_count_ = 0, file_bytes_ = 0;
  SamplingDefaults sampling_;
  std::vector<uint32_t> suppress_ids_;
  std::unique_ptr<const text::Tokenizer> tokenizer_;
  std::unique_ptr<const text::ChatTemplate> template_;
  std::string template_error_;        // why there is none
  std::string tool_format_, reasoning_format_, format_error_;
  std::shared_ptr<const tools::Format> format_;
  std::unique_ptr<grammar::ConstraintCache> constraints_;
};

}  // namespace holdfast::api
