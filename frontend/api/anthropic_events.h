#pragma once
// An answer as Anthropic's Messages API tells it: what the generation says becomes content blocks, and blocks become events or one body. A
// state machine over text, without I/O; folding the events of a stream gives the body, whatever the pieces were.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/api/response.h"
#include "frontend/api/valid_request.h"
#include "frontend/generation.h"
#include "frontend/http/server.h"

namespace holdfast::api {

class AnthropicWriter final {
 public:
  // Without `stream` the calls give no events, only Body() at the end.
  AnthropicWriter(ResponseHead head, bool stream);

  // Each gives the SSE frames of what happened: Begin once (with what is known of the prompt), then Delta any number of times, End, Done;
  // Fail ends it instead.
  std::string Begin(const Usage& prompt);               // message_start
  std::string Delta(const ChoiceDelta& delta);          // content_block_start, _delta, _stop
  std::string End(const ChoiceEnd& end);                // closes what is open
  std::string Done(const Usage& usage);                 // message_delta, message_stop
  std::string Fail(const ApiError& error, std::string_view request_id) const;   // error
  std::string Silence() const;                          // ping

  // After Done: the message.
  std::string Body() const;

 private:
  enum class Kind : uint8_t { kThinking, kText, kToolUse };
  struct Block {
    Kind kind;
    std::string text;                                   // of a tool_use, the JSON text of its input
    std::string id, name;
    bool open = true, whole = true;
  };

  Block& Open(Kind kind, std::string* out);
  void Close(std::string* out);
  void Event(std::string_view type, std::string_view members, std::string* out) const;
  std::string UsageJson(const Usage& usage) const;
  std::string EndMembers() const;                       // "stop_reason":..., "stop_sequence":...

  const ResponseHead head_;
  const bool stream_;
  std::vector<Block> blocks_;
  ChoiceEnd end_;
  Usage usage_;
};

// {"type":"error","error":{"type","message"},"request_id"}: the body of an HTTP error and the data of an error event.
std::string AnthropicErrorBody(const ApiError& error, std::string_view request_id);
// Status, headers and body. A full queue is 529, as Anthropic says it.
http::Response AnthropicErrorResponse(const ApiError& error, std::string_view request_id);

}  // namespace holdfast::api
