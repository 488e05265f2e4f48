#pragma once
// An answer as OpenAI's Responses API tells it: what the generation says becomes items, and items become events or one body. A state machine
// over text, without I/O; the body of an answer and the last event of its stream are the same object, whatever the pieces were.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/api/json_out.h"
#include "frontend/api/response.h"
#include "frontend/api/valid_request.h"
#include "frontend/generation.h"

namespace holdfast::api {

class ResponsesWriter final {
 public:
  // `mirror` is ValidRequest::mirror. Without `stream` the calls give no events, only Body() at the end.
  ResponsesWriter(ResponseHead head, const text::JsonValue& mirror, bool stream);

  // Each gives the SSE frames of what happened, in order: Begin once, then Delta any number of times, End, Done; Fail ends it instead.
  std::string Begin();                                  // response.created, response.in_progress
  std::string Delta(const ChoiceDelta& delta);
  std::string End(const ChoiceEnd& end);                // closes what is open
  std::string Done(const Usage& usage, int64_t unix_seconds);      // response.completed or response.incomplete
  std::string Fail(const ApiError& error);              // response.failed
  // Nothing was said for a while: a comment, and now and then response.in_progress once more, since there are clients whose patience only
  // events renew.
  std::string Silence();

  // After Done: the response object.
  std::string Body() const { return Response("completed"); }

 private:
  enum class Kind : uint8_t { kReasoning, kMessage, kCall };
  struct Item {
    Kind kind;
    std::string id, text;                               // text: of a call, its arguments
    std::string call_id, name;
    std::string logprobs;                               // JSON elements, joined by commas
    bool open = true;
    bool whole = false;                                 // a call with all its arguments
    bool cut = false;                                   // max_tokens or an error ended it
  };

  Item& Open(Kind kind, std::string* out);
  void Close(bool cut, std::string* out);               // the open item; a call that is still open was cut off
  void Event(std::string_view type, const std::string& members, std::string* out);
  std::string ItemJson(const Item& item, bool begun) const;
  std::string PartJson(const Item& item, bool begun) const;
  // Without `usage_` and the end: as it is now.
  std::string Response(std::string_view status) const;

  const ResponseHead head_;
  const bool stream_;
  std::string mirror_;                                  // members, ready to be put into the object
  std::string token_;                                   // what tells this answer's ids from others'
  uint64_t sequence_ = 0;
  uint32_t silences_ = 0;
  std::vector<Item> items_;
  bool over_ = false, incomplete_ = false;
  std::string error_;                                   // JSON object, or empty
  std::string usage_;                                   // JSON object, or empty
  int64_t completed_at_ = 0;
};

// An event with its name, as browsers and SDKs read it: "event: NAME", "data: JSON", blank line.
std::string NamedSseEvent(std::string_view name, std::string_view json);

}  // namespace holdfast::api
